"""The batches of an iterable dataset, of which each worker process has a stream; they come in turns.

Guarantees:
  - Each worker's batches come in its stream's order; of those whose stream has not ended, each worker's next in turn.
  - A worker's death is a RuntimeError, as torch's, unless the dataset can tell its state: then another worker goes on
    after the last batch that was handed out.
  - Batches come once each, whatever signals' handlers raise.
"""

import warnings
from contextlib import nullcontext
from itertools import chain, repeat
from typing import Any, NoReturn, cast

from penstock._os import HeldInterrupts
from penstock.errors import WorkerError
from penstock.torch._data_loader._epoch import drawing_nothing
from penstock.torch._data_loader._places import Place, Places
from penstock.torch._data_loader._sampled import Making, Sampled
from penstock.torch._data_loader._torch_private import begin, check_prefetch, pinned, told_length
from penstock.torch._data_loader._undelivered import InterruptibleIterator
from penstock.torch._data_loader._work._job import BatchJob, RowsLearned
from penstock.torch._data_loader._work._stream import LostError, Streamed, Wanted, is_stateful
from penstock.torch._data_loader._work._worker import Start, Work
from penstock.torch._data_loader._workers import Queue, TimedOutError, Workers, sealed


class StreamsIterator(InterruptibleIterator[Places]):
    """The batches of one epoch; of one after the other, where workers are persistent.

    Args:
        loader: whose arguments hold.
        saved: where to begin; None begins an epoch.

    Attributes:
        places: where the streams are; the same object throughout an epoch.
    """

    def __init__(self, loader: object, saved: Places | None = None) -> None:
        super().__init__()
        with drawing_nothing(loader) if saved is not None else nullcontext():
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
        """Begin the next epoch, or where one was saved, with the same workers."""
        self._forget()
        given: Any = loader
        self._epoch += 1
        self._yielded = 0
        self._dataset = given.dataset
        self._length = told_length(loader)
        wanted = Wanted(self._epoch, given.batch_size, given.drop_last)
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
                if not held.has_raised:  # else it is still this one's turn
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

    def _shutdown_workers(self) -> None:  # the name by which programs end workers that persist, for lack of another
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
    """Owns the one worker that has a stream, and asks it for batch after batch.

    Args:
        loader: whose arguments hold.
        start: what the worker is told at its start.
        ahead: how many batches are loaded ahead.

    Attributes:
        place: where the stream is.
    """

    place: Place

    def __init__(self, loader: object, start: Start, ahead: int) -> None:
        given: Any = loader
        self._making = Making(RowsLearned(), 1, stacks=False, is_batched=False, at_once=False)
        self._team = Workers(loader, self._making, start, least=ahead, most=max(ahead, 2))
        self._is_stateful = is_stateful(given.dataset)
        self._queue: Queue | None = None

    def restart(self, wanted: Wanted, place: Place) -> None:
        """Begin an epoch's stream, at some place in it."""
        self._wanted = wanted
        self.place = place
        if not place.is_over:
            self._open()

    def _open(self) -> None:
        """Ask for what was not handed out."""
        if self._queue is not None:
            self._queue.close()
        first = self._wanted._replace(state=self.place.state)
        self._drawn = Sampled(chain([first], repeat(self._wanted)), self._making, 0, self.place.number)
        self._queue = self._team.open(self._drawn)

    def next(self, held: HeldInterrupts) -> Streamed | None:
        """Return the next batch; None at the end."""
        while not self.place.is_over:
            job = self._next_job(held)
            if not job.failed:
                self._drawn.handed_out(job)
                found = cast("Streamed", self._team.batch(job))
                self.place.number, self.place.state = self.place.number + 1, found.state
                if not found.has_ended:
                    return found
                self.place.is_over = True
            elif self._team.is_to_be_repeated(job):
                self._open()
            else:
                self._fail(job)
        if self._queue is not None:
            self._queue.close()
        return None

    def _next_job(self, held: HeldInterrupts) -> BatchJob:
        assert self._queue is not None
        try:
            job = self._team.next_job(self._queue, self._drawn, held)
        except TimedOutError:
            raise
        except Exception:
            if not held.has_raised:
                self.place.is_over = True  # the worker can't work
            raise
        assert job is not None
        return job

    def _fail(self, job: BatchJob) -> None:
        """Raise what went wrong; go on after a death where the dataset's state is known."""
        try:
            self._drawn.handed_out(job)
            self.place.number += 1
            self._team.raise_for(job)
        except LostError:
            self.place.number -= 1
            if self._is_stateful and (self.place.state is not None or not self.place.number):
                self._open()
                return
            self.place.is_over = True
            raise RuntimeError(f"DataLoader worker (pid(s) {self._team.last_death}) exited unexpectedly") from None
        except WorkerError:
            self.place.is_over = True
            raise

    def close(self) -> None:
        """End the worker."""
        self._team.close()
