"""Prefetch of async sources: a coroutine requests the records of upcoming jobs, many at once, before workers do.

A worker evaluates one block at a time, so without prefetch two workers have two requests in flight, however many the
storage could serve. The prefetch requests as many records as `Limits.read_ahead` allows, for jobs that no worker has
begun, with batches of any size. It runs on the event loop of the source's reads, so it needs no thread of its own; a
further source that the jobs read has its reads on its own loop.

Worker processes request records themselves (`BlockPrefetch`), since sending them would copy each record twice, and the
program would do all the work of the network. A process claims several blocks, and requests the records of all of them
before it computes the first. The processes share `Limits.read_ahead`.

Each job is made once, in order, by the side that needs it first: the queue, which arms it, or the prefetch, which is
further ahead. Records are kept by block, so the order in which they arrive doesn't matter. A worker that begins a block
waits for the block's records. A read that fails is tried again if the error is transient. After that, and wherever a
record can't be requested, the worker reads the record itself, and so raises the error with the record's position and
key.

Guarantees:
  - At most `limit` records are in flight or wait for a worker. Records of a block that a worker has begun, and of all
    blocks before it, stop counting once they have arrived. So there is room for the records of any block that a worker
    waits for.
  - A record is delivered once. A function may write to its record, so a second need of it is a second read.
  - The loop never waits for a lock that a thread holds while it makes a job: a sampler that a job calls may read the
    source, and so wait for the loop.
  - `close` returns at once, and may be called by the garbage collector. After it no worker waits here.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from penstock._caught import Caught, CaughtFailure
from penstock._decisions import READ_KEYS, REQUESTED_AHEAD, decide
from penstock._graph import Context, Node, Read, Upcoming, awaited_sources, walk
from penstock._os import Closer, uninterrupted
from penstock.errors import ClosedError
from penstock.sources import (
    RETRY_WAITS_SECONDS,
    AwaitedSource,
    Call,
    Keys,
    Record,
    Source,
    checked,
    is_transient,
    read_records,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.sources import Outcome


class BlockRecords:
    """The records of one block of a job.

    Attributes:
        number: the number of the block, over all jobs.
        requests: how many requests are in flight.
        is_requested: whether all requests have been sent.
        arrived: how many records have arrived and count as waiting.
        is_taken: whether a worker has begun this block, or a later one.
        waited_seconds: the time for which that worker waited for the records.
        computed_seconds: the time that it then took for the block; 0 where a process counts it.
    """

    __slots__ = (
        "_arrivals",
        "_records",
        "arrived",
        "computed_seconds",
        "is_requested",
        "is_taken",
        "number",
        "requests",
        "waited_seconds",
    )

    def __init__(self, number: int, arrivals: "Arrivals") -> None:
        self.number = number
        self.requests = 0
        self.is_requested = False
        self.arrived = 0
        self.is_taken = False
        self.waited_seconds = self.computed_seconds = 0.0
        self._arrivals = arrivals
        self._records: dict[tuple[int, int], list[Record]] = {}  # by the identity of a source, and the key

    def wait(self) -> None:
        """Wait until the records have arrived, or will never be requested.

        Raises:
            ClosedError: the records won't arrive.
        """
        self._arrivals.wait_for(self)

    def context_with_records(self, context: Context) -> Context:
        """Wait for the records, and return a worker's context, with a `read` that returns them.

        Raises:
            ClosedError: the records won't arrive.
        """
        mark = context.times.begin_around()
        self.wait()
        self.waited_seconds = context.times.end_wait(self._arrivals.step, mark)
        return replace(context, read=self._read)

    def put(self, source: AwaitedSource, keys: Keys, records: list[Record]) -> None:
        """Keep records for the worker."""
        for key, record in zip(keys.tolist(), records, strict=True):
            self._records.setdefault((id(source), key), []).append(record)

    def drop(self) -> None:
        """Drop the records, which no worker will read."""
        self._records.clear()

    def _read(self, source: Source, keys: Keys) -> list[Record]:
        # A key that occurs several times may have fewer records here, if some of its requests failed.
        records: list[Record] = []
        absent: list[int] = []
        for index, key in enumerate(keys.tolist()):
            kept = self._records.get((id(source), key))
            if not kept:
                absent.append(index)
            records.append(kept.pop() if kept else None)
        if absent:
            for index, record in zip(absent, read_records(source, keys[absent]), strict=True):
                records[index] = record
        return records


class Arrivals:
    """Counts the records that are in flight or wait, and wakes workers when the records of their block have arrived.

    Args:
        limit: how many records may be in flight or wait.
        step: the node that reads them, for the times of steps; None, the default, if no one asks for these.
    """

    def __init__(self, limit: int, step: Node | None = None) -> None:
        self.limit = limit
        self.step = step
        # Protects all below, and the counts in blocks; reentrant, since the garbage collector may call `close`.
        self._changed = threading.Condition()
        self._room = limit
        self._waiting: deque[BlockRecords] = deque()  # blocks that no worker has begun, in order
        self._taken = -1  # the last block that a worker has begun
        self._ended = False
        self._closed = False
        self._has_room = LoopWaiter()

    # -- the loop's side

    async def make_room(self, count: int) -> None:
        """Wait for room for `count` records, and count them as in flight."""

        def take() -> bool:
            with self._changed:
                if self._room < count:
                    return False
                self._room -= count
                return True

        await self._has_room.wait_until(take)

    def begin(self, block: BlockRecords) -> None:
        """Register a block whose records will be requested; blocks come in order."""
        with self._changed:
            block.is_taken = block.number <= self._taken
            if not block.is_taken:
                self._waiting.append(block)

    def request(self, block: BlockRecords) -> None:
        """Count one more request of a block."""
        with self._changed:
            block.requests += 1

    def finish(self, block: BlockRecords) -> None:
        """Record that all requests of a block were sent."""
        with self._changed:
            block.is_requested = True
            self._notify(block)

    def answer(self, block: BlockRecords, source: AwaitedSource, keys: Keys, records: list[Record] | None) -> None:
        """Take the result of a request: records, or None where the worker has to read them itself."""
        with self._changed:
            if records is not None and not self._closed:
                block.put(source, keys, records)
            if block.is_taken:
                self._free(len(keys))
            else:
                block.arrived += len(keys)
            block.requests -= 1
            self._notify(block)

    def end(self) -> None:
        """Record that no further blocks will be requested."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- the workers' side

    def wait_for(self, block: BlockRecords) -> None:
        """Wait until a block's records have arrived, or will never be requested.

        Raises:
            ClosedError: `close` was called, which comes before the requests are cancelled.
        """
        with self._changed:
            self._take(block.number)
            while True:
                if self._closed:  # first: a cancelled request is answered too, and a read by the worker may never end
                    raise ClosedError("the records won't arrive: the iterator was closed")
                if block.requests == 0 if block.is_requested else self._ended:
                    return
                self._changed.wait()

    def close(self) -> None:
        """End every wait, and drop the records that wait; from any thread, and from the garbage collector."""
        with self._changed:
            self._closed = True
            for block in self._waiting:
                block.drop()
            self._waiting.clear()
            self._changed.notify_all()

    # -- with the condition held

    def _take(self, number: int) -> None:
        self._taken = max(self._taken, number)
        freed = 0
        while self._waiting and self._waiting[0].number <= number:
            block = self._waiting.popleft()
            block.is_taken = True
            freed += block.arrived
        if freed:
            self._free(freed)

    def _free(self, count: int) -> None:
        self._room += count
        self._has_room.wake()

    def _notify(self, block: BlockRecords) -> None:
        if block.is_requested and block.requests == 0:
            self._changed.notify_all()


