"""An event loop in a thread of its own, which outlives what runs in it.

Guarantees:
  - `start` returns when the loop runs. `close` has it stop, and returns when its thread and the threads of its stages
    have ended. A start that fails, or out of which a signal handler's exception comes, leaves nothing running.
  - The thread is a daemon, so that a pipeline that nobody stops doesn't keep Python from ending.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from traceback import clear_frames
from typing import TYPE_CHECKING

from penstock._caught import Caught
from penstock._os import DaemonThread
from penstock._processes._seeding import GlobalSeeds
from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._engine._resources import Resources

if TYPE_CHECKING:
    from concurrent.futures import Future


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
        self._error: BaseException | None = None  # why the loop did not start
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

    @property
    def has_ended(self) -> bool:
        """Whether the loop has started, and ended."""
        return self._thread is not None and self._thread.has_ended

    def start(self, timeout: float | None) -> None:
        """Start the thread; return when the loop runs.

        Raises:
            PipelineFailure: it can't be started.
            TimeoutError: it did not within so many seconds.
        """
        ready = True
        with Caught() as caught:
            self._thread = DaemonThread(self._serve, "penstock-loop")
            ready = self._ready.wait(timeout)
        if caught.error is not None or not ready:
            self._is_unwanted = True
            self.abandon()
        if not ready:
            raise TimeoutError(f"the pipeline's event loop did not start within {timeout} s")
        error = self._error
        if self._thread is None and isinstance(caught.error, OSError | RuntimeError):
            error = caught.taken()
        if caught.error is not None:
            raise caught.taken()  # of a signal handler
        if error is not None:
            raise PipelineFailure(
                f"the pipeline's event loop can't be started: {type(error).__name__}: {error}. Close files, or raise "
                "the limits of open files and of processes (ulimit -n, ulimit -u), and start the pipeline again"
            ) from error

    def begin(self, main: Coroutine[object, object, None], ended: "Future[None]") -> None:
        """Cancel what runs on the loop, then run `main`, after which `ended` is done; returns at once."""
        self.loop.call_soon_threadsafe(self._begin, main, ended)

    def abandon(self, first: Callable[[], None] | None = None) -> None:
        """Ask for everything to end; returns at once, from any thread.

        Args:
            first: what to call on the loop before that.
        """
        if self._loop is not None:
            with suppress(RuntimeError):
                if first is not None:
                    self._loop.call_soon_threadsafe(first)
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
        self.check_waiting()
        self.abandon()
        until = None if timeout is None else monotonic() + timeout
        if not thread.wait(timeout):
            raise TimeoutError(f"a stage of the pipeline still runs after {timeout} s: a function can't be interrupted")
        if self._resources is not None:
            self._resources.join(None if until is None else max(until - monotonic(), 0.0))

    def check_waiting(self) -> None:
        """Check that this thread may wait for the end.

        Raises:
            UsageError: it is one of the pipeline's own, which would wait for itself.
        """
        if (self._thread is not None and self._thread.is_current) or (
            self._resources is not None and self._resources.is_current
        ):
            raise UsageError(
                "a pipeline can't be stopped by one of its own stages, which would wait for itself; got stop() from "
                "one of its threads. Raise an exception in the stage, or call stop(wait=False)"
            )

    # -- in the thread

    def _serve(self) -> None:
        with Caught() as caught, asyncio.Runner() as runner:
            runner.run(self._main())
        if caught.error is not None and self._ready.is_set():
            raise caught.taken()
        self._error = caught.error
        self._ready.set()

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

        self._cancel()
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
