"""Streams of batches: the interface that loaders know, the stream of the caller's thread, and the stream of jobs.

A stream delivers the batches from some step to the end of its epoch. `Stream` is all that a loader knows of workers.
There are two streams that compute, and each is given its batches by a value: `InlineStream` by a function, `JobStream`
by a `Supplier`. The suppliers are `BatchSupplier`, for an indexable dataset, `FoldSupplier` (`_fold_thread`), for one
that is read in order, `CollateSupplier` (`_collate_supplier`), where workers compute the steps above the folds, and
`HelperSupplier` (`_isolated`), for an isolated loader.

An error of a job is not kept: the consumer computes the job's content itself, batch by batch, by the inline path. So
the batches before the failing one are delivered first, and the user's exception is raised in the user's thread. The
same path serves rows that don't fit the layout. Only where computing again would read a stream again, or a fold, the
error is kept, and raised in place of its batch.

An error that `is_ready` meets is kept for `next`, but without its frames (`without_frames`): they have the stream and
the user's loader among their variables, so with them a dropped loader would be kept, and its processes would run on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from penstock._caught import Caught, CaughtFailure
from penstock._decisions import LEFT_TO_CONSUMER, decide
from penstock._graph import DROPPED, Element
from penstock._processes import without_frames
from penstock._readings import Waits
from penstock._runtime._batch_work import BatchJob
from penstock._runtime._batches import (
    InlineBatches,
    StepRange,
    Unit,
    coordinates_of,
    without,
)
from penstock._runtime._failing_work import crashing_row_error
from penstock._runtime._queue import Cutter, JobQueue, ReadyQueue, open_queue
from penstock._runtime._recovery import leave_to_steps, may_repeat
from penstock._runtime._scheduler import Client, Scheduler
from penstock._streaming import Token
from penstock._tracebacks import raise_caught
from penstock.errors import InternalError, WorkerError


class EndOfEpoch(Exception):  # noqa: N818 - an end, not an error
    """The epoch has no more batches. It isn't StopIteration, since a user's function may raise that too."""


class Stream(ABC):
    """Batches in order, or as they become ready, for one thread at a time. Any thread may `close`, and more than once.

    The default methods suit a stream that computes each batch when `next` is called. A stream that waits for other
    threads or processes, or delivers out of order, defines all methods.
    """

    is_inline = False
    """Whether `next` computes each batch in the calling thread."""

    waits = Waits()
    """The readings in which `next` notes that it computes or waits; these are read by no one."""

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

    def next_stacked(self) -> tuple[Element, list[int] | bytes, Sequence[Token]] | None:
        """Deliver several batches in one element: that, what divides it, and their tokens.

        The element is the stacked batches, which their bounds divide; or the memory that they were written in, divided
        by its pickled runs (`from_memory` in `_sent_batches`). None where neither is possible; then `next` delivers the
        batches, or raises.
        """
        return None

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

    is_inline = True

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
            waiting = self.waits.waiting
            waiting[0] = perf_counter()
            try:
                ready = self._ready = self._more(self._index)
            finally:
                waiting[0] = 0.0
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


class StreamJob(Protocol):
    """Batches that come together: a job of workers, a chunk of the fold thread, or a message of a helper process."""

    @property
    def steps(self) -> int:
        """The number of batches, the failed ones included."""
        ...


AnyJob = TypeVar("AnyJob", bound=StreamJob)
AnyJob_co = TypeVar("AnyJob_co", bound=StreamJob, covariant=True)


class Jobs(Protocol[AnyJob_co]):
    """The jobs from some step on, computed ahead."""

    def next_job(self) -> AnyJob_co | None:
        """Wait for the next job, and return it; None at the end, and once closed."""
        ...

    def next_job_nowait(self) -> AnyJob_co | None:
        """Return the next job if that takes no wait, else None."""
        ...

    def is_ready(self) -> bool:
        """Return whether `next_job` would return, or raise, without waiting for other threads."""
        ...

    def close(self) -> None:
        """Drop all jobs, wherever the garbage collector runs; may be called again."""
        ...


class Owner(Protocol):
    """The owner of the threads or processes that compute jobs."""

    @property
    def is_closed(self) -> bool:
        """Whether they were stopped, so that `check` may raise."""
        ...

    def check(self) -> None:
        """Raise if no jobs can be computed."""
        ...


class Supplier(ABC, Generic[AnyJob]):
    """Opens the jobs of a stream after the last delivered batch, and computes batches that failed there.

    Args:
        owner: the owner of what computes the jobs.
    """

    counts = True
    """Whether each batch is counted by `delivered`; if not, batches come in order, all are delivered, without tokens.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner

    @abstractmethod
    def open(self) -> Jobs[AnyJob]:
        """Return the jobs after the last delivered batch; the ones opened before are closed."""

    @abstractmethod
    def results(self, job: AnyJob) -> list[Element]:
        """Return the batches of a job up to the first one that failed; called once for each job."""

    @abstractmethod
    def delivered(self, job: AnyJob, index: int, batch: Element) -> Token:
        """Count a batch of a job, delivered or DROPPED; return its token."""

    def error(self, job: AnyJob) -> BaseException | None:
        """Return the error to raise in place of the first failed batch; None if the batch can be computed."""
        del job
        return None

    def is_repeated(self, job: AnyJob, index: int, attempts: int) -> bool:
        """Return whether workers compute the first failed batch again, or it was left out; else `computed` is called.

        Args:
            job: the job.
            index: the number of the batch in it.
            attempts: how often workers have computed the batch again.

        Raises:
            Exception: the batch crashes workers.
        """
        del job, index, attempts
        return False

    def computed(self, job: AnyJob, index: int) -> Element:
        """Compute the first failed batch in the calling thread; never called where each has an error."""
        raise InternalError(f"batch {index} of {job!r} has neither a result nor an error")

    def failing(self, job: AnyJob | None, index: int) -> Unit | None:
        """Return the step that raised: a batch of a job, if there is one; None for the first undelivered step."""
        del job, index
        return None

    def stacked(self, job: AnyJob) -> tuple[Element, list[int] | bytes, Sequence[Token]] | None:
        """Return what `next_stacked` of a stream does, once; None where that isn't possible."""
        del job
        return None

    @abstractmethod
    def fileno(self) -> int | None:
        """Return a descriptor that is readable when a job may be there; None if `is_ready` has to be called first."""


