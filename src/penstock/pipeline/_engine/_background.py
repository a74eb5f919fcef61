"""An event loop in a thread of its own, which outlives what runs in it.

Guarantees:
  - `start` returns when the loop runs. `close` has it stop, and returns when its thread and the threads of its stages
    have ended.
  - The thread is a daemon, so that a pipeline that nobody stops doesn't keep Python from ending.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from traceback import clear_frames

from penstock.concurrency._children._seeding import GlobalSeeds
from penstock.errors import UsageError
from penstock.pipeline._engine._resources import Resources
from penstock.transport._daemon_thread import DaemonThread


class Background:
    """Owns the thread, its loop, and the resources that live on it.

    Args:
        num_threads: as in `Resources`.
        seeds: as in `Resources`.
    """

    def __init__(self, num_threads: int, seeds: GlobalSeeds | None) -> None:
        self._num_threads = num_threads
        self._seeds = seeds
        self._thread: DaemonThread | None = None
        self._ready = threading.Event()
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resources: Resources | None = None
        self._runs = asyncio.TaskGroup()
        self._current: asyncio.Task[None] | None = None  # the run; the loop's own
        self._is_unwanted = False  # it is over before it began

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once it runs."""
        assert self._loop is not None
        return self._loop

    @property
    def resources(self) -> Resources:
        """What lives on the loop."""
        assert self._resources is not None
        return self._resources

    def start(self, timeout: float | None) -> None:
        """Start the thread; return when the loop runs.

        Raises:
            TimeoutError: it did not within so many seconds.
        """
        self._thread = DaemonThread(self._serve, "penstock-loop")
        if not self._ready.wait(timeout):
            self._is_unwanted = True
            self.abandon()
            raise TimeoutError(f"the pipeline's event loop did not start within {timeout} s")

    def begin(self, main: Coroutine[object, object, None]) -> "Future[None]":
        """Return what is done when `main` has run on the loop, after what ran there before has ended."""
        ended: Future[None] = Future()
        self.loop.call_soon_threadsafe(self._begin, main, ended)
        return ended

    def cancel(self) -> None:
        """Cancel what runs; returns at once."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._cancel)

    def abandon(self) -> None:
        """Ask for everything to end; returns at once, from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end)

    def close(self, timeout: float | None) -> None:
        """Cancel what runs, end the loop and its threads, and wait for that.

        Raises:
            UsageError: called from the loop's own thread, which would wait for itself.
            TimeoutError: something of it still runs after so many seconds; it may be called again.
        """
        thread = self._thread
        if thread is None:
            return
        if thread.is_current:
            raise UsageError(
                "a pipeline can't be stopped by one of its own stages, which would wait for itself; got stop() from "
                "the event loop's thread. Raise an exception in the stage, or stop the pipeline from elsewhere"
            )
        self.abandon()
        until = None if timeout is None else monotonic() + timeout
        if not thread.wait(timeout):
            raise TimeoutError(f"a stage of the pipeline still runs after {timeout} s: a function can't be interrupted")
        if self._resources is not None:
            self._resources.join(None if until is None else max(until - monotonic(), 0.0))

    # -- in the thread

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._stopped = asyncio.Event()
        self._resources = Resources(self._num_threads, self._seeds)
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as self._runs:
                self._ready.set()
                if not self._is_unwanted:
                    await self._stopped.wait()
        finally:
            self._resources.close()

    def _begin(self, main: Coroutine[object, object, None], ended: "Future[None]") -> None:
        assert self._stopped is not None
        if self._stopped.is_set():
            main.close()
            ended.set_result(None)
            return

        def end(_: object) -> None:
            main.close()  # if it never began
            ended.set_result(None)

        self._current = self._runs.create_task(_after(self._current, main))
        self._current.add_done_callback(end)

    def _cancel(self) -> None:
        if self._current is not None:
            self._current.cancel()

    def _end(self) -> None:
        self._cancel()
        if self._stopped is not None and self._resources is not None:
            self._stopped.set()
            self._resources.interrupt()


async def _after(previous: asyncio.Task[None] | None, main: Coroutine[object, object, None]) -> None:
    """Run what is to run when the one before it, which was cancelled, has ended.

    Raises:
        CancelledError: it was cancelled, too.
    """
    while previous is not None and not previous.done():
        await asyncio.wait([previous])
    try:
        await main
    except asyncio.CancelledError as error:
        clear_frames(error.__traceback__)  # that of a task group keeps the error, which keeps them
        raise
