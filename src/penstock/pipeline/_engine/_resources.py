"""What a pipeline keeps from pass to pass while its loop runs: threads for functions, and what sends to executors."""

from penstock.pipeline._operations._executor_stage import Remote
from penstock.pipeline._operations._threads import Threads
from penstock.pipeline._processes import Executors
from penstock.pipeline._stages import Pipe


class Resources:
    """Owns the threads and processes of a pipeline. Made, used and closed on its loop.

    Attributes:
        threads: what plain functions run on.
    """

    def __init__(self, num_threads: int) -> None:
        self.threads = Threads(num_threads, "penstock-stage")
        self._executors = Executors()

    def remote(self, pipe: Pipe, name: str) -> Remote:
        """Return what sends the items of a stage to its executor."""
        assert pipe.executor is not None
        return self._executors.remote(pipe.executor, name, repeatable=pipe.repeatable)

    def close(self) -> None:
        """Let the threads end, and end the processes."""
        self.threads.close()
        self._executors.close()