class JobStream(Stream, Generic[AnyJob]):
    """Batches that other threads or processes compute, in jobs.

    A batch that was computed takes the shortest way. Only at the first batch that is missing in a job, the supplier
    decides: its error is raised, or it is computed again elsewhere, or here. A batch may be one item that took a
    microsecond, so the batches of a job are handed over at once, and most are only taken from a list.

    Args:
        supplier: opens the jobs, again after each failure.
    """

    def __init__(self, supplier: Supplier[AnyJob]) -> None:
        self._supplier = supplier
        self._owner = supplier.owner
        self._job: AnyJob | None = None
        self._index = 0  # of the job's next batch
        self._ready: list[Element] = []  # the next batches of the job, in reverse order; none after a failed one
        self._attempts = 0  # at the next batch, by workers
        self._error: BaseException | None = None  # for `next` to raise
        self._closed = False
        self._counts = supplier.counts
        self._jobs = supplier.open()

    def next(self) -> tuple[Element, Token]:
        while True:
            if self._owner.is_closed:
                self._owner.check()
            job, ready = self._job, self._ready
            if job is None or not ready:
                self.waits.waiting[0] = perf_counter()
                try:
                    job, ready = self._received()
                finally:
                    self.waits.waiting[0] = 0.0  # of the page that was made in the wait, if one was
            batch = ready.pop()
            if ready and not self._counts:  # neither the last batch of the job nor the last one before a failure
                self._index += 1
                self._attempts = 0
                return batch, None
            token = self._delivered(job, batch)
            if batch is not DROPPED:
                return batch, token

    def next_nowait(self) -> tuple[Element, Token] | None:
        while not self._owner.is_closed and self._error is None:
            job, ready = self._job, self._ready
            if job is None:
                with CaughtFailure() as caught:
                    job = self._jobs.next_job_nowait()
                    ready = [] if job is None else self._begun(job)
                self._keep(caught)
            if job is None or not ready:
                return None
            batch = ready.pop()
            token = self._delivered(job, batch)
            if batch is not DROPPED:
                return batch, token
        return None

    def _received(self) -> tuple[AnyJob, list[Element]]:
        """Wait for the next batch; return its job, and the batches that are ready, in reverse order."""
        while not self._closed:
            if self._error is not None:
                self._raise_kept()
            job, ready = self._current()
            if not ready and not self._is_repeated(job):
                ready = self._ready = [self._supplier.computed(job, self._index)]
            if ready:
                return job, ready
        raise EndOfEpoch

    def _keep(self, caught: Caught) -> None:
        """Keep an error for `next` to raise; not an end, which `next` meets again."""
        error = caught.taken() if caught.error is not None else None
        if error is not None and not isinstance(error, EndOfEpoch):
            self._error = without_frames(error, "While it was asked whether a batch is ready, in")

    def _raise_kept(self) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise_caught(error)
        finally:
            del error  # otherwise its traceback would keep it and this stream

    def _current(self) -> tuple[AnyJob, list[Element]]:
        """Return the current job, or wait for the next one, and its batches that are ready, in reverse order."""
        job, ready = self._job, self._ready  # once, since another thread that closes the stream replaces both
        if job is None:
            job = self._jobs.next_job()
            if job is None:
                raise EndOfEpoch
            ready = self._begun(job)
        return job, ready

    def _begun(self, job: AnyJob) -> list[Element]:
        """Make a job the current one, and return its batches that are ready, in reverse order."""
        self._job, self._index = job, 0
        ready = self._ready = self._supplier.results(job)[::-1]
        if self._closed:  # by another thread, which may not have seen the job
            self._forget()
        return ready

    def _is_repeated(self, job: AnyJob) -> bool:
        """Return whether the next batch, which failed, was left out or is computed again; raise its error, if kept."""
        error = self._supplier.error(job)
        if error is None and not self._supplier.is_repeated(job, self._index, self._attempts):
            return False
        self._attempts += 1
        if isinstance(error, EndOfEpoch):
            self.close()
        else:
            self._reopen()
        try:
            if error is not None:
                raise_caught(error)
        finally:
            del error  # otherwise its traceback would keep it and this stream
        return True

    def _reopen(self) -> None:
        self._drop()
        self._jobs = self._supplier.open()
        if self._closed:  # another thread closed the stream, and may not have seen the new jobs
            self._drop()

    def _delivered(self, job: AnyJob, batch: Element) -> Token:
        index = self._index
        self._index = index + 1
        self._attempts = 0
        if self._index == job.steps:
            self._job = None
        return self._supplier.delivered(job, index, batch)

    def next_stacked(self) -> tuple[Element, list[int] | bytes, Sequence[Token]] | None:
        if self._owner.is_closed:
            self._owner.check()
        if self._job is not None or self._error is not None:
            return None
        job = self._jobs.next_job()
        stacked = None if job is None else self._supplier.stacked(job)
        if job is not None and stacked is None:
            self._begun(job)
        return stacked

    def failing(self) -> Unit | None:
        return self._supplier.failing(self._job, self._index)

    def fileno(self) -> int | None:
        return self._supplier.fileno()

    def is_ready(self) -> bool:
        """Return whether `next` would not wait.

        A batch that this thread has to compute is computed here, since it may be DROPPED, and `next` would then wait.
        """
        skips = True
        while skips and not self._closed and self._error is None:
            skips = False
            with CaughtFailure() as caught:  # a function's SystemExit is for `next` to raise, too
                if self._job is None and not self._jobs.is_ready():
                    return False
                skips = self._skips(*self._current())
            self._keep(caught)
        return True

    def _skips(self, job: AnyJob, ready: list[Element]) -> bool:
        """Return whether the next batch was left out, as DROPPED, or is computed again; then `next` may wait."""
        if not ready:
            if self._is_repeated(job):
                return True
            ready = self._ready = [self._supplier.computed(job, self._index)]
        if ready[-1] is not DROPPED:
            return False
        self._delivered(job, ready.pop())
        return True

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        self._jobs.close()
        self._forget()

    def _forget(self) -> None:
        self._job, self._ready, self._error = None, [], None


