"""A pipeline that runs in a background thread, and is read from the foreground.

Its states, and what each call does in them ("run" is the task that moves items; the loop outlives it):

    state     is                                      start()      a read                    stop()    a new `for`
    new       no thread, nothing runs                 → running    → running, then reads     –         → running
    running   the loop and a run; items come          UsageError   the next item             → new     (*)
    done      the loop, no run; items may be left     → running    the rest, then EOFError   → new     → running

    (*) adopts the pass if nothing of it was read yet; else ends it, and begins a new one on the same loop.

running becomes done when the last stage has put out its last item, or a failure. From every state the end of the
program, a garbage collection and a fork lead to nothing that waits or remains: in a forked child every call is an error.

Guarantees:
  - `start` returns when the loop runs; `stop` when nothing of the pipeline runs any more: no stage, thread or process.
  - A read takes the next item, whatever thread or loop it comes from; one that times out has taken nothing.
  - Everything that was computed before a failure is read before it. The failure is raised once.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from fractions import Fraction
from types import TracebackType
from typing import Any, Final, Self

from penstock.errors import ClosedError, PipelineFailure, UsageError
from penstock.pipeline._checks import check_count, check_max_failures
from penstock.pipeline._config import Merge, PipelineConfig
from penstock.pipeline._engine._background import Background
from penstock.pipeline._engine._failures import Dropped
from penstock.pipeline._engine._open import Opening
from penstock.pipeline._engine._outlet import Mark, Outlet
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._engine._run import run
from penstock.pipeline._events import Observer
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._statistics._report import PipelineReport

_EXIT_SECONDS: Final = 0.5  # so long the end of the program waits for stages to end


class _Engine:
    """Owns the background of one pipeline and the run on it. It knows nothing of the facade, which may be collected."""

    def __init__(self, config: PipelineConfig, num_threads: int, max_failures: int | Fraction, probes: Probes) -> None:
        self.config = config
        self.num_threads = num_threads
        self.names = config.names()
        self.probes = probes
        self.dropped = Dropped()
        self.outlet: Outlet | None = None
        self._max_failures = max_failures
        self._background: Background | None = None
        self._running: Future[None] | None = None
        self._process = os.getpid()
        self._has_run = False

    @property
    def is_started(self) -> bool:
        """Whether its loop runs."""
        return self._background is not None

    @property
    def is_running(self) -> bool:
        """Whether items are being made."""
        return self._running is not None and not self._running.done()

    def check_process(self) -> None:
        """Raise in a process that was forked from the pipeline's."""
        if os.getpid() != self._process:
            raise UsageError(
                f"a pipeline stays in the process that made it; got one of process {self._process} in its fork "
                f"{os.getpid()}, where its threads don't exist. Build the pipeline in the process that reads it"
            )

    def begin(self, timeout: float | None) -> Outlet:
        """Begin a run: the first, or one that takes the place of the last."""
        if self._has_run:
            _need_iterable_again(self.config)
        if self._background is None:
            background = Background(self.num_threads)
            background.start(timeout)
            self._background = background
        if self.is_running:
            self._background.cancel()
        sink = self.config.sink
        probe = self.probes.probe("sink", "sink", 1)
        outlet = Outlet(sink.buffer_size, sink.max_bytes, probe, self._background.loop)
        self._has_run = True
        self.outlet = outlet
        self._running = self._background.begin(self._run(outlet, self._background))
        return outlet

    async def _run(self, outlet: Outlet, background: Background) -> None:
        failure: PipelineFailure | None = None
        self.probes.begin()
        try:
            opening = Opening(background.resources, self.probes, self._max_failures, self._drop)
            opening.pipeline(self.config, outlet)
            await run(opening.nodes)
            failure = outlet.failure
        finally:
            outlet.end(None)
            self.probes.end(failure, self.names)

    def stop(self, timeout: float | None) -> None:
        """End everything, and wait for it."""
        if self._background is not None:
            self._background.close(timeout)
            self._background = None
            self._running = None
        if self.outlet is not None:
            self.outlet.end(None)  # wakes whoever waits for an item

    def abandon(self) -> None:
        """Ask for the end of everything: nobody will read it."""
        if self._background is not None and os.getpid() == self._process:
            self._background.abandon()

    def _drop(self, dropped: DroppedItem) -> None:
        self.dropped.add(dropped)
        self.probes.drop(dropped)


