"""The iterators of a DataLoader with worker processes: over a map-style dataset, and over the workers' streams.

Guarantees of both:
  - Each batch is delivered exactly once, whatever the handlers of signals raise. Handlers run while `next` waits for
    workers, and at its end; never while samplers draw, jobs are started or batches are made of their results.
  - `next` raises the exception of a handler once. If `next` had a batch, an error or the end by then, the next call
    delivers that, and until then the iterator's position is the one before it.
  - The processes end with the epoch, or, if they are persistent, with the iterator.

Over a map-style dataset (`WorkersIterator`):
  - Samplers run in the caller's thread alone, and draw the same numbers as with torch's loader.
  - Batches are delivered in the sampler's order, or an exception in the place of its batch, whichever workers crash.

Over an iterable dataset, of which each worker reads one stream (`StreamsIterator`):
  - Batches are delivered in rotation over the workers whose stream has not ended, each in the order of its stream. With
    `in_order=False` the rotation leaves out workers whose batch isn't ready.
  - A worker's death raises a RuntimeError, as in torch, unless the dataset has a state: then another worker resumes
    after the last delivered batch.
"""

import select
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Self, TypeVar, cast

import torch

from penstock._caught import Caught
from penstock._os import HeldInterrupts, holding_interrupts
from penstock._runtime import Learned
from penstock._seeds import derive
from penstock._tracebacks import trim
from penstock.errors import UsageError, WorkerError
from penstock.torch._data_loader._job import DrawnJob
from penstock.torch._data_loader._pickling import Sealed
from penstock.torch._data_loader._pinning import PinnedAhead
from penstock.torch._data_loader._seeding import Seed
from penstock.torch._data_loader._state import (
    Epoch,
    Saved,
    StreamProgress,
    StreamsProgress,
    freely_drawn,
    generators_restored,
    parts,
)
from penstock.torch._data_loader._torch_private import (
    begin,
    check_prefetch,
    collates_plainly,
    default_collate,
    pinned,
    ranks_of_program,
    reported_length,
    shown,
)
from penstock.torch._data_loader._worker import (
    Start,
    StreamedBatch,
    StreamLostError,
    StreamRequest,
    is_stateful,
    received_error,
)
from penstock.torch._data_loader._worker_process import WorkerProcess
from penstock.torch._data_loader._workers import (
    Ahead,
    JobRules,
    Queue,
    Sampled,
    TimedOutError,
    Workers,
    user_code_of_loader,
    wait_until,
)

if TYPE_CHECKING:
    from penstock._loader import Clock

At = TypeVar("At")
_NOTHING: Final = object()


class _Outcome(NamedTuple, Generic[At]):
    """A batch or an error that was not delivered, and the position after it."""

    batch: object
    error: BaseException | None
    after: At


class InterruptibleIterator(ABC, Generic[At]):
    """Delivers each batch once, whenever the handlers of signals raise. `At` is the type of a position."""

    def __init__(self, loader: object) -> None:
        self._clock: Clock = vars(loader)["_clock"]
        self._undelivered: _Outcome[At] | None = None

    def __iter__(self) -> Self:
        return self

    @holding_interrupts
    def __next__(self, held: HeldInterrupts) -> object:
        before = self._position()
        found, self._undelivered = self._undelivered, None
        if found is None:
            found = self._outcome(held)
        else:
            self._go_to(found.after)
        held.undo = partial(self._keep, found, before)
        if found.error is None:
            return found.batch
        try:
            raise found.error
        finally:
            del found  # the error's traceback holds this frame

    def _outcome(self, held: HeldInterrupts) -> _Outcome[At]:
        batch: object = _NOTHING
        requested, waiting = perf_counter(), self._clock.waits.waiting
        waiting[0] = requested
        try:
            with Caught(Exception) as caught, shown(self._name()):
                batch = self._advance(held)
        finally:
            waiting[0] = 0.0  # also after Ctrl-C
        error = None if caught.error is None else caught.taken()
        try:
            if error is not None:
                if held.has_raised:
                    raise error
                trim(error, keeps_first=False)
                if isinstance(error, StopIteration) and self._clock.publisher is not None:
                    self._clock.publisher.end(self._clock.batches, self._clock.wait_seconds)
            else:
                self._clock.count(requested, perf_counter())
            return _Outcome(batch, error, self._position())
        finally:
            del error  # its traceback holds this frame

    def _keep(self, found: _Outcome[At], before: At) -> None:
        self._undelivered = found
        self._go_to(before)

    def _forget(self) -> None:
        """Drop an undelivered batch or error: another epoch begins."""
        self._undelivered = None

    def _name(self) -> str:
        return f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    @abstractmethod
    def _advance(self, held: HeldInterrupts) -> object:
        """Return the next batch, or raise; call `held.allow` only where an exception loses nothing."""

    @abstractmethod
    def _position(self) -> At:
        """Return the iterator's position, as a state records it."""

    @abstractmethod
    def _go_to(self, position: At) -> None:
        """Set the position that a state records."""


