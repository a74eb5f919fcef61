"""What a pipeline keeps from pass to pass while its loop runs: threads for functions, and what sends to executors."""

from functools import partial

from penstock._processes._seeding import GlobalSeeds
from penstock.pipeline._operations._executor_stage import Remote
from penstock.pipeline._operations._threads import Threads
from penstock.pipeline._processes import Executors
from penstock.pipeline._stages import Pipe, ThreadExecutor


class Resources:
    """Owns the threads and processes of a pipeline. Made, used and closed on its loop.

    Args:
        num_threads: for plain functions.
        seeds: of the global random generators in processes; None where no stage has an executor with processes.

    Attributes:
        threads: what plain functions run on.
    """

    def __init__(self, num_threads: int, seeds: GlobalSeeds | None) -> None:
        self.threads = Threads(num_threads, "penstock-stage")
        self._sources: dict[str, Threads] = {}
        self._pools: dict[int, tuple[ThreadExecutor, Threads]] = {}  # by identity, kept by being here
        self._executors = Executors(seeds)

    def remote(self, pipe: Pipe, name: str) -> Remote:
        """Return what sends the items of a stage to its executor."""
        assert pipe.executor is not None
        return self._executors.remote(pipe.executor, name, repeatable=pipe.repeatable)

    def pool_threads(self, executor: ThreadExecutor, name: str) -> Threads:
        """Return the threads of an executor, which its stages share."""
        if id(executor) not in self._pools:
            given = executor.initializer
            initializer = None if given is None else partial(given, *executor.initargs)
            self._pools[id(executor)] = executor, Threads(executor.max_workers, f"penstock-{name}", initializer)
        return self._pools[id(executor)][1]

    def source_threads(self, name: str) -> Threads:
        """Return the thread of a source, so that one that waits for data keeps no function waiting."""
        return self._sources.setdefault(name, Threads(1, f"penstock-{name}"))

    def interrupt(self) -> None:
        """End the processes, whatever they do: nothing is wanted of them any more."""
        self._executors.close()

    def close(self) -> None:
        """Let the threads end, and end the processes."""
        self._executors.close()
        for threads in self._all_threads():
            threads.close()

    @property
    def is_current(self) -> bool:
        """Whether this is called in one of the threads."""
        return any(threads.is_current for threads in (self.threads, *list(self._sources.values())))

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, each at most so many seconds."""
        for threads in self._all_threads():
            threads.join(timeout)

    def _all_threads(self) -> list[Threads]:
        return [self.threads, *self._sources.values(), *(threads for _, threads in self._pools.values())]
