"""What a pipeline keeps from pass to pass while its loop runs: threads for functions, and what sends to executors."""

from penstock.concurrency._children._seeding import GlobalSeeds
from penstock.pipeline._operations._executor_stage import Remote
from penstock.pipeline._operations._threads import Threads
from penstock.pipeline._processes import Executors
from penstock.pipeline._stages import Pipe


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
        self._executors = Executors(seeds)

    def remote(self, pipe: Pipe, name: str) -> Remote:
        """Return what sends the items of a stage to its executor."""
        assert pipe.executor is not None
        return self._executors.remote(pipe.executor, name, repeatable=pipe.repeatable)

    def source_threads(self, name: str) -> Threads:
        """Return the thread of a source, so that one that waits for data keeps no function waiting."""
        return self._sources.setdefault(name, Threads(1, f"penstock-{name}"))

    def interrupt(self) -> None:
        """End the processes, whatever they do: nothing is wanted of them any more."""
        self._executors.close()

    def close(self) -> None:
        """Let the threads end, and end the processes."""
        self._executors.close()
        for threads in (self.threads, *self._sources.values()):
            threads.close()

    @property
    def is_current(self) -> bool:
        """Whether this is called in one of the threads."""
        return any(threads.is_current for threads in (self.threads, *list(self._sources.values())))

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, each at most so many seconds."""
        for threads in (self.threads, *self._sources.values()):
            threads.join(timeout)
