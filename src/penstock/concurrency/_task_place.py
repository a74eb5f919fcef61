"""A pool's worker in a task of the pool's own event loop: while it awaits, the other tasks run."""

from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec, TypeVar, cast

from penstock.concurrency._worker import Worker

Job = ParamSpec("Job")
Result = TypeVar("Result")
Value = TypeVar("Value")


class TaskPlace(Generic[Job, Result]):
    """Calls the worker's methods in the task of the caller; cancelling that task cancels the async ones."""

    def __init__(self, make_worker: Callable[[], Worker[Job, Result]]) -> None:
        self._make_worker = make_worker
        self._worker: Worker[Job, Result] | None = None

    @property
    def started(self) -> bool:
        """Whether the worker's `start` has succeeded."""
        return self._worker is not None

    async def start(self) -> None:
        """Make the worker and start it."""
        worker = self._make_worker()
        await _value(worker.start())
        self._worker = worker

    async def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Return the result of a job that the worker does."""
        assert self._worker is not None
        return await _value(self._worker.run(*args, **kwargs))

    async def stop(self) -> None:
        """Stop the worker."""
        assert self._worker is not None
        await _value(self._worker.stop())

    async def close(self) -> None:
        """Forget the worker."""
        self._worker = None


async def _value(returned: Awaitable[Value] | Value) -> Value:
    if isinstance(returned, Awaitable):
        return await cast("Awaitable[Value]", returned)
    return returned
