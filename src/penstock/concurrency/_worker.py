"""What a worker of a pool is, and what a pool asks of the place where one lives."""

import asyncio
from collections.abc import Awaitable
from typing import ParamSpec, Protocol, TypeVar

Job = ParamSpec("Job")  # the arguments of `run`
Result = TypeVar("Result", covariant=True)


class Worker(Protocol[Job, Result]):
    """A stateful worker: it is started once, runs one job at a time, and is stopped once.

    Any class with these three methods is one; each of them may be plain or async. All three are called in the same
    place: the same task, thread or process. A job is the arguments of `run`. The type parameters are these arguments'
    types, as in `Worker[[int, str], float]`, and the type of a job's result.

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
        """Take hold of what the jobs need. If it raises, `stop` is not called."""

    def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Awaitable[Result] | Result:
        """Do one job, the arguments of `WorkerPool.assign`, and return its result."""
        ...

    def stop(self) -> Awaitable[None] | None:
        """Let go of everything. It is called after every start that succeeded, unless the worker's process died."""


class AsyncWorker(Protocol[Job, Result]):
    """A worker whose jobs are async: the part of `Worker` from which type checkers tell the result."""

    def start(self) -> Awaitable[None] | None:
        """Take hold of what the jobs need."""

    def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Awaitable[Result]:
        """Do one job and return its result."""
        ...

    def stop(self) -> Awaitable[None] | None:
        """Let go of everything."""


class Place(Protocol[Job, Result]):
    """Where one worker lives. The pool calls these in turn, never two at a time, from the loop's thread.

    A call that is cancelled returns only when nothing runs of it any more.
    """

    @property
    def started(self) -> bool:
        """Whether the worker's `start` has succeeded."""
        ...

    async def start(self) -> None:
        """Make the worker and start it."""

    async def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Let the worker do a job."""
        ...

    async def stop(self) -> None:
        """Stop the worker."""

    async def close(self) -> None:
        """Give back what the place is made of, whatever happened before. Raises nothing of the worker's."""


def for_a_future(error: BaseException, source: str = "a worker") -> BaseException:
    """Return the exception as futures accept it: they can't hold a StopIteration, which would mean a result."""
    if not isinstance(error, StopIteration):
        return error
    replacement = RuntimeError(f"{source} raised StopIteration({error.value!r})")
    replacement.__cause__ = error
    return replacement


def is_cancelled() -> bool:
    """Return whether somebody has cancelled the task that runs now."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