class Pipeline:
    """Stages in a background thread, whose items are read here: by `for`, `async for`, or one by one.

    One `for` is one pass over the source. Leaving it early ends that pass, and the next `for` begins a new one; an
    iterator that is kept goes on. With a continuous source the next pass is being computed while this one ends.

    It is made by `PipelineBuilder.build` or `build_pipeline`, and may be started again after each end, stop or failure.
    A failure of a stage arrives at the read, behind everything that was computed before it.

    Example:
        >>> from penstock.pipeline import PipelineBuilder
        >>> pipeline = PipelineBuilder().add_source(range(4)).pipe(lambda n: n * n).add_sink().build(num_threads=1)
        >>> with pipeline.auto_stop():
        ...     print(list(pipeline), list(pipeline))
        [0, 1, 4, 9] [0, 1, 4, 9]
    """

    def __init__(self, engine: _Engine) -> None:
        """Wrap an engine; users call `build_pipeline`."""
        self._engine = engine
        self._lock = threading.RLock()  # over starting and stopping
        self._pass = 0  # which pass is being read
        self._fresh = False  # nothing of it was read yet
        self._finalizer = weakref.finalize(self, engine.abandon)
        self._finalizer.atexit = False
        _engines.add(engine)

    # -- life

    def start(self, *, timeout: float | None = None) -> None:
        """Start the pipeline; items are computed from now on, as far as there is room for them.

        Args:
            timeout: how many seconds the thread may take to start; None, the default, means any time.

        Raises:
            UsageError: the pipeline is running; or its source is an iterator that an earlier pass has used up.
            TimeoutError: the thread didn't start in time.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source("ab").add_sink().build(num_threads=1)
            >>> pipeline.start()
            >>> pipeline.get_item(), pipeline.get_item()
            ('a', 'b')
            >>> pipeline.stop()
        """
        self._engine.check_process()
        with self._lock:
            if self._engine.is_running:
                raise UsageError("a pipeline is started once at a time; got start() while it runs. Call stop() before")
            self._begin(timeout)

    def stop(self, *, timeout: float | None = None) -> None:
        """Stop the pipeline, in whatever state it is: calls that run are cancelled, or waited for if they are not async.

        What was not read is dropped. A pipeline that doesn't run stays as it is.

        Args:
            timeout: how many seconds to wait for functions that run in threads, which nothing can interrupt; None, the
                default, means as long as they take.

        Raises:
            TimeoutError: a function still runs; `stop` may be called again.
            UsageError: called by one of the pipeline's own async functions, for which it would have to wait.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source(range(10**9)).add_sink().build(num_threads=1)
            >>> pipeline.get_item()
            0
            >>> pipeline.stop()
        """
        self._engine.check_process()
        with self._lock:
            self._fresh = False
            self._engine.stop(timeout)

    def auto_stop(self, *, timeout: float | None = None) -> "AutoStop":
        """Return a context manager that starts the pipeline and stops it.

        Args:
            timeout: for `start` and `stop`, in seconds; None, the default, means any time.

        Returns:
            What `with` takes; it gives the pipeline. At the end of its block a failure that nobody has read is raised,
            unless the block itself raised something.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> with PipelineBuilder().add_source("ab").add_sink().build(num_threads=1).auto_stop() as pipeline:
            ...     list(pipeline)
            ['a', 'b']
        """
        return AutoStop(self, timeout)

    # -- reading

    def get_item(self, *, timeout: float | None = None) -> Any:  # noqa: ANN401 - whatever the last stage makes
        """Return the next item of the pass; starts the pipeline if it was never started, or was stopped.

        Args:
            timeout: how many seconds to wait for it; None, the default, means any time.

        Returns:
            The item.

        Raises:
            EOFError: the pass is over. If the source is continuous, the next call gives the next pass's first item.
            TimeoutError: no item came in time. None is lost.
            PipelineFailure: a stage failed; what it raised is the cause.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source("a").add_sink().build(num_threads=1)
            >>> pipeline.get_item()
            'a'
            >>> pipeline.get_item()
            Traceback (most recent call last):
            EOFError: the pass is over
            >>> pipeline.stop()
        """
        outlet = self._outlet()
        self._fresh = False
        return self._read(outlet.take(timeout))

    def get_iterator(self, *, timeout: float | None = None) -> Iterator[Any]:
        """Return an iterator over one pass, as `iter` does.

        Args:
            timeout: how many seconds to wait for each item; None, the default, means any time.

        Returns:
            The iterator: over a new pass, unless nothing was read of the one that runs.

        Raises:
            UsageError: the source is an iterator that an earlier pass has used up.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> with PipelineBuilder().add_source("ab").add_sink().build(num_threads=1).auto_stop() as pipeline:
            ...     for item in pipeline.get_iterator(timeout=60):
            ...         print(item)
            a
            b
        """
        return PassIterator(self, self._begin_pass(), timeout)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over one pass."""
        return self.get_iterator()

    def __aiter__(self) -> AsyncIterator[Any]:
        """Return an async iterator over one pass, which lets the reader's own loop do other things while it waits."""
        return AsyncPassIterator(self, self._begin_pass())

    # -- looking

    def dropped(self) -> list[DroppedItem]:
        """Return the items that stages failed on and that were dropped, over all passes: the first thousand.

        Returns:
            A list of its own, oldest first.
        """
        return [*self._engine.dropped.first]

    def report(self) -> PipelineReport:
        """Return what each stage did with its time, over all passes, which one holds up the others, and what to do.

        Returns:
            The report; `print` it.

        Raises:
            UsageError: the pipeline was built without `statistics=True`.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> builder = PipelineBuilder().add_source(range(100)).pipe(abs, name="absolute").add_sink()
            >>> with builder.build(num_threads=1, statistics=True).auto_stop() as pipeline:
            ...     items = list(pipeline)
            >>> [(stage.name, stage.items) for stage in pipeline.report().stages]
            [('source', 100), ('absolute', 100), ('sink', 100)]
        """
        if not self._engine.probes.counts:
            raise UsageError(
                "a report needs statistics, which this pipeline doesn't keep; got report(). "
                "Build it with build(…, statistics=True)"
            )
        return self._engine.probes.report(self._engine.names, self._engine.num_threads)

    def __repr__(self) -> str:
        state = "running" if self._engine.is_running else "not running"
        return f"<Pipeline {' > '.join(self._engine.names)}, {state}>"

    # -- for the iterators

    def _begin(self, timeout: float | None) -> Outlet:
        outlet = self._engine.begin(timeout)
        self._pass += 1
        self._fresh = True
        return outlet

    def _begin_pass(self) -> int:
        self._engine.check_process()
        with self._lock:
            if not (self._fresh and self._engine.outlet is not None):
                self._begin(None)
            return self._pass

    def _outlet(self) -> Outlet:
        """Return what is read, started if need be."""
        self._engine.check_process()
        outlet = self._engine.outlet
        if outlet is None or not self._engine.is_started:
            with self._lock:
                outlet = self._engine.outlet if self._engine.is_started else self._begin(None)
                assert outlet is not None
        return outlet

    def _outlet_of(self, number: int) -> Outlet | None:
        """Return what an iterator over a pass reads; None if the pipeline was stopped."""
        self._engine.check_process()
        if self._pass != number:
            raise ClosedError("this pass has ended, for a new one has begun: an iterator is read before the next one")
        self._fresh = False
        return self._engine.outlet if self._engine.is_started else None

    def _read(self, found: object) -> object:
        """Return an item that was taken, or raise what a mark means."""
        if type(found) is not Mark:
            return found
        if found is Mark.END_OF_PASS:
            with self._lock:
                self._pass += 1
                self._fresh = True
        raise EOFError("the pass is over")

    def _unread_failure(self) -> PipelineFailure | None:
        outlet = self._engine.outlet
        return None if outlet is None else outlet.failure


