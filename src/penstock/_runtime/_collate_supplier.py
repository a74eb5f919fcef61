"""Batches of a dataset that is read in order, whose last steps workers compute while a thread folds ahead.

A fold runs in one thread, and is often cheap. The user's collate function and the maps above it take most of the time,
and depend on one batch alone. So the fold leaves them out and delivers the rows of each batch (`_fold_thread`). As soon
as rows have come and there is room, they become a job for the workers. The thread that notices this first makes the
job: the fold's, a worker's or the consumer's. So the workers have work while the consumer trains. The consumer takes
the batches in order, each with its token.

Worker threads hinder a fold more than cheap steps cost. So the fold's thread applies those itself (`_fold_choice`), and
the consumer takes the finished batches from it, in the order of all.

The fold has one reader at a time: a thread that owns the scheduler. The consumer alone reads a fold that has no thread,
and any fold while `_failed` is set, to make a batch again. It alone takes the error or the end that came with a chunk.

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

from penstock._decisions import COLLATE_BATCHES, LEFT_TO_CONSUMER, WHOLE_BATCHES, decide
from penstock._graph import DROPPED, Element, PerWorker
from penstock._runtime._batches import StepRange
from penstock._runtime._chunk_sizes import block_rows, job_size
from penstock._runtime._collate_work import CollateJob, CollateTask, CollateWork, collate_run
from penstock._runtime._failing_work import crashing_batch_error
from penstock._runtime._fold_choice import AboveChoice
from penstock._runtime._fold_thread import Above, FoldOnRequest, FoldThread, Made, count_filtered
from penstock._runtime._jobs import Job, Learned
from penstock._runtime._policy import (
    COLLATE_JOB_SECONDS,
    COLLATE_WHOLE_SECONDS,
    MADE_BYTES,
    MAX_COLLATE_BATCHES,
    SMALL_BATCHES_BYTES,
)
from penstock._runtime._queue import GivenQueue, within_memory
from penstock._runtime._recovery import may_repeat
from penstock._runtime._scheduler import Client, Scheduler
from penstock._runtime._sent_blocks import SentRows
from penstock._runtime._streaming import ThreadReader
from penstock._runtime._streams import EndOfEpoch, Supplier
from penstock._streaming import CollateRun, Rest, Token
from penstock.errors import WorkerError


class CollateSupplier(Supplier[CollateJob]):
    """Jobs of batches that a fold has made, in order, whose collate steps workers compute. It opens itself.

    Args:
        scheduler: computes the jobs.
        client: the client that the fold and the block inputs belong to.
        collate_client: another client of the scheduler, for these jobs.
        step_range: the steps.
        on_request: whether nothing is folded ahead, so that the calling thread computes nothing of other batches.
    """

    def __init__(
        self, scheduler: Scheduler, client: Client, collate_client: Client, step_range: StepRange, *, on_request: bool
    ) -> None:
        super().__init__(scheduler)
        self._scheduler = scheduler
        self._client = collate_client
        self._run = collate_run(client.plan)
        open_reader = partial(ThreadReader, scheduler, client, may_compute=not on_request)
        ahead = partial(FoldThread, client, open_reader, owner=scheduler)
        self._open_fold = partial(FoldOnRequest, client, open_reader) if on_request else ahead
        self._is_on_request = on_request
        self._window = client.plan.limits.num_batch_workers or client.plan.prefetch
        if self._run.collate.rows:  # at least two rows for each worker are in the making
            self._window = max(self._window, -(-2 * scheduler.num_workers // max(self._run.size, 1)))
        self._step_range = step_range
        self._steps = 0  # delivered
        self._token: Token = None if step_range.where is None else step_range.where.token  # after the last batch
        self._wake = _waker(scheduler, collate_client)
        self._choice = None if on_request else _choice(client, collate_client, self._run)
        self._failed: CollateJob | None = None  # the consumer reads its batch again, and computes it
        self._waiting: deque[Made] = deque()  # batches that are in no job yet, and the error after them
        # A stream is not read twice to find the row that failed: it may be slow, or give other elements. So an error of
        # a thread is kept and raised, and the rows for processes are kept, so that the consumer can compute them. Rows
        # of other inputs are kept, too, once processes have failed at some: they may fail at each batch.
        self._reads_streams = client.plan.program.reads_streams
        self._keeps_rows = self._reads_streams
        # Whether `memory=` bounds the results of functions in threads, by the size of the first one of each job.
        self._is_measured = client.plan.memory is not None and not scheduler.uses_processes
        self._singly = 0  # how many of the next batches have a job each, since one of them failed
        self._closed = False

    def open(self) -> "CollateSupplier":
        self._closed = False
        self._open()
        return self

    def _open(self) -> None:
        with self._scheduler.owned():  # no thread still makes a job of the batches before
            self._waiting.clear()
        above = Above(self._run, self._choice, left=self._singly + (self._failed is not None))
        self._fold = self._open_fold(self._step_range.after(self._steps, self._token), above)
        # Not a bound method: the queue would keep this, and the user's loader.
        window = partial(_window_now, self._client, self._window, is_measured=self._is_measured)
        self._queue = GivenQueue(self._scheduler, self._client, self._next_job, window)

    def close(self) -> None:
        """Cancel the jobs and the fold."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        self._queue.close()
        self._fold.close()

    # -- jobs: batches from the fold go to the workers

    def next_job(self) -> CollateJob | None:
        """Wait for the next job, and return it; None at the end. Raises the error of the fold, in its place."""
        while not self._queue.is_over:
            job = self._queue.next_job_nowait() or self._waited()
            if job is not None:
                return job
        return None

    def next_job_nowait(self) -> CollateJob | None:
        """Return the next job, if it is complete."""
        job = self._queue.next_job_nowait()
        if job is None:
            self._queue.arm()
            job = self._queue.next_job_nowait() or self._finished()
        return job

    def is_ready(self) -> bool:
        """Return whether `next_job` would not wait for another thread."""
        while not self._queue.is_over and not self._queue.is_complete():
            if self._failed is not None:
                return self._is_on_request or bool(self._waiting) or self._fold.has_chunk(self._wake)
            if self._queue.waits_for_memory:
                return self._queue.is_ready()  # arms the job, if there is memory
            if not self._has_come():
                return False
            if self._is_for_consumer():
                return True
            self._queue.arm()
        return True

    def _waited(self) -> CollateJob | None:
        """Wait until the first job is complete, and return it; return None if another job can be armed first."""
        if self._failed is not None:
            return self._remade(self._failed)
        self._queue.arm()
        if self._is_for_consumer():
            self._receive()
            return self._finished()
        if self._queue.has_armed or (self._queue.is_empty and not self._waiting):
            self._queue.wait(self._has_come, self._fold.stall)
            return None
        return self._queue.next_job()  # a job waits for memory

    def _finished(self) -> CollateJob | None:
        """Return the next batches as a job, if the fold's thread has finished them, and those before were taken."""
        made: list[Made] = []
        with self._scheduler.owned():
            while self._failed is None and self._queue.is_empty and self._waiting and self._waiting[0].is_finished:
                made.append(self._waiting.popleft())
        if not made:
            return None
        bounds = (0,) * (len(made) + 1)
        firsts = np.concatenate([each.provenance[:1] for each in made])
        work = CollateWork(self._run, CollateTask(firsts, bounds, 1, ends_in_rest=False, makes_whole=False))
        work.made = [each._replace(batch=None) for each in made]
        job = Job(work)
        job.results = [each.batch for each in made]
        return job

    def _has_come(self) -> bool:
        """Return whether the consumer can arm a job, raise an error or end; if not, it will be woken.

        If a job of another thread waits for memory, the consumer has to arm it: it may hold that memory.
        """
        with self._scheduler.owned():
            if self._queue.waits_for_memory or self._has_no_job():
                return True
            return self._queue.can_arm and (_has_batch(self._waiting) or self._fold.has_chunk(self._wake))

    def _is_for_consumer(self) -> bool:
        """Return whether the consumer has to read the fold itself, take what it has finished, or raise its error."""
        with self._scheduler.owned():
            return self._has_no_job()

    def _has_no_job(self) -> bool:
        """Return whether all jobs were taken, and no other thread can make one; with the scheduler owned."""
        return self._queue.is_empty and (self._is_on_request or bool(self._waiting)) and not _has_batch(self._waiting)

    def _receive(self) -> None:
        """Read the fold until a batch waits, or it ends; raise the error that it raised in place of the batch."""
        if not self._waiting:
            chunk = self._fold.next_job()
            with self._scheduler.owned():
                self._waiting.extend([] if chunk is None else chunk.taken())
        if self._waiting and self._waiting[0].error is None:
            return
        self._failed = None
        self._drop()
        if not self._waiting:  # another thread has closed the fold
            return
        failed = self._waiting.popleft()
        count_filtered(self._client.recorder, failed.filtered)
        error = failed.error
        del failed
        try:
            if error is None or isinstance(error, EndOfEpoch):
                return
            self._open()
            if self._closed:  # another thread has closed this, and may not have seen the new jobs
                self._drop()
            raise error
        finally:
            del error  # otherwise its traceback would keep it

    def _remade(self, failed: CollateJob) -> CollateJob | None:
        """Wait for the batch of a failed job; return a job that has its rows, and fails as well."""
        self._receive()
        if not self._waiting:
            return None
        made, self._failed = [self._waiting.popleft()], None
        job = self._job_of(made)
        job.work.made, job.work.is_remade, job.failure = made, False, failed.failure
        return job

    def _next_job(self) -> CollateJob | None:
        """Return a job of the batches that have come; with the scheduler owned, in any thread."""
        if self._failed is not None:
            return None
        most = self._steps_per_job()
        while len(self._waiting) < most and (come := self._fold.next_job_nowait(self._wake)) is not None:
            self._waiting.extend(come.taken())
        made: list[Made] = []
        while len(made) < most and _has_batch(self._waiting):
            made.append(self._waiting.popleft())
        if not made:
            return None
        self._singly = max(self._singly - len(made), 0)
        job = self._job_of(made)
        if self._scheduler.uses_processes and (not job.pack() or self._keeps_rows):
            job.work.made, job.work.is_remade = made, False
        return job

    def _job_of(self, made: list[Made]) -> CollateJob:
        learned, makes_whole = self._client.learned, self._makes_whole
        has_blocks = bool(self._run.collate.rows) and not makes_whole
        bounds = tuple(itertools.accumulate([len(each.batch) if has_blocks else 0 for each in made], initial=0))
        rows = max(block_rows(bounds[-1], self._scheduler.num_workers, learned), 1)
        ends_in_rest = isinstance(made[-1].batch, Rest)  # only an error or the end follows a rest
        firsts = np.concatenate([each.provenance[:1] for each in made])
        task = CollateTask(firsts, bounds, rows, ends_in_rest, makes_whole)
        memory_bytes = max(int(len(made) * learned.merged_row_bytes), 1) if self._scheduler.uses_processes else 0
        work = CollateWork(self._run, task, _given(made, task, are_sent=self._scheduler.uses_processes), memory_bytes)
        work.made = [each._replace(batch=None) for each in made]
        return Job(work, keeps_errors=self._reads_streams)

    @property
    def _makes_whole(self) -> bool:
        """Whether a worker makes a batch on its own, its rows included, since these take little time.

        If a process crashes, blocks of rows find the row. A stream isn't read again for that.
        """
        learned = self._client.learned
        if not self._run.collate.rows or self._reads_streams or learned.has_crashed:
            return False
        if learned.row_seconds is None or learned.merge_seconds is None:
            return False
        seconds = max(learned.row_seconds * self._run.size, learned.merge_seconds)
        return bool(decide(WHOLE_BATCHES, int(seconds <= COLLATE_WHOLE_SECONDS)))

    def _steps_per_job(self) -> int:
        learned = self._client.learned
        row_seconds = learned.row_seconds if self._run.collate.rows and not self._makes_whole else 0.0
        if learned.merge_seconds is None or row_seconds is None or self._singly:
            return 1  # so that the first batch waits for no other
        if self._is_measured and not learned.knows_memory:
            return 1  # the first batch shows how many have room
        if self._reads_streams and self._scheduler.uses_processes:
            return 1  # with more, a failure would not show which batch failed without reading them again
        seconds = learned.merge_seconds + row_seconds * self._run.size / self._scheduler.num_workers
        by_time = COLLATE_JOB_SECONDS / max(seconds, 1e-9)
        jobs = self._window + 1 + self._client.ahead
        memory, batch_bytes = self._client.plan.memory, max(learned.merged_row_bytes, 1)
        if self._scheduler.uses_processes:
            by_bytes = SMALL_BATCHES_BYTES / self._window / batch_bytes
        else:
            by_bytes = MADE_BYTES / jobs / max(learned.made_row_bytes, 1)
        if memory is not None:  # a loop holds the batches of one more job and, of threads, one of the job before
            room = memory - batch_bytes if self._is_measured else memory
            by_bytes = min(by_bytes, room / jobs / batch_bytes)
        return job_size(COLLATE_BATCHES, by_time, min(by_bytes, MAX_COLLATE_BATCHES))

    # -- the consumer's part

    def results(self, job: CollateJob) -> list[Element]:
        batches = job.take_results()
        self._queue.arm()  # another job in its place
        return [] if not self._reads_streams and decide(LEFT_TO_CONSUMER, 0) else batches

    def delivered(self, job: CollateJob, index: int, batch: Element) -> Token:
        made = job.work.made[index]
        count_filtered(self._client.recorder, made.filtered)
        self._token = made.token
        self._steps += batch is not DROPPED
        return made.token

    def error(self, job: CollateJob) -> BaseException | None:
        return job.take_error()

    def is_repeated(self, job: CollateJob, index: int, attempts: int) -> bool:
        failure, is_remade = job.failure, job.work.is_remade
        if job.work.shape.ends_at_crash and failure.is_suspect:
            self._client.learned.has_crashed = True
            self._drop()
        elif failure.crash is not None and index >= failure.batch_index:
            self._leave_out_crashing(job, index, failure.crash)
        elif job.steps > 1 or (is_remade and may_repeat(failure, attempts)):
            self._drop()  # so that no other thread makes the next jobs
            self._singly = job.steps - index  # so that the batch that fails is known
        elif is_remade:
            self._failed = job
        else:
            return False
        return True

    def _leave_out_crashing(self, job: CollateJob, index: int, crash: WorkerError) -> None:
        """Leave out a batch that crashes workers, if a step allows it; raise otherwise."""
        row = job.failure.row
        error = crashing_batch_error(self._step_range.first.step + self._steps, crash, row)
        if row is not None:
            try:
                raise error
            finally:
                del error  # otherwise its traceback would keep it and this
        batch = self._run.around(error, job.work.made[index].provenance, self._client.context())
        self.delivered(job, index, batch)

    def computed(self, job: CollateJob, index: int) -> Element:
        made = job.work.made[index]
        self._scheduler.prepare_consumer()
        job.work.is_remade = True  # a function that raises may have changed the rows
        batch = self._run.result(made.batch, made.provenance, self._client.context())
        self._keeps_rows = True
        self._client.log_complaint(job.failure.complaint)
        return batch

    def fileno(self) -> int:
        return self._scheduler.fileno(self._client)


