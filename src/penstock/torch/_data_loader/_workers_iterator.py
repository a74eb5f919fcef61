"""The batches of a map-style dataset that worker processes compute, as torch's iterator gives them.

Guarantees:
  - Samplers are asked by the caller's thread alone, and draw what they draw for torch's loader.
  - Batches come in the sampler's order, each exactly once, or its exception in its place, whatever dies.
  - The processes end with the epoch, or, where they are persistent, with the iterator.
"""

from contextlib import nullcontext
from time import monotonic
from typing import Any, Final, NoReturn, Self

import torch

from penstock._graph._nodes import Read
from penstock._plan._plan import Batches, Limits, Plan, Shard, StartMethod
from penstock._runtime._client import Client
from penstock._runtime._parcels import LARGE_BYTES
from penstock._runtime._process_crew import ProcessCrew
from penstock._runtime._recorder import Recorder
from penstock._seeds import derive
from penstock.errors import WorkerError
from penstock.torch._data_loader._drawn import AsReady, Drawn, InOrder, Making
from penstock.torch._data_loader._epoch import Epoch, Saved, drawing_nothing
from penstock.torch._data_loader._job import BatchJob, RowsLearned
from penstock.torch._data_loader._parts import begin, collates_plainly, default_collate, pinned
from penstock.torch._data_loader._pickling import Sealed
from penstock.torch._data_loader._worker import Start, Work, told_error
from penstock.transport._bell import Waiter
from penstock.transport._closer import Closer
from penstock.transport._interrupts import HeldInterrupts

_MOST_ATTEMPTS: Final = 8  # of a batch whose memory was too small, or whose rows differ from those before
_MOST_KEPT: Final = 64  # batches that the consumer keeps; each keeps a descriptor, so further ones are copied
_EVERYTHING: Final = 1 << 62


