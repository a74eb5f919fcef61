"""The worker processes of an iterator, and what it asks them for."""

from time import monotonic
from typing import Any, Final, NoReturn, TypeAlias

from penstock._graph._nodes import Read
from penstock._os import Closer, HeldInterrupts, Waiter
from penstock._plan._plan import Limits, Plan, Shard, StartMethod
from penstock._plan._program import Batches
from penstock._runtime._client import Client
from penstock._runtime._pickle_buffers import LARGE_BYTES
from penstock._runtime._process_scheduler import ProcessScheduler
from penstock._runtime._recorder import Recorder
from penstock.errors import WorkerError
from penstock.torch._data_loader._pickling import Sealed
from penstock.torch._data_loader._sampled import AsReady, InOrder, Making, Sampled
from penstock.torch._data_loader._work._job import BatchJob
from penstock.torch._data_loader._work._worker import Start, Work, told_error

Queue: TypeAlias = InOrder | AsReady

_MAX_ATTEMPTS: Final = 8  # of a batch whose memory was too small, or whose rows differ from those before
_MAX_KEPT: Final = 64  # batches that the consumer keeps; each keeps a descriptor, so further ones are copied
_EVERYTHING: Final = 1 << 62


class Workers:
    """Owns some processes, which end when it is closed, or dropped.

    Args:
        loader: whose arguments hold.
        making: how batches become jobs of theirs.
        start: what each is told at its start.
        least: how many batches are under way or ready, in any case.
        most: how many where they are small.
    """

    def __init__(self, loader: object, making: Making, start: Start, *, least: int, most: int) -> None:
        given: Any = loader
        self.least = least
        self._making = making
        self.most = most
        self._timeout: float = given.timeout
        self._is_ordered: bool = given.in_order
        context: Any = given.multiprocessing_context
        method: StartMethod | None = "spawn" if context is not None and context.get_start_method() == "spawn" else None
        merging = most if making.is_whole else given.num_batch_workers or most
        limits = Limits(num_batch_workers=merging, worker_init=start, start_method=method)
        node = Read(start.work, 0, 0)
        program = Batches(node, 0, None, (), can_recut=True)
        workers = making.num_workers
        shard = Shard(0, 1)
        plan = Plan(node, program, "processes", workers, shard, least, None, copy=False, limits=limits)
        self._client = Client(plan, Recorder())
        self._client.learned = making.learned
        self._client.told_of_kept_batches = True  # keeping batches is no fault to those who know torch's loader
        self.attempts = 0  # of the batch at hand
        with HeldInterrupts():
            self._scheduler = ProcessScheduler(self._client)
            self._closer = Closer(self._scheduler.close)

    def open(self, drawn: Sampled) -> Queue:
        """Have batches computed that are drawn from now on."""
        drawn.draw(self.most)
        kind = InOrder if self._is_ordered else AsReady
        return kind(self._scheduler, self._client, drawn, self._making, (self.least, self.most))

    def next_job(self, queue: Queue, drawn: Sampled, held: HeldInterrupts) -> BatchJob | None:
        """Return the next job, complete or failed; None at the end.

        Besides the sampler's own error and those of signals' handlers, all errors mean that no worker can work.

        Args:
            queue: of the jobs.
            drawn: what they are of.
            held: holds signals back; they are allowed while this waits.
        """
        drawn.draw(self.most + 1)
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
        """Return what a complete job has made."""
        self.attempts = 0
        kept = self._client.region_pool.lent - self.most > _MAX_KEPT
        return job.take(_EVERYTHING if kept else LARGE_BYTES)

    def is_to_be_repeated(self, job: BatchJob) -> bool:
        """Return whether a failed job is only to be tried again, in other memory; if not, `raise_for` it."""
        self.attempts += 1
        return job.failure.death is None and not job.failure.note and self.attempts < _MAX_ATTEMPTS

    def raise_for(self, job: BatchJob) -> None:
        """Raise what went wrong with a job."""
        failure, attempts, self.attempts = job.failure, self.attempts, 0
        if failure.death is not None:
            _raise_deadly(job, failure.death)
        told = told_error(failure.note)
        if told is None:
            complaint = failure.complaint or f"it was tried {attempts} times"
            raise WorkerError(f"batch {job.given.number} can't be made: {complaint}")
        told.raise_again()

    @property
    def last_death(self) -> int:
        """The number of the process that died last."""
        deaths = self._client.recorder.deaths()
        return deaths[-1].pid if deaths else 0

    def close(self) -> None:
        """End the processes."""
        self._closer()


class TimedOutError(RuntimeError):
    """A batch took longer than `timeout`."""


def sealed(work: Work) -> Sealed:
    """Return what workers are sent; what can't be pickled raises as it does when torch sends it to its workers."""
    try:
        return Sealed(work, shares=True)
    except Exception as error:
        error.add_note(
            "the dataset, collate_fn and worker_init_fn are sent to worker processes, which are no forks of this one; "
            "they must be picklable. cloudpickle, which comes with penstock[torch], takes lambdas and local functions; "
            "open what can't be sent, such as files, when it is first used, or in worker_init_fn."
        )
        raise


def _raise_deadly(job: BatchJob, death: WorkerError) -> NoReturn:
    row = job.failure.row
    what = "what is done to it as a whole" if row is None else f"row {row}, index {job.index(row)}"
    raise WorkerError(
        f"DataLoader worker exited unexpectedly, one after the other, at batch {job.given.number}: {what}. Leave it "
        f"out, or mend what is done to it. The last death: {death}",
        exit_code=death.exit_code,
    )
