"""The event loop of an async source, in a background thread; all reads of the source run on it.

Problem: a client that keeps connections, such as an HTTP session, belongs to the loop on which it was created. But a
source has many readers: an indexed dataset, several loaders one after another, and their worker threads. Solution: one
loop for each source, for all readers, so that the source may create its client at the first read and keep it. A
loader's reads ahead run there, too. Rejected: `asyncio.run` for each read, which ends the connections each time; and
the caller's loop, since callers have different ones.

Guarantees:
  - A source has at most one loop in a process, created at its first read. The loop ends when the source is collected,
    and cleanly at the end of the program. A forked child gets a new loop.
  - A source's `aclose` is awaited on its loop when the last loader that reads it is closed, and at the end of the
    program; if it takes too long, it is cancelled. A later read opens what it needs again, on the same loop.
  - The exception of a coroutine is raised in its caller, with its traceback; the loop continues after any exception.
  - A caller that is cancelled or interrupted while it waits cancels the coroutine. If the caller is on another loop,
    the cancellation continues after the coroutine has ended.
"""

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from traceback import clear_frames
from typing import Final, NamedTuple

from penstock._caught import Caught
from penstock._os import Bell, DaemonThread, renewed_after_fork, uninterrupted
from penstock.errors import ClosedError, UsageError

_CLOSE_SECONDS: Final = 5.0  # the time that `aclose` has: a session ends its connections in far less
_EXIT_SECONDS: Final = 0.5  # the longest time that the end of the program waits for coroutines
_logger = logging.getLogger("penstock")

Work = Callable[[], Awaitable[object]]


class Outcome(NamedTuple):
    """The result of a coroutine, or its exception."""

    value: object
    error: BaseException | None


class _RunningLoop(NamedTuple):
    """A loop that is running, with its task group and its main task."""

    loop: asyncio.AbstractEventLoop
    group: asyncio.TaskGroup
    main: "asyncio.Task[None]"
    ended: threading.Event
    """Set when the loop accepts no more coroutines."""


class Call:
    """One call of a coroutine, which runs on the loop from its first step to its last.

    Attributes:
        outcome: the result or the exception, once the coroutine has ended; a CancelledError if it was cancelled.
    """

    def __init__(self, running: "_RunningLoop", work: Work) -> None:
        self.outcome: Future[Outcome] = Future()
        self.outcome.set_running_or_notify_cancel()  # only the end of the coroutine sets its result
        self._running = running
        self._work = work
        self._task: asyncio.Task[Outcome] | None = None
        if running.ended.is_set():
            raise ClosedError("async sources can't be read any more: the program is ending")
        running.loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        """Cancel the coroutine; return at once."""
        with suppress(RuntimeError):  # the loop is closed
            self._running.loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        if self._running.ended.is_set():
            self.outcome.set_result(Outcome(None, CancelledError("read was cancelled")))
            return
        self._task = self._running.group.create_task(_outcome(self._work))
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _settle(self, task: "asyncio.Task[Outcome]") -> None:
        self._task = None
        # Not asyncio.CancelledError, which would mean that the caller's task is cancelled.
        self.outcome.set_result(
            Outcome(None, CancelledError("read was cancelled")) if task.cancelled() else task.result()
        )


async def _closed(aclose: Callable[[], object]) -> None:
    """Call a source's `aclose`, and await it if it is a coroutine function."""
    closing = aclose()
    if isinstance(closing, Awaitable):
        await closing


async def _outcome(work: Work) -> Outcome:
    value: object = None
    with Caught() as caught:
        value = await work()
    if isinstance(caught.error, asyncio.CancelledError):
        clear_frames(caught.error.__traceback__)  # a task group's frame holds the error, which holds the frame: a cycle
        raise caught.taken()
    return Outcome(value, caught.error)  # the caller raises it; raised here, it would end the loop


