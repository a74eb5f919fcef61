"""Threads that run what is not async, and tell the loop what came of it while it is still coming.

Guarantees:
  - A call that was started runs once, and its end is told to the loop once, whatever it raised.
  - `wait` returns when the call has ended, or, if it takes long, as soon as there are new values: a slow item never
    keeps back those that were made before it. Quick calls wake the loop once.
  - Whoever is cancelled while it waits for a call sets its `halt`, and is cancelled only when the call has ended:
    nothing of a stage runs after it.
  - The threads are daemons: a function that never returns doesn't keep Python from ending.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from penstock._caught import Caught
from penstock._os import DaemonThread
from penstock.errors import WorkerError
from penstock.pipeline._failures import FatalError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

SLOW_SECONDS: Final = 0.002


Put = Callable[[list[object]], Awaitable[None]]


class Halt:
    """Asks calls in threads to end after the item at hand."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


class Call:
    """One call in a thread, which makes values: `function(call)` appends them.

    Attributes:
        values: what it has made and the loop has not taken.
        halt: whether it should end early.
        slow: whether it takes long, so that the loop wants to hear of each new value by `tell`.
        done: whether it has ended.
        error: what ended it, but for its own end.
    """

    __slots__ = ("_loop", "_waiter", "done", "error", "function", "halt", "slow", "values")

    def __init__(self, function: Callable[["Call"], None], halt: Halt) -> None:
        self.function = function
        self.halt = halt
        self.values: list[object] = []
        self.done = False
        self.error: BaseException | None = None
        self.slow = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    # -- in the thread

    def run(self) -> None:
        """Run the function and tell the loop of its end."""
        with Caught() as caught:
            self.function(self)
        self.error = caught.error
        with suppress(RuntimeError):  # the loop was closed over a call that was stuck
            self._loop.call_soon_threadsafe(self._finish)

    def tell(self) -> None:
        """Say that there is a new value; needed only where the call is slow."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def fail(self, error: BaseException) -> None:
        """End the call, which never began, with an error."""
        self.error = error
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish)

    # -- in the loop

    async def pass_on(self, put: Put) -> None:
        """Put out the values as they come, until the call has ended; it has ended too if this is cancelled."""
        done = False
        try:
            while not done:
                await self.wait()
                done = self.done  # what is taken now is all, then: putting it out may take a while
                await put(self.take())
        finally:
            if not self.done:
                self.halt.on = True
                await self.wait(until_done=True)

    async def wait(self, *, until_done: bool = False) -> None:
        """Wait until there are new values or an end; if told so, for the end alone."""
        cancelled: asyncio.CancelledError | None = None
        while not self.done:
            self._waiter = self._loop.create_future()
            timer = None if until_done or self.slow else self._loop.call_later(SLOW_SECONDS, self._become_slow)
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                self.halt.on = True
                cancelled = error
                until_done = True
            finally:
                if timer is not None:
                    timer.cancel()
            if self.values and cancelled is None and not until_done:
                break
        self._waiter = None
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # its traceback holds this frame

    def take(self) -> list[object]:
        """Return the new values; each is returned once."""
        if self.done:
            values, self.values = self.values, []
            return values
        count = len(self.values)  # the thread may be appending
        values = self.values[:count]
        del self.values[:count]
        return values

    def _become_slow(self) -> None:
        self.slow = True
        if self.values:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _finish(self) -> None:
        self.done = True
        self._wake()


class Starts(Protocol):
    """Threads that calls run on."""

    def start(self, function: Callable[[Call], None], halt: Halt) -> Call:
        """Return a call that starts as soon as a thread is free, as `Threads` does."""
        ...


class PoolThreads:
    """The threads of a pool of the user's, which stays the user's to shut down.

    What the pool itself fails with is the `FatalError` of the call.
    """

    def __init__(self, pool: "Executor") -> None:
        self._pool = pool

    def start(self, function: Callable[[Call], None], halt: Halt) -> Call:
        """Return a call that starts as soon as a thread of the pool is free."""
        call = Call(function, halt)

        def settle(submitted: "Future[None]") -> None:
            if submitted.cancelled():
                call.fail(_fatal(RuntimeError("the executor cancelled a call that had been sent to it")))

        with Caught() as submitting:
            self._pool.submit(call.run).add_done_callback(settle)
        if submitting.error is not None:
            call.fail(_fatal(submitting.taken()))
        return call


def _fatal(error: BaseException) -> FatalError:
    fatal = FatalError()
    fatal.__cause__ = error
    return fatal


class Threads:
    """Owns up to `count` threads, each started when it is first needed. All methods are the loop's."""

    def __init__(self, count: int, name: str, initializer: Callable[[], object] | None = None) -> None:
        """Begin without a thread.

        Args:
            count: how many there may be.
            name: of the threads.
            initializer: called in each thread as it starts; what it raises is the `FatalError` of all its calls.
        """
        self._initializer = initializer
        self._count = count
        self._name = name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads: list[DaemonThread] = []
        self._running: list[Call] = []

    def start(self, function: Callable[[Call], None], halt: Halt) -> Call:
        """Return a call that starts as soon as a thread is free.

        Args:
            function: gets the call; it appends to its `values`, says `tell()` after each if the call is slow, and
                looks at its `halt`.
            halt: of the stage.

        Raises:
            WorkerError: a thread can't be started.
        """
        call = Call(function, halt)
        self._running = [other for other in self._running if not other.done]
        if len(self._threads) < min(len(self._running) + 1, self._count):
            self._start_thread()
        self._running.append(call)
        self._calls.put(call)
        return call

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        with Caught() as caught:
            self._threads.append(DaemonThread(partial(_serve, self._calls, self._initializer), name))
        if caught.error is not None:
            raise WorkerError(
                f"thread {name} can't be started: {type(caught.error).__name__}: {caught.error}. Raise the limits of "
                "open files and of processes (ulimit -n, ulimit -u), or lower num_threads"
            ) from caught.error

    def close(self) -> None:
        """Let the threads end when they have nothing to do; does not wait for it."""
        for _ in self._threads:
            self._calls.put(None)

    @property
    def is_current(self) -> bool:
        """Whether this is called in one of the threads."""
        return any(thread.is_current for thread in self._threads)

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, each at most so many seconds."""
        for thread in self._threads:
            thread.wait(timeout)


def _serve(calls: "SimpleQueue[Call | None]", initializer: Callable[[], object] | None) -> None:
    with Caught() as initializing:
        if initializer is not None:
            initializer()
    while (call := calls.get()) is not None:
        if initializing.error is None:
            call.run()
        else:
            call.fail(_fatal(initializing.error))
        del call  # an idle thread keeps nothing of its last call
