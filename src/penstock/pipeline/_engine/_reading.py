"""Reading a pipeline pass by pass, whatever thread or loop the reader is in.

A pass is adopted by the first reader while nothing of it was read; a further one begins another.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Self

from penstock.errors import ClosedError, PipelineFailure, UsageError
from penstock.pipeline._channels._outlet import Mark, Outlet
from penstock.pipeline._engine._engine import Engine
from penstock.pipeline._ops import Item
from penstock.transport._closer import Closer

_EXIT_SECONDS: Final = 0.5  # so long the end of the program waits for stages to end


class Reading:
    """Knows which pass of an engine is read, and whether anything of it was."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closer = Closer(partial(_end_dropped, engine))
        self._lock = threading.RLock()  # over starting and stopping
        self._pass = 0
        self._fresh = False  # nothing of it was read yet

    def start(self, timeout: float | None) -> None:
        """Begin a pass, where none runs.

        Raises:
            UsageError: one does.
        """
        self._engine.check_process()
        with self._lock:
            if self._engine.is_running:
                raise UsageError("a pipeline is started once at a time; got start() while it runs. Call stop() before")
            self._begin(timeout)

    def stop(self, timeout: float | None) -> None:
        """End everything."""
        self._engine.check_process()
        with self._lock:
            self._fresh = False
            self._engine.stop(timeout)

    def read(self, timeout: float | None) -> object:
        """Return the next item, of a pass that begins now if nothing was started."""
        self._engine.check_process()
        outlet = self._engine.outlet
        if outlet is None or not self._engine.is_started:
            with self._lock:
                outlet = self._engine.outlet if self._engine.is_started else None
                outlet = self._begin(timeout) if outlet is None else outlet
        self._fresh = False
        return self.item_of(outlet.take(timeout), outlet)

    def begin_pass(self) -> int:
        """Return the number of the pass that is read from now on: the one that runs if it is fresh, else a new one."""
        self._engine.check_process()
        with self._lock:
            if not self._fresh or self._engine.outlet is None:
                self._begin(None)
            return self._pass

    def outlet_of(self, number: int) -> Outlet | None:
        """Return what a reader of a pass takes items from; None if the pipeline was stopped.

        Raises:
            ClosedError: another pass has begun.
        """
        self._engine.check_process()
        if self._pass != number:
            raise ClosedError("this pass has ended, for a new one has begun: an iterator is read before the next one")
        self._fresh = False
        return self._engine.outlet if self._engine.is_started else None

    def item_of(self, found: object, outlet: Outlet) -> object:
        """Return an item that was taken.

        Raises:
            EOFError: it was a mark: the pass is over.
            PipelineFailure: how it ended, the first time.
        """
        if type(found) is not Mark:
            return found
        if found is Mark.END_OF_PASS:
            with self._lock:
                self._pass += 1
                self._fresh = True
        failure = outlet.take_failure() if found is Mark.END else None
        if failure is not None:
            raise failure
        raise EOFError("the pass is over")

    def _begin(self, timeout: float | None) -> Outlet:
        outlet = self._engine.begin(timeout)
        self._pass += 1
        self._fresh = True
        return outlet


class PassIterator(Iterator[Item]):
    """The items of one pass."""

    def __init__(self, reading: Reading, timeout: float | None) -> None:
        self._reading = reading
        self._number = reading.begin_pass()
        self._timeout = timeout
        self._ended = False

    def __next__(self) -> Item:
        outlet = None if self._ended else self._reading.outlet_of(self._number)
        if outlet is None:
            raise StopIteration
        try:
            found = outlet.take(self._timeout)
            return found if type(found) is not Mark else self._reading.item_of(found, outlet)
        except EOFError:
            self._ended = True
            raise StopIteration from None
        except PipelineFailure:
            self._ended = True
            raise


class AsyncPassIterator(AsyncIterator[Item]):
    """The items of one pass, for `async for`. Cancelling a wait loses no item."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._number = reading.begin_pass()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        outlet = None if self._ended else self._reading.outlet_of(self._number)
        if outlet is None:
            raise StopAsyncIteration
        try:
            return self._reading.item_of(await _taken(outlet), outlet)
        except EOFError:
            self._ended = True
            raise StopAsyncIteration from None
        except PipelineFailure:
            self._ended = True
            raise


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
