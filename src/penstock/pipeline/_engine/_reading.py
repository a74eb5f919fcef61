"""Reading a pipeline pass by pass, from any thread or event loop.

The problem: the same pipeline is read by `get_item`, by `for`, by `async for` and by iterators that the caller keeps;
the source may be one that starts again at each pass, or one that can't. What a `for` reads after another was left early
must not depend on how far the loop has come meanwhile.

The rules: a new reader gets the current pass if nothing of it was read, or, if the source can't start again, as long as
its end was not read; otherwise a new pass starts. One iterator reads at a time, the one that was made last. The older
ones raise ClosedError at their next read, since two iterators over one pass would each see some of its items.

A signal handler may raise in the middle of a read (see `_channels/_outlet.py`). So nothing is called between the
removal of an item and its return, and a mark that was taken is put back if its handling is interrupted.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Self

from penstock._os import Closer
from penstock.errors import AlreadyRunningError, ClosedError
from penstock.pipeline._channels import Mark, Outlet
from penstock.pipeline._engine._engine import REPLACED, STOPPED, Engine
from penstock.pipeline._ops import Item
from penstock.pipeline._tuning import EXIT_SECONDS

_END: Final = Mark.END
_END_OF_PASS: Final = Mark.END_OF_PASS
_CLOSED: Final = Mark.CLOSED


class Reading:
    """Starts and stops the runs of an engine, and knows which reader reads the current pass.

    Attributes:
        reader: the number of the iterator that reads; older ones have lower numbers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closer = Closer(partial(_end_dropped, engine))
        self._lock = threading.RLock()  # held while starting and stopping
        self.reader: int = 0
        self._is_unread = False  # nothing of the current pass was read

    def start(self, timeout: float | None) -> None:
        """Start a pass, unless one runs.

        Raises:
            AlreadyRunningError: a pass runs.
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
        """Stop everything, and, if `wait`, wait for that."""
        self._engine.check_process()
        if wait:
            self._engine.check_waiting()
        with self._lock:
            self._is_unread = False
            self._engine.halt()
        if wait:
            self._engine.join(timeout)

    def read(self, timeout: float | None) -> Item:
        """Return the next item; if the pipeline is new, start a pass.

        Raises:
            EOFError: the pass is over.
            TimeoutError: no item was ready within `timeout` seconds.
            PipelineFailure: the pass ended with a failure, which no read has raised yet.
            ClosedError: the pipeline was stopped.
        """
        self._engine.check_process()
        outlet = self._engine.outlet
        if self._engine.is_stopped:
            raise ClosedError(STOPPED)
        if outlet is None:
            with self._lock:
                outlet = self._engine.outlet or self._begin(timeout)
        self._is_unread = False
        found = outlet.take(timeout)
        if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
            return found
        try:
            over = EOFError("the pass is over")
            error = self.read_mark(found, outlet)
        except BaseException:
            outlet.put_back(found)
            raise
        raise over if error is None else error

    def begin_pass(self) -> tuple[int, Outlet, bool]:
        """Start reading: an unread pass, the rest of a pass whose source can't start again, or a new pass.

        Returns:
            The number of the reader, the outlet to read, and whether it is the rest of a pass: if nothing is left of
            it, the reader reads the next pass.

        Raises:
            UsageError: the source is an iterator that an earlier pass has used.
        """
        self._engine.check_process()
        with self._lock:
            outlet = self._engine.outlet
            is_open = self._is_unread or (self._engine.keeps_pass and outlet is not None and not outlet.is_over)
            if outlet is None or self._engine.is_stopped or not is_open:
                outlet = self._begin(None)
            self.reader += 1
            return self.reader, outlet, not self._is_unread

    def check_reader(self, number: int) -> None:
        """Check that no other reader has started since.

        Raises:
            ClosedError: another one has.
        """
        self._engine.check_process()
        if self.reader != number:
            raise ClosedError(REPLACED)
        self._is_unread = False

    def read_mark(self, mark: object, outlet: Outlet) -> Exception | None:
        """Return the exception that a reader raises for a mark, which counts as read then; None at a plain end."""
        if mark is _CLOSED:
            return ClosedError(outlet.closed_because)
        if mark is _END:
            return outlet.take_failure()
        self.reader += 1
        self._is_unread = True
        return None

    def _begin(self, timeout: float | None) -> Outlet:
        outlet = self._engine.begin(timeout)
        self.reader += 1
        self._is_unread = True
        return outlet


class _OnePass:
    """The state of an iterator over one pass."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._number, self._outlet, self._is_rest = reading.begin_pass()
        self._ended = False

    def _read_mark(self, mark: object) -> Exception | None:
        """Return the exception to raise for a mark; None if the iteration ends without one, or continues."""
        error = self._reading.read_mark(mark, self._outlet)
        if self._is_rest and mark is _END_OF_PASS:  # nothing was left of the rest: read the next pass
            self._is_rest = False
            self._number = self._reading.reader
        else:
            self._ended = mark is not _CLOSED
        return error


class PassIterator(_OnePass, Iterator[Item]):
    """An iterator over the items of one pass."""

    def __init__(self, reading: Reading, timeout: float | None) -> None:
        super().__init__(reading)
        self._timeout = timeout

    def __next__(self) -> Item:
        while not self._ended:
            self._reading.check_reader(self._number)
            found = self._outlet.take(self._timeout)
            if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
                self._is_rest = False
                return found
            try:
                error = self._read_mark(found)
            except BaseException:
                self._outlet.put_back(found)
                raise
            if error is not None:
                raise error
        raise StopIteration


class AsyncPassIterator(_OnePass, AsyncIterator[Item]):
    """An async iterator over the items of one pass. Cancelling a wait loses no item."""

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
                error = self._read_mark(found)
            except BaseException:
                self._outlet.put_back(found)
                raise
            if error is not None:
                raise error
        raise StopAsyncIteration


async def _taken(outlet: Outlet) -> object:
    """Return the next item or mark, once there is one; the caller's loop runs other tasks meanwhile."""
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
    """Return a thread-safe callback that sets the future."""

    def settle() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        with suppress(RuntimeError):  # that loop is closed, so no reader waits there
            loop.call_soon_threadsafe(settle)

    return wake


def _end_dropped(engine: Engine) -> None:
    """End a pipeline that was dropped; at the end of the program, wait a moment for its stages to end."""
    engine.abandon()
    if not threading.main_thread().is_alive() and engine.is_here:
        with suppress(TimeoutError):
            engine.stop(EXIT_SECONDS)
