"""The protocol of a pool's workers, and that of the places where workers run."""

import asyncio
from collections.abc import Awaitable
from typing import ParamSpec, Protocol, TypeVar

Job = ParamSpec("Job")  # the arguments of `run`
Result = TypeVar("Result", covariant=True)


class Worker(Protocol[Job, Result]):
    """A stateful worker: it is started once, runs one job at a time, and is stopped once.

    Any class with these three methods is a worker; each method may be plain or async. All three are called in the same
    task, thread or process. A job is the arguments of `run`. The type parameters are the types of these arguments and
    of the result, as in `Worker[[int, str], float]`.

    Example:
        >>> class Counter:
        ...     def start(self) -> None:
        ...         self.count = 0
        ...
        ...     async def run(self, job: int) -> int:
        ...         self.count += job
        ...         return self.count
        ...
        ...     def stop(self) -> None:
        ...         print("counted to", self.count)
        >>> import asyncio
        >>> from penstock.concurrency import WorkerPool
        >>> async def main() -> int:
        ...     async with WorkerPool(Counter, 1) as pool:
        ...         await pool.assign(2)
        ...         return await (await pool.assign(3))
        >>> asyncio.run(main())
        counted to 5
        5
    """

    def start(self) -> Awaitable[None] | None:
        """Acquire the resources of the jobs. If this raises, `stop` is not called."""

    def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Awaitable[Result] | Result:
        """Do one job, the arguments of `WorkerPool.assign`, and return its result."""
        ...

    def stop(self) -> Awaitable[None] | None:
        """Release all resources. Called after every start that succeeded, unless the worker's process died."""


class AsyncWorker(Protocol[Job, Result]):
    """A worker whose jobs are async: the part of `Worker` from which type checkers infer the result."""

    def start(self) -> Awaitable[None] | None:
        """Acquire the resources of the jobs."""

    def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Awaitable[Result]:
        """Do one job and return its result."""
        ...

    def stop(self) -> Awaitable[None] | None:
        """Release all resources."""


class Place(Protocol[Job, Result]):
    """The place where one worker runs. The pool calls one method at a time, from the loop's thread.

    A cancelled call returns only when no part of it runs any more.
    """

    @property
    def started(self) -> bool:
        """Whether the worker's `start` has succeeded."""
        ...

    async def start(self) -> None:
        """Make the worker and start it."""

    async def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Return the result of a job that the worker does."""
        ...

    async def stop(self) -> None:
        """Stop the worker."""

    async def close(self) -> None:
        """Release the task, thread or process, whatever happened before. Raises no exception of the worker."""


def for_a_future(error: BaseException, source: str = "a worker") -> BaseException:
    """Return an exception that a future can have: for a StopIteration or a GeneratorExit, a RuntimeError.

    A future refuses the one; the other would close the coroutines that await the future.
    """
    if not isinstance(error, StopIteration | GeneratorExit):
        return error
    replacement = RuntimeError(f"{source} raised {error!r}")
    replacement.__cause__ = error
    return replacement


def is_own_cancellation(error: BaseException) -> bool:
    """Return whether an exception is a CancelledError because the task that runs now has been cancelled.

    User code may raise a CancelledError, too; that one is an error like any other.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
