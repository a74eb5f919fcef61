"""Batches of a dataset that is read in order: its stages run in one thread, over block inputs that anyone computes.

`StreamingBatches` runs the stages. `ThreadReader` has workers compute the block inputs ahead, and computes in the
consumer's thread what fails there.

Guarantees:
  - Batches come in order, each exactly once, each with the token from which reading continues after it.
  - Batches before a failing element are delivered before its error is raised.
"""

import time
from collections.abc import Iterator
from functools import partial
from types import GeneratorType

from penstock._decisions import LEFT_TO_CONSUMER, decide
from penstock._graph import Block, Context, Element, Location
from penstock._plan import Plan
from penstock._runtime._batches import StepRange
from penstock._runtime._failing_work import crashing_position_error
from penstock._runtime._queue import JobQueue, SpanCutter, open_queue
from penstock._runtime._recovery import leave_to_steps, may_repeat
from penstock._runtime._scheduler import Client, Scheduler
from penstock._runtime._span_work import SpanJob
from penstock._runtime._streams import EndOfEpoch, Stream
from penstock._streaming import (
    BlockInput,
    Chunk,
    Collate,
    Opening,
    Provenance,
    Reader,
    Stage,
    StreamedLocations,
    Token,
    first_read,
    one_by_one,
    open_stages,
    read_inline,
)
from penstock._tree import flatten, is_array
from penstock.errors import InternalError, WorkerError


class StreamingBatches(Stream):
    """Elements of a dataset that is read in order."""

    def __init__(
        self,
        plan: Plan,
        step_range: StepRange,
        context: Context,
        reader: "ThreadReader | None" = None,
        collate: Collate | None = None,
        *,
        singly: bool = False,
    ) -> None:
        """Make the stages; reading begins with the first element.

        Args:
            plan: the plan of a dataset that is read in order.
            step_range: the elements.
            context: the context of the thread that reads.
            reader: has workers compute the block inputs; None if this thread computes them.
            collate: steps that are left out.
            singly: whether the steps above get one element of a reader at a time, and none before it is needed.
        """
        self._plan = plan
        self._reader = reader
        read = read_inline if reader is None else partial(_read_singly, reader) if singly else reader
        self._stage = stage_of(plan, step_range, context, read, collate)
        self._token: Token = None if step_range.where is None else step_range.where.token
        self._chunks: Iterator[Chunk] | None = None
        self._chunk: Chunk | None = None
        self._index = 0
        self._closed = False
        self._own: Provenance | None = None  # of the last batch itself; no row may have its ordinal
        self._rows: Provenance | None = None
        self._collate = collate
        self._times = context.times
        self._in_order = plan.program.in_order

    def next(self) -> tuple[Element, Token]:
        if self._closed:
            raise EndOfEpoch
        chunk = self._filled()
        if chunk is None:
            self.close()
            raise EndOfEpoch
        index = self._index
        element, own = chunk.elements[index], chunk.provenance[index : index + 1]
        rows = own if chunk.rows is None else chunk.rows[index]
        if self._collate is not None:
            self._collate.check(element, rows)
        self._index, self._token, self._own, self._rows = index + 1, chunk.afters[index], own, rows
        return element, self._token

    def _filled(self) -> Chunk | None:
        """Return the chunk with the next element, at `_index`; None at the end."""
        if self._chunks is None:
            self._chunks = self._stage.run(self._stage.start() if self._token is None else self._token)
            self._chunk = None
        while self._chunk is None or self._index >= len(self._chunk.elements):
            mark = self._times.begin_around()
            try:
                self._chunk, self._index = next(self._chunks, None), 0
            except BaseException:
                self._stop()  # the generator that raised has ended; the next call starts another one at the token
                raise
            if self._chunk is None:
                return None
            self._times.end_around(self._in_order, mark, len(self._chunk.elements))
        return self._chunk

    def places(self) -> list[Location]:
        """Return the locations of the rows of the last batch."""
        locations = StreamedLocations(self._plan.streaming.input_refs, self.rows)
        return [locations.at(row) for row in range(len(self.rows))]

    @property
    def rows(self) -> Provenance:
        """The provenance of the rows of the last batch."""
        if self._rows is None:
            raise InternalError("no batch was returned yet")
        return self._rows

    @property
    def provenance(self) -> Provenance:
        """The provenance that the collate steps need of the last batch: that of its rows, or of itself."""
        if self._own is None:
            raise InternalError("no batch was returned yet")
        return self.rows if self._collate is not None and self._collate.rows else self._own

    @property
    def has_begun(self) -> bool:
        """Whether reading has begun, or never will."""
        return self._closed or self._chunks is not None

    def first_read(self) -> tuple[BlockInput, int] | None:
        """Return the block input and the position at which reading begins; None for streams, and for several inputs."""
        program = self._plan.streaming
        if len(program.inputs) != 1 or program.reads_streams:
            return None
        return first_read(self._stage, self._stage.start() if self._token is None else self._token)

    @property
    def has_more_at_hand(self) -> bool:
        """Whether the next element was computed already."""
        return self._chunk is not None and self._index < len(self._chunk.elements)

    def fileno(self) -> int | None:
        return None if self._reader is None else self._reader.fileno()

    def is_ready(self) -> bool:
        reader = self._reader
        if reader is None or self.has_more_at_hand:
            return True
        if not self.has_begun and not reader.is_ahead and (first := self.first_read()) is not None:
            reader.begin(*first)  # so that there is a job to wait for
        return reader.is_ready()

    def give_up(self) -> None:
        """End every wait for elements; from any thread, while another one reads."""
        if self._reader is not None:
            self._reader.give_up()

    def _stop(self) -> None:
        self._chunk, chunks, self._chunks = None, self._chunks, None
        if isinstance(chunks, GeneratorType) and not chunks.gi_running:  # another thread that runs it ends it itself
            chunks.close()

    def close(self) -> None:
        self._closed = True
        self._stop()
        if self._reader is not None:
            self._reader.close()


