"""What a pipeline keeps from pass to pass while its loop runs: threads for functions, and what sends to executors."""

from typing import TYPE_CHECKING, Any, cast

from penstock.pipeline._operations._calls import Op
from penstock.pipeline._operations._executor_stage import Outcome, Remote
from penstock.pipeline._operations._threads import Threads
from penstock.pipeline._stages import Pipe

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future


class Resources:
    """Owns the threads of a pipeline. Made, used and closed on its loop.

    Attributes:
        threads: what plain functions run on.
    """

    def __init__(self, num_threads: int) -> None:
        self.threads = Threads(num_threads, "penstock-stage")
        self._sources: dict[str, Threads] = {}

    def remote(self, pipe: Pipe) -> Remote:
        """Return what sends the items of a stage to its executor."""
        return _Executor(pipe.executor)

    def source_threads(self, name: str) -> Threads:
        """Return the thread of a source, so that one that waits for data keeps no function waiting."""
        return self._sources.setdefault(name, Threads(1, f"penstock-{name}"))

    def close(self) -> None:
        """Let the threads end."""
        for threads in (self.threads, *self._sources.values()):
            threads.close()

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, each at most so many seconds."""
        for threads in (self.threads, *self._sources.values()):
            threads.join(timeout)


class _Executor:
    """Sends chunks to an executor of the user's."""

    def __init__(self, executor: Any) -> None:  # noqa: ANN401 - anything that has `submit`
        self._executor = executor

    def send(self, op: Op, items: list[object], *, flatten: bool) -> "Future[list[Outcome]]":
        found: Future[list[Outcome]] = self._executor.submit(apply_each, op, items, flatten)
        return found

    def explain(self, error: BaseException) -> BaseException:
        return error


def apply_each(op: Op, items: list[object], flatten: bool) -> list[Outcome]:  # noqa: FBT001 - sent by position
    """Return the outcome of each item: (True, its value), or (False, what it raised)."""
    outcomes: list[Outcome] = []
    for item in items:
        try:
            value = op(item)
            outcomes.append((True, [*cast("Iterable[object]", value)] if flatten else value))
        except Exception as error:  # noqa: BLE001 - judged where it is sent back to
            outcomes.append((False, error))
    return outcomes
