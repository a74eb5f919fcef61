"""Streams whose batches workers compute ahead of the consumer.

An error of a job is not kept: the consumer computes the job's content itself, batch by batch, by the inline path. So
the batches before the failing one are delivered first, and the user's exception is raised in the user's thread. The
same path serves rows that don't fit the layout.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from penstock._decisions import LEFT_TO_CONSUMER, REPEATED_JOBS, decide
from penstock._graph import Context, Element, Node, awaits, handles_errors
from penstock._runtime._batches import WHOLE_BATCH, StepRange, Unit, coordinates_of, may_be_replaced
from penstock._runtime._client import Client
from penstock._runtime._crashing_rows import crashing_position_error, crashing_row_error
from penstock._runtime._cutting import Cutter, SpanCutter
from penstock._runtime._inline import InlineBatches
from penstock._runtime._jobs import BatchJob
from penstock._runtime._queue import JobQueue, ReadyQueue
from penstock._runtime._remaining import without
from penstock._runtime._scheduler import Scheduler
from penstock._runtime._span_job import SpanJob
from penstock._runtime._streaming import StreamingBatches
from penstock._runtime._streams import EndOfEpoch
from penstock._streaming import BlockInput, Chunk, Collate, Token, one_by_one
from penstock._tree import flatten, is_array
from penstock.errors import WorkerError

if TYPE_CHECKING:
    from penstock._runtime._io_prefetch import IOPrefetch


SMALL_LEAF_BYTES: Final = 65_536
"""Of arrays that are copied out of a job's memory, so that keeping the labels doesn't keep the images."""

_MAX_REPEATED: Final = 8  # times, that what needs more memory is begun again before the consumer computes it

AnyJob = TypeVar("AnyJob", BatchJob, SpanJob)


class ThreadBatchStream:
    """Batches of an indexable dataset: in order, or those first that are ready first."""

    def __init__(self, scheduler: Scheduler, client: Client, step_ranges: list[StepRange]) -> None:
        plan = client.plan
        self._plan = plan
        self._program = plan.batches
        self._scheduler = scheduler
        self._client = client
        self._left = step_ranges  # what no job was taken of; in order
        self._copied_bytes = sys.maxsize if plan.copy else SMALL_LEAF_BYTES
        self._inline = InlineBatches(plan.batches, plan.shard, client.consumer_context())
        self._queue = self._open(self._left)
        self._descriptor = scheduler.fileno(client)
        self._job: BatchJob | None = None
        self._index = 0  # of the job's next batch
        self._repeated = 0  # times, that a job was begun again since the last batch
        self._ready: list[Element] = []  # the job's batches from that one on, the last first

    def _open(self, step_ranges: list[StepRange]) -> "JobQueue[BatchJob]":
        plan = self._plan
        cutter = Cutter(self._scheduler, self._client, self._program, step_ranges)
        next_job, ended = cutter.next_job, None
        if plan.place == "threads" and awaits(self._program.rows):
            ahead = _prefetch(self._program.rows, next_job, plan.limits.read_ahead)
            next_job, ended = ahead.next_job, ahead.close
        kind = JobQueue[BatchJob] if plan.ordered else ReadyQueue[BatchJob]
        return kind(self._scheduler, self._client, next_job, cutter.window, ended=ended)

    def next(self) -> tuple[Element, Token]:
        job = self._awaited()
        failure = job.failure
        if failure.death is not None and self._index >= failure.step:
            return self._gone_around(job, failure.row, failure.death)
        if not job.failed:
            return self._handed_out(job, self._next_of(job))
        if failure.is_passing and self._repeated < decide(REPEATED_JOBS, _MAX_REPEATED):
            self._repeated += 1
            self._begin_again(job)
            return self.next()
        self._scheduler.prepare_consumer()
        batch = self._inline.batch(job.step_range.unit(self._index), careful=failure.is_suspect)
        return self._handed_out(job, batch)

    def next_nowait(self) -> tuple[Element, Token] | None:
        if self._scheduler.is_closed:
            return None
        job = self._job or self._begun(self._queue.next_job_nowait())
        if job is None or job.failed or job.failure.death is not None:
            return None
        return self._handed_out(job, self._next_of(job))

    def _next_of(self, job: BatchJob) -> Element:
        if not self._ready:
            self._ready = job.batches(self._copied_bytes)[::-1]
        return self._ready.pop()

    def _awaited(self) -> BatchJob:
        """Return the job whose batches are delivered, and wait for it."""
        if self._scheduler.is_closed:
            self._scheduler.check()
        job = self._job or self._begun(self._queue.next_job())
        if job is None:
            raise EndOfEpoch
        return job

    def _begun(self, job: BatchJob | None) -> BatchJob | None:
        if job is not None:
            self._job, self._index = job, 0
            self._left = without(self._left, job.step_range)
            job.failed = job.failed or bool(decide(LEFT_TO_CONSUMER, 0))
        return job

    def _handed_out(self, job: BatchJob, batch: Element) -> tuple[Element, Token]:
        step = None if self._plan.ordered else job.step_range.first.step + self._index
        self._index += 1
        self._repeated = 0
        if self._index == job.step_range.steps:
            self._client.tell_of(job.failure.complaint)
            self._job = None
        return batch, step

    def next_stacked(self) -> tuple[Element, list[int], Sequence[Token]] | None:
        """Hand out a whole job where that can be: its rows as one batch, where each batch begins and ends, and tokens.

        None where it can't, and batches come by `next`, which says what is raised.
        """
        job = self._awaited()
        failure = job.failure
        stacked = None if self._index or job.failed or failure.death is not None else job.stacked()
        if stacked is None:
            return None
        self._client.tell_of(failure.complaint)
        self._job = None
        first, steps = job.step_range.first.step, job.step_range.steps
        return *stacked, (None,) * steps if self._plan.ordered else range(first, first + steps)

    def _gone_around(self, job: BatchJob, row: int | None, death: WorkerError) -> tuple[Element, Token]:
        """Return the job's next batch without the row or batch that crashes workers; raise if no step allows it."""
        program, unit, shard = self._program, job.step_range.unit(self._index), self._plan.shard
        error = crashing_row_error(program, shard, unit, row, death)
        at: tuple[int, ...] = (unit.epoch, unit.position, WHOLE_BATCH)
        may_be = may_be_replaced(program)
        if row is not None:
            at = epoch, position = coordinates_of(program, shard, unit, row)
            may_be = handles_errors(program.rows, epoch, position)
        if at in self._client.crashing_rows or not may_be:  # if it is there already, what took its place kills
            try:
                raise error
            finally:
                del error  # else its traceback holds it, and this stream
        self._client.crashing_rows[at] = error
        found = None
        if row is None:
            found = self._handed_out(job, self._inline.batch(unit))
        self._begin_again(job)
        return self.next() if found is None else found

    def _begin_again(self, job: BatchJob) -> None:
        """Restart after the last delivered batch."""
        self._queue.close()
        self._job = None
        self._ready = []
        self._left = [job.step_range.part(self._index, job.step_range.steps), *self._left]
        self._queue = self._open(self._left)

    def failing(self) -> Unit | None:
        return None if self._job is None or self._plan.ordered else self._job.step_range.unit(self._index)

    def fileno(self) -> int | None:
        return self._descriptor

    def is_ready(self) -> bool:
        return self._job is not None or self._queue.is_ready()

    def close(self) -> None:
        self._queue.close()
        self._job = None
        self._ready = []