def _read_singly(read: Reader, block_input: BlockInput, start: int) -> Iterator[Chunk]:
    for chunk in read(block_input, start):
        for index in range(len(chunk.elements)):
            yield chunk.part(index, index + 1)


def stage_of(
    plan: Plan, step_range: StepRange, context: Context, read: Reader, collate: Collate | None = None
) -> Stage:
    """Return the top stage of a streaming plan, in the epoch and over the rank segments of a range of steps."""
    if step_range.where is None:
        raise InternalError("steps of a dataset that is read in order begin at a token")
    opening = Opening(step_range.first.epoch, plan.shard.count, read, context, plan.must_fill, collate)
    return open_stages(plan.streaming.node, step_range.where.rank_segments, opening)


class ThreadReader:
    """Reads the block inputs of a dataset: workers compute blocks of positions ahead, for each input that is read."""

    def __init__(self, scheduler: Scheduler, client: Client) -> None:
        scheduler.check()
        self._scheduler = scheduler
        self._client = client
        self._descriptor = scheduler.fileno(client)
        self._queues: dict[int, JobQueue[SpanJob]] = {}
        self._begun: tuple[BlockInput, int] | None = None
        self._closed = False

    def begin(self, block_input: BlockInput, start: int) -> None:
        """Start to compute ahead of the call that reads the input."""
        self._open(block_input, start)
        self._begun = (block_input, start)

    @property
    def is_ahead(self) -> bool:
        """Whether an input is computed ahead of the call that reads it."""
        return self._begun is not None

    def _open(self, block_input: BlockInput, start: int) -> JobQueue[SpanJob]:
        self._close(block_input.number)
        cutter = SpanCutter(self._scheduler, self._client, block_input, start)
        queue = open_queue(JobQueue[SpanJob], self._scheduler, self._client, cutter)
        self._queues[block_input.number] = queue
        if self._closed:  # another thread closed the reader, and may not have seen this queue
            queue.close()
        return queue

    def __call__(self, block_input: BlockInput, start: int) -> Iterator[Chunk]:
        """Yield the chunks of an input from position `start` in its range on."""
        begun, self._begun = self._begun, None
        is_open = begun is not None and (begun[0].input_range, begun[0].epoch, begun[1]) == (
            block_input.input_range,
            block_input.epoch,
            start,
        )
        queue = self._queues[block_input.number] if is_open else self._open(block_input, start)
        # Not closed in a `finally`: that runs where an interrupted generator is dropped, and another interrupt would be
        # printed and lost there. A caller that stops early closes the reader, or reads the input again.
        attempts = 0
        while (job := self._next_job(queue)) is not None:
            if job.failure.crash is not None:
                crashing_rows = job.work.span.start + (job.failure.row or 0)
                yield from one_by_one(block_input, job.work.span.start, crashing_rows)
                self._replace_crashing(block_input, crashing_rows, job.failure.crash)
                queue = self._open(block_input, crashing_rows)
                continue
            if job.failed and may_repeat(job.failure, attempts):
                attempts += 1
                queue = self._open(block_input, job.work.span.start)
                continue
            attempts = 0
            if job.failed or decide(LEFT_TO_CONSUMER, 0):
                self._scheduler.prepare_consumer()
                yield from one_by_one(block_input, job.work.span.start, job.work.span.stop)
                self._client.log_complaint(job.failure.complaint)
            else:
                parts: list[tuple[range, Block]] = [part for parts in job.parts for part in parts]
                self._client.learned.sized(_array_bytes(parts))
                for span, block in parts:
                    yield block_input.chunk(span.start, span.stop, block)
        if self._queues.get(block_input.number) is queue:
            self._close(block_input.number)

    def _next_job(self, queue: JobQueue[SpanJob]) -> SpanJob | None:
        began = time.perf_counter()
        try:
            return queue.next_job()
        finally:
            self._client.readings.times("fold").leave_out(time.perf_counter() - began)

    def _replace_crashing(self, block_input: BlockInput, number: int, crash: WorkerError) -> None:
        """Replace or leave out the element that crashes workers, if a step allows it; raise otherwise."""
        position = int(block_input.input_range.positions(number, number + 1)[0])
        at = block_input.epoch, position, block_input.number
        leave_to_steps(self._client, block_input.node, at, crashing_position_error(block_input, number, crash))

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a chunk may be ready."""
        return self._descriptor

    def is_ready(self) -> bool:
        """Return whether the next chunk of every input is ready."""
        return all(queue.is_ready() for queue in self._queues.values())

    def _close(self, number: int) -> None:
        if number in self._queues:
            self._queues[number].close()
            del self._queues[number]  # after `close`, so that an interrupted call can be repeated

    def close(self) -> None:
        """Cancel the jobs computed ahead."""
        for number in list(self._queues):
            self._close(number)
        self._begun = None

    def give_up(self) -> None:
        """Cancel the jobs computed ahead, and all later ones; from any thread."""
        self._closed = True
        for queue in list(self._queues.values()):
            queue.close()


def _array_bytes(parts: list[tuple[range, Block]]) -> int:
    """Return the bytes of the arrays of the first element; 0 where there is none."""
    elements = next((block.elements for _, block in parts if block.elements), None)
    return 0 if elements is None else sum(leaf.nbytes for leaf in flatten(elements[0])[0] if is_array(leaf))
