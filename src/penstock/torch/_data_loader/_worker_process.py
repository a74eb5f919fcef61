"""A worker process as programs see it that read torch's private `_workers`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock._processes import ChildProcess


class WorkerProcess:
    """One process of an iterator, with the methods of `multiprocessing.Process`. The iterator ends and replaces it.

    Args:
        child: the process.
        number: the number of the worker.
    """

    daemon = True

    def __init__(self, child: "ChildProcess", number: int) -> None:
        self._child = child
        self.name = f"penstock-worker-{number}"

    @property
    def pid(self) -> int:
        """The pid, also when the process has ended."""
        return self._child.pid

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._child.exit_code

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return not self._child.has_ended

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, at most `timeout` seconds."""
        self._child.join(timeout)

    def terminate(self) -> None:
        """Kill the process. Another one replaces it, and computes its rows."""
        self._child.kill()

    kill = terminate

    def __repr__(self) -> str:
        return f"<WorkerProcess name={self.name!r} pid={self.pid} exitcode={self.exitcode}>"