def _window_now(client: Client, window: int, *, is_measured: bool) -> int:
    """Return how many jobs workers may have ahead: fewer than `window`, where large batches of threads are measured."""
    return within_memory(client.plan, window, client.learned.merged_row_bytes) if is_measured else window


def _has_batch(waiting: deque[Made]) -> bool:
    """Return whether the next batch is one for workers."""
    return bool(waiting) and waiting[0].error is None and not waiting[0].is_finished


def _choice(client: Client, collate_client: Client, run: CollateRun) -> AboveChoice | None:
    """Return the choice between workers and the fold's thread for the steps above; None where only workers may.

    Processes keep functions out of the trainer, and the state of a worker belongs to its thread. A function that fails
    may have changed its batch, which a stream doesn't give again.
    """
    plan, collate = client.plan, run.collate
    functions = [*collate.rows, *collate.above]
    has_own = any(isinstance(step.function, PerWorker) for step in functions)
    if plan.place != "threads" or plan.limits.worker_init is not None or plan.program.reads_streams or has_own:
        return None
    choices = client.choices
    if choices.above is None:
        rows = run.size if collate.rows else 0
        choices.above = AboveChoice(choices.read, partial(_batch_seconds, collate_client.learned, rows))
    return choices.above


def _batch_seconds(learned: Learned[Any], rows: int) -> float | None:
    """Return the time of a batch with so many rows that functions are applied to; None before it is known."""
    row_seconds = learned.row_seconds if rows else 0.0
    if learned.merge_seconds is None or row_seconds is None:
        return None
    return learned.merge_seconds + row_seconds * rows


