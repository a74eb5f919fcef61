"""The batches from some step to the end of its epoch, one after the other; what an iterator reads from.

`Stream` is all that a loader knows of who computes. The two here compute inline, in the caller's thread.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from penstock._graph._apply import Context, Place
from penstock._graph._folds import Cursor, Item
from penstock._graph._nodes import Element
from penstock._plan._plan import Batches, Folded, Plan, Shard
from penstock._runtime._batches import Unit
from penstock._runtime._inline import InlineBatches
from penstock._runtime._jobs import BatchJob, Learned, make_batch_job
from penstock._runtime._ordered import evaluate_span, items_of, one_by_one, positions_of, read_in_order
from penstock.errors import InternalError

_CHUNK_SECONDS = 0.0005
_CHUNK_BYTES = 1_000_000
_MOST_UNITS = 64
_BLOCK = 64  # positions of an ordered dataset that are computed at once, inline


class Course(NamedTuple):
    """Which steps a stream goes through: from `first` on, `steps` of them; for ordered datasets, from `cursor` on."""

    first: Unit
    steps: int
    stride: int
    """How far the position moves with each step."""
    cursor: Cursor | None

    def unit(self, index: int) -> Unit:
        """Return the course's step `index`, counted from 0."""
        step, epoch, position, batch = self.first
        return Unit(step + index, epoch, position + index * self.stride, batch)


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
    some microseconds would otherwise cost several times that in overhead. If one fails, they are computed singly, so
    that the batches before it are handed out first.
    """

    def __init__(self, plan: Plan, course: Course, learned: Learned, context: Context) -> None:
        if not isinstance(plan.program, Batches):
            raise InternalError("an ordered dataset has no batches of its own")
        self._plan = plan
        self._single = InlineBatches(plan.program, plan.shard, context)
        self._course = course
        self._learned = learned
        self._context = context
        self._index = 0
        self._job: BatchJob | None = None
        self._first = 0  # the job's first step
        self._units = 1

    def next(self) -> tuple[Element, Cursor | None]:
        index = self._index
        job = self._job
        if job is None:
            if index >= self._course.steps:
                raise EndOfEpoch
            job = self._job = self._compute(index)
            self._first = index
        batch = self._single.batch(self._course.unit(index)) if job is None else job.take(index - self._first)
        self._index = index + 1
        if job is not None and self._index - self._first == len(job.units):
            self._job = None
        return batch, None

    def _compute(self, index: int) -> BatchJob | None:
        """Return the next batches, computed; None where that raises, and the first has to be computed by itself."""
        started = time.perf_counter()
        stop = min(index + self._units, self._course.steps)
        units = [self._course.unit(each) for each in range(index, stop)]
        try:
            job = make_batch_job(self._plan, units, None, self._learned)
            job.use(None)
            job.run_block(0, self._context)
            if job.has_merge:
                job.run_merge(self._context)
        except Exception:  # noqa: BLE001 - raised again by whoever computes it singly
            self._units = 1
            return None
        seconds = time.perf_counter() - started
        most = _CHUNK_BYTES // max(job.memory_bytes // len(units), 1)
        grown = self._units * 2 if seconds * 2 < _CHUNK_SECONDS else self._units
        self._units = max(min(grown, most, _MOST_UNITS) if seconds < _CHUNK_SECONDS else self._units // 2, 1)
        return job

    def fileno(self) -> int | None:
        return None

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        self._index = self._course.steps
        self._job = None


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
