"""Batches of a dataset that is read in order, whose last steps workers compute while a thread folds ahead.

A fold runs in one thread, and is often cheap. The user's collate function and the maps above it take most of the time,
and depend on one batch alone. So the fold leaves them out and delivers the rows of each batch (`_fold_thread`). As soon
as rows have come and there is room, they become a job for the workers. The thread that notices this first makes the
job: the fold's, a worker's or the consumer's. So the workers have work while the consumer trains. The consumer takes
the batches in order, each with its token.

The fold has one reader at a time: a thread that owns the scheduler, or the consumer alone while `_takes` or `_failed`
is set. The consumer reads it to raise an error, to find the end, and to make a batch again.

A failed batch is computed again to raise its error, but a stream must not be read again for that: it may be slow, or
give other elements. So an exception of a worker thread is kept and raised; and where processes compute, the rows of a
stream's batch are kept until it is delivered. Rows that can be computed again are kept once processes have failed.

Guarantees:
  - Batches before a failing one come first. Its error is raised in the consumer's thread; the next call makes the batch
    again, from its rows on.
  - While `is_ready` is true, `next` waits for no other thread. So `is_ready` itself computes what the consumer has to
    compute: the batch may be left out, and then `next` would wait for the one after it.
  - At most `num_batch_workers` jobs are in the making; but where functions take rows, as many as give each worker two
    rows. A job has several batches only where these take little time.
"""

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock._caught import Caught
from penstock._decisions import LEFT_TO_CONSUMER, SUFFIX_BATCHES, decide
from penstock._graph import DROPPED, Element
from penstock._runtime._batches import StepRange
from penstock._runtime._chunk_sizes import (
    COLLATE_JOB_SECONDS,
    MAX_COLLATE_BATCHES,
    SMALL_BATCHES_BYTES,
    block_rows,
    units_per_job,
)
from penstock._runtime._collate_work import CollateJob, CollateTask, CollateWork, collate_run
from penstock._runtime._failing_work import crashing_batch_error
from penstock._runtime._fold_thread import FoldedAlone, FoldedStream, Folding, Made, run_alone
from penstock._runtime._jobs import Job
from penstock._runtime._queue import GivenQueue
from penstock._runtime._scheduler import Client, Scheduler
from penstock._runtime._streams import EndOfEpoch, InlineStream, JobStream, Stream
from penstock._streaming import Collate, Rest, Token
from penstock.errors import WorkerError


