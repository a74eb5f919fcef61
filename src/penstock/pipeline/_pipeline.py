"""A pipeline that runs in a background thread and is read from the foreground.

Its states, and the effect of each call in them ("run" is the task that moves items; the event loop outlives it):

    state     means                               start()               get_item()               stop()      a new `for`
    new       no thread, nothing runs             → running             → running, then reads    → stopped   → running
    running   the loop and a run; items are made  AlreadyRunningError   the next item            → stopped   (*)
    done      the loop, no run; items are left    → running             the rest, then EOFError  → stopped   (*)
    stopped   nothing runs, or is still ending    → running             ClosedError              -           → running

    (*) continues the current pass if none of its items was read yet, and, if the source is continuous or an iterator,
    as long as its end was not read; otherwise ends it, and starts a new pass on the same loop.

"running" becomes "done" when the last stage has put out its last item, or a failure. In every state the pipeline may be
garbage collected, and the program may end: nothing waits, and nothing is left. In a forked child every call raises.

Guarantees:
  - `start` returns when the loop runs; `stop` returns when no stage, thread or process of the pipeline runs any more.
  - A read takes the next item, from any thread or event loop. A read that times out, or from which a signal handler's
    exception is raised, takes nothing.
  - All items computed before a failure are read before it. The failure is raised once. A run that can't be opened
    counts as failed.
  - A read that ends without an exception has read the whole pass: after a stop, or once another reader has started, a
    read raises ClosedError.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from fractions import Fraction
from types import TracebackType
from typing import Generic

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._checks import check_count, check_max_failures
from penstock.pipeline._config import PipelineConfig
from penstock.pipeline._engine import AsyncPassIterator, Engine, PassIterator, Probes, Reading, State
from penstock.pipeline._events import Observer
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._ops import OutT_co
from penstock.pipeline._statistics import PipelineReport
from penstock.pipeline._tuning import ERROR_STOP_SECONDS

_logger = logging.getLogger("penstock")


class Pipeline(Generic[OutT_co]):
    """Stages in a background thread, whose items are read by `for`, `async for`, or one by one.

    One `for` is one pass over the source. If a `for` is left early, the next one starts a new pass; if the source is
    continuous or an iterator, it continues with the rest of the pass. An iterator kept by the caller continues, too.
    With a continuous source the next pass is computed while this one is read, but none after that.

    `PipelineBuilder.build` and `build_pipeline` make it. It may be started again after each end, stop or failure. A
    stage's failure is raised by the read, after all items that were computed before it.

    Example:
        >>> from penstock.pipeline import PipelineBuilder
        >>> pipeline = PipelineBuilder().add_source(range(4)).pipe(lambda n: n * n).add_sink().build(num_threads=1)
        >>> with pipeline.auto_stop():
        ...     print(list(pipeline), list(pipeline))
        [0, 1, 4, 9] [0, 1, 4, 9]
    """

    def __init__(self, engine: Engine) -> None:
        """Wrap an engine; users call `build_pipeline`."""
        self._engine = engine
        self._reading = Reading(engine)

    # -- life

    def start(self, *, timeout: float | None = None) -> None:
        """Start the pipeline; it computes items from now on, as far as there is room for them.

        Args:
            timeout: how many seconds the thread may take to start; None, the default, means no limit.

        Raises:
            AlreadyRunningError: the pipeline is running. It is a UsageError and a RuntimeError.
            UsageError: its source is an iterator that an earlier pass has used.
            PipelineFailure: the thread or its event loop can't be started.
            TimeoutError: the thread didn't start in time, or a function of a stopped run still runs.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source("ab").add_sink().build(num_threads=1)
            >>> pipeline.start()
            >>> pipeline.get_item(), pipeline.get_item()
            ('a', 'b')
            >>> pipeline.stop()
        """
        self._reading.start(timeout)

    def stop(self, *, timeout: float | None = None, wait: bool = True) -> None:
        """Stop the pipeline, in any state: async calls are cancelled, calls in threads run to their end.

        Unread items are discarded. A reader in the middle of a pass, even one that waits in another thread, gets a
        ClosedError. Only `start` or a new `for` starts the pipeline again; `get_item` doesn't.

        Args:
            timeout: how many seconds to wait for functions that run in threads, which can't be interrupted; None, the
                default, means no limit.
            wait: whether to wait until nothing of the pipeline runs any more. Default True. With False `stop` returns
                at once, and the pipeline's own functions may call it; the next start waits instead.

        Raises:
            TimeoutError: a function still runs; `stop` may be called again.
            UsageError: one of the pipeline's own functions called it, and would wait for itself.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source(range(10**9)).add_sink().build(num_threads=1)
            >>> pipeline.get_item()
            0
            >>> pipeline.stop()
        """
        self._reading.stop(timeout, wait=wait)

    def auto_stop(self, *, timeout: float | None = None) -> "AutoStop[OutT_co]":
        """Return a context manager that starts the pipeline and stops it.

        Args:
            timeout: the timeout of `start` and `stop`, in seconds; None, the default, means no limit.

        Returns:
            The context manager, whose value is the pipeline. At the end of the block, a failure that was not read is
            raised. If the block raised an exception, that one is raised instead, after at most `timeout` seconds, or
            2 s if it is None; a function that still runs then is logged as a warning.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> with PipelineBuilder().add_source("ab").add_sink().build(num_threads=1).auto_stop() as pipeline:
            ...     list(pipeline)
            ['a', 'b']
        """
        return AutoStop(self, timeout)

    # -- reading

    def get_item(self, *, timeout: float | None = None) -> OutT_co:
        """Return the next item of the pass; start the pipeline if it was never started nor stopped.

        Args:
            timeout: how many seconds to wait for the item; None, the default, means no limit.

        Returns:
            The item.

        Raises:
            EOFError: the pass is over. If the source is continuous, the next call returns the first item of the next
                pass.
            TimeoutError: no item was ready in time. No item is lost.
            PipelineFailure: a stage failed; its exception is the cause.
            ClosedError: the pipeline was stopped, before or during the call.

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
        item: OutT_co = self._reading.read(timeout)
        return item  # a call between the read and this line would let a signal handler raise, and lose the item

    def get_iterator(self, *, timeout: float | None = None) -> Iterator[OutT_co]:
        """Return an iterator over one pass, as `iter` does.

        Args:
            timeout: how many seconds to wait for each item; None, the default, means no limit.

        Returns:
            The iterator: over the running pass if nothing of it was read; over the rest of the running pass if the
            source is continuous or an iterator; otherwise over a new pass. The next read of an iterator made before
            raises ClosedError, as after a `stop`.

        Raises:
            UsageError: the source is an iterator that an earlier pass has used.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> with PipelineBuilder().add_source("ab").add_sink().build(num_threads=1).auto_stop() as pipeline:
            ...     for item in pipeline.get_iterator(timeout=60):
            ...         print(item)
            a
            b
        """
        return PassIterator(self._reading, timeout)

    def __iter__(self) -> Iterator[OutT_co]:
        """Return an iterator over one pass."""
        return self.get_iterator()

    def __aiter__(self) -> AsyncIterator[OutT_co]:
        """Return an async iterator over one pass; the reader's event loop runs other tasks while it waits."""
        return AsyncPassIterator(self._reading)

    # -- looking

    def dropped(self) -> list[DroppedItem]:
        """Return the items that were dropped because a stage failed on them: the first thousand, over all passes.

        Returns:
            A new list, oldest first.
        """
        return [*self._engine.dropped.first]

    def report(self) -> PipelineReport:
        """Return how each stage spent its time over all passes, the bottleneck, and the change that would help most.

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
                "Build the pipeline with build(…, statistics=True)"
            )
        return self._engine.probes.report(self._engine.names, self._engine.num_threads)

    def __repr__(self) -> str:
        return f"<Pipeline {' > '.join(self._engine.names)}, {self._engine.state}>"

    @property
    def state(self) -> State:
        """The state of the pipeline: "new", "running", "done" or "stopped".

        "new": it was never started nor stopped. "running": it computes items. "done": the last stage has put out its
        last item, or failed; items and a failure may be left to read. "stopped": `stop` was called since the last
        start; functions may still run. In a forked child, the pipeline of the parent process is "stopped".

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source("a").add_sink().build(num_threads=1)
            >>> pipeline.state
            'new'
            >>> pipeline.stop()
            >>> pipeline.state
            'stopped'
        """
        return self._engine.state

    @property
    def failure(self) -> PipelineFailure | None:
        """The failure that ended the pass and that no read has raised yet; None if there is none.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source("a").pipe(int).add_sink().build(num_threads=1)
            >>> pipeline.failure is None
            True
        """
        return None if self._engine.outlet is None else self._engine.outlet.unread_failure


class AutoStop(Generic[OutT_co]):
    """The context manager of `Pipeline.auto_stop`."""

    def __init__(self, pipeline: Pipeline[OutT_co], timeout: float | None) -> None:
        self._pipeline = pipeline
        self._timeout = timeout

    def __enter__(self) -> Pipeline[OutT_co]:
        self._pipeline.start(timeout=self._timeout)
        return self._pipeline

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        failure = self._pipeline.failure
        if error is not None:
            self._stop_after(error)
            return
        self._pipeline.stop(timeout=self._timeout)
        if failure is not None:
            raise failure

    def _stop_after(self, error: BaseException) -> None:
        """Stop while an error leaves the block; a function that hangs must not hold the error back for ever."""
        seconds = ERROR_STOP_SECONDS if self._timeout is None else self._timeout
        try:
            self._pipeline.stop(timeout=seconds)
        except TimeoutError:
            _logger.warning("a function of %r still runs %s s after %r", self._pipeline, seconds, error)


def build_pipeline(
    config: PipelineConfig[OutT_co],
    *,
    num_threads: int,
    max_failures: int | Fraction = 0,
    statistics: bool = False,
    observer: Observer | None = None,
) -> Pipeline[OutT_co]:
    """Make a pipeline from its description. This starts nothing.

    Args:
        config: the description.
        num_threads: how many threads the plain functions without an executor share; at least 1. A source that is not
            async has one more thread of its own.
        max_failures: how many items may be dropped because a stage failed on them: a number, -1 for any number, or a
            `Fraction` of all items, checked whenever an item fails, from the 100th item on, and at the end.
            Default 0: the first failure ends the pipeline. Stages may have a limit of their own.
        statistics: whether to keep statistics for `report`. Default False, which costs nothing.
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
    return Pipeline(Engine(config, num_threads, max_failures, Probes(statistics=statistics, observer=observer)))
