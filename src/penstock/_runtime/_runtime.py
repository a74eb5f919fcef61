"""Opening a plan: the streams that loaders read from, and the workers behind them, in one scope."""

from collections.abc import Iterator
from dataclasses import replace

from penstock._graph._apply import Context, Place
from penstock._graph._nodes import Element, Origin
from penstock._graph._ordered._chunk import Chunk
from penstock._graph._ordered._leaf import Leaf, one_by_one, read_inline
from penstock._plan._plan import Batches, Ordered, Plan
from penstock._runtime._batches import Course, origin, rows_of
from penstock._runtime._crew import Crew
from penstock._runtime._inline import InlineBatches
from penstock._runtime._jobs import Learned
from penstock._runtime._ordered import OrderedStream, can_read_ahead
from penstock._runtime._recorder import Recorder
from penstock._runtime._streams import EndOfEpoch, InlineStream, Stream
from penstock._runtime._threads import ThreadBatchStream
from penstock.errors import StateError
from penstock.events import Observer
from penstock.transport._interrupts import HeldInterrupts


class Runtime:
    """Owns whatever computes for a loader. Closing it stops all of that; batches handed out stay valid."""

    def __init__(self, plan: Plan, recorder: Recorder | None = None) -> None:
        self.recorder = Recorder() if recorder is None else recorder
        self._plan = plan
        self._learned = Learned()
        self._crew: Crew | None = None  # started when the first stream is opened

    def open_stream(self, course: Course) -> Stream:
        """Return the batches of a course."""
        plan = self._plan
        self.recorder.start_epoch()
        if plan.place == "inline" or (isinstance(plan.program, Ordered) and not can_read_ahead(plan)):
            return self._inline(course)
        if self._crew is None:
            merges = plan.limits.num_batch_workers or plan.prefetch
            with HeldInterrupts():  # else nobody knows of the threads, and nobody ends them
                self._crew = (
                    process_crew(plan, self.recorder.observe)
                    if plan.place == "processes"
                    else Crew(plan.num_workers, self._context, merges=merges, worker_init=plan.limits.worker_init)
                )
        self._crew.check()
        self._crew.give_up()
        if isinstance(plan.program, Batches):
            return ThreadBatchStream(plan, self._crew, course, self._consumer_context())
        from penstock._runtime._folded import FoldedStream  # noqa: PLC0415 - asyncio is slow to import

        return FoldedStream(plan, self._crew, course, self._consumer_context())

    def open_alone(self, course: Course) -> Stream:
        """Return the batches of a course, here and now, and nothing of one that was not asked for."""
        plan = self._plan
        if isinstance(plan.program, Batches):
            return InlineStream(plan, course, self._learned, self._context(), singly=True)
        return OrderedStream(plan, course, self._consumer_context(), _read_singly)

    def batch_at(self, course: Course) -> Element:
        """Return the batch of a course's first step, computed here and now."""
        plan = self._plan
        if isinstance(plan.program, Batches):
            if not rows_of(plan.program, plan.shard, course.first).total:
                raise StateError(
                    f"step {course.first.step} was cut for fewer ranks: rank {plan.shard.rank} of {plan.shard.count} "
                    "has none of its rows. Ask another rank, or a loader without shard=."
                )
            return InlineBatches(plan.program, plan.shard, self._context()).batch(course.first)
        return self._first_in_order(course)[0]

    def origin(self, course: Course, row: int) -> Origin:
        """Return where one row of the batch of a course's first step comes from."""
        plan = self._plan
        if isinstance(plan.program, Batches):
            rows = rows_of(plan.program, plan.shard, course.first)
            _check_row(row, rows.data)
            return origin(plan.program, rows, row)
        _, places = self._first_in_order(course)
        _check_row(row, len(places))
        place = places[row]
        seed = place.seed
        return Origin(seed.epoch, seed.position, place.key, ordinal=seed.ordinal, component=place.path)

    def _first_in_order(self, course: Course) -> tuple[Element, list[Place]]:
        stream = OrderedStream(self._plan, course, self._context(), read_inline)
        try:
            return stream.next()[0], stream.places()
        except EndOfEpoch:
            step, epoch = course.first.step, course.first.epoch
            raise StateError(f"epoch {epoch} has ended before step {step}; ask again when it was handed out") from None

    def bytes_in_flight(self) -> int:
        """Return the bytes of batches that are being made, ready, or in the consumer's hands."""
        return 0 if self._crew is None else self._crew.count_bytes()

    def close(self) -> None:
        """Stop the workers."""
        if self._crew is not None:
            self._crew.close()

    def _inline(self, course: Course) -> InlineStream | OrderedStream:
        plan = self._plan
        if isinstance(plan.program, Batches):
            return InlineStream(plan, course, self._learned, self._context())
        return OrderedStream(plan, course, self._consumer_context(), read_inline)

    def _consumer_context(self) -> Context:
        """Return the context of the thread that takes elements in: it counts what filters left out, workers don't."""
        return replace(self._context(), filtered=self.recorder.count_filtered)

    def _context(self) -> Context:
        deadly = {} if self._crew is None else self._crew.deadly
        return Context(observe=self.recorder.observe, substituted=self.recorder.substituted, deadly=deadly)


def process_crew(plan: Plan, observe: Observer) -> Crew:
    """Return a crew of processes."""
    from penstock._runtime._process_crew import ProcessCrew  # noqa: PLC0415 - multiprocessing is slow to import

    return ProcessCrew(plan, observe)


def _read_singly(leaf: Leaf, start: int) -> Iterator[Chunk]:
    return one_by_one(leaf, start, leaf.course.total)


def _check_row(row: int, count: int) -> None:
    if row >= count:
        raise IndexError(f"row must be in [0, {count}), the rows of data in this rank's part of the batch; got {row}")
