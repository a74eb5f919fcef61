"""A pipeline that runs in one process of its own, read like one that runs here.

Its states are those of `Pipeline`, with a process in the place of the thread. Guarantees:
  - `start` returns when the process is ready and has begun a run. New passes begin in the same process.
  - Everything that was computed before a failure is read before it; the failure is raised once, with the user's own
    exception as its cause.
  - A process that dies is a WorkerError with pid and exit code, within a second, also to a reader that waits; the next
    start makes a new one.
  - `stop` returns when the process has ended. It ends too when this object is dropped, when Python ends, and when the
    parent dies, however it does. A fork of the parent can't use it, nor harm it.
  - At most two items are on their way, besides those that wait in the sink, ahead of the reader.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from types import TracebackType
from typing import Final, Generic, Self

from penstock._caught import Caught
from penstock._processes import MessageKind, StartMethod, check_start_method, unpack_error
from penstock.errors import UsageError
from penstock.pipeline._config import Merge, PipelineConfig
from penstock.pipeline._engine import State, one_shot
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._ops import Item, OutT_co
from penstock.pipeline._pipeline import build_pipeline
from penstock.pipeline._statistics._report import PipelineReport
from penstock.pipeline._subprocess_helper import Sending, Setup, Successors
from penstock.pipeline._subprocess_runs import Link, Runs
from penstock.pipeline._tuning import wait_limit

_ITEM: Final = MessageKind.ITEM
_END_OF_PASS: Final = MessageKind.END_OF_PASS
_ON_THEIR_WAY: Final = 2  # items, so that one travels while the one before it is read


def run_in_subprocess(
    config: PipelineConfig[OutT_co],
    *,
    num_threads: int,
    max_failures: int | Fraction = 0,
    statistics: bool = False,
    start_method: StartMethod | None = None,
    initializer: Callable[[], object] | None = None,
) -> "SubprocessPipeline[OutT_co]":
    """Make a pipeline that runs in one process of its own, so that this one only receives. Nothing starts yet.

    Large arrays and tensors arrive as views of shared memory, which is used again when they are dropped; copy what you
    keep. An array, list or dict that is in an item twice arrives as two. The config is pickled at each start of the
    process. Before the initializer, each process seeds its global generators of `random`, NumPy and torch, from numbers
    that this process draws from its own when it starts it. So each process draws other numbers, and the same ones from
    run to run where the program seeds its generators.

    Args:
        config: the pipeline, from `PipelineBuilder.get_config`. Its source and ops are pickled, and may hold objects of
            `multiprocessing`, such as a `Value` or a `Queue`, which both processes share. A `ThreadPoolExecutor` or
            `ProcessPoolExecutor` of a stage stays here; the process has a `ThreadExecutor` or `ProcessExecutor` with as
            many workers and the same initializer.
        num_threads: as in `build_pipeline`.
        max_failures: as in `build_pipeline`. Default 0.
        statistics: as in `build_pipeline`. Default False.
        start_method: "forkserver", where a clean process imports what is needed and forks itself, or "spawn"; None, the
            default, for the first on Linux. Both import the main module, whose functions then get the program's globals
            as they are when the pipeline starts, if these are plain: numbers, texts, paths, dates, dtypes, and small
            containers and objects of these.
        initializer: called in the process before the config is unpickled. Default None.

    Returns:
        The pipeline.

    Raises:
        UsageError: an argument is wrong.

    Example:
        >>> import math
        >>> from penstock.pipeline import PipelineBuilder, run_in_subprocess
        >>> config = PipelineBuilder().add_source([1, 4, 9]).pipe(math.sqrt).add_sink().get_config()
        >>> def main():
        ...     with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:
        ...         print(list(pipeline), list(pipeline))
        >>> main()  # in a script under `if __name__ == "__main__":`, since the process imports it
        [1.0, 2.0, 3.0] [1.0, 2.0, 3.0]
    """
    check_start_method(start_method)
    config = Successors().config(config)
    here = build_pipeline(config, num_threads=num_threads, max_failures=max_failures, statistics=statistics)

    def make_setup(address: str) -> tuple[bytes, bytes, list[object]]:
        setup = Setup(config, num_threads, max_failures, statistics, address, _ON_THEIR_WAY)
        sending = Sending()
        return _pickled(initializer, "the initializer", sending), _pickled_setup(setup, sending), sending.inherited

    runs = Runs(
        lambda timeout: Link(make_setup, start_method, timeout),
        continuous=config.continuous,
        continues_pass=config.continuous or one_shot(config) is not None,
    )
    return SubprocessPipeline(runs, config.names(), here.report)


class SubprocessPipeline(Generic[OutT_co]):
    """A pipeline in one process of its own, whose items are read here: by `for`, `async for`, or one by one.

    One `for` is one pass over the source. After one that was left early, the next `for` begins a new pass; where the
    source is continuous or an iterator, it continues with the rest of that one. An iterator that is kept continues,
    too. All passes run in the same process, until a stop, or its death.

    It is made by `run_in_subprocess`, and may be started again after each end, stop, failure or death. Any thread may
    call any method; coroutines and threads don't read at the same time.

    Example:
        >>> from penstock.pipeline import PipelineBuilder, run_in_subprocess
        >>> config = PipelineBuilder().add_source(range(10**9)).add_sink().get_config()
        >>> def main():
        ...     pipeline = run_in_subprocess(config, num_threads=1)
        ...     print(pipeline.get_item(), pipeline.get_item())
        ...     for item in pipeline.get_iterator(timeout=60):  # the next pass
        ...         print(item)
        ...         break
        ...     pipeline.stop()
        >>> main()  # in a script under `if __name__ == "__main__":`
        0 1
        0
    """

    def __init__(self, runs: Runs, names: tuple[str, ...], report: Callable[[], PipelineReport]) -> None:
        """Wrap the runs; users call `run_in_subprocess`."""
        self._runs = runs
        self._names = names
        self._report = report  # of a pipeline that never ran

    # -- life

    def start(self, *, timeout: float | None = None) -> None:
        """Start the process if none lives, and begin a run; items are computed from now on, as far as there is room.

        Args:
            timeout: how many seconds the process may take to start; None, the default, means any time.

        Raises:
            AlreadyRunningError: the pipeline is running. It is a UsageError and a RuntimeError.
            UsageError: its config can't be pickled.
            WorkerError: the process died before it was ready, or can't rebuild the config.
            TimeoutError: it was not ready in time, and was ended.
        """
        self._runs.start(wait_limit(timeout))

    def stop(self, *, timeout: float | None = None, wait: bool = True) -> None:
        """End the process, in whatever state it is. Harmless when repeated.

        Items that were not read are discarded. A reader whose pass was open, also one that waits in another thread,
        gets a ClosedError. Only `start` or a new `for` starts the pipeline again; `get_item` doesn't.

        Args:
            timeout: how many seconds stages have to end before the process is killed; None, the default, means 5.
            wait: whether to wait until the process has ended. Default True.
        """
        self._runs.stop(wait_limit(timeout), wait=wait)

    def auto_stop(self, *, timeout: float | None = None) -> "AutoStop[OutT_co]":
        """Return a context manager that starts the pipeline and stops it.

        Args:
            timeout: for `start` and `stop`, in seconds; None, the default, means theirs.

        Returns:
            The context manager; its value is the pipeline. At the end of its block an unread failure is raised,
            unless the block itself raised something.
        """
        return AutoStop(self, self._runs, wait_limit(timeout))

    # -- reading

    def get_item(self, *, timeout: float | None = None) -> OutT_co:
        """Return the next item of the pass; starts the pipeline if it is new: never started, and not stopped.

        Args:
            timeout: how many seconds to wait for it; None, the default, means any time.

        Returns:
            The item.

        Raises:
            EOFError: the pass is over. If the source is continuous, the next call gives the next pass's first item.
            TimeoutError: no item came in time; none is lost.
            PipelineFailure: a stage failed; its exception is the cause.
            WorkerError: the process died.
            ClosedError: the pipeline was stopped, before or during the call.
        """
        link = self._runs.current()
        kind, content = link.receive(link.run, wait_limit(timeout))
        if kind is not _ITEM:
            try:
                over = EOFError("the pass is over")
                error = self._runs.ended(kind, content)
            except BaseException:
                link.due = (kind, content)
                raise
            try:
                raise over if error is None else error
            finally:
                del over, error  # their traceback refers to this frame, which would be a reference cycle
        item: OutT_co = content
        return item  # with no call since the item was received, after which a signal handler might raise

    def get_iterator(self, *, timeout: float | None = None) -> Iterator[OutT_co]:
        """Return an iterator over one pass, as `iter` does.

        Args:
            timeout: how many seconds to wait for each item; None, the default, means any time.

        Returns:
            The iterator: over a new pass, unless nothing was read of the one that runs; over the rest of that one,
            where the source is continuous or an iterator. Iterators that were made before are over: their next read is
            a ClosedError, as it is after a `stop`.

        Raises:
            UsageError: the config can't be pickled.
            WorkerError: the process died before it was ready, or can't rebuild the config.
        """
        return PassIterator(self._runs, wait_limit(timeout))

    def __iter__(self) -> Iterator[OutT_co]:
        """Return an iterator over one pass."""
        return self.get_iterator()

    def __aiter__(self) -> AsyncIterator[OutT_co]:
        """Return an async iterator over one pass; a process that must be started for it is started in a thread."""
        self._runs.check_process()
        return AsyncPassIterator(self._runs)

    # -- looking

    def dropped(self) -> list[DroppedItem]:
        """Return the items that stages failed on and that were dropped, over all passes: the first thousand.

        Those that a process had seen when it died are not known.

        Returns:
            A list of its own, oldest first.
        """
        return [DroppedItem(stage, item, unpack_error(error)) for stage, item, error in self._runs.look().dropped]

    def report(self) -> PipelineReport:
        """Return how each stage spent its time, over all passes of the latest process, and advice.

        Returns:
            The report; `print` it.

        Raises:
            UsageError: the pipeline was made without `statistics=True`.
        """
        seen = self._runs.look()
        return self._report() if seen.report is None else seen.report

    @property
    def state(self) -> State:
        """The state of the pipeline: "new", "running", "done" or "stopped".

        It is "done" when the end of the run, or a failure, was read. Else as `Pipeline.state`.
        """
        return self._runs.state

    def __repr__(self) -> str:
        pid = self._runs.pid
        state = "not running" if pid is None else f"in process {pid}"
        return f"<SubprocessPipeline {' > '.join(self._names)}, {state}>"


class AutoStop(Generic[OutT_co]):
    """The scope in which a pipeline runs."""

    def __init__(self, pipeline: SubprocessPipeline[OutT_co], runs: Runs, timeout: float | None) -> None:
        self._pipeline = pipeline
        self._runs = runs
        self._timeout = timeout

    def __enter__(self) -> SubprocessPipeline[OutT_co]:
        self._pipeline.start(timeout=self._timeout)
        return self._pipeline

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            with suppress(UsageError):  # a forked child leaves the block, where nothing of the pipeline runs
                self._runs.stop(self._timeout)
            return
        failure = self._runs.stop(self._timeout)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame, which would be a reference cycle


class PassIterator(Iterator[Item]):
    """The items of one pass."""

    def __init__(self, runs: Runs, timeout: float | None) -> None:
        self._runs = runs
        self._number, self._link, self._is_rest = runs.begin_pass()
        self._run = self._link.run
        self._timeout = timeout
        self._ended = False

    def __next__(self) -> Item:
        while not self._ended:
            self._runs.check_reader(self._number)
            kind, content = self._link.receive(self._run, self._timeout)
            if kind is _ITEM:
                self._is_rest = False
                return content
            try:
                error = self._runs.ended(kind, content)
            except BaseException:
                self._link.due = (kind, content)
                raise
            if self._is_rest and kind is _END_OF_PASS:
                self._is_rest = False
                self._number = self._runs.reader
                continue
            self._ended = True
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame, which would be a reference cycle
        raise StopIteration


class AsyncPassIterator(AsyncIterator[Item]):
    """The items of one pass, for `async for`. Cancelling a wait loses no item."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._begun: tuple[int, Link, bool] | None = None
        self._beginning: asyncio.Future[tuple[int, Link, bool]] | None = None
        self._run = 0
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._begun is None:
            self._begun = await self._begin()
            self._run = self._begun[1].run
        while not self._ended:
            number, link, is_rest = self._begun
            self._runs.check_reader(number)
            kind, content = await link.areceive(self._run)
            if kind is _ITEM:
                self._begun = number, link, False
                return content
            try:
                error = self._runs.ended(kind, content)
            except BaseException:
                link.due = (kind, content)
                raise
            if is_rest and kind is _END_OF_PASS:
                self._begun = self._runs.reader, link, False
                continue
            self._ended = True
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame, which would be a reference cycle
        raise StopAsyncIteration

    async def _begin(self) -> tuple[int, Link, bool]:
        if self._beginning is None:
            self._beginning = asyncio.get_running_loop().run_in_executor(None, self._runs.begin_pass)
        beginning = self._beginning
        try:
            return await asyncio.shield(beginning)  # a cancelled wait doesn't begin it twice
        finally:
            if beginning.done():
                self._beginning = None


def _pickled_setup(setup: Setup, sending: Sending) -> bytes:
    with Caught(Exception):
        return sending.dump(setup)
    _find_unpicklable(setup.config, sending)
    return _pickled(setup, "the config", sending)


def _find_unpicklable(config: PipelineConfig, sending: Sending) -> None:
    """Raise for the part of a pipeline that can't be pickled.

    Raises:
        UsageError: it can't.
    """
    if isinstance(config.source, Merge):
        for merged in config.source.pipelines:
            _find_unpicklable(merged, sending)
    else:
        _pickled(config.source.source, "the source", sending)
    for stage in config.pipes:
        _pickled(stage, f"stage {stage!r:.200}", sending)


def _pickled(value: object, what: str, sending: Sending) -> bytes:
    with Caught(Exception) as pickling:
        return sending.dump(value)
    if isinstance(pickling.error, UsageError):
        raise pickling.error
    raise UsageError(
        f"{what} must be picklable to go to the pipeline's process; got {value!r:.200}, and {pickling.error!r:.500}. "
        "Define functions at the top of a module, give ThreadExecutor(...) or ProcessExecutor(...) for a pool, or run "
        "the pipeline here: build_pipeline"
    ) from pickling.error