class ThreadReader:
    """Reads the block inputs of a dataset: workers compute blocks of positions ahead, for each input in use."""

    def __init__(self, scheduler: Scheduler, client: Client) -> None:
        scheduler.check()
        plan = client.plan
        self._plan = plan
        self._scheduler = scheduler
        self._client = client
        self._queues: dict[int, JobQueue[SpanJob]] = {}
        inputs = plan.streaming.inputs
        self._inputs = len(inputs)
        # Of those that read async sources, each has its share.
        self._read_ahead = max(plan.limits.read_ahead // max(sum(map(awaits, inputs)), 1), 1)
        self._begun: tuple[BlockInput, int] | None = None
        self._closed = False

    def begin(self, block_input: BlockInput, start: int) -> None:
        """Start computing ahead of the call that asks for it."""
        self._open(block_input, start)
        self._begun = (block_input, start)

    @property
    def is_ahead(self) -> bool:
        """Whether it computes ahead of the call that asks for it."""
        return self._begun is not None

    def _open(self, block_input: BlockInput, start: int) -> JobQueue[SpanJob]:
        self._close(block_input.number)
        cutter = SpanCutter(self._scheduler, self._client, block_input, start, self._inputs)
        next_job, ended = cutter.next_job, None
        if self._plan.place == "threads" and awaits(block_input.node):
            ahead = _prefetch(block_input.node, next_job, self._read_ahead)
            next_job, ended = ahead.next_job, ahead.close
        queue = JobQueue(self._scheduler, self._client, next_job, cutter.window, queues=self._inputs, ended=ended)
        self._queues[block_input.number] = queue
        if self._closed:  # by another thread, which may not have seen this queue
            queue.close()
        return queue

    def __call__(self, block_input: BlockInput, start: int) -> Iterator[Chunk]:
        """Yield the input's chunks from a number in its range on."""
        begun, self._begun = self._begun, None
        is_open = begun is not None and (begun[0].input_range, begun[0].epoch, begun[1]) == (
            block_input.input_range,
            block_input.epoch,
            start,
        )
        queue = self._queues[block_input.number] if is_open else self._open(block_input, start)
        # Not closed in a `finally`: that runs where an interrupted generator is dropped, and another interrupt would be
        # printed and lost there. A caller that stops early closes the reader, or reads the input again.
        repeated = 0
        while (job := queue.next_job()) is not None:
            if job.failure.death is not None:
                crashing_rows = job.span.start + (job.failure.row or 0)
                yield from one_by_one(block_input, job.span.start, crashing_rows)
                self._go_around(block_input, crashing_rows, job.failure.death)
                queue = self._open(block_input, crashing_rows)
                continue
            if job.failed and job.failure.is_passing and repeated < decide(REPEATED_JOBS, _MAX_REPEATED):
                repeated += 1
                queue = self._open(block_input, job.span.start)
                continue
            repeated = 0
            if job.failed or decide(LEFT_TO_CONSUMER, 0):
                self._scheduler.prepare_consumer()
                yield from one_by_one(block_input, job.span.start, job.span.stop)
                self._client.tell_of(job.failure.complaint)
            else:
                self._client.learned.sized(_array_bytes(_any_element(job)))
                for span, block in job.parts:
                    yield block_input.chunk(span.start, span.stop, block)
        if self._queues.get(block_input.number) is queue:
            self._close(block_input.number)

    def _go_around(self, block_input: BlockInput, number: int, death: WorkerError) -> None:
        """Leave out or replace the element that crashes workers; raise if no step does that."""
        error = crashing_position_error(block_input, number, death)
        at = block_input.epoch, int(block_input.input_range.positions(number, number + 1)[0])
        # What is there already was replaced; now what took its place kills.
        if (*at, block_input.number) in self._client.crashing_rows or not handles_errors(block_input.node, *at):
            try:
                raise error
            finally:
                del error  # else its traceback holds it, and this reader
        self._client.crashing_rows[*at, block_input.number] = error

    def is_ready(self) -> bool:
        """Return whether the next chunk of every input would come without waiting."""
        return all(queue.is_ready() for queue in self._queues.values())

    def _close(self, number: int) -> None:
        if number in self._queues:
            self._queues[number].close()
            del self._queues[number]  # not before: an interrupted call is repeated

    def close(self) -> None:
        """Give up what is computed ahead."""
        for number in list(self._queues):
            self._close(number)
        self._begun = None

    def give_up(self) -> None:
        """Give up what is computed ahead, for good; from any thread."""
        self._closed = True
        for queue in list(self._queues.values()):
            queue.close()


class ThreadStreamingBatches(StreamingBatches):
    """Elements of a dataset that is read in order, whose block inputs workers compute."""

    def __init__(
        self,
        scheduler: Scheduler,
        client: Client,
        step_range: StepRange,
        context: Context,
        collate: Collate | None = None,
        *,
        singly: bool = False,
    ) -> None:
        """Begin nothing yet.

        Args:
            scheduler: it computes the block inputs.
            client: the inputs belong to it.
            step_range: which elements.
            context: of the thread that reads.
            collate: steps that are left out.
            singly: whether the steps above take in one element after the other, and none before it is needed.
        """
        self._reader = ThreadReader(scheduler, client)
        self._descriptor = scheduler.fileno(client)
        read = self._read_singly if singly else self._reader
        super().__init__(client.plan, step_range, context, read, collate)

    def _read_singly(self, block_input: BlockInput, start: int) -> Iterator[Chunk]:
        for chunk in self._reader(block_input, start):
            for index in range(len(chunk.elements)):
                yield chunk.part(index, index + 1)

    def fileno(self) -> int | None:
        return self._descriptor

    def is_ready(self) -> bool:
        if self.has_more_at_hand:
            return True
        if not self.has_begun and not self._reader.is_ahead and (first := self.first_read()) is not None:
            self._reader.begin(*first)  # so that there is something to wait for
        return self._reader.is_ready()

    def give_up(self) -> None:
        """End every wait for elements; from any thread, while another reads."""
        self._reader.give_up()

    def close(self) -> None:
        super().close()
        self._reader.close()


def _any_element(job: SpanJob) -> list[Element]:
    nothing: list[Element] = []
    return next((block.elements[:1] for _, block in job.parts if block.elements), nothing)


def _array_bytes(elements: list[Element]) -> int:
    return sum(leaf.nbytes for leaf in flatten(elements)[0] if is_array(leaf))


def _prefetch(node: Node, make_job: Callable[[], AnyJob | None], limit: int) -> "IOPrefetch[AnyJob]":
    """Begin to request the records of async sources below a node, for jobs that no worker has begun."""
    from penstock._runtime._io_prefetch import IOPrefetch  # noqa: PLC0415 - asyncio is slow to import

    return IOPrefetch(node, make_job, limit)
