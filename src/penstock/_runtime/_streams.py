"""The batches from some step to the end of its epoch, one after the other; what an iterator reads from.

`Stream` is all that a loader knows of who computes. The two here compute inline, in the caller's thread.
"""

import time
from collections.abc import Iterator
from typing import Final, Protocol

from penstock._graph._apply import Context, Place
from penstock._graph._folds import Cursor, Item
from penstock._graph._nodes import Element
from penstock._plan._plan import Batches, Folded, Plan, Shard
from penstock._runtime._batches import Course, reads_directly
from penstock._runtime._inline import DirectBatches, InlineBatches, can_be_direct
from penstock._runtime._jobs import BatchJob, Learned, row_layout
from penstock._runtime._ordered import evaluate_span, items_of, one_by_one, positions_of, read_in_order
from penstock.errors import InternalError

_CHUNK_SECONDS: Final = 0.001  # of what is computed at once; beginning it takes 20 microseconds
_CHUNK_BYTES: Final = 1_000_000
_MOST_UNITS: Final = 64
_MOST_DIRECT_ROWS: Final = 4096  # whose keys are computed at once: about 0.1 ms
_BLOCK: Final = 64  # positions of an ordered dataset that are computed at once, inline


class EndOfEpoch(Exception):  # noqa: N818 - an end, not an error
    """The epoch has no more batches. Not StopIteration, which a user's function may raise too."""


class Stream(Protocol):
    """Batches in order. Used by one thread; `close` may be called more than once."""

    def next(self) -> tuple[Element, Cursor | None]:
        """Return the next batch, and, for ordered datasets, where reading goes on after it.

        After an exception the stream stands before the failing batch. At the end it raises EndOfEpoch.
        """
        ...

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `next` may have become quick; None if it never waits for others."""
        ...

    def is_ready(self) -> bool:
        """Return whether `next` would return without waiting for others."""
        ...

    def close(self) -> None:
        """Stop what computes ahead; batches handed out stay valid."""
        ...


class InlineStream:
    """Batches of an indexable dataset, computed when they are asked for, by no worker.

    As long as they take no time, a few are computed at once, in one piece of memory of at most a megabyte: a batch of
    some microseconds would otherwise cost several times that in overhead. Of records that are read straight into a
    batch it is the keys alone that are computed for many. If one fails, it is computed singly, so that the batches
    before it are handed out first.
    """

    def __init__(self, plan: Plan, course: Course, learned: Learned, context: Context) -> None:
        if not isinstance(plan.program, Batches):
            raise InternalError("an ordered dataset has no batches of its own")
        self._plan = plan
        self._program: Batches = plan.program
        self._single = InlineBatches(plan.program, plan.shard, context)
        self._course = course
        self._learned = learned
        self._context = context
        self._reads_directly = not plan.program.above and reads_directly(plan.program) is not None
        self._index = 0
        self._chunk: BatchJob | DirectBatches | None = None  # steps [first, stop) of the course
        self._first = 0
        self._stop = 0
        self._units = 1

    def next(self) -> tuple[Element, Cursor | None]:
        index, batch, chunk = self._index, None, self._chunk
        if index >= self._course.steps:
            raise EndOfEpoch
        try:
            if chunk is None:
                chunk = self._begin_chunk(index)
            batch = chunk.take(index - self._first)
        except Exception:  # noqa: BLE001 - raised again by whoever computes it singly
            self._chunk = chunk = None
            self._units = 1
        if chunk is None:
            batch = self._single.batch(self._course.unit(index))
        self._index = index + 1
        if self._index == self._stop:
            self._chunk = None
        return batch, None

    def _begin_chunk(self, index: int) -> BatchJob | DirectBatches:
        """Make the next steps ready to be taken."""
        chunk = (self._direct(index) if self._reads_directly else None) or self._computed(index)
        self._chunk, self._first, self._stop = chunk, index, index + chunk.course.steps
        return chunk

    def _direct(self, index: int) -> DirectBatches | None:
        layout = row_layout(self._program, self._learned)
        if layout is None or not can_be_direct(layout):
            return None
        course = self._course.part(index, max(_MOST_DIRECT_ROWS // self._course.first.batch, 1))
        return DirectBatches(self._plan, course, layout)

    def _computed(self, index: int) -> BatchJob:
        started = time.perf_counter()
        job = BatchJob(self._plan, self._course.part(index, self._units), None, self._learned)
        job.use(None)
        job.run_block(0, self._context)
        if job.has_merge:
            job.run_merge(self._context)
        seconds = time.perf_counter() - started
        most = _CHUNK_BYTES // max(job.memory_bytes // job.course.steps, 1)
        grown = self._units * 2 if seconds * 2 < _CHUNK_SECONDS else self._units
        self._units = max(min(grown, most, _MOST_UNITS) if seconds < _CHUNK_SECONDS else self._units // 2, 1)
        return job

    def fileno(self) -> int | None:
        return None

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        self._index = self._course.steps
        self._chunk = None


class OrderedStream:
    """Elements of an ordered dataset, its blocks computed when the folds ask for them."""

    def __init__(self, program: Folded, shard: Shard, course: Course, context: Context) -> None:
        self._program = program
        self._shard = shard
        self._epoch = course.first.epoch
        self._context = context
        self._cursor = course.cursor or Cursor(0)
        self._items: Iterator[Item] | None = None
        self._closed = False
        self.rows: tuple[Place, ...] = ()
        """The places of the rows of the batch last returned."""

    def next(self) -> tuple[Element, Cursor | None]:
        if self._closed:
            raise EndOfEpoch
        if self._items is None:
            blocks = self._blocks(self._cursor.position)
            self._items = read_in_order(self._program, self._shard, self._cursor, blocks, self._context)
        try:
            item = next(self._items, None)
        except Exception:
            self._items = None  # a generator that raised is finished; the next call starts again from the cursor
            raise
        if item is None:
            self._closed = True
            raise EndOfEpoch
        self._cursor, self.rows = item.after, item.rows or (item.place,)
        return item.element, item.after

    def _blocks(self, start: int) -> Iterator[Item]:
        program, shard, epoch = self._program, self._shard, self._epoch
        end = positions_of(program, shard)
        size = 1
        while start < end:
            span = range(start, min(start + size, end))
            try:
                block = evaluate_span(program, shard, epoch, span, self._context)
            except Exception:  # noqa: BLE001 - raised again below, by the element that it belongs to
                yield from one_by_one(program, shard, epoch, span, self._context)
            else:
                yield from items_of(program, shard, epoch, span, block)
            start = span.stop
            size = min(size * 2, _BLOCK)  # the first element shouldn't wait for many others

    def fileno(self) -> int | None:
        return None

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        self._closed = True
        self._items = None
