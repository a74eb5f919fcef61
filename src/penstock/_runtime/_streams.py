"""Streams of batches: the interface that loaders know, and the streams of indexable datasets, inline and with workers.

A stream delivers the batches from some step to the end of its epoch. `Stream` is all that a loader knows of workers.

An error of a job is not kept: the consumer computes the job's content itself, batch by batch, by the inline path. So
the batches before the failing one are delivered first, and the user's exception is raised in the user's thread. The
same path serves rows that don't fit the layout.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic

from penstock._caught import Caught
from penstock._decisions import LEFT_TO_CONSUMER, decide
from penstock._graph import Element
from penstock._runtime._batch_work import BatchJob
from penstock._runtime._batches import (
    InlineBatches,
    StepRange,
    Unit,
    coordinates_of,
    without,
)
from penstock._runtime._chunk_sizes import SMALL_LEAF_BYTES
from penstock._runtime._failing_work import crashing_row_error
from penstock._runtime._queue import AnyJob, Cutter, JobQueue, ReadyQueue, open_queue
from penstock._runtime._recovery import leave_to_steps, may_repeat
from penstock._runtime._scheduler import Client, Scheduler
from penstock._streaming import Token
from penstock.errors import WorkerError


class EndOfEpoch(Exception):  # noqa: N818 - an end, not an error
    """The epoch has no more batches. It isn't StopIteration, since a user's function may raise that too."""


class Stream(ABC):
    """Batches in order, or as they become ready. Used by one thread at a time; `close` may be called more than once.

    A stream that waits for other threads or processes, or delivers out of order, defines all methods. What they return
    here is true of a stream that computes each batch when `next` is called.
    """

    @abstractmethod
    def next(self) -> tuple[Element, Token]:
        """Return the next batch and a token.

        For a dataset that is read in order, the token is the one from which reading continues after the batch. For
        others, it is the batch's step, or None where steps come in order.

        After an exception the stream is before the failing batch. At the end it raises EndOfEpoch.
        """

    def next_nowait(self) -> tuple[Element, Token] | None:
        """Return the next batch if it is ready; None if it failed, or if `next` would wait for it or compute it."""
        return None

    def failing(self) -> Unit | None:
        """Return the step for which `next` raised; None where that is the first step that was not delivered."""
        return None

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `next` may not wait; None if it never waits for other threads."""
        return None

    def is_ready(self) -> bool:
        """Return whether `next` would return without waiting for other threads."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Stop computing ahead; delivered batches stay valid."""


