"""A pipeline that runs in a background thread, and is read from the foreground.

Its states, and what each call does in them ("run" is the task that moves items; the loop outlives it):

    state     is                                  start()               get_item()               stop()      a new `for`
    new       no thread, nothing runs             → running             → running, then reads    → stopped   → running
    running   the loop and a run; items come      AlreadyRunningError   the next item            → stopped   (*)
    done      the loop, no run; items are left    → running             the rest, then EOFError  → stopped   (*)
    stopped   nothing, or what is ending          → running             ClosedError              -           → running

    (*) adopts the pass if nothing of it was read yet, and, where the source is continuous or an iterator, if its end
    was not; else ends it, and begins a new one on the same loop.

running becomes done when the last stage has put out its last item, or a failure. From every state the end of the
program and a garbage collection lead to nothing that waits or remains; in a forked child every call is an error.

Guarantees:
  - `start` returns when the loop runs; `stop` when nothing of the pipeline runs any more: no stage, thread or process.
  - A read takes the next item, whatever thread or loop it comes from; one that times out, or out of which a signal
    handler's exception comes, has taken nothing.
  - Everything that was computed before a failure is read before it. The failure is raised once. A run that can't be
    opened has failed.
  - A read that ends without an exception has read the whole pass: a stop, and another reader, are ClosedErrors.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from fractions import Fraction
from types import TracebackType
from typing import Final, Generic

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._checks import check_count, check_max_failures
from penstock.pipeline._config import PipelineConfig
from penstock.pipeline._engine._engine import Engine, State
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._engine._reading import AsyncPassIterator, PassIterator, Reading
from penstock.pipeline._events import Observer
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._ops import OutT_co
from penstock.pipeline._statistics import PipelineReport

_ERROR_SECONDS: Final = 2.0  # so long an error that leaves the scope of a pipeline waits for its stages
_logger = logging.getLogger("penstock")


class Pipeline(Generic[OutT_co]):
    """Stages in a background thread, whose items are read here: by `for`, `async for`, or one by one.

    One `for` is one pass over the source. After one that was left early, the next `for` begins a new pass; where the
    source is continuous or an iterator, it continues with the rest of that one. An iterator that is kept continues,
    too. With a continuous source the next pass is computed while this one is read, and no further one.

    It is made by `PipelineBuilder.build` or `build_pipeline`, and may be started again after each end, stop or failure.
    A failure of a stage arrives at the read, behind everything that was computed before it.

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
        """Start the pipeline; items are computed from now on, as far as there is room for them.

        Args:
            timeout: how many seconds the thread may take to start; None, the default, means any time.

        Raises:
            AlreadyRunningError: the pipeline is running. It is a UsageError and a RuntimeError.
            UsageError: its source is an iterator that an earlier pass has used up.
            PipelineFailure: the thread or its event loop can't be started.
            TimeoutError: the thread didn't start in time, or a function of a run that was stopped still runs.

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
        """Stop the pipeline, in whatever state it is: async calls are cancelled, others waited for.

        Items that were not read are discarded. A reader whose pass was open, also one that waits in another thread,
        gets a ClosedError. Only `start` or a new `for` starts the pipeline again; `get_item` doesn't.

        Args:
            timeout: how many seconds to wait for functions that run in threads, which nothing can interrupt; None, the
                default, means as long as they take.
            wait: whether to wait until nothing of the pipeline runs any more. Default True. With False `stop` returns
                at once, and may be called by the pipeline's own functions; the next start waits in its place.

        Raises:
            TimeoutError: a function still runs; `stop` may be called again.
            UsageError: one of the pipeline's own functions called it, for which it would have to wait.

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
            timeout: for `start` and `stop`, in seconds; None, the default, means any time.

        Returns:
            What `with` takes; it gives the pipeline. At the end of its block a failure that nobody has read is raised,
            unless the block itself raised something; that waits two seconds for functions that run, unless a timeout
            says otherwise, and tells in the log if one still does.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> with PipelineBuilder().add_source("ab").add_sink().build(num_threads=1).auto_stop() as pipeline:
            ...     list(pipeline)
            ['a', 'b']
        """
        return AutoStop(self, timeout)

    # -- reading

    def get_item(self, *, timeout: float | None = None) -> OutT_co:
        """Return the next item of the pass; starts the pipeline if it is new: never started, and not stopped.

        Args:
            timeout: how many seconds to wait for it; None, the default, means any time.

        Returns:
            The item.

        Raises:
            EOFError: the pass is over. If the source is continuous, the next call gives the next pass's first item.
            TimeoutError: no item came in time. None is lost.
            PipelineFailure: a stage failed; what it raised is the cause.
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
        return item  # with no call between, after which a signal handler might raise

    def get_iterator(self, *, timeout: float | None = None) -> Iterator[OutT_co]:
        """Return an iterator over one pass, as `iter` does.

        Args:
            timeout: how many seconds to wait for each item; None, the default, means any time.

        Returns:
            The iterator: over a new pass, unless nothing was read of the one that runs; over the rest of that one,
            where the source is continuous or an iterator, which doesn't begin again. Iterators that were made before
            are over: their next read is a ClosedError, as it is after a `stop`.

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
        return PassIterator(self._reading, timeout)

    def __iter__(self) -> Iterator[OutT_co]:
        """Return an iterator over one pass."""
        return self.get_iterator()

    def __aiter__(self) -> AsyncIterator[OutT_co]:
        """Return an async iterator over one pass, which lets the reader's own loop do other things while it waits."""
        return AsyncPassIterator(self._reading)

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
        return f"<Pipeline {' > '.join(self._engine.names)}, {self._engine.state}>"

    @property
    def state(self) -> State:
        """What the pipeline does: "new", "running", "done" or "stopped".

        "new" means that it was never started, nor stopped; "running", that items are made; "done", that the last stage
        has put out its last item, or failed, so that items and a failure may be left to read; "stopped", that `stop`
        was called since the last start, whatever of it still runs. A pipeline of the process that this one was forked
        from is "stopped" here.

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
        """The failure that ended the pass and that nobody has read yet; None if there is none.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source("a").pipe(int).add_sink().build(num_threads=1)
            >>> pipeline.failure is None
            True
        """
        return None if self._engine.outlet is None else self._engine.outlet.unread_failure


class AutoStop(Generic[OutT_co]):
    """The scope in which a pipeline runs."""

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
        """Stop while an error is on its way, which must not wait for ever behind a function that hangs."""
        seconds = _ERROR_SECONDS if self._timeout is None else self._timeout
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
    """Make a pipeline of its description. Nothing starts yet.

    Args:
        config: what it does.
        num_threads: how many threads the plain functions share that have no executor; at least 1. A source that is not
            async has one more for itself.
        max_failures: how many items may be dropped because a stage failed on them: a number, -1 for any number, or a
            `Fraction` of all, which is looked at whenever an item fails, from the 100th on, and at the end.
            Default 0: the first failure ends the pipeline. Stages may have a limit of their own.
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
    return Pipeline(Engine(config, num_threads, max_failures, Probes(statistics=statistics, observer=observer)))