class LoopWaiter:
    """Lets one coroutine wait for a change by any thread."""

    def __init__(self) -> None:
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked now, and after each `wake`."""
        while not condition():
            woken = asyncio.Event()
            self._waiting = asyncio.get_running_loop(), woken
            if condition():  # the change may have come before `_waiting` was set
                break
            await woken.wait()

    def wake(self) -> None:
        """Make the waiting coroutine check its condition, if there is one; from any thread."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            loop, woken = waiting
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)


class PrefetchedJob(Protocol):
    """A job whose blocks may get records that were prefetched."""

    blocks: int
    arriving: list[BlockRecords] | None
    """The records of each block; None where workers read all records themselves."""

    def upcoming(self, block: int) -> list[Upcoming]:
        """Return the records of async sources that a block needs."""
        ...


AnyJob = TypeVar("AnyJob", bound=PrefetchedJob)


class BlockPrefetch:
    """Requests the records of blocks that a worker process has claimed, in the order in which it computes them.

    Args:
        node: a node with at least one async source below it.
        limit: how many records may be in flight or wait for this process, at least 1.

    Attributes:
        limit: this limit.
    """

    def __init__(self, node: Node, limit: int) -> None:
        self.limit = limit
        self._arrivals = _arrivals(node, limit)
        self._source = next(awaited_sources(node))
        self._turn = asyncio.Lock()  # held while the requests of a block are sent: the blocks before it come first
        self._blocks = 0

    def request(self, upcoming: list[Upcoming]) -> BlockRecords:
        """Request the records of the next block; return at once."""
        block = BlockRecords(self._blocks, self._arrivals)
        self._blocks += 1
        self._arrivals.begin(block)
        call = self._source.start(partial(self._request, upcoming, block))
        call.outcome.add_done_callback(partial(_close_if_failed, self._arrivals))
        return block

    async def _request(self, upcoming: list[Upcoming], block: BlockRecords) -> None:
        async with asyncio.TaskGroup() as group, self._turn:
            await _request_block(group, upcoming, block, self._arrivals)