class InlineStream(Stream):
    """Batches that are computed in the caller's thread when they are requested.

    From `next` to a user's function there are few calls, since each is a frame of the user's traceback.

    Args:
        step_range: the steps.
        more: computes the next batches, given the index of the first one, and returns them in reverse order, each with
            its token; none at the end. If it raises, it is called again for the same batch.
        finish: applied to each of these batches when it is delivered; None for nothing.
        close: called once the stream is closed.
    """

    def __init__(
        self,
        step_range: StepRange,
        more: Callable[[int], list[tuple[Element, Token]]],
        finish: Callable[[Unit, Element], Element] | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._step_range = step_range
        self._more = more
        self._finish = finish
        self._close = close
        self._index = 0
        self._ready: list[tuple[Element, Token]] = []  # the next batches, in reverse order

    def next(self) -> tuple[Element, Token]:
        ready = self._ready
        if not ready:
            ready = self._ready = self._more(self._index)
            if not ready:
                raise EndOfEpoch
        found = ready.pop()
        if self._finish is not None:
            try:
                found = self._finish(self._step_range.unit(self._index), found[0]), found[1]
            except BaseException:
                self._ready = []  # the next call computes this batch again
                raise
        self._index += 1
        return found

    def close(self) -> None:
        self._more = _no_more
        self._ready = []
        if self._close is not None:
            self._close()


def _no_more(index: int) -> list[tuple[Element, Token]]:
    del index
    return []


class JobStream(Stream, Generic[AnyJob]):
    """Batches that workers compute as jobs. A subclass has the jobs, and computes the batches that failed.

    A batch of a job that succeeded takes the shortest way. Only the first batch that is missing has the failure looked
    at (`_is_repeated`): either the rest is computed again, or the consumer computes this batch.

    Args:
        scheduler: computes the jobs.
        client: the client that the jobs belong to.
    """

    def __init__(self, scheduler: Scheduler, client: Client) -> None:
        self._scheduler = scheduler
        self._client = client
        self._descriptor = scheduler.fileno(client)
        self._job: AnyJob | None = None
        self._index = 0  # of the job's next batch
        self._ready: list[Element] = []  # the next batches of the job, in reverse order; none after a failed one
        self._attempts = 0  # at the next batch, by workers

    def next(self) -> tuple[Element, Token]:
        while True:
            if self._scheduler.is_closed:
                self._scheduler.check()
            job = self._job or self._begun(self._awaited())
            if self._ready or self._take_results(job):
                found = self._delivered(job, self._ready.pop())
            elif self._is_repeated(job):
                continue
            else:
                found = self._delivered(job, self._computed(job))
            if found is not None:
                return found

    def next_nowait(self) -> tuple[Element, Token] | None:
        while not self._scheduler.is_closed:
            job = self._job
            if job is None and (arrived := self._arrived()) is not None:
                job = self._begun(arrived)
            if job is None or not (self._ready or self._take_results(job)):
                return None
            found = self._delivered(job, self._ready.pop())
            if found is not None:
                return found
        return None

    @abstractmethod
    def _awaited(self) -> AnyJob:
        """Wait for the next job, and return it; raise EndOfEpoch if there is none."""

    @abstractmethod
    def _arrived(self) -> AnyJob | None:
        """Return the next job, if it is complete."""

    def _begun(self, job: AnyJob) -> AnyJob:
        self._job, self._index = job, 0
        return job

    @abstractmethod
    def _take_results(self, job: AnyJob) -> bool:
        """Have the batches that the workers computed ready; return whether there are any."""

    @abstractmethod
    def _is_repeated(self, job: AnyJob) -> bool:
        """Return whether the next batch, which failed, was left out or is computed again; then `next` may wait.

        Raises:
            Exception: the error of the batch.
        """

    def _may_repeat(self, job: AnyJob) -> bool:
        """Return whether workers should compute a failed job again, and count that."""
        is_repeated = may_repeat(job.failure, self._attempts)
        self._attempts += is_repeated
        return is_repeated

    @abstractmethod
    def _computed(self, job: AnyJob) -> Element:
        """Compute the next batch in this thread."""

    def _delivered(self, job: AnyJob, batch: Element) -> tuple[Element, Token] | None:
        index = self._index
        self._index = index + 1
        self._attempts = 0
        if self._index == job.steps:
            self._client.log_complaint(job.failure.complaint)
            self._job = None
        return self._counted(job, index, batch)

    @abstractmethod
    def _counted(self, job: AnyJob, index: int, batch: Element) -> tuple[Element, Token] | None:
        """Return a batch of a job and its token; None if the batch is left out."""

    def fileno(self) -> int | None:
        return self._descriptor


class BatchStream(JobStream[BatchJob]):
    """Batches of an indexable dataset that workers compute, in order or as they become ready."""

    def __init__(self, scheduler: Scheduler, client: Client, step_ranges: list[StepRange]) -> None:
        super().__init__(scheduler, client)
        plan = client.plan
        self._plan = plan
        self._program = plan.batches
        self._left = step_ranges  # the steps of which no job was taken yet, in order
        self._copied_bytes = sys.maxsize if plan.copy else SMALL_LEAF_BYTES
        self._inline = InlineBatches(plan.batches, plan.shard, client.consumer_context())
        self._queue = self._open(self._left)

    def _open(self, step_ranges: list[StepRange]) -> JobQueue[BatchJob]:
        cutter = Cutter(self._scheduler, self._client, self._program, step_ranges)
        kind = JobQueue[BatchJob] if self._plan.ordered else ReadyQueue[BatchJob]
        return open_queue(kind, self._scheduler, self._client, cutter)

    def _awaited(self) -> BatchJob:
        job = self._queue.next_job()
        if job is None:
            raise EndOfEpoch
        return job

    def _arrived(self) -> BatchJob | None:
        return self._queue.next_job_nowait()

    def _begun(self, job: BatchJob) -> BatchJob:
        super()._begun(job)
        self._left = without(self._left, job.work.step_range)
        job.failed = job.failed or bool(decide(LEFT_TO_CONSUMER, 0))
        return job

    def _take_results(self, job: BatchJob) -> bool:
        if job.failed:
            return False
        self._ready = job.work.batches(job.parts, job.results, self._copied_bytes)[::-1]
        return True

    def _is_repeated(self, job: BatchJob) -> bool:
        failure = job.failure
        if failure.crash is not None and self._index >= failure.step:
            self._replace_crashing(job, failure.row, failure.crash)
        elif not self._may_repeat(job):
            return False
        self.close()
        self._left = [job.work.step_range.part(self._index, job.steps), *self._left]
        self._queue = self._open(self._left)
        return True

    def _replace_crashing(self, job: BatchJob, row: int | None, crash: WorkerError) -> None:
        """Have the row that crashes workers replaced from now on; raise if no step allows that."""
        program, unit, shard = self._program, job.work.step_range.unit(self._index), self._plan.shard
        at = None if row is None else coordinates_of(program, shard, unit, row)
        leave_to_steps(self._client, program.rows, at, crashing_row_error(program, shard, unit, row, crash))

    def _computed(self, job: BatchJob) -> Element:
        self._scheduler.prepare_consumer()
        return self._inline.batch(job.work.step_range.unit(self._index), careful=job.failure.is_suspect)

    def _counted(self, job: BatchJob, index: int, batch: Element) -> tuple[Element, Token]:
        return batch, None if self._plan.ordered else job.work.step_range.first.step + index

    def next_stacked(self) -> tuple[Element, list[int], Sequence[Token]] | None:
        """Deliver a whole job, if possible: its rows as one batch, the bounds of its batches, and their tokens.

        None where that isn't possible; then `next` delivers its batches, or raises.
        """
        if self._scheduler.is_closed:
            self._scheduler.check()
        job = self._job or self._begun(self._awaited())
        stacked = None if self._index or job.failed else job.work.stacked()
        if stacked is None:
            return None
        self._job = None
        first = job.work.step_range.first.step
        return *stacked, (None,) * job.steps if self._plan.ordered else range(first, first + job.steps)

    def failing(self) -> Unit | None:
        return None if self._job is None or self._plan.ordered else self._job.work.step_range.unit(self._index)

    def is_ready(self) -> bool:
        while self._job is not None or self._queue.is_ready():
            with Caught(Exception):  # `next` raises the error, or ends
                job = self._job or self._begun(self._awaited())
                if job.failed and self._is_repeated(job):
                    continue
            return True
        return False

    def close(self) -> None:
        self._queue.close()
        self._job, self._ready = None, []
