"""Opening a plan: the streams that loaders read from, and the workers behind them, in one scope."""

from penstock._graph._apply import Place
from penstock._graph._nodes import Element, Origin
from penstock._graph._ordered._build import worker_tail
from penstock._graph._ordered._leaf import read_inline
from penstock._graph._seed_position import indices
from penstock._plan._plan import Batches, Ordered, Plan
from penstock._runtime._batches import Course, origin, rows_of
from penstock._runtime._client import Client
from penstock._runtime._crew import Crew
from penstock._runtime._inline import InlineBatches
from penstock._runtime._ordered import OrderedStream, can_read_ahead
from penstock._runtime._recorder import Recorder
from penstock._runtime._stock import Lender
from penstock._runtime._streams import EndOfEpoch, InlineStream, Stream
from penstock._runtime._threads import ThreadBatchStream
from penstock.errors import ClosedError, StateError
from penstock.transport._interrupts import HeldInterrupts


class Runtime:
    """Owns whatever computes for a loader. Closing it stops all of that; batches handed out stay valid.

    Args:
        plan: what is computed, and by whom.
        recorder: told of events; None makes one.
        owner: whose workers compute for this one too, which has none of its own then. It is closed after this one.
        lender: whose memory its workers compute in; None for their own.
        deadly: what is known to kill processes, as in `Context`; None for nothing yet.
    """

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder | None = None,
        *,
        owner: "Runtime | None" = None,
        lender: Lender | None = None,
        deadly: dict[tuple[int, ...], Exception] | None = None,
    ) -> None:
        self.recorder = Recorder() if recorder is None else recorder
        self._plan = plan
        self._client = Client(plan, self.recorder, lender)
        self.deadly = self._client.deadly = {} if deadly is None else deadly
        self._tail_client: Client | None = None  # there once it has joined the crew
        self._owner = owner
        self._crew: Crew | None = None  # started, or joined, when the first stream is opened
        self._is_closed = False

    def open_stream(self, courses: list[Course], *, ahead: int = 0) -> Stream:
        """Return the batches of some courses.

        Args:
            courses: which, in order; more than one only where batches are handed out as they become ready.
            ahead: how many batches are taken, and held, before they are handed out: there is memory for so many more.
        """
        plan = self._plan
        self._client.ahead = ahead
        self.recorder.start_epoch()
        if plan.place == "inline" or (isinstance(plan.program, Ordered) and not can_read_ahead(plan)):
            return self._inline(courses[0])
        crew = self.started() if self._owner is None else self._joined(self._owner)
        crew.check()
        crew.give_up(self._client)
        if isinstance(plan.program, Batches):
            return ThreadBatchStream(crew, self._client, courses)
        return self._folded(crew, courses[0], ahead=ahead, alone=False)

    def _folded(self, crew: Crew, course: Course, *, ahead: int, alone: bool) -> Stream:
        from penstock._runtime._tail_stream import folded_stream  # noqa: PLC0415 - asyncio is slow to import

        tail_client = None if worker_tail(self._plan.node) is None else self._joined_tail(crew, ahead)
        return folded_stream(crew, self._client, tail_client, course, alone=alone)

    def _joined_tail(self, crew: Crew, ahead: int) -> Client:
        """Return the client of a crew for the steps above the folds."""
        if self._tail_client is None:
            client = Client(self._plan, self.recorder)
            client.told_of_kept_batches = self._client.told_of_kept_batches
            with HeldInterrupts():
                crew.join(client)
                self._tail_client = client
            self._refuse_closed()
        self._tail_client.ahead = ahead
        crew.give_up(self._tail_client)
        return self._tail_client

    def started(self) -> Crew:
        """Return the crew, which works as long as this is open."""
        if self._is_closed:
            raise ClosedError("the loader that owns the workers was closed")
        if self._crew is None:
            with HeldInterrupts():  # else nobody knows of the workers, and nobody ends them
                self._crew = process_crew(self._client) if self._plan.place == "processes" else Crew(self._client)
            self._refuse_closed()
        return self._crew

    def _refuse_closed(self) -> None:
        """Close again what another thread has closed while something was started here."""
        if self._is_closed:
            self.close()
            raise ClosedError("the loader was closed")

    def _joined(self, owner: "Runtime") -> Crew:
        """Return the owner's crew, which computes for this one too."""
        crew = owner.started()
        if self._crew is None:
            with HeldInterrupts():
                crew.join(self._client)
                self._crew = crew
            self._refuse_closed()
        return crew

    def open_alone(self, course: Course) -> Stream:
        """Return the batches of a course, so that what this process itself computes is of the one asked for alone."""
        plan = self._plan
        crew = self.started()
        crew.check()
        crew.give_up(self._client)
        if isinstance(plan.program, Batches):
            return ThreadBatchStream(crew, self._client, [course])
        if not can_read_ahead(plan):
            return self._inline(course)
        return self._folded(crew, course, ahead=0, alone=True)

    def batch_at(self, course: Course) -> Element:
        """Return the batch of a course's first step, computed here and now."""
        plan = self._plan
        if isinstance(plan.program, Batches):
            if not rows_of(plan.program, plan.shard, course.first).total:
                raise StateError(
                    f"step {course.first.step} was cut for fewer ranks: rank {plan.shard.rank} of {plan.shard.count} "
                    "has none of its rows. Ask another rank, or a loader without shard=."
                )
            self.prepare()
            return InlineBatches(plan.program, plan.shard, self._client.context()).batch(course.first)
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
        epoch, position, ordinal = place.seed
        (index,) = indices(place.node or plan.node, [epoch], [position])
        return Origin(epoch, position, place.key, ordinal=ordinal, component=place.path, index=index)

    def prepare(self) -> None:
        """Prepare the calling thread as the workers are, whosever they are, before it computes what is theirs."""
        if self._owner is None:
            self._client.prepare()
        else:
            self._owner.prepare()

    def _first_in_order(self, course: Course) -> tuple[Element, list[Place]]:
        self.prepare()
        stream = OrderedStream(self._plan, course, self._client.context(), read_inline)
        try:
            return stream.next()[0], stream.places()
        except EndOfEpoch:
            step, epoch = course.first.step, course.first.epoch
            raise StateError(f"epoch {epoch} has ended before step {step}; ask again when it was handed out") from None

    def arm_more(self) -> None:
        """Have workers begin what memory that has come back has room for; any thread may call it."""
        if self._crew is not None:
            self._crew.arm_more(self._client)

    def bytes_in_flight(self) -> int:
        """Return the bytes of batches that are being made, ready, or in the consumer's hands."""
        crew = self._crew
        return 0 if crew is None else sum(map(crew.count_bytes, self._clients))

    @property
    def _clients(self) -> list[Client]:
        return [self._client] if self._tail_client is None else [self._client, self._tail_client]

    def close(self) -> None:
        """Stop the workers, or have another's compute for this one no longer."""
        self._is_closed = True
        if self._crew is None:
            return
        if self._owner is None:
            self._crew.close()
        else:
            for client in self._clients:
                self._crew.leave(client)

    def _inline(self, course: Course) -> InlineStream | OrderedStream:
        plan = self._plan
        if isinstance(plan.program, Batches):
            return InlineStream(plan, course, self._client.learned, self._client.context())
        return OrderedStream(plan, course, self._client.consumer_context(), read_inline)


def process_crew(owner: Client) -> Crew:
    """Return a crew of processes."""
    from penstock._runtime._process_crew import ProcessCrew  # noqa: PLC0415 - multiprocessing is slow to import

    return ProcessCrew(owner)


def _check_row(row: int, count: int) -> None:
    if row >= count:
        raise IndexError(f"row must be in [0, {count}), the rows of data in this rank's part of the batch; got {row}")