class AutoStop:
    """The scope in which a pipeline runs."""

    def __init__(self, pipeline: Pipeline, timeout: float | None) -> None:
        self._pipeline = pipeline
        self._timeout = timeout

    def __enter__(self) -> Pipeline:
        self._pipeline.start(timeout=self._timeout)
        return self._pipeline

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        failure = self._pipeline._unread_failure()
        self._pipeline.stop(timeout=self._timeout)
        if error is None and failure is not None:
            raise failure


class PassIterator(Iterator[Any]):
    """The items of one pass."""

    def __init__(self, pipeline: Pipeline, number: int, timeout: float | None) -> None:
        self._pipeline = pipeline
        self._number = number
        self._timeout = timeout
        self._ended = False

    def __next__(self) -> Any:  # noqa: ANN401 - whatever the last stage makes
        outlet = None if self._ended else self._pipeline._outlet_of(self._number)
        if outlet is None:
            raise StopIteration
        try:
            found = outlet.take(self._timeout)
            return found if type(found) is not Mark else self._pipeline._read(found)
        except EOFError:
            self._ended = True
            raise StopIteration from None
        except PipelineFailure:
            self._ended = True
            raise


class AsyncPassIterator(AsyncIterator[Any]):
    """The items of one pass, for `async for`. Cancelling a wait loses no item."""

    def __init__(self, pipeline: Pipeline, number: int) -> None:
        self._pipeline = pipeline
        self._number = number
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - whatever the last stage makes
        outlet = None if self._ended else self._pipeline._outlet_of(self._number)
        if outlet is None:
            raise StopAsyncIteration
        try:
            return self._pipeline._read(await _taken(outlet))
        except EOFError:
            self._ended = True
            raise StopAsyncIteration from None
        except PipelineFailure:
            self._ended = True
            raise


