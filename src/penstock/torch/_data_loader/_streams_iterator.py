"""The iterator over an iterable dataset, of which each worker process reads one stream.

Guarantees:
  - Batches are delivered in rotation over the workers whose stream has not ended, each in the order of its stream.
  - A worker's death raises a RuntimeError, as in torch, unless the dataset has a state: then another worker resumes
    after the last delivered batch.
  - Each batch is delivered once, whatever signals' handlers raise.
"""

import warnings
from contextlib import nullcontext
from itertools import chain, repeat
from typing import Any, NoReturn, cast

from penstock._os import HeldInterrupts
from penstock.errors import WorkerError
from penstock.torch._data_loader._epoch import generators_restored
from penstock.torch._data_loader._places import Place, Places
from penstock.torch._data_loader._sampled import JobRules, Sampled
from penstock.torch._data_loader._torch_private import begin, check_prefetch, pinned, reported_length
from penstock.torch._data_loader._undelivered import InterruptibleIterator
from penstock.torch._data_loader._work._job import BatchJob, RowsLearned
from penstock.torch._data_loader._work._stream import StreamedBatch, StreamLostError, StreamRequest, is_stateful
from penstock.torch._data_loader._work._worker import Start, Work
from penstock.torch._data_loader._workers import Queue, TimedOutError, Workers, sealed


class StreamsIterator(InterruptibleIterator[Places]):
    """The iterator over one epoch; where workers are persistent, over one after the other.

    Args:
        loader: the loader whose arguments apply.
        saved: the progress to resume from; None begins an epoch.

    Attributes:
        places: the progress in the streams; the same object throughout an epoch.
    """

    def __init__(self, loader: object, saved: Places | None = None) -> None:
        super().__init__()
        with generators_restored(loader) if saved is not None else nullcontext():
            self._begun = begin(loader)
        given: Any = loader
        workers: int = given.num_workers
        ahead = max(-(-check_prefetch(given.prefetch_factor) // workers), 1)
        work = Work(given.collate_fn, given.worker_init_fn, given.batch_sampler is not None, given.dataset)
        sent = sealed(work)
        self._is_persistent: bool = given.persistent_workers
        self._sampler: Any = given.sampler if given.batch_sampler is None else given.batch_sampler
        self._streams: list[_Stream] = []
        self._epoch = -1
        for number in range(workers):
            start = Start(sent, workers, self._begun.base_seed, number)
            self._streams.append(_Stream(given, start, ahead))
        self.restart(given, saved)

    def restart(self, loader: object, saved: Places | None = None) -> None:
        """Begin the next epoch, or resume a saved one, with the same workers."""
        self._forget()
        given: Any = loader
        self._epoch += 1
        self._yielded = 0
        self._dataset = given.dataset
        self._length = reported_length(loader)
        wanted = StreamRequest(self._epoch, given.batch_size, given.drop_last)
        places = self.places = Places([Place() for _ in self._streams], 0) if saved is None else saved
        for stream, place in zip(self._streams, places.streams, strict=True):
            stream.restart(wanted, place)
        self._active = [stream for stream in self._streams if not stream.place.is_over]
        self._turn = sum(not place.is_over for place in places.streams[: places.turn])

    def _position(self) -> Places:
        return self.places.copy()

    def _go_to(self, position: Places) -> None:
        self.places.go_to(position)

    def _advance(self, held: HeldInterrupts) -> object:
        batch = self._next(held)
        self._yielded += 1
        if self._length is not None and self._yielded > self._length:
            self._warn(self._length)
        return batch if self._begun.pin_device is None else pinned(batch, self._begun.pin_device)

    def _next(self, held: HeldInterrupts) -> object:
        while self._active:
            self._turn %= len(self._active)
            stream = self._active[self._turn]
            try:
                streamed = stream.next(held)
            finally:
                if not held.has_raised:  # else the next call reads from the same stream
                    if stream.place.is_over:
                        del self._active[self._turn]
                    else:
                        self._turn += 1
                    self.places.turn = self._streams.index(stream) + 1
            if streamed is not None:
                return streamed.batch
        if not self._is_persistent:
            self._close()
        raise StopIteration

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _shutdown_workers(self) -> None:  # torch has no public name for it, so programs call this one
        self._active = []
        self._forget()
        self._close()

    def _warn(self, length: int) -> None:
        warnings.warn(
            f"Length of IterableDataset {self._dataset} was reported to be {length} (when accessing len(dataloader)), "
            f"but {self._yielded} samples have been fetched. For multiprocessing data-loading, this could be caused by "
            "not properly configuring the IterableDataset replica at each worker. Please see "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples.",
            stacklevel=5,
        )

    def __len__(self) -> int:
        return len(self._sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


class _Stream:
    """Owns the one worker that reads a stream, and requests its batches.

    Args:
        loader: the loader whose arguments apply.
        start: called in the worker at its start.
        ahead: the number of batches loaded ahead.

    Attributes:
        place: the progress in the stream.
    """

    place: Place

    def __init__(self, loader: object, start: Start, ahead: int) -> None:
        given: Any = loader
        self._rules = JobRules(RowsLearned(), 1, stacks=False, is_batched=False, at_once=False)
        self._workers = Workers(loader, self._rules, start, least=ahead, most=max(ahead, 2))
        self._is_stateful = is_stateful(given.dataset)
        self._queue: Queue | None = None

    def restart(self, wanted: StreamRequest, place: Place) -> None:
        """Begin an epoch's stream, at a given progress."""
        self._wanted = wanted
        self.place = place
        if not place.is_over:
            self._open()

    def _open(self) -> None:
        """Request the batches after the last delivered one."""
        if self._queue is not None:
            self._queue.close()
        first = self._wanted._replace(state=self.place.state)
        self._sampled = Sampled(chain([first], repeat(self._wanted)), self._rules, 0, self.place.number)
        self._queue = self._workers.open(self._sampled)

    def next(self, held: HeldInterrupts) -> StreamedBatch | None:
        """Return the next batch; None at the end."""
        while not self.place.is_over:
            job = self._next_job(held)
            if not job.failed:
                self._sampled.delivered(job)
                found = cast("StreamedBatch", self._workers.batch(job))
                self.place.number, self.place.state = self.place.number + 1, found.state
                if not found.has_ended:
                    return found
                self.place.is_over = True
            elif self._workers.is_to_be_repeated(job):
                self._open()
            else:
                self._fail(job)
        if self._queue is not None:
            self._queue.close()
        return None

    def _next_job(self, held: HeldInterrupts) -> BatchJob:
        assert self._queue is not None
        try:
            job = self._workers.next_job(self._queue, self._sampled, held)
        except TimedOutError:
            raise
        except Exception:
            if not held.has_raised:
                self.place.is_over = True  # the worker could not start
            raise
        assert job is not None
        return job

    def _fail(self, job: BatchJob) -> None:
        """Raise the error of a job; after a death, resume instead if the dataset's state is known."""
        try:
            self._sampled.delivered(job)
            self.place.number += 1
            self._workers.raise_for(job)
        except StreamLostError:
            self.place.number -= 1
            if self._is_stateful and (self.place.state is not None or not self.place.number):
                self._open()
                return
            self.place.is_over = True
            raise RuntimeError(f"DataLoader worker (pid(s) {self._workers.last_death}) exited unexpectedly") from None
        except WorkerError:
            self.place.is_over = True
            raise

    def close(self) -> None:
        """End the worker."""
        self._workers.close()