class _Request(NamedTuple):
    source: AwaitedSource
    keys: Keys
    block: BlockRecords


class IOPrefetch(Generic[AnyJob]):
    """Owns the coroutine that requests records for one queue of jobs; collecting it cancels the coroutine.

    Attributes:
        next_job: makes the jobs for the queue.
    """

    @uninterrupted  # a coroutine that no attribute refers to would never be cancelled
    def __init__(self, node: Node, make_job: Callable[[], AnyJob | None], limit: int) -> None:
        """Start to request records.

        Args:
            node: a node with at least one async source below it.
            make_job: returns the next job, or None at the end; called in order, on any thread.
            limit: how many records may be in flight or wait, at least 1.
        """
        arrivals = _arrivals(node, limit)
        jobs = _Jobs(make_job, arrivals)
        self.next_job = jobs.next_armed
        # The coroutine doesn't refer to this object, so that dropping it is enough to cancel the coroutine.
        call = next(awaited_sources(node)).start(partial(_request_all, jobs, arrivals))
        self._closer = Closer(partial(_close, arrivals, call, os.getpid()))
        call.outcome.add_done_callback(partial(_close_if_failed, arrivals))

    def close(self) -> None:
        """Cancel the requests in flight; returns at once, and may be called by the garbage collector."""
        self._closer()


def _arrivals(node: Node, limit: int) -> Arrivals:
    reads = (step for step in walk(node) if isinstance(step, Read) and isinstance(step.source, AwaitedSource))
    return Arrivals(limit, next(reads, node))


def _close(arrivals: Arrivals, call: Call, process: int) -> None:
    if os.getpid() == process:  # a fork has no such loop, and another thread may have held the lock
        arrivals.close()
        call.cancel()


def _close_if_failed(arrivals: Arrivals, outcome: "Future[Outcome]") -> None:
    if outcome.result().error is not None:
        arrivals.close()


