"""The iterator over one epoch of a loader; it only receives from a stream.

The problem: `next` takes a batch from the stream, counts it in the loader's progress, and returns it. An exception may
be raised between any two of these actions, because Python may call a signal's handler there. So Ctrl-C may be raised
when the batch was taken but not counted, or counted but not returned. Another thread may close or seek the loader at
any of these points.

The solution: the progress is one value (`Progress.at`), which `delivered` replaces in one store. `next` reads the value
before it takes a batch, and restores it if anything is raised before the batch is returned. The stream may then be
beyond that batch, so the next call closes it, and opens another one at the progress. That discards what workers have
computed ahead. An exception in a wait needs no other stream, so that a time-out in each call, shorter than a batch,
doesn't keep the loader from delivering it; nor does an error that the stream itself raised, such as one of a user's
function: the stream tries the same batch again.

Rejected: to hold interrupts during all of `next`. A consumer that waits for a batch must be interruptible, and every
batch would take longer. Interrupts are held only where the epoch ends and where a stream is reopened.

Guarantees:
  - Each batch is delivered exactly once, in order or as it becomes ready; the loader counts it on delivery.
  - After an exception the next call tries the same batch again, or `loader.seek` skips it. An exception of a
    signal's handler, Python's own for Ctrl-C or one of the program's, is raised once.
  - One thread at a time is inside `next` or `set_state`; a second one gets a UsageError, and the first one gets its
    batch.
  - When the iterator is dropped, closed or replaced by a newer one of its loader, the workers stop computing for it.
"""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self

from penstock._caught import add_note, ended_wait, raised_by_handler
from penstock._dataset import T_co
from penstock._loader._hints import WaitHints
from penstock._loader._progress import Progress
from penstock._os import PROGRAM_ENDS, Closer, uninterrupted, weakly
from penstock._readings import NOTED_SECONDS, Waits
from penstock._runtime import EndOfEpoch, StepRange, Stream, Unit
from penstock._state import State
from penstock._tracebacks import trim
from penstock.errors import ClosedError, UsageError

if TYPE_CHECKING:
    import asyncio


class Owner(NamedTuple):
    """The methods of a loader that its iterators call. They keep the loader alive, which owns the workers."""

    open_stream: Callable[[list[StepRange]], Stream]
    note_end: Callable[[int, int], None]
    """Called after all of a whole epoch, with its number and its number of batches."""
    state_dict: Callable[[], State]
    resume: "Callable[[LoaderIterator[Any], State, Callable[[], None]], None]"
    """Loads a state, calls a function that takes an iterator to its step, and makes that iterator the current one."""


class Publishing(Protocol):
    """The writer of a loader's live page, as a clock uses it: `penstock._loader._publisher.Publisher`."""

    due: float

    def begin(self) -> None:
        """Note that an iterator was made."""
        ...

    def publish(self, now: float, batches: int, wait_seconds: float, ahead: int = 1) -> None:
        """Write the page."""
        ...

    def end(self, batches: int, wait_seconds: float) -> None:
        """Write the page at the end of an epoch."""
        ...


class Clock:
    """Counts the batches that a consumer received, and measures how long it waited for them.

    Attributes:
        waits: records the waits above `NOTED_SECONDS` by their causes, and such times between two requests.
        hints: looks at the waits, and may log a hint; None for no hints.
        publisher: writes the loader's live page; None if it has none.
        batches: the number of batches received.
        wait_seconds: the sum of all waits.
        first: the time of the first request; None before it.
        last: the time of the last delivery; minus infinity before the first request.
    """

    def __init__(
        self, waits: Waits | None = None, hints: WaitHints | None = None, publisher: Publishing | None = None
    ) -> None:
        self.waits: Waits = Waits() if waits is None else waits
        self.hints: WaitHints | None = hints
        self.publisher: Publishing | None = publisher
        self.batches: int = 0
        self.wait_seconds: float = 0.0
        self.first: float | None = None
        self.last: float = -inf
        self._due = -inf  # before this moment, hints and the page have nothing to do

    def begin(self) -> None:
        """Note that an iterator was made."""
        if self.publisher is not None:
            if self.first is None:
                self.waits.long = weakly(self._note_long)  # until there is a page
            self.publisher.begin()
        self._due = -inf

    def _note_long(self) -> None:
        if self.publisher is not None:
            self.publisher.publish(perf_counter(), self.batches, self.wait_seconds, 0)

    def count(self, requested: float, received: float) -> None:
        """Count a batch that was requested and received at these times."""
        if received - self.last > NOTED_SECONDS:
            self._note(requested, received)
        self.last = received
        self.wait_seconds += received - requested
        self.batches += 1

    def _note(self, requested: float, received: float) -> None:
        if self.first is None:
            self.first = self.last = requested
        self.waits.note(requested, received, self.last)
        if received >= self._due:
            self._look(requested, received)

    def _look(self, requested: float, received: float) -> None:
        """Let hints look at the waits, and write the page if that is due."""
        waited, due = received - requested, inf
        if self.hints is not None:
            due = self.last + self.hints.waited(self, waited)
        if self.publisher is not None:
            if received >= self.publisher.due:
                self.publisher.publish(received, self.batches + 1, self.wait_seconds + waited)
            due = min(due, self.publisher.due)
        self._due = due

    @property
    def elapsed_seconds(self) -> float:
        """The time from the first request to the last delivery."""
        return 0.0 if self.first is None else self.last - self.first

    def stats(self) -> dict[str, float]:
        """Return the counters and rates, as `Loader.stats` has them."""
        seconds = self.elapsed_seconds
        return {
            "batches": float(self.batches),
            "wait_seconds": self.wait_seconds,
            "wait_share": self.wait_seconds / seconds if seconds else 0.0,
            "batches_per_second": self.batches / seconds if seconds else 0.0,
        }


