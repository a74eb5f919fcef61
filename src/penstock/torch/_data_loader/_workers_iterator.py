"""The iterator over a map-style dataset whose batches worker processes compute.

Guarantees:
  - Samplers run in the caller's thread alone, and draw the same numbers as with torch's loader.
  - Batches are delivered in the sampler's order, each exactly once, or its exception in its place, whichever workers
    crash and whatever signals' handlers raise.
  - The processes end with the epoch, or, if they are persistent, with the iterator.
"""

from contextlib import nullcontext
from typing import Any, NoReturn

from penstock._os import HeldInterrupts
from penstock._seeds import derive
from penstock.torch._data_loader._epoch import Epoch, Saved, generators_restored, parts
from penstock.torch._data_loader._sampled import JobRules, Sampled
from penstock.torch._data_loader._torch_private import begin, check_prefetch, collates_plainly, default_collate, pinned
from penstock.torch._data_loader._undelivered import InterruptibleIterator
from penstock.torch._data_loader._work._job import BatchJob, RowsLearned
from penstock.torch._data_loader._work._worker import Start, Work
from penstock.torch._data_loader._workers import Queue, TimedOutError, Workers, sealed


class WorkersIterator(InterruptibleIterator[tuple[int, bool]]):
    """The iterator over one epoch; where workers are persistent, over one after the other.

    Args:
        loader: the loader whose arguments apply.
        saved: the state to resume from; None begins an epoch.
        is_early: whether a framework may set the sampler's epoch only after it made this iterator. Then nothing is
            drawn before the first batch is requested.

    Attributes:
        epoch: the epoch of the batches.
    """

    def __init__(self, loader: object, saved: Saved | None = None, *, is_early: bool = False) -> None:
        super().__init__()
        with generators_restored(loader) if saved is not None else nullcontext():
            self._begun = begin(loader)
        if saved is not None:
            self._begun = self._begun._replace(base_seed=saved.base_seed)  # the workers start with it, too
        given: Any = loader
        prefetch = check_prefetch(given.prefetch_factor)
        is_batched = given.batch_sampler is not None
        work = Work(given.collate_fn, given.worker_init_fn, is_batched, given.dataset)
        rules = self._rules = JobRules(
            RowsLearned(),
            given.num_workers,
            stacks=is_batched and given.collate_fn is default_collate and collates_plainly(),
            is_batched=is_batched,
            at_once=work.reads_at_once,
        )
        least = _least(rules, prefetch, getattr(given.batch_sampler, "batch_size", None) or 1)
        start = Start(sealed(work), given.num_workers, self._begun.base_seed)
        self._is_persistent: bool = given.persistent_workers
        self._workers = Workers(given, rules, start, least=least, most=max(least, 2 * rules.num_workers))
        self._number = -1
        self._sampler: Any = None
        self._queue: Queue | None = None
        self.restart(given, saved, is_early=is_early)

    def restart(self, loader: object, saved: Saved | None = None, *, is_early: bool = False) -> None:
        """Begin the next epoch, or resume a saved one, with the same workers."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._forget()
        given: Any = loader
        self._has_ended = False
        self._sampler = given.sampler if given.batch_sampler is None else given.batch_sampler
        self._number = self._number + 1 if saved is None else saved.number
        epoch = self.epoch = Epoch(self._sampler, saved, counts_drawn=False)
        epoch.keeps_seed = self._is_persistent
        if saved is None:
            epoch.base_seed, epoch.number = self._begun.base_seed, self._number
        else:
            self._begun = self._begun._replace(base_seed=saved.base_seed)
        if saved is None or not saved.is_inside:
            epoch.over(iter(self._sampler))
        seed = derive(epoch.base_seed, epoch.number, *parts(self._sampler))
        self._sampled = Sampled(epoch, self._rules, seed, epoch.reached)
        if not is_early:
            self._queue = self._workers.open(self._sampled)

    def _position(self) -> tuple[int, bool]:
        return self.epoch.reached, self.epoch.has_ended

    def _go_to(self, position: tuple[int, bool]) -> None:
        self.epoch.reached, self.epoch.has_ended = position

    def _advance(self, held: HeldInterrupts) -> object:
        batch = self._next(held)
        return batch if self._begun.pin_device is None else pinned(batch, self._begun.pin_device)

    def _next(self, held: HeldInterrupts) -> object:
        queue = self._queue
        if queue is None and not self._has_ended:
            queue = self._queue = self._workers.open(self._sampled)
        while queue is not None and not self._has_ended:
            job = self._next_job(queue, held)
            if job is None:
                self.epoch.has_ended = True
                self._end()
                break
            if not job.failed:
                self._deliver(job)
                return self._workers.batch(job)
            if not self._workers.is_to_be_repeated(job):
                self._deliver(job)  # this batch is lost; the next call continues after it
                self._workers.raise_for(job)
            queue.close()
            self._sampled.again()
            queue = self._queue = self._workers.open(self._sampled)
        raise StopIteration

    def _next_job(self, queue: Queue, held: HeldInterrupts) -> BatchJob | None:
        try:
            return self._workers.next_job(queue, self._sampled, held)
        except TimedOutError:
            raise
        except Exception as error:
            if not held.has_raised and not self._sampled.is_at(error):
                self._end()  # the workers could not start
            raise

    def _deliver(self, job: BatchJob) -> None:
        self._sampled.delivered(job)
        self.epoch.reached += 1

    def _end(self) -> None:
        self._has_ended = True
        if not self._is_persistent:
            self._workers.close()

    def _shutdown_workers(self) -> None:  # torch has no public name for it, so programs call this one
        self._has_ended = True
        self._forget()
        self._workers.close()

    def __len__(self) -> int:
        return len(self._sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


def _least(rules: JobRules, prefetch: int, batch_rows: int) -> int:
    """Return the number of batches under way or ready in any case."""
    workers = rules.num_workers
    return prefetch + workers if rules.is_whole else max(prefetch, -(-2 * workers // batch_rows))
