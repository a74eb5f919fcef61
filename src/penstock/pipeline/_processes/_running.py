"""`ProcessExecutor`, the description of an executor's processes, and `RunningProcesses`, the processes themselves."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import KW_ONLY
from types import TracebackType
from typing import Any, Self

from penstock._frozen import frozen
from penstock._processes import GlobalSeeds, StartMethod, check_start_method, draw_seeds
from penstock.errors import UsageError
from penstock.pipeline._processes._chunks import dump
from penstock.pipeline._processes._dispatcher import Call, Dispatcher
from penstock.pipeline._processes._worker import Worker


@frozen
class ProcessExecutor:
    """Processes that a stage of a pipeline runs in: `pipe(op, executor=ProcessExecutor(4), concurrency=4)`.

    A value: the processes start and end with the pipeline. Stages that are given the same executor share them. `op`,
    items and results are pickled. An `op` is sent once to each process, and keeps its state there.

    A process that dies is replaced; the item that it worked on is a failure with a WorkerError, or is tried again on a
    stage with `repeatable=True`.

    Before the initializer, each process seeds its global generators of `random`, NumPy and torch: from one number that
    the pipeline draws from each of this process's generators when it starts, and from the process's number. So
    processes draw differently, and a program that seeds its generators gets the same draws in each process from run to
    run. Which process takes which item depends on time; for draws that don't depend on it, take seeds from the items.

    Args:
        max_workers: how many processes; at least 1. The stage's `concurrency` should be as large.
        start_method: "forkserver", where a clean process imports what is needed and forks itself, or "spawn"; None, the
            default, for the first on Linux. Both import the main module.
        initializer: called in each process as it starts, with `initargs`.
        initargs: the initializer's arguments, as a tuple.

    Raises:
        UsageError: fewer than one worker, or an unknown start method.

    Example:
        >>> import math
        >>> from penstock.pipeline import PipelineBuilder, ProcessExecutor
        >>> builder = PipelineBuilder().add_source([4, 9])
        >>> builder = builder.pipe(math.sqrt, executor=ProcessExecutor(2), concurrency=2, output_order="input")
        >>> def main():
        ...     with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        ...         print(list(pipeline))
        >>> main()  # in a script under `if __name__ == "__main__":`, since each process imports it
        [2.0, 3.0]
    """

    max_workers: int
    _: KW_ONLY
    start_method: StartMethod | None = None
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.max_workers < 1:
            raise UsageError(f"max_workers must be at least 1; got {self.max_workers!r}")
        check_start_method(self.start_method)


def open_processes(
    executor: ProcessExecutor, name: str = "executor", *, seeds: GlobalSeeds | None = None
) -> "RunningProcesses":
    """Start an executor's processes.

    Args:
        executor: how many, and how.
        name: of the executor, in messages.
        seeds: of their global random generators; None draws them here.

    Returns:
        The processes, to be closed.

    Raises:
        UsageError: the initializer or its arguments can't be pickled.
    """
    setup = dump((executor.initializer, executor.initargs), "the initializer of a ProcessExecutor")
    drawn = draw_seeds() if seeds is None else seeds
    return RunningProcesses(Dispatcher(setup, drawn, executor.start_method, name), executor.max_workers)


class RunningProcesses:
    """An executor's processes while they run; a context manager, which is left by `close`, or, by an error, `kill`."""

    def __init__(self, dispatcher: Dispatcher, max_workers: int) -> None:
        self._dispatcher = dispatcher
        dispatcher.end_with(self)
        try:
            for number in range(max_workers):
                dispatcher.start(number)
        except BaseException:
            self.kill()
            raise

    @property
    def is_broken(self) -> bool:
        """Whether every call fails, since processes can't be started."""
        return self._dispatcher.is_broken

    def submit(
        self, function: Callable[..., object], /, *args: object, repeatable: bool = False, at: Worker | None = None
    ) -> Future[object]:
        """Call a function in one of the processes, as soon as one is free.

        The function is pickled when it is first submitted, sent to each process once, and kept there.

        Args:
            function: the function.
            *args: its arguments.
            repeatable: whether it may be called again, in another process, where one died in it.
            at: the process that alone can do it; the call fails if that has died. Default None: any.

        Returns:
            The future of its result. It raises the function's exception; a WorkerError if the process died, or the
            result can't be pickled; a UsageError if function or arguments can't. Cancelling it drops the
            call if that has not begun.

        Raises:
            ClosedError: these processes are closed, or belong to the process that this one was forked from.
        """
        call = Call(function, args, repeatable=repeatable, at=at)
        self._dispatcher.put(call)
        return call.future

    def close(self) -> None:
        """Wait for the calls that were submitted, then end the processes; harmless when repeated."""
        self._dispatcher.finish(killed=False)

    def kill(self) -> None:
        """End the processes at once: calls that run fail with a ClosedError, those that wait are cancelled."""
        self._dispatcher.finish(killed=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()
