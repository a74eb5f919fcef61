"""Batches of a dataset that is read in order: its stages run in one thread, over block inputs.

`StageRun` runs the stages, and computes the block inputs if it has no reader. `ThreadReader` has workers compute them
ahead; blocks that fail in a worker are computed in the thread of the stages.

Guarantees:
  - Batches come in order, each exactly once, each with the token from which reading continues after it.
  - Batches before a failing element are delivered before its error is raised.
"""

import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import GeneratorType
from typing import Protocol

from penstock._decisions import LEFT_TO_CONSUMER, decide
from penstock._graph import Block, Context, Element, Map, PerWorker, awaits, walk
from penstock._plan import Plan
from penstock._runtime._batches import StepRange
from penstock._runtime._failing_work import crashing_position_error
from penstock._runtime._queue import JobQueue, SpanCutter, open_queue
from penstock._runtime._recovery import leave_to_steps, may_repeat
from penstock._runtime._scheduler import Client, Scheduler
from penstock._runtime._span_work import SpanJob
from penstock._streaming import (
    BlockInput,
    Chunk,
    Collate,
    Opening,
    Provenance,
    Reader,
    Stage,
    Token,
    late_token,
    made_token,
    never,
    one_by_one,
    open_stages,
    read_inline,
)
from penstock.batching import array_bytes
from penstock.errors import InternalError, WorkerError


class ClosingReader(Protocol):
    """Has the block inputs of a dataset computed ahead, until it is closed."""

    def __call__(self, block_input: BlockInput, start: int, /) -> Iterator[Chunk]:
        """Yield the chunks of an input from position `start` in its range on."""
        ...

    def close(self) -> None:
        """Cancel the blocks that are computed ahead."""
        ...

    def give_up(self) -> None:
        """Cancel them, and all blocks that are requested later; any thread may call this."""
        ...