class SourceLoop:
    """The owner of the thread on which a source's loop runs."""

    def __init__(self) -> None:
        self.process = os.getpid()
        started: Future[_RunningLoop] = Future()
        self._thread = DaemonThread(partial(_serve, started), "penstock-source-loop")
        self._running = started.result()
        self._was_read = False

    def start(self, work: Work) -> Call:
        """Start the coroutine of `work` on the loop; return at once.

        Returns:
            The call, with its outcome and its `cancel`.

        Raises:
            ClosedError: the program is ending.
        """
        return self._called(work)

    def _called(self, work: Work) -> Call:
        self._was_read = True
        return Call(self._running, work)

    def run(self, work: Work) -> object:
        """Run the coroutine of `work` on the loop; the calling thread waits.

        Returns:
            The result of the coroutine.

        Raises:
            UsageError: the calling thread is the loop's own.
            ClosedError: the program is ending.
        """
        if self._thread.is_current:
            raise UsageError(
                "plain code inside an async source's own read can't read that source, since it would wait for itself. "
                "Await the source's async functions there instead."
            )
        ended = Bell()
        call = self._started(work, ended)
        try:
            ended.wait()  # not `Future.result`: an interrupted one could leave the future's lock taken
        except BaseException:
            call.cancel()
            raise
        return _result_of(call.outcome.result())

    @uninterrupted
    def _started(self, work: Work, ended: Bell) -> Call:
        call = self._called(work)
        call.outcome.add_done_callback(lambda _: ended.ring())
        return call

    async def run_elsewhere(self, work: Work) -> object:
        """Run the coroutine of `work` on this loop; the caller awaits it on any loop.

        Returns:
            The result of the coroutine.

        Raises:
            CancelledError: the task that awaits it was cancelled.
        """
        if self._thread.is_current:
            return await work()
        call = self._called(work)
        try:
            return _result_of(await asyncio.wrap_future(call.outcome))
        except asyncio.CancelledError:
            if not call.outcome.done():
                call.cancel()
                await asyncio.wrap_future(call.outcome)
            raise

    def close(self, source: object) -> None:
        """Await the source's `aclose`, if it has one and was read since the last call; cancel it if it takes too long.

        Raises:
            Exception: whatever it raises.
        """
        aclose: Callable[[], object] | None = getattr(source, "aclose", None)
        is_here = os.getpid() == self.process and not self._thread.is_current
        if not is_here or not self._was_read or not callable(aclose):
            return
        is_exit = not threading.main_thread().is_alive()
        seconds = _EXIT_SECONDS if is_exit else _CLOSE_SECONDS
        ended = Bell()
        call = self._started(partial(_closed, aclose), ended)
        try:
            has_ended = ended.wait(seconds)
        finally:
            self._was_read = False
            call.cancel()  # unless it has ended
        if is_exit:
            return
        if has_ended:
            _result_of(call.outcome.result())
        else:
            text = "aclose of a %s hasn't ended after %s s, so it was cancelled; give it a timeout of its own"
            _logger.warning(text, type(source).__name__, seconds)

    def stop(self) -> None:
        """Cancel all coroutines, and end the loop. At the end of the program, wait a moment until it has ended."""
        if os.getpid() != self.process:
            return  # a forked child doesn't have the thread, but a wake-up here would wake the parent's loop
        self._running.ended.set()
        with suppress(RuntimeError):  # the loop is closed
            self._running.loop.call_soon_threadsafe(self._running.main.cancel)
        if not threading.main_thread().is_alive():
            self._thread.wait(_EXIT_SECONDS)


def _result_of(outcome: Outcome) -> object:
    if outcome.error is not None:
        try:
            raise outcome.error
        finally:
            del outcome  # the traceback of its error references this frame
    return outcome.value


def _serve(started: "Future[_RunningLoop]") -> None:
    with Caught() as caught, asyncio.Runner() as runner:
        runner.run(_main(started))
    if not started.done():  # the loop found no descriptors
        started.set_exception(caught.taken())
    elif not isinstance(caught.error, asyncio.CancelledError | None):
        raise caught.taken()


async def _main(started: "Future[_RunningLoop]") -> None:
    """Wait until cancelled; then cancel the coroutines, and end when they have ended."""
    main = asyncio.current_task()
    assert main is not None
    async with asyncio.TaskGroup() as group:
        started.set_result(_RunningLoop(asyncio.get_running_loop(), group, main, threading.Event()))
        await asyncio.get_running_loop().create_future()


class Loops:
    """The loops of all living sources.

    Each method takes the user's source, and the object whose collection ends the loop if the source allows no weak
    reference, as with slots.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[int, SourceLoop] = {}
        self._readers: dict[int, int] = {}
        """The number of loaders that may read a source, which they keep alive."""
        renewed_after_fork(self)

    def renew_after_fork(self) -> None:
        """Drop the parent's loops, whose threads don't exist here."""
        self._lock = threading.Lock()
        self._loops = {}
        self._readers = {}

    def begin_reading(self, source: object, otherwise: object) -> None:
        """Note that a loader may read a source, until it calls `end_reading`."""
        owner = _owner(source, otherwise)
        with self._lock:
            self._readers[id(owner)] = self._readers.get(id(owner), 0) + 1

    def end_reading(self, source: object, otherwise: object) -> None:
        """Note that a loader reads a source no more; if no other does, await the source's `aclose`."""
        owner = _owner(source, otherwise)
        with self._lock:
            left = self._readers.pop(id(owner), 1) - 1
            if left:
                self._readers[id(owner)] = left
            loop = None if left else self._loops.get(id(owner))
        if loop is not None:
            with suppress(ClosedError):  # at the end of the program, where the loop has awaited it already
                loop.close(source)

    def of(self, source: object, otherwise: object) -> SourceLoop:
        """Return the loop on which a source is read; start it if there is none."""
        owner = _owner(source, otherwise)
        return self._loops.get(id(owner)) or self._started(owner)

    @uninterrupted  # an interrupt must not lose a thread that was just started
    def _started(self, owner: object) -> SourceLoop:
        with self._lock:
            loop = self._loops.get(id(owner))
            if loop is None:
                loop = SourceLoop()
                weakref.finalize(owner, self._forget, id(owner), loop, weakref.ref(owner))
                self._loops[id(owner)] = loop
            return loop

    def _forget(self, identity: int, loop: SourceLoop, source: Callable[[], object]) -> None:
        # Without the lock: the garbage collector may call this while the same thread holds it.
        if not threading.main_thread().is_alive():
            with suppress(KeyboardInterrupt):  # Ctrl-C at the end of the program ends the wait
                loop.close(source())
                loop.stop()
            return  # the source still exists, and must get no second loop
        if self._loops.get(identity) is loop:
            del self._loops[identity]
        loop.stop()


LOOPS: Final = Loops()


def _owner(source: object, otherwise: object) -> object:
    try:
        weakref.ref(source)
    except TypeError:
        return otherwise
    return source
