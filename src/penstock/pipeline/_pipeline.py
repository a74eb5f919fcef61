"""A pipeline that runs in a background thread and is read from the foreground, pass by pass.

Its states, and the effect of each call in them ("run" is the task that moves items; the event loop outlives it):

    state     means                               start()               get_item()               stop()      a new `for`
    new       no thread, nothing runs             → running             → running, then reads    → stopped   → running
    running   the loop and a run; items are made  AlreadyRunningError   the next item            → stopped   (*)
    done      the loop, no run; items are left    → running             the rest, then EOFError  → stopped   (*)
    stopped   nothing runs, or is still ending    → running             ClosedError              -           → running

    (*) continues the current pass if nothing of it was read; with a continuous source or an iterator, also if its end
    was not read. Otherwise ends the current pass, and starts a new one on the same loop.

"running" becomes "done" when the last stage has put out its last item, or a failure. In every state the pipeline may be
garbage collected, and the program may end: the pipeline then stops by itself. In a forked child every call raises.

Readers: the same pipeline is read by `get_item`, by `for`, by `async for` and by iterators that the caller keeps, from
any thread or event loop. After a `for` was left early, the items that the next one reads must not depend on how far the
loop has come meanwhile; hence the rules (*). One iterator reads at a time, the one that was made last. An older one
raises ClosedError at its next read, since two iterators over one pass would each see only some of its items.

A signal handler may raise in the middle of a read (see `_outlet.py`). So nothing is called between the removal of an
item and its return, and a mark is put back if its handling is interrupted.

Guarantees:
  - `start` returns when the loop runs; `stop` returns when no stage, thread or process of the pipeline runs any more.
  - A read takes the next item, from any thread or event loop. A read that times out, or from which a signal handler's
    exception is raised, takes nothing. (A second one, raised while the read handles the first, may lose an item.)
  - All items computed before a failure are read before it. The failure is raised once. A run that can't be opened
    counts as failed.
  - An iteration that ends without an exception has read the whole pass: after a stop, or once another reader has
    started, a read raises ClosedError.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self

from penstock._os import Closer
from penstock._printable import printable
from penstock.errors import AlreadyRunningError, ClosedError, PipelineFailure, UsageError
from penstock.pipeline._config import PipelineConfig
from penstock.pipeline._engine import REPLACED, STOPPED, Engine, State
from penstock.pipeline._events import Observer
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._ops import Item, OutT_co
from penstock.pipeline._outlet import Mark, Outlet
from penstock.pipeline._stages import check_count, check_max_failures
from penstock.pipeline._statistics import PipelineReport, Probes
from penstock.pipeline._tuning import ERROR_STOP_SECONDS, EXIT_SECONDS, wait_limit

_END: Final = Mark.END
_END_OF_PASS: Final = Mark.END_OF_PASS
_CLOSED: Final = Mark.CLOSED


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
        self._reading.start(wait_limit(timeout))

    def stop(self, *, timeout: float | None = None, wait: bool = True) -> None:
        """Stop the pipeline, in any state: async calls are cancelled, those in threads and your pools run to an end.

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
        self._reading.stop(wait_limit(timeout), wait=wait)

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
        return AutoStop(self, self._reading, timeout)

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
        item: OutT_co = self._reading.read(wait_limit(timeout))
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
        return PassIterator(self._reading, wait_limit(timeout))

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
        return printable(f"<Pipeline {' > '.join(self._engine.names)}, {self._engine.state}>")

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
        """The failure that ended the pass and that was not raised yet; None if there is none.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> pipeline = PipelineBuilder().add_source("a").pipe(int).add_sink().build(num_threads=1)
            >>> pipeline.failure is None
            True
        """
        return None if self._engine.outlet is None else self._engine.outlet.unread_failure


class AutoStop(Generic[OutT_co]):
    """The context manager of `Pipeline.auto_stop`."""

    def __init__(self, pipeline: Pipeline[OutT_co], reading: "Reading", timeout: float | None) -> None:
        self._pipeline = pipeline
        self._reading = reading
        self._timeout = timeout

    def __enter__(self) -> Pipeline[OutT_co]:
        self._pipeline.start(timeout=self._timeout)
        return self._pipeline

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        has_failed = self._pipeline.failure is not None
        if error is not None:
            self._stop_after(error)
            return
        self._pipeline.stop(timeout=self._timeout)
        failure = self._reading.take_failure() if has_failed else None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame, which would be a reference cycle

    def _stop_after(self, error: BaseException) -> None:
        """Stop while an error leaves the block; a function that hangs must not delay the error for ever."""
        seconds = ERROR_STOP_SECONDS if self._timeout is None else self._timeout
        try:
            with suppress(UsageError):  # a forked child leaves the block, where nothing of the pipeline runs
                self._pipeline.stop(timeout=seconds)
        except TimeoutError:
            _logger.warning("a function of %r still runs %s s after %s", self._pipeline, seconds, repr(error))


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
            `Fraction` of all items, where an item counts once for each stage that takes it. The share is checked
            whenever an item fails, from the 100th item on, and at the end. Default 0: the first failure ends the
            pipeline. Stages may have a limit of their own; then their items and failures don't count here.
        statistics: whether to keep statistics for `report`. Default False, which costs nothing.
        observer: called with each event, on the event loop's thread, or, for the items of the sink, on the thread that
            reads; must be quick. Default None.

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


