"""A process of ours, as its parent holds it: started quietly, seen to die at once, and waited for.

Linux gives a descriptor of the process (a pidfd), through which a signal can't reach another one that got its number.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import connection
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock._processes._child_ends import death_of
from penstock._processes._fork_server._client import Spare, can_fork
from penstock._processes._fork_server._forked import ForkedProcess
from penstock._processes._main_module import check_guard
from penstock._processes._spawned import SpawnedProcess
from penstock._processes._thread_limits import limit_threads, thread_variables
from penstock.errors import UsageError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

StartMethod: TypeAlias = Literal["spawn", "forkserver"]

_DYING_SECONDS: Final = 0.5  # what a process that closed its pipe has to end by itself, with its own exit code


class ChildProcess:
    """Owns a process, and this side of a pipe to it.

    Args:
        target: what runs in it: called with the other side of the pipe, and the arguments.
        arguments: pickled for it.
        name: of the process, in messages.
        start_method: "forkserver", the default, for one that is forked by a server of ours, which has imported what it
            needs; "spawn" for a new Python, and everywhere but on Linux.
        threads: how many threads BLAS, OpenCV and torch have in it; None leaves them alone. What the main module loads
            of BLAS in a spawned process is out of reach.
        imports_main: whether the process imports the program's main module; see `_main_module.is_imported`. A spawned
            process imports it in any case.

    Attributes:
        pipe: this side of the pipe.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[object, ...],
        *,
        name: str,
        start_method: StartMethod | None,
        threads: int | None = None,
        imports_main: bool = True,
    ) -> None:
        is_forked = uses_server(start_method)
        if imports_main or not is_forked:
            check_guard()
        self._name = name
        self._owner = os.getpid()
        self._lock = threading.Lock()  # whoever asks for the exit code, or closes
        self._closed = False
        self._death: WorkerError | None = None
        self._process: ForkedProcess | SpawnedProcess
        self.pipe: Connection[Any, Any]
        pipes: Any = multiprocessing.Pipe()
        self.pipe, theirs = pipes
        given = (target, thread_variables(threads), theirs, *arguments)
        try:
            if is_forked:
                self._process = ForkedProcess(_run, given, name=name, threads=threads, imports_main=imports_main)
            else:
                self._process = SpawnedProcess(_run, given, name=name)
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its number; waits until it is started. 0 if it never was."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended; waits until it is started."""
        assert self.pid >= 0
        return self._process.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether there is something to receive, or the process has ended; wait for it."""
        return self._wait([self.pipe], timeout)

    def wait_for_end(self, timeout: float | None = None) -> bool:
        """Return whether the process has ended; wait for it."""
        return self._wait([], timeout)

    def _wait(self, others: "Sequence[Connection[Any, Any]]", timeout: float | None) -> bool:
        until = None if timeout is None else monotonic() + timeout
        while True:
            self._process.learn()
            is_starting = self._process.is_starting
            left = None if until is None else max(until - monotonic(), 0.0)
            ready = connection.wait([*others, self._process.fileno()], left)
            if not is_starting or not ready or any(other in ready for other in others):
                return bool(ready)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the process, by SIGKILL or another signal; harmless if it has ended."""
        with self._lock:
            if not self._closed and os.getpid() == self._owner:
                self._process.kill(number)

    def death(self, *, started: bool = True) -> WorkerError:
        """Return why the process is dead, which it is or will be in a moment; the same exception each time.

        Args:
            started: whether it got as far as its own work; else the message says what to look at.
        """
        with self._lock:
            if self._death is None:
                if not self._wait([], _DYING_SECONDS):
                    self._process.kill()
                self._death = death_of(self._name, self._process.pid, self._process.join(), started=started)
            return self._death

    def end(self, patience_seconds: float) -> None:
        """Say that it is over, by an empty message, and let the process end by itself; kill it if it doesn't."""
        with suppress(OSError):  # it has ended
            self.pipe.send_bytes(b"")
        self.wait_for_end(patience_seconds)
        self.close()

    def close(self) -> None:
        """Make sure that the process has ended, wait for it, and close what belongs to it; harmless when repeated."""
        self.kill()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if os.getpid() == self._owner:  # it is no child of a fork, which can only let go of it
                self._process.join()
            self._process.close()
            self.pipe.close()


def _run(
    target: Callable[..., None], variables: dict[str, str], pipe: "Connection[Any, Any]", *arguments: object
) -> None:
    limit_threads(variables)
    target(pipe, *arguments)


def check_start_method(start_method: object) -> None:
    """Refuse what isn't a way to start our processes.

    Raises:
        UsageError: it is none.
    """
    if start_method not in (None, "spawn", "forkserver"):
        raise UsageError(
            f"start_method must be 'forkserver', 'spawn' or None; got start_method={start_method!r}. A process that is "
            "forked from the program would inherit locks that its threads hold"
        )


def uses_server(start_method: StartMethod | None) -> bool:
    """Return whether processes are forked by a server; only on Linux."""
    return start_method != "spawn" and can_fork()


def open_spare(start_method: StartMethod | None, threads: int | None) -> Spare | None:
    """Return what keeps a process forked ahead until it is closed; None where processes are spawned."""
    return Spare(threads) if uses_server(start_method) else None