class _Jobs(Generic[AnyJob]):
    """Makes each job once, for both the queue and the requests."""

    def __init__(self, make_job: Callable[[], AnyJob | None], arrivals: Arrivals) -> None:
        self._make_job = make_job
        self._arrivals = arrivals
        self._lock = threading.Lock()  # held while a job is made; protects all below
        self._is_free = LoopWaiter()
        self._to_arm: deque[AnyJob] = deque()
        self._to_request: deque[AnyJob] = deque()
        self._blocks = 0
        self._requests_ended = False

    def next_armed(self) -> AnyJob | None:
        """Return the next job for the queue; an exception of making it is raised at each call."""
        try:
            with self._lock:
                if self._to_arm:
                    return self._to_arm.popleft()
                job = self._next()
                if job is not None and not self._requests_ended:
                    self._to_request.append(job)
                return job
        finally:
            self._is_free.wake()

    async def next_requested(self) -> AnyJob | None:
        """Return the next job whose records to request; None at the end, or if making it raises."""
        await self._is_free.wait_until(partial(self._lock.acquire, blocking=False))
        try:
            if self._to_request:
                return self._to_request.popleft()
            job: AnyJob | None = None
            with CaughtFailure():  # the queue makes the job again, and raises it
                job = self._next()
            if job is None:
                self._requests_ended = True  # workers read the records of all later jobs themselves
            else:
                self._to_arm.append(job)
            return job
        finally:
            self._lock.release()

    def _next(self) -> AnyJob | None:
        job = self._make_job()
        if job is not None and not self._requests_ended:
            job.arriving = [BlockRecords(self._blocks + block, self._arrivals) for block in range(job.blocks)]
            self._blocks += job.blocks
        return job


async def _request_all(jobs: _Jobs[AnyJob], arrivals: Arrivals) -> None:
    """Request the records of jobs in order, as far as there is room; return when all have arrived."""
    try:
        async with asyncio.TaskGroup() as group:
            while (job := await jobs.next_requested()) is not None:
                for number, block in enumerate(job.arriving or ()):
                    arrivals.begin(block)
                    upcoming: list[Upcoming] = []
                    with CaughtFailure():  # of a sampler of the user; the worker raises it again
                        upcoming = job.upcoming(number)
                    await _request_block(group, upcoming, block, arrivals)
                del job
            arrivals.end()
    finally:
        arrivals.end()


async def _request_block(
    group: asyncio.TaskGroup, upcoming: list[Upcoming], block: BlockRecords, arrivals: Arrivals
) -> None:
    """Request the records of one block, as far as there is room; return when all requests were sent."""
    for request in _requests(upcoming, block, arrivals.limit):
        await arrivals.make_room(len(request.keys))
        arrivals.request(block)
        group.create_task(_read(request, arrivals))
    arrivals.finish(block)
    await asyncio.sleep(0)  # so that requests are sent while others are made


def _requests(upcoming: list[Upcoming], block: BlockRecords, limit: int) -> Iterator[_Request]:
    for source, keys in upcoming:
        most = min(source.keys_per_read, limit)
        size = decide(READ_KEYS, most, most)
        for part in np.split(keys, range(size, len(keys), size)):
            if decide(REQUESTED_AHEAD, 1):  # else the worker reads them
                yield _Request(source, part, block)


async def _read(request: _Request, arrivals: Arrivals) -> None:
    """Read records, and keep them for the worker."""
    records: list[Record] | None = None
    try:
        records = await _attempted(request.source, request.keys)
    finally:  # also if the coroutine of the source cancels itself
        arrivals.answer(request.block, request.source, request.keys, records)


async def _attempted(source: AwaitedSource, keys: Keys) -> list[Record] | None:
    """Return the records of some keys, after retries of transient errors; None if they can't be read."""
    for seconds in (*RETRY_WAITS_SECONDS, None):
        with Caught() as caught:
            return checked(source, await source.read_async(keys), keys)
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.taken()
        if caught.error is None or seconds is None or not is_transient(caught.error):
            return None  # the worker raises it again, with the position and the key
        await asyncio.sleep(seconds)
    return None
