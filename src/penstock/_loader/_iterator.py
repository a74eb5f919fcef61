"""The iterator over one epoch of a loader; it only receives from a stream.

Guarantees:
  - Batches come each exactly once, in order or as they become ready; the loader counts a batch when it is handed out.
  - After an exception the same batch is tried again by the next call, or skipped by `loader.seek`; also after one that
    a signal's handler raised, Ctrl-C's or the program's own, which is raised once.
  - One thread at a time is inside of `next`; a second one gets a UsageError, and the first one its batch.
  - When the iterator is dropped, closed or replaced by a newer one of its loader, what computes ahead for it stops.
"""

import threading
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Generic, Protocol, Self

from penstock._caught import raised_by_handler
from penstock._dataset import T_co
from penstock._loader._progress import Progress
from penstock._os import Closer, HeldInterrupts
from penstock._runtime._batches import StepRange, Unit
from penstock._runtime._recorder import Recorder
from penstock._runtime._streams import EndOfEpoch, Stream
from penstock._state import State
from penstock.errors import ClosedError, UsageError


class Stateful(Protocol):
    """The loader, as far as its iterators know it."""

    def state_dict(self) -> State:
        """Return where the loader is."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Go to where a state was saved."""
        ...


class Clock:
    """How long the consumer waited, of how long it has been at it."""

    def __init__(self) -> None:
        self.batches: int = 0
        self.wait_seconds: float = 0.0
        self.first: float | None = None
        self.last: float = 0.0

    def count(self, asked: float, received: float) -> None:
        """Count a batch that was asked for and received at these times."""
        self.first = asked if self.first is None else self.first
        self.last = received
        self.wait_seconds += received - asked
        self.batches += 1


class LoaderIterator(Generic[T_co]):
    """The batches of one epoch, or of the rest of one; made by `iter(loader)`.

    `get_state` and `set_state` are the loader's state under the names that the JAX world uses.

    Example:
        >>> import penstock as ps
        >>> batches = iter(ps.Loader(ps.range(6).batch(2)))
        >>> first, state = next(batches), batches.get_state()
        >>> second = next(batches)
        >>> batches.set_state(state)
        >>> next(batches).tolist() == second.tolist()
        True
    """

    def __init__(
        self,
        loader: Stateful,
        progress: Progress,
        open_stream: Callable[[list[StepRange]], Stream],
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._loader = loader  # kept alive: it owns the workers
        self._progress = progress
        self._open_stream = open_stream
        self._clock = clock
        self._recorder = recorder
        self._retired = ""
        self._ended = False
        self._reader = 0  # the thread that is inside of `next`
        self._begin()

    def _begin(self) -> None:
        step_ranges = self._progress.begin()
        self._is_whole = bool(step_ranges) and step_ranges[0].first.position == 0
        self._batches_before = self._clock.batches
        self._open(step_ranges)

    def _open(self, step_ranges: list[StepRange]) -> None:
        self._stream = self._open_stream(step_ranges)
        self._next = self._stream.next
        self._interrupted = False
        self._closer = Closer(self._stream.close)
        if self._retired:  # by another thread, which has not seen this one
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        thread = get_ident()
        if self._reader:
            self._refuse_second(thread)
        # Python switches between threads, and calls signals' handlers, where a function is called or a loop begins
        # again. So nothing comes between the check, this line and the block: one thread at a time is inside.
        self._reader = thread
        try:
            while True:
                asked = perf_counter()
                if self._ended or self._retired or self._interrupted:
                    self._refuse_or_reopen()
                batch: T_co
                at = self._progress.at
                try:
                    batch, token = self._next()
                    self._clock.count(asked, perf_counter())
                    self._progress.handed_out(token)
                except EndOfEpoch:
                    self._refuse_retired()  # by another thread, meanwhile: then it isn't the epoch that has ended
                except StopIteration as error:
                    raise RuntimeError("a function of the dataset raised StopIteration") from error
                except BaseException as error:
                    # The stream may have moved on, and the batch may have been counted, while nothing is returned. Two
                    # lines without a call: no second signal comes between the first one and them.
                    self._interrupted = True
                    self._progress.at = self._progress.at if self._retired else at  # or the loader is elsewhere
                    self._met(error)
                    raise
                else:
                    return batch
                self._end_or_go_on()
        finally:
            self._reader = 0

    def _refuse_second(self, thread: int) -> None:
        names = {each.ident: f"thread {each.name!r}" for each in threading.enumerate()}
        reader, second = (names.get(each, f"thread {each}") for each in (self._reader, thread))
        if thread == self._reader:
            raise UsageError(
                f"an iterator gives one batch at a time; {second} called next() inside of its own next(), from a "
                "function of the dataset or a signal's handler. Make another loader for what is read there"
            )
        raise UsageError(
            f"an iterator is read by one thread at a time; got next() from {second} while {reader} is inside of "
            "next(). Read in one thread and hand batches over through a queue, or hold a lock around next()"
        )

    def _met(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not raised_by_handler(error):
            self._explain(error)
            self._interrupted = False  # a stream knows how it continues after an error of its own

    def _end_or_go_on(self) -> None:
        with HeldInterrupts():  # else the epoch ends, and the loader never begins the next one
            if not self._progress.has_rest():
                self._ended = True
                epoch = self._progress.current().epoch
                self._progress.ended()
                self.close()
                if self._is_whole and self._clock.batches == self._batches_before:
                    self._recorder.check_empty_epoch(epoch)
                raise StopIteration
            self.close()  # what follows was handed out before: on to what comes after that
            self._open(self._progress.rest())

    def _refuse_retired(self) -> None:
        if self._retired:
            raise ClosedError(self._retired) from None

    def _explain(self, error: Exception) -> None:
        if isinstance(error, ClosedError):
            self._refuse_retired()
        _add_note(error, self._stream.failing() or self._progress.rest()[0].first)

    def _refuse_or_reopen(self) -> None:
        self._refuse_retired()
        if self._ended:
            raise StopIteration
        with HeldInterrupts():
            self.close()
            self._open(self._progress.rest())

    @property
    def may_wait(self) -> int | None:
        """A descriptor to wait for, readable when `next` may return without waiting; None where it would at once."""
        idle = self._ended or self._interrupted or self._retired or self._stream.is_ready()
        return None if idle else self._stream.fileno()

    def get_state(self) -> State:
        """Return where the loader is, as `Loader.state_dict` does."""
        return self._loader.state_dict()

    def set_state(self, state: State) -> None:
        """Go to where a state was saved; this iterator then gives the rest of that epoch."""
        self.close()
        self._loader.load_state_dict(state)
        self._retired = ""
        self._ended = False
        self._begin()

    def close(self) -> None:
        """Stop what computes ahead for this iterator; batches handed out stay valid."""
        self._closer()

    def retire(self, why: str) -> None:
        """Close for good: from now on `next` raises a ClosedError that says why."""
        self._retired = self._retired or why
        self.close()


def _add_note(error: Exception, unit: Unit) -> None:
    note = f"while making the batch of step {unit.step}: epoch {unit.epoch}, from position {unit.position} on"
    if note not in getattr(error, "__notes__", ()):  # the same object may be raised again and again
        error.add_note(note)