class Reading:
    """Starts and stops the runs of an engine, and knows which reader reads the current pass.

    Attributes:
        reader: the number of the iterator that reads; older ones have lower numbers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closer = Closer(partial(_end_dropped, engine))
        self._lock = threading.RLock()  # held while starting and stopping
        self.reader: int = 0
        self._is_unread = False  # nothing of the current pass was read

    def start(self, timeout: float | None) -> None:
        """Start a pass, unless one runs.

        Raises:
            AlreadyRunningError: a pass runs.
        """
        self._engine.check_process()
        self._engine.join(timeout)
        with self._lock:
            if self._engine.state == "running":
                raise AlreadyRunningError(
                    "a pipeline is started once at a time; got start() while it runs. Call stop() before"
                )
            self._begin(timeout)

    def stop(self, timeout: float | None, *, wait: bool) -> None:
        """Stop everything, and, if `wait`, wait for that."""
        self._engine.check_process()
        if wait:
            self._engine.check_waiting()
        with self._lock:
            self._is_unread = False
            self._engine.halt()
        if wait:
            self._engine.join(timeout)

    def read(self, timeout: float | None) -> Item:
        """Return the next item; if the pipeline is new, start a pass.

        Raises:
            EOFError: the pass is over.
            TimeoutError: no item was ready within `timeout` seconds.
            PipelineFailure: the pass ended with a failure, which no read has raised yet.
            ClosedError: the pipeline was stopped.
        """
        self._engine.check_process()
        outlet = self._engine.outlet
        if self._engine.is_stopped:
            raise ClosedError(STOPPED)
        if outlet is None:
            with self._lock:
                outlet = self._engine.outlet or self._begin(timeout)
        self._is_unread = False
        found = outlet.take(timeout)
        if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
            return found
        try:
            over = EOFError("the pass is over")
            error = self.read_mark(found, outlet)
        except BaseException:
            outlet.put_back(found)
            raise
        try:
            raise over if error is None else error
        finally:
            del over, error  # their traceback refers to this frame, which would be a reference cycle

    def begin_pass(self) -> tuple[int, Outlet, bool]:
        """Start reading: an unread pass, the rest of a pass whose source can't start again, or a new pass.

        Returns:
            The number of the reader, the outlet to read, and whether it is the rest of a pass: if nothing is left of
            it, the reader reads the next pass.

        Raises:
            UsageError: the source is an iterator that an earlier pass has used.
        """
        self._engine.check_process()
        with self._lock:
            outlet = self._engine.outlet
            is_open = self._is_unread or (self._engine.keeps_pass and outlet is not None and not outlet.is_over)
            if outlet is None or self._engine.is_stopped or not is_open:
                outlet = self._begin(None)
            self.reader += 1
            return self.reader, outlet, not self._is_unread

    def check_reader(self, number: int) -> None:
        """Check that no other reader has started since.

        Raises:
            ClosedError: another one has.
        """
        self._engine.check_process()
        if self.reader != number:
            raise ClosedError(REPLACED)
        self._is_unread = False

    def take_failure(self) -> PipelineFailure | None:
        """Return the failure that no read has raised; None if there is none, and at the next call."""
        return None if self._engine.outlet is None else self._engine.outlet.take_failure()

    def read_mark(self, mark: object, outlet: Outlet) -> Exception | None:
        """Return the exception that a reader raises for a mark, and count the mark as read; None at a plain end."""
        if mark is _CLOSED:
            return ClosedError(outlet.closed_because)
        if mark is _END:
            return outlet.take_failure()
        self.reader += 1
        self._is_unread = True
        return None

    def _begin(self, timeout: float | None) -> Outlet:
        outlet = self._engine.begin(timeout)
        self.reader += 1
        self._is_unread = True
        return outlet


class _OnePass:
    """The state of an iterator over one pass."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._number, self._outlet, self._is_rest = reading.begin_pass()
        self._ended = False

    def _read_mark(self, mark: object) -> Exception | None:
        """Return the exception to raise for a mark; None if the iteration ends without one, or continues."""
        error = self._reading.read_mark(mark, self._outlet)
        if self._is_rest and mark is _END_OF_PASS:  # nothing was left of the rest: read the next pass
            self._is_rest = False
            self._number = self._reading.reader
        else:
            self._ended = mark is not _CLOSED
        return error


class PassIterator(_OnePass, Iterator[Item]):
    """An iterator over the items of one pass."""

    def __init__(self, reading: Reading, timeout: float | None) -> None:
        super().__init__(reading)
        self._timeout = timeout

    def __next__(self) -> Item:
        while not self._ended:
            self._reading.check_reader(self._number)
            found = self._outlet.take(self._timeout)
            if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
                self._is_rest = False
                return found
            try:
                error = self._read_mark(found)
            except BaseException:
                self._outlet.put_back(found)
                raise
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame, which would be a reference cycle
        raise StopIteration


class AsyncPassIterator(_OnePass, AsyncIterator[Item]):
    """An async iterator over the items of one pass. Cancelling a wait loses no item."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._ended:
            self._reading.check_reader(self._number)
            found = await _taken(self._outlet)
            if found is not _END and found is not _END_OF_PASS and found is not _CLOSED:
                self._is_rest = False
                return found
            try:
                error = self._read_mark(found)
            except BaseException:
                self._outlet.put_back(found)
                raise
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame, which would be a reference cycle
        raise StopAsyncIteration


async def _taken(outlet: Outlet) -> object:
    """Return the next item or mark, after waiting for it; the caller's loop runs other tasks meanwhile."""
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
    """Return a thread-safe callback that sets the future."""

    def settle() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        with suppress(RuntimeError):  # that loop is closed, so no reader waits there
            loop.call_soon_threadsafe(settle)

    return wake


def _end_dropped(engine: Engine) -> None:
    """End a pipeline that was dropped; at the end of the program, wait a moment for its stages to end."""
    engine.abandon()
    if not threading.main_thread().is_alive() and engine.is_here:
        with suppress(TimeoutError):
            engine.stop(EXIT_SECONDS)


_logger = logging.getLogger("penstock")
