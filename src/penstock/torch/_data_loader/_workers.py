"""The worker processes of a DataLoader's iterator."""

from time import monotonic
from typing import Any, Final, NoReturn, TypeAlias

from penstock._graph import Read
from penstock._os import Closer, HeldInterrupts, Waiter, uninterrupted
from penstock._plan import Batches, Limits, Plan, Shard, StartMethod
from penstock._runtime import LARGE_BYTES, Client, ProcessScheduler, Recorder
from penstock.errors import WorkerError
from penstock.torch._data_loader._pickling import Sealed
from penstock.torch._data_loader._sampled import AsReady, InOrder, JobRules, Sampled
from penstock.torch._data_loader._work._job import BatchJob
from penstock.torch._data_loader._work._worker import Start, Work, received_error

Queue: TypeAlias = InOrder | AsReady

_MAX_ATTEMPTS: Final = 8  # to make a batch whose memory was too small, or whose rows have another layout
_MAX_KEPT: Final = 64  # batches that the consumer may hold; each keeps a descriptor, so further ones are copied
_EVERYTHING: Final = 1 << 62


class Workers:
    """Owns the worker processes, which end when it is closed or dropped.

    Args:
        loader: the loader whose arguments apply.
        rules: the rules by which batches become jobs.
        start: called in each worker at its start.
        least: the number of batches under way or ready in any case.
        most: the number if they are small.
    """

    def __init__(self, loader: object, rules: JobRules, start: Start, *, least: int, most: int) -> None:
        given: Any = loader
        self.least = least
        self._rules = rules
        self.most = most
        self._timeout: float = given.timeout
        self._is_ordered: bool = given.in_order
        context: Any = given.multiprocessing_context
        method: StartMethod | None = "spawn" if context is not None and context.get_start_method() == "spawn" else None
        merging = most if rules.is_whole else given.num_batch_workers or most
        limits = Limits(num_batch_workers=merging, worker_init=start, start_method=method)
        node = Read(start.work, 0, 0)
        program = Batches(node, 0, None, (), can_recut=True)
        workers = rules.num_workers
        shard = Shard(0, 1)
        plan = Plan(node, program, "processes", workers, shard, least, None, copy=False, limits=limits)
        self._client = Client(plan, Recorder())
        self._client.learned = rules.learned
        self._client.has_warned_of_kept = True  # no warning: users of torch's loader may keep batches
        self.attempts = 0  # to make the current batch
        self._start()

    @uninterrupted  # an interrupt before the assignments would leave workers without an owner
    def _start(self) -> None:
        self._scheduler = ProcessScheduler(self._client)
        self._closer = Closer(self._scheduler.close)

    def open(self, sampled: Sampled) -> Queue:
        """Start computing the batches that are drawn from now on."""
        sampled.draw(self.most)
        kind = InOrder if self._is_ordered else AsReady
        return kind(self._scheduler, self._client, sampled, self._rules, (self.least, self.most))

    def next_job(self, queue: Queue, sampled: Sampled, held: HeldInterrupts) -> BatchJob | None:
        """Return the next job, complete or failed; None at the end.

        An error that is not the sampler's or a signal handler's means that the workers can't start.

        Args:
            queue: the queue of jobs.
            sampled: the batches of the jobs.
            held: holds signals back; they are allowed while this waits.
        """
        sampled.draw(self.most + 1)
        if self._timeout:
            self._wait(queue, held)
        return queue.next_job(held)

    def _wait(self, queue: Queue, held: HeldInterrupts) -> None:
        until = monotonic() + self._timeout
        while not queue.is_ready():
            left = until - monotonic()
            held.allow()
            is_late = left <= 0 or not Waiter().wait(self._scheduler.fileno(self._client), left)
            held.hold()
            if is_late:
                raise TimedOutError(f"DataLoader timed out after {self._timeout} seconds")

    def batch(self, job: BatchJob) -> object:
        """Return the batch of a complete job."""
        self.attempts = 0
        kept = self._client.region_pool.leased - self.most > _MAX_KEPT
        return job.take(_EVERYTHING if kept else LARGE_BYTES)

    def is_to_be_repeated(self, job: BatchJob) -> bool:
        """Return whether a failed job only needs another attempt, in other memory; if not, call `raise_for`."""
        self.attempts += 1
        return job.failure.crash is None and not job.failure.note and self.attempts < _MAX_ATTEMPTS

    def raise_for(self, job: BatchJob) -> None:
        """Raise the error of a failed job."""
        failure, attempts, self.attempts = job.failure, self.attempts, 0
        if failure.crash is not None:
            _raise_crash(job, failure.crash)
        sent = received_error(failure.note)
        if sent is None:
            complaint = failure.complaint or f"it was tried {attempts} times"
            raise WorkerError(f"batch {job.given.number} can't be made: {complaint}")
        sent.raise_again()

    @property
    def last_death(self) -> int:
        """The pid of the process that died last."""
        deaths = self._client.recorder.deaths()
        return deaths[-1].pid if deaths else 0

    def close(self) -> None:
        """End the processes."""
        self._closer()


class TimedOutError(RuntimeError):
    """A batch took longer than `timeout`."""


def sealed(work: Work) -> Sealed:
    """Return the work, pickled; an object that can't be pickled raises the same error as with torch's loader."""
    try:
        return Sealed(work, shares=True)
    except Exception as error:
        error.add_note(
            "the dataset, collate_fn and worker_init_fn are sent to worker processes, which aren't forks of this one; "
            "they must be picklable. cloudpickle, which penstock[torch] installs, pickles lambdas and local functions; "
            "open unpicklable objects, such as files, on first use, or in worker_init_fn."
        )
        raise


def _raise_crash(job: BatchJob, crash: WorkerError) -> NoReturn:
    row = job.failure.row
    cause = "collating it, or reading it as a whole," if row is None else f"row {row}, index {job.index(row)},"
    raise WorkerError(
        f"DataLoader worker exited unexpectedly: in batch {job.given.number}, {cause} repeatedly crashes workers. "
        f"Leave it out, or fix the dataset or collate_fn. The last crash: {crash}",
        exit_code=crash.exit_code,
    )