def _given(made: list[Made], task: CollateTask, *, are_sent: bool) -> dict[int, Any]:
    """Return the rows of each block, with their provenance; or, if blocks compute nothing, what the merge takes."""
    rows_in_all = task.bounds[-1]
    if not rows_in_all:
        contents: Any = [SentRows(each.batch) if task.makes_whole and are_sent else each.batch for each in made]
        if are_sent and not task.makes_whole:
            contents = SentRows(contents)
        provenance = np.concatenate([each.provenance for each in made])
        # Without blocks, the merge has the number 0.
        return {0: (contents, provenance, [*itertools.accumulate(len(each.provenance) for each in made)])}
    rows = list(itertools.chain.from_iterable(each.batch for each in made))
    provenance = np.concatenate([each.provenance for each in made])
    starts = range(0, rows_in_all, task.block_rows)
    spans = [slice(start, start + task.block_rows) for start in starts]
    given = [rows[span] for span in spans]
    return {
        block: (SentRows(part) if are_sent else part, provenance[span])
        for block, (part, span) in enumerate(zip(given, spans, strict=True))
    }


def _waker(scheduler: Scheduler, client: Client) -> Callable[[], None]:
    """Return a thread-safe callback that arms a client's jobs and wakes its consumer."""
    ring = scheduler.waker(client)

    def wake() -> None:
        scheduler.arm_more(client)
        ring()

    return wake