class _Waiting:
    """The wait of a task for the next batch of an iterator; one task waits at a time."""

    def __init__(self) -> None:
        self._is_woken = False
        self._wake: Callable[[], None] = _nothing

    def wake(self) -> None:
        """End the wait, or the next one; any thread may call this."""
        self._is_woken = True
        self._wake()

    async def readable(self, descriptor: int) -> None:
        """Wait until a descriptor is readable."""
        import asyncio  # noqa: PLC0415 - it takes longer to load than the rest of Penstock

        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        # A loader's iterators have the same descriptor, and a loop has one reader of each. So a task that reads a newer
        # iterator would take the place of this one.
        own = os.dup(descriptor)
        try:
            loop.add_reader(own, _resolve, readable)
            self._wake = partial(_wake, weakref.ref(readable))
            if not self._is_woken:
                await readable
        finally:
            self._wake, self._is_woken = _nothing, False
            try:
                loop.remove_reader(own)
            finally:  # a loop that was closed removes no reader
                os.close(own)


class LoaderIterator(Generic[T_co]):
    """The batches of one epoch, or of the rest of one; made by `iter(loader)`.

    `get_state` and `set_state` read and set the loader's state, under the names that JAX libraries use.

    Example:
        >>> import penstock as ps
        >>> batches = iter(ps.Loader(ps.range(6).batch(2)))
        >>> first, state = next(batches), batches.get_state()
        >>> second = next(batches)
        >>> batches.set_state(state)
        >>> next(batches).tolist() == second.tolist()
        True
    """

    def __init__(self, owner: Owner, progress: Progress, clock: Clock) -> None:
        self._owner = owner
        self._progress = progress
        self._clock = clock
        self._retired = ""
        self._ended = False
        self._reader = 0  # the thread that is inside `next`
        self.waiting: _Waiting = _Waiting()
        self._begin()

    def _begin(self) -> None:
        step_ranges = self._progress.begin()
        self._pass = self._progress.current_pass
        self._is_whole = self._progress.is_whole()
        self._batches_before = self._clock.batches
        self._open(step_ranges)

    def _open(self, step_ranges: list[StepRange]) -> None:
        self._stream = self._owner.open_stream(step_ranges)
        self._next = self._stream.next
        self._interrupted = False
        self._closer = Closer(self._stream.close)
        if self._retired:  # by another thread, which had no stream to close yet
            self._closer()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        thread = get_ident()
        if self._reader:
            self._refuse_second(thread)
        # Python switches threads and calls signals' handlers only where a function is called or a loop repeats. So
        # nothing comes between the check, this line and the block, and one thread at a time is inside.
        self._reader = thread
        try:
            while True:
                requested = perf_counter()
                if self._ended or self._retired or self._interrupted:
                    self._refuse_or_reopen()
                batch: T_co
                at = self._progress.at
                try:
                    batch, token = self._next()
                    self._clock.count(requested, perf_counter())
                    self._progress.delivered(token, self._pass)
                except EndOfEpoch:
                    self._refuse_retired()  # the stream was closed, by another thread or the end of the program
                except StopIteration as error:
                    raise RuntimeError("a function of the dataset raised StopIteration") from error
                except BaseException as error:
                    # The stream may be beyond the batch, and the batch may have been counted, but it isn't returned.
                    # The next two statements call nothing, so no signal's handler is called before both are done.
                    self._interrupted = True
                    # Not the progress of a newer pass: the loader has moved to another step.
                    self._progress.at = at if self._progress.current_pass is self._pass else self._progress.at
                    self._after_error(error)
                    raise
                else:
                    return batch
                self._end_or_open_rest()
        finally:
            self._reader = 0

    def _refuse_second(self, thread: int, call: str = "next()") -> None:
        names = {each.ident: f"thread {each.name!r}" for each in threading.enumerate()}
        reader, second = (names.get(each, f"thread {each}") for each in (self._reader, thread))
        if thread == self._reader:
            raise UsageError(
                f"an iterator delivers one batch at a time; {second} called {call} inside its own next(), from a "
                "function of the dataset or a signal's handler. Make another loader for the batches that you read there"
            )
        raise UsageError(
            f"an iterator is read by one thread at a time; got {call} from {second} while {reader} is inside "
            "next(). Read in one thread and pass batches on through a queue, or hold a lock around next()"
        )

    def _after_error(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not raised_by_handler(error):
            self._explain(error)
            trim(error)
            self._interrupted = False  # the stream itself raised the error, and can try the same batch again
        elif ended_wait(error):
            self._interrupted = False  # the stream has taken nothing, and can wait again

    def _end_or_open_rest(self) -> None:
        self._end_range()
        if self._ended:  # raised here, so that it isn't the context of an interrupt that was held
            self._progress.check_end()
            raise StopIteration

    @uninterrupted  # an interrupt in here could end the epoch without counting it as ended
    def _end_range(self) -> None:
        if self._progress.has_rest():
            self._reopen()  # the next steps were delivered earlier: continue after them
        else:
            self._end()

    def _end(self) -> None:
        self._ended = True
        if self._clock.publisher is not None:
            self._clock.publisher.end(self._clock.batches, self._clock.wait_seconds)
        epoch = self._progress.current().epoch
        self._progress.ended(self._pass)
        self._closer()
        if self._is_whole:
            self._owner.note_end(epoch, self._clock.batches - self._batches_before)

    def _refuse_retired(self) -> None:
        if self._retired:
            raise ClosedError(self._retired) from None
        if self._closer.ends_with_program:
            raise ClosedError(PROGRAM_ENDS) from None

    def _explain(self, error: Exception) -> None:
        if isinstance(error, ClosedError):
            self._refuse_retired()
        if self._progress.current_pass is self._pass:
            _add_note(error, self._stream.failing() or self._progress.rest()[0].first)

    def _refuse_or_reopen(self) -> None:
        self._refuse_retired()
        if self._ended:
            raise StopIteration
        self._reopen()

    @uninterrupted
    def _reopen(self) -> None:
        self._closer()
        self._open(self._progress.rest())

    @property
    def may_wait(self) -> int | None:
        """A descriptor that becomes readable when `next` may no longer wait; None if `next` wouldn't wait now."""
        idle = self._ended or self._interrupted or self._retired or self._stream.is_ready()
        return None if idle else self._stream.fileno()

    def get_state(self) -> State:
        """Return the loader's state, as `Loader.state_dict` does."""
        return self._owner.state_dict()

    def set_state(self, state: State) -> None:
        """Resume from a state; this iterator then delivers the rest of that epoch.

        Raises:
            StateError: as `Loader.load_state_dict` does; this iterator then continues where it was.
            UsageError: a thread is inside `next` of this iterator.
        """
        caller = get_ident()
        if self._reader:
            self._refuse_second(caller, "set_state()")
        self._reader = caller  # nothing comes between the check and this line, as in `next`
        try:
            self._owner.resume(self, state, self._begin_again)
        finally:
            self._reader = 0

    @uninterrupted
    def _begin_again(self) -> None:
        # The stream is that of the steps before. It may be used again only after `_open` has replaced it.
        self._retired, self._ended, self._interrupted = "", False, True
        self._begin()

    def close(self) -> None:
        """Stop computing ahead for this iterator; delivered batches stay valid, and `next` raises a ClosedError.

        The loader's next iterator begins the next epoch, as after a `break`.
        """
        if not self._ended:
            self.retire("this iterator was closed; make a new one with iter(loader)")

    def retire(self, why: str) -> None:
        """Close permanently: from now on `next` raises a ClosedError with the reason `why`."""
        self._retired = self._retired or why
        self._closer()
        self.waiting.wake()


def _nothing() -> None:
    """Wake no task: none waits."""


def _wake(waited: "weakref.ref[asyncio.Future[None]]") -> None:
    readable = waited()  # it isn't kept: a loop that was closed would keep its task, which then waits forever
    if readable is not None:
        with suppress(RuntimeError):  # that loop is closed, so no task waits there
            readable.get_loop().call_soon_threadsafe(_resolve, readable)


def _resolve(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)


def _add_note(error: Exception, unit: Unit) -> None:
    note = f"while making the batch of step {unit.step}: epoch {unit.epoch}, from position {unit.position} on"
    if note not in getattr(error, "__notes__", ()):  # the same object may be raised repeatedly
        add_note(error, note)


class AsyncLoaderIterator(Generic[T_co]):
    """The batches of one epoch, for `async for`. If a wait is cancelled, the next request gets the same batch.

    One task at a time requests a batch: a second one gets a UsageError.
    """

    def __init__(self, iterator: LoaderIterator[T_co]) -> None:
        self._iterator = iterator
        self._is_awaited = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        if self._is_awaited:
            raise UsageError(
                "an iterator is read by one task at a time; got a request while another task waits for its batch. Read "
                "in one task and pass batches on through an asyncio.Queue, or hold an asyncio.Lock around anext()"
            )
        self._is_awaited = True
        try:
            while (descriptor := self._iterator.may_wait) is not None:
                await self._iterator.waiting.readable(descriptor)
        finally:
            self._is_awaited = False
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None