class CollateStream(JobStream[CollateJob]):
    """Batches in order, whose collate steps workers compute.

    Args:
        scheduler: computes the jobs.
        client: the client that the fold and the block inputs belong to.
        collate_client: another client of the scheduler, for the jobs of this stream.
        step_range: the steps.
        folds: makes the `Folding` that delivers the rows of batches.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        client: Client,
        collate_client: Client,
        step_range: StepRange,
        folds: Callable[[Scheduler, Client, StepRange, Collate], Folding] = FoldedStream,
    ) -> None:
        super().__init__(scheduler, collate_client)
        self._run = collate_run(client.plan)
        self._open_fold = partial(folds, scheduler, client)
        self._window = client.plan.limits.num_batch_workers or client.plan.prefetch
        if self._run.collate.rows:  # at least two rows for each worker are in the making
            self._window = max(self._window, -(-2 * scheduler.num_workers // max(self._run.size, 1)))
        self._step_range = step_range
        self._steps = 0  # delivered
        self._token = None if step_range.where is None else step_range.where.token  # after the last batch
        self._wake = _waker(scheduler, collate_client)
        self._takes = False  # whether the consumer reads the fold itself, which may take long
        self._failed: CollateJob | None = None  # the consumer reads its batch again, and computes it
        self._waiting: deque[Made] = deque()  # batches that are in no job yet
        self._error: BaseException | None = None  # kept in place of the first batch that `_ready` lacks
        # A stream is not read twice to find the row that failed: it may be slow, or give other elements. So an error of
        # a thread is kept and raised, and the rows for processes are kept, so that the consumer can compute them. Rows
        # of other inputs are kept, too, once processes have failed at some: they may fail at each batch.
        self._reads_streams = client.plan.program.reads_streams
        self._keeps_rows = self._reads_streams
        self._singly = 0  # how many of the next batches have a job each, since one of them failed
        self._closed = False
        self._open()

    def _open(self) -> None:
        """Read the dataset, after the last delivered batch."""
        step_range = self._step_range.after(self._steps, self._token)
        self._folded = self._open_fold(step_range, self._run.collate)
        self._queue = GivenQueue(self._scheduler, self._client, self._next_job, self._window)

    @property
    def _is_over(self) -> bool:
        """Whether the stream was closed or given up, perhaps by another thread."""
        return self._closed or self._queue.is_over

    # -- jobs: batches from the fold go to the workers

    def _awaited(self) -> CollateJob:
        while not self._is_over:
            job = self._queue.next_job_nowait() or self._waited()
            if job is not None:
                return job
        raise EndOfEpoch

    def _waited(self) -> CollateJob | None:
        """Wait until the first job is complete, and return it; return None if another job can be armed first."""
        if self._failed is not None:
            return self._remade(self._failed)
        self._queue.arm()
        if self._queue.is_empty and not self._waiting:
            if self._folded.has_more:
                self._take()
            else:
                self._queue.wait(self._has_come, self._folded.stall)
        elif not self._queue.has_armed:  # a job waits for memory
            return self._queue.next_job()
        else:
            self._queue.wait(self._has_come, self._folded.stall)
        return None

    def _arrived(self) -> CollateJob | None:
        job = self._queue.next_job_nowait()
        if job is None:
            self._queue.arm()
            job = self._queue.next_job_nowait()
        return job

    def _has_come(self) -> bool:
        """Return whether the consumer can arm a job, raise an error or end; if not, it will be woken.

        If a job of another thread waits for memory, the consumer has to arm it: it may hold that memory.
        """
        with self._scheduler.owned():
            if self._queue.waits_for_memory:
                return True
            if not self._queue.has_room:
                return False
            return self._folded.comes(self._wake) or (self._queue.is_empty and self._folded.has_more)

    def _take(self) -> None:
        """Take the next batch of the fold, if no job is left; raise the exception that the fold raises."""
        try:
            with self._scheduler.owned():
                self._takes = self._queue.is_empty and not self._waiting and self._folded.has_more
            if self._takes:
                self._waiting.append(self._folded.take())
        except EndOfEpoch:
            self.close()
            raise
        finally:
            self._takes = False

    def _next_job(self) -> CollateJob | None:
        """Return a job of the batches that have come; with the scheduler owned, in any thread."""
        if self._takes or self._failed is not None:
            return None
        most = self._steps_per_job()
        while len(self._waiting) < most and (come := self._folded.take_nowait(self._wake)) is not None:
            self._waiting.append(come)
        made = [self._waiting.popleft() for _ in range(min(len(self._waiting), most))]
        if not made:
            return None
        self._singly = max(self._singly - len(made), 0)
        job = self._job_of(made)
        if self._scheduler.shares and (not job.pack() or self._keeps_rows):
            job.work.made, job.work.is_remade = made, False
        return job

    def _job_of(self, made: list[Made]) -> CollateJob:
        takes_rows, learned = bool(self._run.collate.rows), self._client.learned
        bounds = tuple(itertools.accumulate([len(each.batch) if takes_rows else 0 for each in made], initial=0))
        rows = max(block_rows(bounds[-1], self._scheduler.num_workers, learned), 1)
        ends_in_rest = isinstance(made[-1].batch, Rest)  # only an error or the end follows a rest
        task = CollateTask(np.concatenate([each.provenance[:1] for each in made]), bounds, rows, ends_in_rest)
        memory_bytes = max(int(len(made) * learned.merged_row_bytes), 1) if self._scheduler.shares else 0
        work = CollateWork(self._run, task, _given(made, task), memory_bytes)
        work.made = [each._replace(batch=None) for each in made]
        return Job(work, keeps_errors=self._reads_streams)

    def _steps_per_job(self) -> int:
        learned = self._client.learned
        row_seconds = learned.row_seconds if self._run.collate.rows else 0.0
        if learned.merge_seconds is None or row_seconds is None or self._singly:
            return 1  # so that the first batch waits for no other
        if self._reads_streams and self._scheduler.shares:
            return 1  # with more, a failure would not show which batch failed without reading them again
        seconds = learned.merge_seconds + row_seconds * self._run.size / self._scheduler.num_workers
        by_time = COLLATE_JOB_SECONDS / max(seconds, 1e-9)
        by_bytes = SMALL_BATCHES_BYTES / self._window / max(learned.merged_row_bytes, 1)
        return units_per_job(SUFFIX_BATCHES, by_time, min(by_bytes, MAX_COLLATE_BATCHES))

    # -- batches

    def _begun(self, job: CollateJob) -> CollateJob:
        super()._begun(job)
        self._ready, self._error = job.take_results()[::-1], job.take_error()
        if not self._reads_streams and decide(LEFT_TO_CONSUMER, 0):
            self._ready = []  # as if the first batch of the job had failed
        self._queue.arm()  # another job in its place
        return job

    def _take_results(self, job: CollateJob) -> bool:
        del job
        return False  # they were taken when the job began

    def _is_repeated(self, job: CollateJob) -> bool:
        failure = job.failure
        if self._error is not None:
            self._raise_kept()
        if failure.crash is not None and self._index >= failure.step:
            self._replace_crashing(job, failure.crash, failure.row)
        elif job.steps > 1 or (job.work.is_remade and self._may_repeat(job)):
            rest = job.steps - self._index
            self._restart()
            self._singly = rest  # so that the batch that fails is known
        elif job.work.is_remade:
            self._restart()
            self._failed = job
        else:
            return False
        return True

    def _computed(self, job: CollateJob) -> Element:
        """Return the next batch of a failed job that has its rows, computed here."""
        made = job.work.made[self._index]
        try:
            self._scheduler.prepare_consumer()
            batch = self._run.result(made.batch, made.provenance, self._client.context())
        except BaseException:
            self._restart()
            raise
        self._keeps_rows = True
        return batch

    def _remade(self, failed: CollateJob) -> CollateJob:
        """Wait for the batch of a failed job; return a job that has its rows, and fails as well."""
        try:
            made = [self._folded.take()]
        finally:
            self._failed = None
        job = self._job_of(made)
        job.work.made, job.work.is_remade, job.failure = made, False, failed.failure
        return job

    def _raise_kept(self) -> None:
        """Raise the exception of a worker thread; the next call reads the batch from the dataset again."""
        error, self._error = self._error, None
        self._restart()
        try:
            if error is not None:
                raise error
        finally:
            del error  # otherwise its traceback would keep it and this stream

    def _replace_crashing(self, job: CollateJob, crash: WorkerError, row: int | None) -> None:
        """Replace or leave out a batch that crashes workers, if a step allows it; raise otherwise."""
        error = crashing_batch_error(self._step_range.first.step + self._steps, crash, row)
        if row is not None:
            raise error
        made = job.work.made[self._index]
        self._delivered(job, self._run.around(error, made.provenance, self._client.context()))
        if self._job is not None:  # no process has computed the batches after it
            self._restart()

    def _counted(self, job: CollateJob, index: int, batch: Element) -> tuple[Element, Token] | None:
        made = job.work.made[index]
        made.count_filtered(self._client.recorder)
        self._token = made.token
        if batch is DROPPED:
            return None
        self._steps += 1
        return batch, made.token

    def _restart(self) -> None:
        """Read the dataset again, after the last delivered batch."""
        self._queue.close()
        with self._scheduler.owned():  # after this no other thread reads the fold
            self._waiting.clear()
        self._drop()
        self._open()
        if self._closed:  # another thread closed the stream, and may not have seen the new ones
            self.close()

    def _drop(self) -> None:
        """Cancel the jobs and the fold, and drop the batches that were not delivered."""
        self._folded.close()
        self._queue.close()
        self._job, self._ready, self._error, self._failed = None, [], None, None

    def is_ready(self) -> bool:
        while not self._is_over:
            if self._job is None and not self._queue.is_complete():
                does_not_wait = self._does_not_wait()
                if does_not_wait is not None:
                    return does_not_wait
                continue
            job = self._job
            if job is None:
                with Caught(Exception):  # `next` raises the error
                    job = self._queue.next_job()  # doesn't wait: the job is complete
                if job is not None:
                    self._begun(job)
            if job is None or not self._skips(job):
                return True
        return True

    def _does_not_wait(self) -> bool | None:
        """Return whether `next` would not wait, if the first job is not complete; None if that may have changed."""
        if self._failed is not None:
            if not self._folded.comes(self._wake):
                return self._folded.has_more  # an error, or the end
            self._begun(self._remade(self._failed))
            return None
        if self._queue.waits_for_memory:
            is_ready = self._queue.is_ready()  # arms the job, if there is memory
            return None if self._queue.has_armed else is_ready  # the job's batch may be left out
        if not self._has_come():
            return False
        with self._scheduler.owned():  # otherwise another thread may arm a job of what has come
            is_first = self._queue.is_empty and not self._waiting and self._folded.has_more
            if is_first and not self._folded.comes(self._wake):
                return True  # an error, or the end
        self._queue.arm()
        return None

    def _skips(self, job: CollateJob) -> bool:
        """Leave out the next batch of a job, or have it computed again; after either, `next` may wait.

        A batch that the consumer computes is computed here, and its error is kept for `next`.
        """
        if not self._ready and self._error is None:
            with Caught(Exception) as caught:
                if self._is_repeated(job):
                    return True
                self._ready = [self._computed(job)]
            if caught.error is not None and self._job is None:
                self._error, self._job = caught.taken(), job
            caught.error = None  # that of a batch which crashes workers is found again by `next`
        if not self._ready or self._ready[-1] is not DROPPED:
            return False
        self._delivered(job, self._ready.pop())
        return True

    def close(self) -> None:
        self._closed = True
        self._drop()


def _given(made: list[Made], task: CollateTask) -> dict[int, Any]:
    """Return the rows of each block, with their provenance; or, if no function takes rows, what the merge takes."""
    rows_in_all = task.bounds[-1]
    if not rows_in_all:
        return {1: [each.batch for each in made]}  # without rows there is one block, and the merge is the next
    rows = list(itertools.chain.from_iterable(each.batch for each in made))
    provenance = np.concatenate([each.provenance for each in made])
    starts = range(0, rows_in_all, task.block_rows)
    spans = [slice(start, start + task.block_rows) for start in starts]
    return {block: (rows[span], provenance[span]) for block, span in enumerate(spans)}


def _waker(scheduler: Scheduler, client: Client) -> Callable[[], None]:
    """Return a thread-safe callback that arms a client's jobs and wakes its consumer."""
    ring = scheduler.waker(client)

    def wake() -> None:
        scheduler.arm_more(client)
        ring()

    return wake


def folded_stream(
    scheduler: Scheduler, client: Client, collate_client: Client | None, step_range: StepRange, *, alone: bool
) -> Stream:
    """Return the batches of a dataset that is read in order.

    Args:
        scheduler: computes the jobs.
        client: the client that the fold and the block inputs belong to.
        collate_client: another client, for the steps above the folds; None if there are no such steps.
        step_range: the steps.
        alone: whether nothing is folded ahead, so that the calling thread computes nothing of other batches.
    """
    if collate_client is not None:
        return CollateStream(scheduler, client, collate_client, step_range, FoldedAlone if alone else FoldedStream)
    if alone:
        run = run_alone(scheduler, client, step_range)
        return InlineStream(step_range, run.more, close=run.close)
    return FoldedStream(scheduler, client, step_range)