class StageRun:
    """Runs the stages in one thread, which reads the chunks of elements that they yield."""

    def __init__(
        self,
        plan: Plan,
        step_range: StepRange,
        context: Context,
        reader: "ClosingReader | None" = None,
        collate: Collate | None = None,
        *,
        singly: bool = False,
    ) -> None:
        """Make the stages; reading begins with the first element.

        Args:
            plan: the plan of a dataset that is read in order.
            step_range: the steps whose batches the stages yield.
            context: the context of the thread that reads.
            reader: has workers compute the block inputs; None if this thread computes them.
            collate: the steps above the last fold, which are left out here; None if none are.
            singly: whether the steps above get one element of a reader at a time, and none before it is needed.
        """
        self._reader = reader
        read = read_inline if reader is None else partial(_read_singly, reader) if singly else reader
        self._stage = stage_of(plan, step_range, context, read, collate)
        self._token: Token = None if step_range.where is None else step_range.where.token  # after the last chunk
        self._chunks: Iterator[Chunk] | None = None
        self._closed = False

    def next_chunk(self) -> Chunk | None:
        """Return the next chunk, of at least one element; None at the end. After an error the next call continues."""
        while not self._closed:
            # While this thread runs the generator, no attribute has it, so a thread that closes the run leaves it here.
            chunks, self._chunks = self._chunks, None
            if chunks is None:
                chunks = self._stage.run(self._stage.start() if self._token is None else made_token(self._token))
            try:
                chunk = next(chunks, None)
            except BaseException:
                _end(chunks)  # the generator that raised has ended; the next call starts another one at the token
                raise
            if chunk is None:
                self.close()
                break
            if chunk.elements:
                self._token = late_token(chunk.afters, len(chunk.elements) - 1)
            self._put_back(chunks)
            if chunk.elements:
                return chunk
        return None

    def _put_back(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        if self._closed:  # by another thread, which found no generator
            self._stop()

    def more(self, index: int) -> list[tuple[Element, Token]]:
        """Return the elements of the next chunk, with their tokens, in reverse order; none at the end."""
        del index  # the place in the stages shows the next one
        chunk = self.next_chunk()
        if chunk is None:
            return []
        afters = chunk.afters
        return [(element, late_token(afters, number)) for number, element in enumerate(chunk.elements)][::-1]

    def give_up(self) -> None:
        """End every wait for elements; from any thread, while another one reads."""
        if self._reader is not None:
            self._reader.give_up()

    def _stop(self) -> None:
        chunks, self._chunks = self._chunks, None
        _end(chunks)

    def close(self) -> None:
        """End reading; may be called again, and by any thread where the run has no reader."""
        self._closed = True
        self._stop()
        if self._reader is not None:
            self._reader.close()


def _end(chunks: Iterator[Chunk] | None) -> None:
    if isinstance(chunks, GeneratorType):
        chunks.close()


def rows_of_element(chunk: Chunk, index: int) -> Provenance:
    """Return the provenance of the rows of a chunk's element, or of the element itself if it has no rows."""
    return chunk.provenance[index : index + 1] if chunk.rows is None else chunk.rows[index]


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
    """Reads the block inputs of a dataset: workers compute blocks of positions ahead, for each input that is read.

    Args:
        scheduler: the scheduler of the workers.
        client: the client that the jobs belong to.
        may_compute: whether the thread that reads may compute elements, if that is faster (`_fold_choice`).
    """

    def __init__(self, scheduler: Scheduler, client: Client, *, may_compute: bool = False) -> None:
        scheduler.check()
        self._choice = client.choices.read if may_compute and _may_choose(client) else None
        self._scheduler = scheduler
        self._client = client
        self._queues: dict[int, JobQueue[SpanJob]] = {}
        self._closed = False

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
        choice = self._choice
        if choice is None:
            yield from self._by_workers(block_input, start, never)
            return

        def ends(number: int) -> bool:
            return self._closed or choice.changes(number)

        choice.begin(start)
        while start < block_input.input_range.total and not self._closed:
            if choice.by_fold:
                start = yield from read_inline(block_input, start, ends, self._pass_on)
            else:
                start = yield from self._by_workers(block_input, start, ends)

    def _by_workers(
        self, block_input: BlockInput, start: int, ends: Callable[[int], bool]
    ) -> Generator[Chunk, None, int]:
        """Yield the chunks that workers compute, as `read_inline` does."""
        queue = self._open(block_input, start)
        # The queue isn't closed in a `finally`: that runs where an interrupted generator is dropped, and another
        # interrupt would be printed and lost there. A caller that stops early closes the reader, or reads the input
        # again.
        attempts = 0
        while (job := self._next_job(queue)) is not None:
            if job.failure.crash is not None:
                crashing_number = job.work.span.start + (job.failure.row or 0)
                yield from one_by_one(block_input, job.work.span.start, crashing_number, self._pass_on)
                self._replace_crashing(block_input, crashing_number, job.failure.crash)
                queue = self._open(block_input, crashing_number)
                continue
            if job.failed and may_repeat(job.failure, attempts):
                attempts += 1
                queue = self._open(block_input, job.work.span.start)
                continue
            attempts = 0
            if job.failed or decide(LEFT_TO_CONSUMER, 0):
                self._scheduler.prepare_consumer()
                yield from one_by_one(block_input, job.work.span.start, job.work.span.stop, self._pass_on)
                self._client.log_complaint(job.failure.complaint)
            else:
                parts: list[tuple[range, Block]] = [part for parts in job.parts for part in parts]
                self._client.learned.sized(_array_bytes(parts))
                for span, block in parts:
                    yield block_input.chunk(span.start, span.stop, block)
            start = job.work.span.stop
            if ends(start):
                break
        else:
            start = block_input.input_range.total
        if self._queues.get(block_input.number) is queue:
            self._close(block_input.number)
        return start

    def _pass_on(self) -> None:
        """Pass on complete batches before this thread computes elements, of which each may take long."""
        self._client.before_wait()

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

    def _close(self, number: int) -> None:
        if number in self._queues:
            self._queues[number].close()
            del self._queues[number]  # after `close`, so that an interrupted call can be repeated

    def close(self) -> None:
        """Cancel the jobs computed ahead."""
        for number in list(self._queues):
            self._close(number)

    def give_up(self) -> None:
        """Cancel the jobs computed ahead, and all later ones; from any thread."""
        self._closed = True
        for queue in list(self._queues.values()):
            queue.close()


def _may_choose(client: Client) -> bool:
    """Return whether the thread of the fold may compute elements in place of worker threads."""
    plan = client.plan
    if plan.place != "threads" or plan.limits.worker_init is not None or len(plan.streaming.inputs) != 1:
        return False  # the rate that is measured is that of all inputs together, and shows nothing of one
    node = plan.streaming.inputs[0]
    has_own = any(isinstance(step, Map) and isinstance(step.function, PerWorker) for step in walk(node))
    return not has_own and not awaits(node)  # records of async sources are requested ahead of workers


def _array_bytes(parts: list[tuple[range, Block]]) -> int:
    """Return the bytes of the arrays of an element of the first block; 0 where there is none."""
    elements = next((block.elements for _, block in parts if block.elements), None)
    return 0 if elements is None else array_bytes(elements) // len(elements)
