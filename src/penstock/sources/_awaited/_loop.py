"""One event loop for each async source, in a background thread, on which all its reads run, whoever asks.

A client that keeps connections belongs to the loop that it was made on. So a source may make one at its first read and
keep it: a dataset that is indexed, its loaders, one after the other, and their workers all read on the same loop.

Guarantees:
  - A source has at most one loop in a process, made at its first read. It ends when the source is collected, and in
    good order at the end of the program. A fork gets its own.
  - What a coroutine raises is raised where it was asked for, with its traceback; the loop outlives whatever it was.
  - Who is cancelled or interrupted while it waits cancels the coroutine. Where that was asked by another loop, the
    coroutine has ended when the cancellation goes on.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from penstock._caught import Caught
from penstock._os import Bell, DaemonThread, HeldInterrupts, renewed_after_fork
from penstock.errors import ClosedError, UsageError

_EXIT_SECONDS: Final = 0.5  # so long the end of the program waits for coroutines to end

Work = Callable[[], Awaitable[object]]


class Outcome(NamedTuple):
    """What a coroutine returned, or raised."""

    value: object
    error: BaseException | None


class _Home(NamedTuple):
    """A loop that runs, and what lives on it."""

    loop: asyncio.AbstractEventLoop
    group: asyncio.TaskGroup
    main: "asyncio.Task[None]"
    ended: threading.Event
    """Whether it takes no more coroutines."""


class Call:
    """A coroutine on its way: on the loop from its first step to its last.

    Attributes:
        outcome: done when the coroutine has ended; its error is a CancelledError where that was cancelled.
    """

    def __init__(self, home: "_Home", work: Work) -> None:
        self.outcome: Future[Outcome] = Future()
        self.outcome.set_running_or_notify_cancel()  # only the coroutine's end settles it
        self._home = home
        self._work = work
        self._task: asyncio.Task[Outcome] | None = None
        if home.ended.is_set():
            raise ClosedError("async sources can't be read any more: the program ends")
        home.loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        """Have the coroutine cancelled; returns at once."""
        with suppress(RuntimeError):  # the loop is closed
            self._home.loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        if self._home.ended.is_set():
            self.outcome.set_result(Outcome(None, CancelledError("read was cancelled")))
            return
        self._task = self._home.group.create_task(_outcome(self._work))
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _settle(self, task: "asyncio.Task[Outcome]") -> None:
        self._task = None
        # Not asyncio's own, which means that the task at hand is cancelled.
        self.outcome.set_result(
            Outcome(None, CancelledError("read was cancelled")) if task.cancelled() else task.result()
        )


async def _outcome(work: Work) -> Outcome:
    value: object = None
    with Caught() as caught:
        value = await work()
    if isinstance(caught.error, asyncio.CancelledError):
        raise caught.error
    return Outcome(value, caught.error)  # raised where it was asked for; here it would end the loop


class SourceLoop:
    """Owns the thread and its loop."""

    def __init__(self) -> None:
        self.process = os.getpid()
        started: Future[_Home] = Future()
        self._thread = DaemonThread(partial(_serve, started), "penstock-source-loop")
        self._home = started.result()

    def start(self, work: Work) -> Call:
        """Run the coroutine that `work` makes; return at once.

        Returns:
            The means to cancel the coroutine, and its outcome.

        Raises:
            ClosedError: the program ends.
        """
        return Call(self._home, work)

    def run(self, work: Work) -> object:
        """Return what the coroutine that `work` makes returns; the calling thread waits.

        Raises:
            UsageError: the calling thread is the loop's own.
            ClosedError: the program ends.
        """
        if self._thread.is_current:
            raise UsageError(
                "an async source can't be read by plain code inside its own read, which would wait for itself; got "
                "such a read. Await the source's async functions there instead."
            )
        told = Bell()
        with HeldInterrupts():
            call = Call(self._home, work)
            call.outcome.add_done_callback(lambda _: told.ring())
        try:
            told.wait()  # and not for the future, whose lock stays taken where Ctrl-C finds it so
        except BaseException:
            call.cancel()
            raise
        return _told(call.outcome.result())

    async def run_elsewhere(self, work: Work) -> object:
        """Return what the coroutine that `work` makes returns; it runs here, and is awaited on any loop.

        Raises:
            CancelledError: the task that awaits it was cancelled.
        """
        if self._thread.is_current:
            return await work()
        call = Call(self._home, work)
        try:
            return _told(await asyncio.wrap_future(call.outcome))
        except asyncio.CancelledError:
            if not call.outcome.done():
                call.cancel()
                await asyncio.wrap_future(call.outcome)
            raise

    def stop(self) -> None:
        """Have the loop cancel what runs, and end; waits for that, for a moment, at the end of the program alone."""
        if os.getpid() != self.process:
            return  # a fork has no such thread, and shares what wakes it with its parent
        self._home.ended.set()
        with suppress(RuntimeError):  # the loop is closed
            self._home.loop.call_soon_threadsafe(self._home.main.cancel)
        if not threading.main_thread().is_alive():
            self._thread.wait(_EXIT_SECONDS)


def _told(outcome: Outcome) -> object:
    if outcome.error is not None:
        try:
            raise outcome.error
        finally:
            del outcome  # its error's traceback holds this frame
    return outcome.value


def _serve(started: "Future[_Home]") -> None:
    with suppress(asyncio.CancelledError), asyncio.Runner() as runner:
        runner.run(_main(started))


async def _main(started: "Future[_Home]") -> None:
    """Be there until it is cancelled, which cancels the coroutines; ends when they have ended."""
    main = asyncio.current_task()
    assert main is not None
    async with asyncio.TaskGroup() as group:
        started.set_result(_Home(asyncio.get_running_loop(), group, main, threading.Event()))
        await asyncio.get_running_loop().create_future()


class _Loops:
    """Knows the loop of each living source."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[int, SourceLoop] = {}
        renewed_after_fork(self)

    def renew_after_fork(self) -> None:
        """Forget the parent's loops, whose threads don't exist here."""
        self._lock = threading.Lock()
        self._loops = {}

    def of(self, owner: object) -> SourceLoop:
        """Return the loop of a source, which is started if there is none."""
        loop = self._loops.get(id(owner))
        if loop is not None:
            return loop
        with HeldInterrupts(), self._lock:  # else nobody knows of the thread, and nobody ends it
            loop = self._loops.get(id(owner))
            if loop is None:
                loop = SourceLoop()
                weakref.finalize(owner, self._forget, id(owner), loop)
                self._loops[id(owner)] = loop
            return loop

    def _forget(self, identity: int, loop: SourceLoop) -> None:
        # Without the lock: the garbage collector may call this while this very thread holds it.
        if not threading.main_thread().is_alive():
            with suppress(KeyboardInterrupt):  # who presses Ctrl-C here wants the program to end now
                loop.stop()
            return  # the source is still there, and gets no other loop
        if self._loops.get(identity) is loop:
            del self._loops[identity]
        loop.stop()


_loops: Final = _Loops()


def loop_of(source: object, otherwise: object) -> SourceLoop:
    """Return the loop on which a source is read.

    Args:
        source: the user's.
        otherwise: what stands for it where Python can't tell when it is collected, as of classes with slots.
    """
    try:
        weakref.ref(source)
    except TypeError:
        return _loops.of(otherwise)
    return _loops.of(source)