class WorkersIterator(InterruptibleIterator[tuple[int, bool]]):
    """The iterator over one epoch of a map-style dataset; with persistent workers, over one epoch after the other.

    Args:
        loader: the loader whose arguments apply.
        sent: its dataset and functions, ready to be sent.
        saved: the state to resume from; None begins an epoch.
        is_early: whether a framework may set the sampler's epoch after it made this iterator. Then nothing is drawn
            before the first batch is requested.

    Attributes:
        epoch: the epoch of the batches.
    """

    def __init__(self, loader: object, sent: Sealed, saved: Saved | None = None, *, is_early: bool = False) -> None:
        super().__init__(loader)
        with generators_restored(loader) if saved is not None else nullcontext():
            self._begun = begin(loader)
        if saved is not None:
            self._begun = self._begun._replace(base_seed=saved.base_seed)  # the workers start with it
        given: Any = loader
        prefetch = check_prefetch(given.prefetch_factor)
        code = user_code_of_loader(given)
        rules = self._rules = JobRules(
            Learned(),
            given.num_workers,
            stacks=code.is_batched and given.collate_fn is default_collate and collates_plainly(),
            is_batched=code.is_batched,
            at_once=code.reads_at_once,
            may_make_whole=given.num_batch_workers is None,
        )
        least = _least(rules, prefetch, getattr(given.batch_sampler, "batch_size", None) or 1)
        start = _start(given, sent, self._begun.base_seed)
        self._is_persistent: bool = given.persistent_workers
        most = max(least, 2 * rules.num_workers)
        ahead = Ahead(least, most, drawn=prefetch * rules.num_workers)  # torch draws as many, then one for each batch
        self._team = Workers(given, rules, start, ahead, given.memory)
        self._number = -1
        self._made: deque[Callable[[], object]] = deque()  # return the undelivered batches of a job; each may raise
        self._taken: DrawnJob | None = None  # taken before its batch was requested; it failed, or its batches did
        self._pins = None if self._begun.pin_device is None else PinnedAhead(self._begun.pin_device, self._pin_next)
        self._sampler: Any = None
        self._queue: Queue | None = None
        self.restart(given, saved, is_early=is_early)

    def restart(self, loader: object, saved: Saved | None = None, *, is_early: bool = False) -> None:
        """Begin the next epoch, or resume a saved one, with the same workers."""
        self._drop_made()
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
        seed, free = self._epoch_seed(epoch.base_seed), freely_drawn(self._sampler)
        self._sampled = Sampled(epoch, self._rules, seed, epoch.reached, free)
        if is_early:
            return
        if self._team.knows_seed:
            self._open()
        else:  # torch's loader draws the indices now
            self._team.draw(self._sampled)

    def _epoch_seed(self, base: int, shown: int | None = None) -> Seed:
        return Seed(derive(base, self.epoch.number, *parts(self._sampler)), shown)

    def _open(self) -> Queue:
        """Start computing the epoch's batches."""
        shown = self._team.seed
        if shown is not None:
            self._sampled.seed = self._epoch_seed(shown, shown)
        queue = self._queue = self._team.open(self._sampled)
        return queue

    @property
    def _workers(self) -> list[WorkerProcess]:  # torch has no public name for this, so programs use the private one
        return self._team.processes()

    def _position(self) -> tuple[int, bool]:
        return self.epoch.reached, self.epoch.has_ended

    def _go_to(self, position: tuple[int, bool]) -> None:
        self.epoch.reached, self.epoch.has_ended = position

    def _advance(self, held: HeldInterrupts) -> object:
        pins = self._pins
        if pins is None:
            return self._next(held)()
        pins.take_back()
        if self._queue is not None and not self._has_ended:
            self._team.draw(self._sampled)  # the thread must not: samplers are the program's code
        batch = pins.finish(self._next(held))
        pins.give()
        return batch

    def _pin_next(self) -> None:
        """Pin the next batch, if it is complete; in the turn of the thread that pins."""
        if not self._made and self._queue is not None and self._taken is None:
            job = self._taken = self._queue.next_job_nowait()
            if job is not None and not job.failed:
                self._made.extend(self._team.batches(job))
                self._sampled.delivered(job)
                self._taken = None
        if self._made and self._pins is not None:
            self._pins.pin(self._made[0])

    def _drop_made(self) -> None:
        """Drop the batches that were made and not delivered: another epoch begins, or none."""
        if self._pins is not None:
            self._pins.forget()
        self._taken = None
        self._made.clear()

    def _next(self, held: HeldInterrupts) -> Callable[[], object]:
        """Count the next batch as delivered, and return the function that returns it."""
        while not self._has_ended:
            if self._made:
                self.epoch.reached += 1
                return self._made.popleft()
            job, self._taken = self._taken, None
            job = job or self._next_job(held)
            if job is None:
                self.epoch.has_ended = True
                self._end()
                break
            if not job.failed:
                self._sampled.delivered(job)
                self._made.extend(self._team.batches(job))
                continue
            if not self._team.is_to_be_repeated(job):
                self._sampled.delivered(job)  # this batch is lost; the next call continues after it
                self.epoch.reached += 1
                self._team.raise_for(job)
            if self._queue is not None:
                self._queue.close()
            self._sampled.again()
            self._open()
        raise StopIteration

    def _next_job(self, held: HeldInterrupts) -> DrawnJob | None:
        try:
            if self._queue is None:
                self._team.await_seed(held)
            return self._team.next_job(self._queue or self._open(), self._sampled, held)
        except TimedOutError:
            raise
        except Exception as error:
            has_no_room = isinstance(error, UsageError)  # by `memory`, until the consumer holds less
            if not held.has_raised and not self._sampled.is_at(error) and not has_no_room:
                self._end()  # the workers could not start
            raise

    def _end(self) -> None:
        self._has_ended = True
        if not self._is_persistent:
            self._close()

    def _close(self) -> None:
        if self._pins is not None:
            self._pins.close()
        self._team.close()

    def _shutdown_workers(self) -> None:  # torch has no public method for this, so programs call the private one
        self._has_ended = True
        self._drop_made()
        self._forget()
        self._close()

    def __len__(self) -> int:
        return len(self._sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


def _start(loader: object, sent: Sealed, base_seed: int, first: int = 0) -> Start:
    """Return the start of workers, with the settings that torch has in the program now."""
    given: Any = loader
    kind = given.dataset.__class__
    name = f"{kind.__module__}.{kind.__qualname__}"
    return Start(sent, given.num_workers, base_seed, first, torch.is_grad_enabled(), ranks_of_program(), name)


def _least(rules: JobRules, prefetch: int, batch_rows: int) -> int:
    """Return the number of batches under way or ready, of any size."""
    workers = rules.num_workers
    return prefetch + workers if rules.is_whole else max(prefetch, -(-2 * workers // batch_rows))


class StreamsIterator(InterruptibleIterator[StreamsProgress]):
    """The iterator over one epoch of an iterable dataset; with persistent workers, over one epoch after the other.

    Args:
        loader: the loader whose arguments apply.
        sent: its dataset and functions, ready to be sent.
        saved: the progress to resume from; None begins an epoch.

    Attributes:
        progress: the progress in the streams; the same object throughout an epoch.
    """

    def __init__(self, loader: object, sent: Sealed, saved: StreamsProgress | None = None) -> None:
        super().__init__(loader)
        with generators_restored(loader) if saved is not None else nullcontext():
            self._begun = begin(loader)
        given: Any = loader
        self._sent = sent
        self._ahead = max(-(-check_prefetch(given.prefetch_factor) // given.num_workers), 1)
        self._is_persistent: bool = given.persistent_workers
        self._is_ordered: bool = given.in_order
        self._timeout: float = given.timeout
        self._sampler: Any = given.sampler if given.batch_sampler is None else given.batch_sampler
        self._streams: list[_Stream] = []
        self._base_seed: int | None = None  # of the streams' workers
        self._epoch = -1
        self.restart(given, saved)

    def restart(self, loader: object, saved: StreamsProgress | None = None) -> None:
        """Begin the next epoch, or resume a saved one, with the same workers."""
        self._forget()
        given: Any = loader
        self._epoch += 1
        self._yielded = 0
        self._dataset = given.dataset
        self._length = reported_length(loader)
        wanted = StreamRequest(self._epoch, given.batch_size, given.drop_last)
        if saved is not None and saved.base_seed is not None:
            self._begun = self._begun._replace(base_seed=saved.base_seed)
        base_seed = self._begun.base_seed
        if base_seed != self._base_seed:
            self._open_streams(given, base_seed)
        begun = StreamsProgress([StreamProgress() for _ in self._streams], 0, base_seed)
        progress = saved if saved is not None and saved.streams else begun
        self.progress = replace(progress, base_seed=base_seed, keeps_seed=self._is_persistent)
        for stream, each in zip(self._streams, progress.streams, strict=True):
            stream.restart(wanted, each)
        self._active = [stream for stream in self._streams if not stream.progress.is_over]
        self._turn = sum(not each.is_over for each in progress.streams[: progress.turn])

    def _open_streams(self, loader: object, base_seed: int) -> None:
        """Start a worker for each stream, with the base seed, in place of the workers with another one."""
        self._close()
        self._streams = []
        given: Any = loader
        for number in range(given.num_workers):
            self._streams.append(_Stream(given, _start(given, self._sent, base_seed, number), self._ahead))
        self._base_seed = base_seed

    @property
    def _workers(self) -> list[WorkerProcess]:  # torch has no public name for this, so programs use the private one
        return [process for number, stream in enumerate(self._streams) for process in stream.processes(number)]

    def _position(self) -> StreamsProgress:
        return self.progress.copy()

    def _go_to(self, position: StreamsProgress) -> None:
        self.progress.go_to(position)

    def _advance(self, held: HeldInterrupts) -> object:
        batch = self._next(held)
        self._yielded += 1
        if self._length is not None and self._yielded > self._length:
            self._warn(self._length)
        return batch if self._begun.pin_device is None else pinned(batch, self._begun.pin_device)

    def _next(self, held: HeldInterrupts) -> object:
        while self._active:
            self._turn %= len(self._active)
            if not self._is_ordered:
                self._turn = self._ready_turn(held)
            stream = self._active[self._turn]
            before = stream.progress.number
            try:
                streamed = stream.next(held)
            finally:
                if stream.progress.is_over:
                    del self._active[self._turn]
                else:  # after an error that took no batch, such as a time-out, the same stream is the next
                    self._turn += stream.progress.number - before
                if stream.progress.is_over or stream.progress.number > before:
                    self.progress.turn = self._streams.index(stream) + 1
            if streamed is not None:
                return streamed.batch
        if not self._is_persistent:
            self._close()
        raise StopIteration

    def _ready_turn(self, held: HeldInterrupts) -> int:
        """Return the first turn, from the current one on, of a stream whose next batch is ready, after any wait."""
        turns = [*range(self._turn, len(self._active)), *range(self._turn)]
        found: list[int] = []

        def is_any_ready() -> bool:
            found[:] = islice((turn for turn in turns if self._active[turn].is_ready()), 1)
            return bool(found)

        def has_any_started() -> bool:
            return any(stream.has_started() for stream in self._active)

        with select.epoll() as any_stream:
            for stream in self._active:
                any_stream.register(stream.fileno(), select.EPOLLIN)
            wait_until(is_any_ready, has_any_started, any_stream.fileno(), self._timeout, held)
        return found[0]

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _shutdown_workers(self) -> None:  # torch has no public method for this, so programs call the private one
        self._active = []
        self._forget()
        self._close()

    def _warn(self, length: int) -> None:
        warnings.warn(
            f"Length of IterableDataset {self._dataset} was reported to be {length} (when accessing len(dataloader)), "
            f"but {self._yielded} samples have been fetched. For multiprocessing data-loading, this could be caused by "
            "not properly configuring the IterableDataset replica at each worker. Please see "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples.",
            stacklevel=6,
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
        progress: the progress in the stream.
    """

    progress: StreamProgress

    def __init__(self, loader: object, start: Start, ahead: int) -> None:
        given: Any = loader
        self._rules = JobRules(Learned(), 1, stacks=False, is_batched=False, at_once=False)
        memory = given.memory and max(given.memory // given.num_workers, 1)
        self._team = Workers(loader, self._rules, start, Ahead(ahead, max(ahead, 2), max(ahead, 2)), memory)
        self._is_stateful = is_stateful(given.dataset)
        self._queue: Queue | None = None

    def restart(self, wanted: StreamRequest, progress: StreamProgress) -> None:
        """Begin an epoch's stream, at a given progress."""
        self._wanted = wanted
        self.progress = progress
        if not progress.is_over:
            self._open()

    def _open(self) -> None:
        """Request the batches after the last delivered one."""
        if self._queue is not None:
            self._queue.close()
        requests = _requests(self._wanted, self.progress)
        self._sampled = Sampled(requests, self._rules, Seed(0), self.progress.number)
        self._queue = self._team.open(self._sampled)

    def is_ready(self) -> bool:
        """Return whether `next` needs no wait; if it does, the descriptor becomes readable when it may be ready."""
        return self._queue is None or self._team.is_ready(self._queue, self._sampled)

    def has_started(self) -> bool:
        """Return whether the worker has ever been ready for a job."""
        return self._team.has_started()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._team.fileno()

    def next(self, held: HeldInterrupts) -> StreamedBatch | None:
        """Return the next batch; None at the end."""
        found: StreamedBatch | None = None
        while found is None and not self.progress.is_over:
            job = self._next_job(held)
            if not job.failed:
                found = self._received(job)
            elif self._team.is_to_be_repeated(job):
                self._open()
            else:
                self._fail(job)
        if self.progress.is_over and self._queue is not None:
            self._queue.close()
        return found

    def _received(self, job: DrawnJob) -> StreamedBatch | None:
        self._sampled.delivered(job)
        self.progress.number += 1
        found = cast("StreamedBatch", self._team.batches(job)[0]())
        self.progress.state, self.progress.is_over = found.state, found.has_ended
        if (error := received_error(found.error)) is not None:
            error.raise_again()
        return found if found.is_batch else None

    def _next_job(self, held: HeldInterrupts) -> DrawnJob:
        assert self._queue is not None
        try:
            job = self._team.next_job(self._queue, self._sampled, held)
        except TimedOutError:
            raise
        except UsageError as error:  # no room: the batches are still to be delivered
            error.add_note("with an iterable dataset, each worker gets an equal part of `memory`")
            raise
        except Exception:
            if not held.has_raised:
                self.progress.is_over = True  # the worker could not start
            raise
        assert job is not None
        return job

    def _fail(self, job: DrawnJob) -> None:
        """Raise the error of a job; if its worker died and the dataset's state is known, resume instead."""
        try:
            self._sampled.delivered(job)
            self.progress.number += 1
            self._team.raise_for(job)
        except StreamLostError:
            self.progress.number -= 1
            if self._is_stateful and (self.progress.state is not None or not self.progress.number):
                self._open()
                return
            self.progress.is_over = True
            raise RuntimeError(self._team.last_death() or _lost(self.progress.number)) from None
        except WorkerError:
            self.progress.is_over = True
            raise

    def processes(self, number: int) -> list[WorkerProcess]:
        """Return the newest process of the worker with this number."""
        return self._team.processes(number)

    def close(self) -> None:
        """End the worker."""
        self._team.close()


def _lost(number: int) -> str:
    return (
        f"batch {number} of a worker's stream could not be received, and the worker has read on. Make batches smaller, "
        "or give the dataset `state_dict` and `load_state_dict`, by which its stream can be read again."
    )


def _requests(wanted: StreamRequest, progress: StreamProgress) -> Iterator[StreamRequest]:
    """Yield the requests for the batches from a stream's progress on, which they follow."""
    yield wanted._replace(delivered=progress.number, state=progress.state)
    while True:
        yield wanted._replace(delivered=progress.number)
