"""The engine of a pipeline: an event loop in a thread of its own, and the run on it, of which there is one at a time.

A run is often short: one pass over the source, unless the source is continuous. Starting a thread, an event loop and
above all processes takes time. So the loop and its `Resources` are kept from run to run, and a run is a task on the
loop.

Guarantees:
  - `start` returns when the loop runs. `close` stops it, and returns when its thread and the threads of its stages have
    ended. A start that fails, or from which a signal handler's exception is raised, leaves nothing running.
  - One run at a time: `begin` cancels the run before, and the new one starts when that has ended.
  - The thread is a daemon, so that a pipeline that is never stopped doesn't keep Python from ending.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from fractions import Fraction
from functools import partial
from time import monotonic
from traceback import clear_frames
from typing import Final, Literal, TypeAlias

from penstock._caught import Caught
from penstock._os import DaemonThread, uninterrupted
from penstock._processes import GlobalSeeds, draw_seeds
from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._config import Merge, PipelineConfig, has_processes
from penstock.pipeline._items import DroppedItem, DroppedItems, summary_of
from penstock.pipeline._outlet import Outlet
from penstock.pipeline._run import Resources, RunBuilder, StageTask, run
from penstock.pipeline._statistics import Probes

State: TypeAlias = Literal["new", "running", "done", "stopped"]
"""The state of a pipeline: never started; a run computes items; the run has ended; stopped since the last start."""

STOPPED: Final = (
    "the pipeline was stopped, and the rest of the pass was discarded. Start another pass with `for`, or call start()"
)
REPLACED: Final = (
    "this pass has ended for this reader: another one began to read, and a pipeline has one reader at a time. Read an "
    "iterator to its end before you make the next one"
)
_DROPPED: Final = "the pipeline was stopped, because nothing refers to it any more, or because the program ends"
_INTERRUPTED: Final = "the start of this pass was interrupted. Start another one"


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
        self._current: asyncio.Task[None] | None = None  # the task of the run, until it ends; used on the loop only
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

        def end(task: asyncio.Task[None]) -> None:
            main.close()  # in case it never began
            if self._current is task:
                self._current = None  # the frames of its exception may refer to the loop's, and so to `self`
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


class Engine:
    """Owns the background loop of one pipeline and the run on it.

    It doesn't refer to the `Pipeline`, whose garbage collection ends it.

    Attributes:
        config: the pipeline's description.
        num_threads: how many threads its functions share.
        names: the names of its stages.
        probes: the probes of its stages.
        dropped: the items that stages failed on.
        outlet: the outlet of the latest run; None if no run was started.
        is_stopped: whether it was stopped, and not started since.
        keeps_pass: whether the next reader continues a pass that was left early: the source is continuous, or an
            iterator, which can't start again.
    """

    def __init__(self, config: PipelineConfig, num_threads: int, max_failures: int | Fraction, probes: Probes) -> None:
        self.config = config
        self.num_threads = num_threads
        self.names: tuple[str, ...] = config.names()
        self.probes = probes
        self.dropped: DroppedItems = DroppedItems()
        self.outlet: Outlet | None = None
        self.is_stopped: bool = False
        self.keeps_pass: bool = config.continuous or one_shot(config) is not None
        self._max_failures = max_failures
        self._background: BackgroundLoop | None = None
        self._ending: BackgroundLoop | None = None  # one that was stopped, and may not have ended yet
        self._running: Future[None] | None = None  # set when the latest run has ended
        self._process = os.getpid()
        self._has_run = False

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the pipeline, and not a forked child."""
        return os.getpid() == self._process

    @property
    def state(self) -> State:
        """The state of the pipeline; "stopped" in a forked child."""
        if self.is_stopped or not self.is_here:
            return "stopped"
        if self._running is None:
            return "new"
        return "done" if self._running.done() else "running"

    def check_process(self) -> None:
        """Check that this is the process that made the pipeline.

        Raises:
            UsageError: it is a forked child.
        """
        if not self.is_here:
            raise UsageError(
                f"a pipeline can be used only in the process that made it; got one of process {self._process} in its "
                f"fork {os.getpid()}, which doesn't have its threads. Build the pipeline in the process that reads it"
            )

    def begin(self, timeout: float | None) -> Outlet:
        """Return the outlet of a new run, which is started now and replaces the one before it.

        Raises:
            UsageError: the source is an iterator that an earlier run has used.
            PipelineFailure: the event loop can't be started.
            TimeoutError: the loop didn't start in time, or a stopped one has not ended.
        """
        if self._has_run:
            _check_repeatable(self.config)
        self.join(timeout)
        background = self._opened(timeout)
        sink = self.config.sink
        outlet = Outlet(sink.buffer_size, sink.max_bytes, self.probes.sink(), background.loop)
        running: Future[None] = Future()
        running.add_done_callback(lambda _: outlet.close_unended(STOPPED))  # for a run that never began
        if self.outlet is not None:
            self.outlet.close(REPLACED)
        try:
            self._has_run = True
            self.outlet, self._running, self.is_stopped = outlet, running, False
            background.begin(self._run(outlet, background), running)
        except BaseException:
            outlet.close(_INTERRUPTED)
            self._running = _done()
            raise
        return outlet

    @uninterrupted  # an interrupt after `start` would leave a thread that no attribute refers to
    def _opened(self, timeout: float | None) -> BackgroundLoop:
        if self._background is None or self._background.has_ended:
            # Drawn in the caller's thread: the loop's thread would race with the draws of the program.
            seeds = draw_seeds() if has_processes(self.config) else None
            background = BackgroundLoop(self.num_threads, seeds)
            background.start(timeout)
            self._background = background
        return self._background

    async def _run(self, outlet: Outlet, background: BackgroundLoop) -> None:
        tasks: list[StageTask] = []
        # A function and no method: the outlet keeps it, and a method would close a reference cycle with the engine.
        drop = partial(_drop, self.probes, self.dropped)
        with Caught() as opening:  # awaits nothing, so a CancelledError comes from a user's function
            self.probes.begin()
            builder = RunBuilder(background.resources, self.probes, self._max_failures, drop, outlet)
            tasks = builder.build(self.config)
        failure = None if opening.error is None else _opening_failure(opening.taken())
        with Caught() as running:
            await run(tasks)
        if isinstance(running.error, asyncio.CancelledError):
            outlet.close(STOPPED)
        elif running.error is not None:
            failure = _opening_failure(running.taken())
        outlet.end(failure)
        with Caught() as ending:
            self.probes.end(failure or outlet.unread_failure, self.names)
        if ending.error is not None:  # the reader may have got the end of the pass
            _logger.error("the observer raised at the end of a pass", exc_info=ending.taken())
        if running.error is not None:
            raise running.taken()

    def halt(self) -> None:
        """Request the end of everything, and close the outlet; returns at once, and may be called again."""
        self.is_stopped = True
        if self.outlet is not None:
            self.outlet.close(STOPPED)
        background = self._background
        if background is not None:
            self._ending, self._background = background, None  # before `abandon`, which an interrupt may cut short
            background.abandon()

    def check_waiting(self) -> None:
        """Check that this thread may wait for the end.

        Raises:
            UsageError: it is one of the pipeline's own threads, which would wait for itself.
        """
        for background in (self._background, self._ending):
            if background is not None:
                background.check_waiting()

    def join(self, timeout: float | None) -> None:
        """Wait until a stopped loop has ended, with its threads.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds.
        """
        ending = self._ending
        if ending is not None:
            ending.close(timeout)
            self._ending = None if self._ending is ending else self._ending

    def stop(self, timeout: float | None) -> None:
        """Stop the loop and everything on it, and wait for that."""
        self.halt()
        self.join(timeout)

    def abandon(self) -> None:
        """Request the end of everything, for a pipeline that was dropped, or when the program ends.

        The outlet is closed, too, for a thread that still reads when the program ends.
        """
        if self._background is not None and self.is_here:
            self._background.abandon(None if self.outlet is None else partial(self.outlet.close, _DROPPED))


def _drop(probes: Probes, dropped: DroppedItems, item: DroppedItem) -> None:
    probes.drop(item)  # first, since `add` releases the traceback, which an observer may print
    dropped.add(item)


def _done() -> "Future[None]":
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _opening_failure(error: BaseException) -> PipelineFailure:
    """Return the failure of a run that can't be opened."""
    if isinstance(error, PipelineFailure):
        return error
    failure = PipelineFailure(f"the pipeline can't be opened: {summary_of(error)}")
    failure.__cause__ = error
    return failure


def one_shot(config: PipelineConfig) -> object | None:
    """Return a source that can be iterated over only once; None if there is none."""
    if isinstance(config.source, Merge):
        found = (one_shot(merged) for merged in config.source.pipelines)
        return next((each for each in found if each is not None), None)
    source: object = config.source.source
    return source if isinstance(source, Iterator | AsyncIterator) else None


def _check_repeatable(config: PipelineConfig) -> None:
    source = one_shot(config)
    if source is not None:
        raise UsageError(
            f"an iterator can be iterated over only once; got a second pass over {source!r:.200}. Pass an iterable "
            f"that makes a new iterator each time, such as a list, a dataset, or an object with __iter__"
        )


_logger = logging.getLogger("penstock")