def build_pipeline(
    config: PipelineConfig,
    *,
    num_threads: int,
    max_failures: int | Fraction = 0,
    statistics: bool = False,
    observer: Observer | None = None,
) -> Pipeline:
    """Make a pipeline of its description. Nothing starts yet.

    Args:
        config: what it does.
        num_threads: how many threads the plain functions share that have no executor; at least 1. A source that is not
            async has one more for itself.
        max_failures: how many items may be dropped because a stage failed on them: a number, -1 for any number, or a
            `Fraction` of all. Default 0: the first failure ends the pipeline. Stages may have a limit of their own.
        statistics: whether to count, for `report`. Default False, which costs nothing.
        observer: called with each event on the event loop's thread; must be quick. Default None.

    Returns:
        The pipeline.

    Raises:
        UsageError: an argument is wrong.

    Example:
        >>> from penstock.pipeline import Pipe, PipelineConfig, Sink, Source, build_pipeline
        >>> config = PipelineConfig(Source(["a", "b"]), (Pipe(str.upper),), Sink())
        >>> with build_pipeline(config, num_threads=2).auto_stop() as pipeline:
        ...     list(pipeline)
        ['A', 'B']
    """
    check_count("num_threads", num_threads)
    check_max_failures(max_failures)
    return Pipeline(_Engine(config, num_threads, max_failures, Probes(statistics=statistics, observer=observer)))


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


def _need_iterable_again(config: PipelineConfig) -> None:
    if isinstance(config.source, Merge):
        for merged in config.source.pipelines:
            _need_iterable_again(merged)
        return
    source = config.source.source
    if isinstance(source, Iterator | AsyncIterator):
        raise UsageError(
            f"an iterator can be gone through once; got a second pass over {source!r:.200}. Give what makes a new "
            f"iterator each time, such as a list, a dataset, or an object with __iter__"
        )


_engines: "weakref.WeakSet[_Engine]" = weakref.WeakSet()


def _end_all() -> None:
    """Let what still runs at the end of the program end in good order, if that takes no time."""
    engines = [*_engines]
    for engine in engines:
        engine.abandon()
    for engine in engines:
        with suppress(Exception):
            engine.stop(_EXIT_SECONDS)


atexit.register(_end_all)
