"""Reading async sources ahead of the workers: a small pipeline requests what upcoming jobs need, many at once.

Jobs are made once, in order, by whoever is first to need the next one: the ring, that arms it, or the pipeline, which
goes further ahead. How far follows from the number of records alone, so that a hundred requests may be under way for
two workers and batches of any size. Records are kept by block, so the order in which they arrive doesn't matter.

A failing read is tried again where time may heal it. Else the worker that needs the record reads it itself, and meets
the error where it belongs.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock._caught import Caught
from penstock._decisions import READ_KEYS, REQUESTED_AHEAD, decide
from penstock._graph._upcoming import Upcoming
from penstock._os import HeldInterrupts
from penstock._runtime._io_prefetch._arrivals import Arrivals, BlockRecords, parts_of
from penstock.pipeline._config import PipelineConfig, Source
from penstock.pipeline._items import SKIP, Skip
from penstock.pipeline._pipeline import Pipeline, build_pipeline
from penstock.pipeline._stages import Pipe, Sink
from penstock.sources._awaited._source import AwaitedSource
from penstock.sources._reading import RETRY_WAITS_SECONDS, checked, is_transient
from penstock.sources._source import Keys, Record


class AwaitingJob(Protocol):
    """A job whose blocks may get records that were read ahead."""

    blocks: int
    arriving: list[BlockRecords] | None
    """The records of each block; None where workers read all themselves."""

    def upcoming(self, block: int) -> list[Upcoming]:
        """Return which records of async sources a block needs."""
        ...


AnyJob = TypeVar("AnyJob", bound=AwaitingJob)


class _Request(NamedTuple):
    source: AwaitedSource
    keys: Keys
    block: BlockRecords


class ReadAhead(Generic[AnyJob]):
    """Owns the pipeline of one queue of jobs; collecting it ends that.

    Attributes:
        next_job: makes the jobs for the queue.
    """

    def __init__(self, make_job: Callable[[], AnyJob | None], limit: int) -> None:
        """Begin to read.

        Args:
            make_job: returns the next job, or None at the end; called in order, on any thread.
            limit: how many records may be on their way or wait, at least 1.
        """
        self._arrivals = Arrivals(limit)
        jobs = _Jobs(make_job, self._arrivals)
        self.next_job = jobs.next_armed
        read = Pipe(_Reads(self._arrivals).read, concurrency=limit, name="read")
        # What the pipeline's thread holds doesn't hold the pipeline, so that dropping it is enough to end it.
        config = PipelineConfig(Source(_Requests(jobs, self._arrivals)), (read,), Sink(1))
        with HeldInterrupts():  # else nobody knows of its thread, and nobody ends it
            self._pipeline: Pipeline | None = build_pipeline(config, num_threads=1)
            self._pipeline.start()

    def close(self) -> None:
        """Cancel what is under way; returns at once, and may be called by the garbage collector."""
        with HeldInterrupts():
            self._arrivals.close()
            self._pipeline = None


class _Jobs(Generic[AnyJob]):
    """Makes each job once, and gives it to both the queue and the requests."""

    def __init__(self, make_job: Callable[[], AnyJob | None], arrivals: Arrivals) -> None:
        self._make_job = make_job
        self._arrivals = arrivals
        self._lock = threading.Lock()
        self._to_arm: deque[AnyJob] = deque()
        self._to_request: deque[AnyJob] = deque()
        self._blocks = 0
        self._requests_ended = False

    def next_armed(self) -> AnyJob | None:
        """Return the next job for the queue; raises what making it raises, as often as it is tried."""
        with self._lock:
            if self._to_arm:
                return self._to_arm.popleft()
            job = self._next()
            if job is not None and not self._requests_ended:
                self._to_request.append(job)
            return job

    def next_requested(self) -> AnyJob | None:
        """Return the next job whose records to request; None at the end, or where making one raises."""
        with self._lock:
            if self._to_request:
                return self._to_request.popleft()
            job: AnyJob | None = None
            with Caught(Exception):  # the queue meets it again
                job = self._next()
            if job is None:
                self._requests_ended = True  # workers read for themselves what comes now
            else:
                self._to_arm.append(job)
            return job

    def _next(self) -> AnyJob | None:
        job = self._make_job()
        if job is not None and not self._requests_ended:
            job.arriving = [BlockRecords(self._blocks + block, self._arrivals) for block in range(job.blocks)]
            self._blocks += job.blocks
        return job


class _Requests(Generic[AnyJob]):
    """The source of the pipeline: what to read, in the order of the jobs, as far as there is room."""

    def __init__(self, jobs: _Jobs[AnyJob], arrivals: Arrivals) -> None:
        self._jobs = jobs
        self._arrivals = arrivals

    def __aiter__(self) -> AsyncIterator[_Request]:
        return self._all()

    async def _all(self) -> AsyncGenerator[_Request]:
        try:
            while (job := self._jobs.next_requested()) is not None:
                for number, block in enumerate(job.arriving or ()):
                    self._arrivals.begin(block)
                    for source, keys in _upcoming(job, number):
                        most = min(source.keys_per_read, self._arrivals.limit)
                        for part in parts_of(keys, decide(READ_KEYS, most, most)):
                            if not decide(REQUESTED_AHEAD, 1):
                                continue  # the worker reads it
                            await self._arrivals.make_room(len(part))
                            self._arrivals.request(block)
                            yield _Request(source, part, block)
                    self._arrivals.finish(block)
                del job
        except (asyncio.CancelledError, GeneratorExit):
            self._arrivals.close()
            raise
        finally:
            self._arrivals.end()


def _upcoming(job: AwaitingJob, block: int) -> list[Upcoming]:
    with Caught(Exception):  # a sampler of the user's raised; the worker meets it again
        return job.upcoming(block)
    return []


class _Reads:
    """The one stage of the pipeline."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    async def read(self, request: _Request) -> Skip:
        """Read some records, and keep them for the worker."""
        source, keys, block = request
        self._arrivals.answer(block, source, keys, await _attempted(source, keys))
        return SKIP


async def _attempted(source: AwaitedSource, keys: Keys) -> list[Record] | None:
    """Return the records of some keys; None if they can't be read."""
    for seconds in (*RETRY_WAITS_SECONDS, None):
        with Caught() as caught:
            return checked(source, await source.read_async(keys), keys)
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.error
        if caught.error is None or seconds is None or not is_transient(caught.error):
            return None  # the worker meets it again, and says which key it is about
        await asyncio.sleep(seconds)
    return None