class BatchSupplier(Supplier[BatchJob]):
    """Jobs of batches of an indexable dataset, in order or as they become ready."""

    def __init__(self, scheduler: Scheduler, client: Client, step_ranges: list[StepRange]) -> None:
        super().__init__(scheduler)
        plan = client.plan
        self._scheduler = scheduler
        self._client = client
        self._plan = plan
        self.counts = not plan.ordered
        self._remaining = step_ranges  # the steps of which no job was taken yet, in order
        self._inline = InlineBatches(plan.batches, plan.shard, client.consumer_context())

    def open(self) -> JobQueue[BatchJob]:
        cutter = Cutter(self._scheduler, self._client, self._plan.batches, self._remaining)
        kind = JobQueue[BatchJob] if self._plan.ordered else ReadyQueue[BatchJob]
        return open_queue(kind, self._scheduler, self._client, cutter)

    def results(self, job: BatchJob) -> list[Element]:
        self._remaining = without(self._remaining, job.work.step_range)
        if job.failed or decide(LEFT_TO_CONSUMER, 0):
            return []
        copied_bytes = self._client.region_pool.copied_bytes(self._client.ahead + 1)
        return job.work.batches(job.parts, job.results, copied_bytes)

    def delivered(self, job: BatchJob, index: int, batch: Element) -> Token:
        del batch
        return None if self._plan.ordered else job.work.step_range.first.step + index

    def is_repeated(self, job: BatchJob, index: int, attempts: int) -> bool:
        failure = job.failure
        if job.work.shape.ends_at_crash and failure.is_suspect:
            self._client.learned.has_crashed = True
        elif failure.crash is not None and index >= failure.batch_index:
            self._replace_crashing(job.work.step_range.unit(index), failure.row, failure.crash)
        elif not may_repeat(failure, attempts):
            return False
        self._remaining = [job.work.step_range.part(index, job.steps), *self._remaining]
        return True

    def _replace_crashing(self, unit: Unit, row: int | None, crash: WorkerError) -> None:
        """Let a step with `on_error=` replace the row that crashes workers, from now on; raise if there is none."""
        program, shard = self._plan.batches, self._plan.shard
        at = None if row is None else coordinates_of(program, shard, unit, row)
        leave_to_steps(self._client, program.rows, at, crashing_row_error(program, shard, unit, row, crash))

    def computed(self, job: BatchJob, index: int) -> Element:
        self._scheduler.prepare_consumer()
        batch = self._inline.batch(job.work.step_range.unit(index), careful=job.failure.is_suspect)
        if index + 1 == job.steps:
            self._client.log_complaint(job.failure.complaint)
        return batch

    def failing(self, job: BatchJob | None, index: int) -> Unit | None:
        return None if job is None or self._plan.ordered else job.work.step_range.unit(index)

    def fileno(self) -> int:
        return self._scheduler.fileno(self._client)

    def stacked(self, job: BatchJob) -> tuple[Element, list[int] | bytes, Sequence[Token]] | None:
        is_provided = self._client.memory_provider is not None
        stacked = None if job.failed else job.work.stacked(job.parts, is_provided=is_provided)
        if stacked is None:
            return None
        self._client.learned.knows_memory = True  # these batches are leased
        step_range = job.work.step_range
        self._remaining = without(self._remaining, step_range)
        first = step_range.first.step
        return *stacked, (None,) * job.steps if self._plan.ordered else range(first, first + job.steps)