class WorkersIterator:
    """The batches of one epoch; of one after the other, where workers are persistent.

    Args:
        loader: whose arguments hold.
        saved: where to begin; None begins an epoch.

    Attributes:
        epoch: that the batches are of.
    """

    def __init__(self, loader: object, saved: Saved | None = None) -> None:
        with drawing_nothing(loader) if saved is not None else nullcontext():
            self._begun = begin(loader)
        given: Any = loader
        prefetch: int = given.prefetch_factor or 0
        if prefetch <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._is_persistent = given.persistent_workers
        self._timeout = given.timeout
        is_batched = given.batch_sampler is not None
        work = Work(given.collate_fn, given.worker_init_fn, is_batched, given.dataset)
        self._prefetch = prefetch
        self._in_order = given.in_order
        learned = RowsLearned()
        self._making = Making(
            learned,
            given.num_workers,
            stacks=is_batched and given.collate_fn is default_collate and collates_plainly(),
            is_batched=is_batched,
            at_once=work.reads_at_once,
        )
        self._batch_rows = getattr(given.batch_sampler, "batch_size", None) or 1
        self._client = Client(self._plan(given, work), Recorder())
        self._client.learned = learned
        self._client.told_of_kept_batches = True  # keeping batches is no fault to those who know torch's loader
        with HeldInterrupts():
            self._crew = ProcessCrew(self._client)
            self._closer = Closer(self._crew.close)
        self._number = -1
        self._sampler: Any = None
        self._queue: InOrder | AsReady | None = None
        self.restart(given, saved)

    def _plan(self, loader: object, work: Work) -> Plan:
        sealed = _sealed(work)
        given: Any = loader
        context: Any = given.multiprocessing_context
        method: StartMethod | None = "spawn" if context is not None and context.get_start_method() == "spawn" else None
        limits = Limits(
            num_batch_workers=self._most if self._is_whole else given.num_batch_workers or self._most,
            worker_init=Start(sealed, given.num_workers, self._begun.base_seed),
            start_method=method,
        )
        node = Read(sealed, 0, 0)
        program = Batches(node, 0, None, (), can_recut=True)
        return Plan(
            node,
            program,
            "processes",
            given.num_workers,
            Shard(0, 1),
            self._prefetch,
            None,
            copy=False,
            limits=limits,
            ordered=self._in_order,
        )

    @property
    def _is_whole(self) -> bool:
        """Whether one worker makes all of a batch, so that each needs one of its own."""
        return self._making.at_once or not self._making.is_batched

    @property
    def _least(self) -> int:
        """How many batches are under way or ready, in any case."""
        workers = self._making.num_workers
        return self._prefetch + workers if self._is_whole else max(self._prefetch, -(-2 * workers // self._batch_rows))

    @property
    def _most(self) -> int:
        """How many where they are small."""
        return max(self._least, 2 * self._making.num_workers)

    def restart(self, loader: object, saved: Saved | None = None) -> None:
        """Begin the next epoch, or where one was saved, with the same workers."""
        if self._queue is not None:
            self._queue.close()
        self._has_ended = False
        given: Any = loader
        self._sampler = given.sampler if given.batch_sampler is None else given.batch_sampler
        self._number = self._number + 1 if saved is None else saved.number
        epoch = self.epoch = Epoch(self._sampler, saved, counts_drawn=False)
        if saved is None:
            epoch.base_seed, epoch.number = self._begun.base_seed, self._number
            epoch.over(iter(self._sampler))
        self._drawn = Drawn(epoch, self._making, derive(epoch.base_seed, epoch.number), epoch.reached)
        self._open()

    def _open(self) -> InOrder | AsReady:
        self._drawn.draw(self._least, self._most)
        kind = InOrder if self._in_order else AsReady
        self._queue = kind(self._crew, self._client, self._drawn.next_job, self._most)
        return self._queue

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        with torch.autograd.profiler.record_function("enumerate(DataLoader)#WorkersIterator.__next__"):
            batch = self._next()
        return batch if self._begun.pin_device is None else pinned(batch, self._begun.pin_device)

    def _next(self) -> object:
        queue, attempts = self._queue, 0
        while queue is not None and not self._has_ended:
            job = self._next_job(queue)
            if job is None:
                self.epoch.has_ended = True
                self._end()
                break
            if not job.failed:
                self._hand_out(job)
                kept = self._client.stock.lent - self._most > _MOST_KEPT
                return job.take(_EVERYTHING if kept else LARGE_BYTES)
            attempts += 1
            self._raise_for(job, attempts)
            queue.close()
            self._drawn.again()
            queue = self._open()
        raise StopIteration

    def _next_job(self, queue: InOrder | AsReady) -> BatchJob | None:
        self._drawn.draw(self._least, self._most + 1)
        if self._timeout:
            self._wait(queue)
        try:
            return queue.next_job()
        except Exception as error:
            if not self._drawn.is_at(error):
                self._end()  # no worker can work
            raise

    def _wait(self, queue: InOrder | AsReady) -> None:
        until = monotonic() + self._timeout
        while not queue.is_ready():
            left = until - monotonic()
            if left <= 0 or not Waiter().wait(self._crew.fileno(self._client), left):
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

    def _raise_for(self, job: BatchJob, attempts: int) -> None:
        """Raise what went wrong with a job; return if it is only to be tried again, in other memory."""
        trouble = job.trouble
        if trouble.death is None and not trouble.note and attempts < _MOST_ATTEMPTS:
            return
        self._hand_out(job)
        if trouble.death is not None:
            _raise_deadly(job, trouble.death)
        told = told_error(trouble.note)
        if told is None:
            complaint = trouble.complaint or f"it was tried {attempts} times"
            raise WorkerError(f"batch {job.given.number} can't be made: {complaint}")
        told.raise_again()

    def _hand_out(self, job: BatchJob) -> None:
        self._drawn.handed_out(job)
        self.epoch.reached += 1

    def _end(self) -> None:
        self._has_ended = True
        if not self._is_persistent:
            self._closer()

    def __len__(self) -> int:
        return len(self._sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


def _sealed(work: Work) -> Sealed:
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
    row = job.trouble.row
    what = "what is done to it as a whole" if row is None else f"row {row}, index {job.index(row)}"
    raise WorkerError(
        f"DataLoader worker exited unexpectedly, one after the other, at batch {job.given.number}: {what}. Leave it "
        f"out, or mend what is done to it. The last death: {death}",
        exit_code=death.exit_code,
    )
