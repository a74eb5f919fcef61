"""An event loop in a thread of its own, and the threads and processes that are kept from run to run while it lives.

A run is a pass over the source, which may be short, while starting threads, an event loop and above all processes takes
time. So the loop and its resources outlive the run, and a run is a task on the loop.

Guarantees:
  - `start` returns when the loop runs. `close` stops it, and returns when its thread and the threads of its stages have
    ended. A start that fails, or from which a signal handler's exception is raised, leaves nothing running.
  - One run at a time: `begin` cancels the one before, and the new one starts when that has ended.
  - The thread is a daemon, so that a pipeline that is never stopped doesn't keep Python from ending.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import monotonic
from traceback import clear_frames
from typing import TYPE_CHECKING

from penstock._caught import Caught
from penstock._os import DaemonThread
from penstock._processes import GlobalSeeds
from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._operations import Remote, Threads
from penstock.pipeline._processes import Executors
from penstock.pipeline._stages import Pipe, ThreadExecutor

if TYPE_CHECKING:
    from concurrent.futures import Future


class Resources:
    """Owns the threads and processes of a pipeline. Made, used and closed on its loop.

    Args:
        num_threads: how many threads plain functions run on.
        seeds: seeds of the global random generators in processes; None if no stage has an executor with processes.

    Attributes:
        threads: the threads for plain functions.
    """

    def __init__(self, num_threads: int, seeds: GlobalSeeds | None) -> None:
        self.threads = Threads(num_threads, "penstock-stage")
        self._sources: dict[str, Threads] = {}
        # By the id of the executor, which is here, too, so that no other object gets the id.
        self._threads_of_executors: dict[int, tuple[ThreadExecutor, Threads]] = {}
        self._executors = Executors(seeds)

    def remote(self, pipe: Pipe, name: str) -> Remote:
        """Return the connection of a stage to its executor."""
        assert pipe.executor is not None
        return self._executors.remote(pipe.executor, name, repeatable=pipe.repeatable)

    def executor_threads(self, executor: ThreadExecutor, name: str) -> Threads:
        """Return the threads of an executor, which all its stages share."""
        if id(executor) not in self._threads_of_executors:
            given = executor.initializer
            initializer = None if given is None else partial(given, *executor.initargs)
            threads = Threads(executor.max_workers, f"penstock-{name}", initializer)
            self._threads_of_executors[id(executor)] = executor, threads
        return self._threads_of_executors[id(executor)][1]

    def source_threads(self, name: str) -> Threads:
        """Return the thread of a source; it has its own, so that waiting for data occupies no thread of a function."""
        return self._sources.setdefault(name, Threads(1, f"penstock-{name}"))

    def interrupt(self) -> None:
        """End the processes, even in the middle of a call: their results are no longer needed."""
        self._executors.close()

    def close(self) -> None:
        """Let the threads end, and end the processes."""
        self._executors.close()
        for threads in self._all_threads():
            threads.close()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of the threads."""
        return any(threads.is_current for threads in self._all_threads())

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, for each at most `timeout` seconds."""
        for threads in self._all_threads():
            threads.join(timeout)

    def _all_threads(self) -> list[Threads]:
        sources, executors = list(self._sources.values()), list(self._threads_of_executors.values())  # from any thread
        return [self.threads, *sources, *(threads for _, threads in executors)]


class BackgroundLoop:
    """Owns the thread, its loop, and the resources that are used on it.

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
        self._current: asyncio.Task[None] | None = None  # the run; used on the loop only
        self._error: BaseException | None = None  # the reason why the loop did not start
        self._is_abandoned = False  # `start` gave up before the loop ran

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once it runs."""
        assert self._loop is not None
        return self._loop

    @property
    def resources(self) -> Resources:
        """The threads and processes, once the loop runs."""
        assert self._resources is not None
        return self._resources

    @property
    def has_ended(self) -> bool:
        """Whether the loop has started, and ended."""
        return self._thread is not None and self._thread.has_ended

    def start(self, timeout: float | None) -> None:
        """Start the thread, and wait until the loop runs.

        Raises:
            PipelineFailure: the thread or the loop can't be started.
            TimeoutError: the loop did not run within `timeout` seconds.
        """
        ready = True
        with Caught() as caught:
            self._thread = DaemonThread(self._serve, "penstock-loop")
            ready = self._ready.wait(timeout)
        if caught.error is not None or not ready:
            self._is_abandoned = True
            self.abandon()
        if not ready:
            raise TimeoutError(f"the pipeline's event loop did not start within {timeout} s")
        error = self._error
        if self._thread is None and isinstance(caught.error, OSError | RuntimeError):
            error = caught.taken()
        if caught.error is not None:
            raise caught.taken()  # a signal handler's exception
        if error is not None:
            raise PipelineFailure(
                f"the pipeline's event loop can't be started: {type(error).__name__}: {error}. Close files, or raise "
                "the limits of open files and of processes (ulimit -n, ulimit -u), and start the pipeline again"
            ) from error

    def begin(self, main: Coroutine[object, object, None], ended: "Future[None]") -> None:
        """Cancel the current run, then run `main`, and set `ended` after it; returns at once."""
        self.loop.call_soon_threadsafe(self._begin, main, ended)

    def abandon(self, first: Callable[[], None] | None = None) -> None:
        """Request the end of the run, the loop and its threads; returns at once. From any thread.

        Args:
            first: called on the loop before that. Default None.
        """
        if self._loop is not None:
            with suppress(RuntimeError):
                if first is not None:
                    self._loop.call_soon_threadsafe(first)
                self._loop.call_soon_threadsafe(self._end)

    def close(self, timeout: float | None) -> None:
        """Cancel the run, end the loop and its threads, and wait for that.

        Raises:
            UsageError: the caller runs in one of these threads, and would wait for itself.
            TimeoutError: a function still runs after `timeout` seconds; `close` may be called again.
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
            UsageError: it is one of the pipeline's own threads, which would wait for itself.
        """
        if (self._thread is not None and self._thread.is_current) or (
            self._resources is not None and self._resources.is_current
        ):
            raise UsageError(
                "a stage can't stop its own pipeline, since it would wait for itself; got stop() from one of the "
                "pipeline's threads. Raise an exception in the stage, or call stop(wait=False)"
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
                if not self._is_abandoned:
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
    """Run `main` once the previous run, which was cancelled, has ended.

    Raises:
        CancelledError: this run was cancelled.
    """
    while previous is not None and not previous.done():
        await asyncio.wait([previous])
    try:
        await main
    except asyncio.CancelledError as error:
        clear_frames(error.__traceback__)  # a frame of a task group holds the error, which holds its frames: a cycle
        raise
