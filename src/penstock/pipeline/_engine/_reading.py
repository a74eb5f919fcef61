"""Reading a pipeline pass by pass, whatever thread or loop the reader is in.

A pass is adopted by the next reader while nothing of it was read, and where the source doesn't begin again; else a
further reader begins another. One iterator reads at a time: the one that was made last.

What a reader removes from the outlet reaches the user, or goes back, wherever a signal handler raises: see the outlet.
So nothing is called here between that and the return.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Self

from penstock._os import Closer
from penstock.errors import AlreadyRunningError, ClosedError
from penstock.pipeline._channels._outlet import Mark, Outlet
from penstock.pipeline._engine._engine import REPLACED, STOPPED, Engine
from penstock.pipeline._ops import Item

_END: Final = Mark.END
_END_OF_PASS: Final = Mark.END_OF_PASS
_CLOSED: Final = Mark.CLOSED
_EXIT_SECONDS: Final = 0.5  # so long the end of the program waits for stages to end


class Reading:
    """Knows which pass of an engine is read, and whether anything of it was.

    Attributes:
        reader: the number of the iterator that reads; others that were made before are over.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closer = Closer(partial(_end_dropped, engine))
        self._lock = threading.RLock()  # over starting and stopping
        self.reader: int = 0
        self._fresh = False  # nothing of the pass was read yet

    def start(self, timeout: float | None) -> None:
        """Begin a pass, where none runs.

        Raises:
            AlreadyRunningError: one does.
        """
        self._engine.check_process()
        self._engine.join(timeout)
        with self._lock:
            if self._engine.state == "running":
                raise AlreadyRunningError(
                    "a pipeline is started once at a time; got start() while it runs. Call stop() before"
                )
            self._begin(timeout)

    def stop(self, timeout: float | None, *, wait: bool) -> None:
        """End everything, and wait for it or not."""
        self._engine.check_process()
        if wait:
            self._engine.check_waiting()
        with self._lock:
            self._fresh = False
            self._engine.halt()
        if wait:
            self._engine.join(timeout)

    def read(self, timeout: float | None) -> Item:
        """Return the next item; of a pass that begins now, if the pipeline is new.

        Raises:
            ClosedError: the pipeline was stopped.
        """
        self._engine.check_process()
        outlet = self._engine.outlet
        if self._engine.is_stopped:
            raise ClosedError(STOPPED)
        if outlet is None:
            with self._lock:
                outlet = self._engine.outlet or self._begin(timeout)
        self._fresh = False
        found = outlet.take(timeout)
        if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
            return found
        try:
            over = EOFError("the pass is over")
            error = self.ended(found, outlet)
        except BaseException:
            outlet.put_back(found)
            raise
        raise over if error is None else error

    def begin_pass(self) -> tuple[int, Outlet, bool]:
        """Begin to read: the pass of which nothing was read, the rest of one that doesn't begin again, or a new one.

        Returns:
            The number of the reader, where it reads, and whether it reads a rest: if nothing is left of that, it reads
            the next pass.

        Raises:
            UsageError: the source is an iterator that an earlier pass has used up.
        """
        self._engine.check_process()
        with self._lock:
            outlet = self._engine.outlet
            is_open = self._fresh or (self._engine.goes_on and outlet is not None and not outlet.is_over)
            if outlet is None or self._engine.is_stopped or not is_open:
                outlet = self._begin(None)
            self.reader += 1
            return self.reader, outlet, not self._fresh

    def check_reader(self, number: int) -> None:
        """Check that this is the reader whose turn it is.

        Raises:
            ClosedError: another one has begun to read.
        """
        self._engine.check_process()
        if self.reader != number:
            raise ClosedError(REPLACED)
        self._fresh = False

    def ended(self, found: object, outlet: Outlet) -> Exception | None:
        """Return what a reader raises for a mark, which is read then; None for a plain end."""
        error: Exception | None = None
        if found is _CLOSED:
            error = ClosedError(outlet.closed_because)
        elif found is _END:
            error = outlet.unread_failure
            outlet.unread_failure = None
        else:
            self.reader += 1
            self._fresh = True
        return error

    def _begin(self, timeout: float | None) -> Outlet:
        outlet = self._engine.begin(timeout)
        self.reader += 1
        self._fresh = True
        return outlet


class PassIterator(Iterator[Item]):
    """The items of one pass."""

    def __init__(self, reading: Reading, timeout: float | None) -> None:
        self._reading = reading
        self._number, self._outlet, self._is_rest = reading.begin_pass()
        self._timeout = timeout
        self._ended = False

    def __next__(self) -> Item:
        while not self._ended:
            self._reading.check_reader(self._number)
            found = self._outlet.take(self._timeout)
            if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
                self._is_rest = False
                return found
            try:
                error = self._reading.ended(found, self._outlet)
            except BaseException:
                self._outlet.put_back(found)
                raise
            if self._is_rest and found is _END_OF_PASS:
                self._is_rest = False
                self._number = self._reading.reader
                continue
            self._ended = found is not _CLOSED
            if error is not None:
                raise error
        raise StopIteration


class AsyncPassIterator(AsyncIterator[Item]):
    """The items of one pass, for `async for`. Cancelling a wait loses no item."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._number, self._outlet, self._is_rest = reading.begin_pass()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._ended:
            self._reading.check_reader(self._number)
            found = await _taken(self._outlet)
            if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
                self._is_rest = False
                return found
            try:
                error = self._reading.ended(found, self._outlet)
            except BaseException:
                self._outlet.put_back(found)
                raise
            if self._is_rest and found is _END_OF_PASS:
                self._is_rest = False
                self._number = self._reading.reader
                continue
            self._ended = found is not _CLOSED
            if error is not None:
                raise error
        raise StopAsyncIteration


async def _taken(outlet: Outlet) -> object:
    """Return the next item or mark, once there is one; the caller's loop goes on meanwhile."""
    loop = asyncio.get_running_loop()
    while True:
        woken = loop.create_future()
        wake = _waker(loop, woken)
        found = outlet.take_or_wake(wake)
        if found is not Mark.NOTHING:
            return found
        try:
            await woken
        finally:
            outlet.forget(wake)


def _waker(loop: asyncio.AbstractEventLoop, woken: "asyncio.Future[None]") -> Callable[[], None]:
    def settle() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        with suppress(RuntimeError):  # that loop is closed: nobody reads there
            loop.call_soon_threadsafe(settle)

    return wake


def _end_dropped(engine: Engine) -> None:
    """End what nobody reads any more; at the end of the program in good order, if that takes no time."""
    engine.abandon()
    if not threading.main_thread().is_alive() and engine.is_here:
        with suppress(TimeoutError):
            engine.stop(_EXIT_SECONDS)
