"""A process of ours, as its parent holds it: started quietly, seen to die at once, and waited for.

Linux gives a descriptor of the process (a pidfd), through which a signal can't reach another one that got its number.
"""

import multiprocessing
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing import connection
from multiprocessing import process as process_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock.concurrency._child_ends import death_of, interrupts_blocked
from penstock.errors import UsageError, WorkerError
from penstock.transport._process import watch_process

if TYPE_CHECKING:
    import io
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

StartMethod: TypeAlias = Literal["spawn", "forkserver"]

_DYING_SECONDS: Final = 0.5  # what a process that closed its pipe has to end by itself, with its own exit code


class ChildProcess:
    """Owns a process, and this side of a pipe to it.

    Args:
        target: what runs in it: called with the other side of the pipe, and the arguments.
        arguments: pickled for it.
        name: of the process, in messages.
        start_method: how it is started; None for "spawn".

    Attributes:
        pid: its number.
        pipe: this side of the pipe.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[object, ...],
        *,
        name: str,
        start_method: StartMethod | None,
    ) -> None:
        context: Any = multiprocessing.get_context(start_method or "spawn")
        self._name = name
        self._lock = threading.Lock()  # whoever asks for the exit code, or closes
        self._closed = False
        self._death: WorkerError | None = None
        self.pipe: Connection[Any, Any]
        self.pipe, theirs = context.Pipe()
        # A daemon, so that what was forgotten never keeps Python from ending.
        self._process: BaseProcess = context.Process(target=target, args=(theirs, *arguments), name=name, daemon=True)
        # The fork server may be started by this, and all of the program's processes that it forks would be deaf.
        starting = nullcontext if start_method == "forkserver" else interrupts_blocked
        try:
            with starting():
                self._process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()
        self.pid: int = self._process.pid or 0
        # Else a fork of this program, which inherits the list, ends the processes of its parent when it exits.
        children: set[object] = getattr(process_module, "_children", set())
        children.discard(self._process)
        self._watched: io.FileIO | None = watch_process(self.pid)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended."""
        return self._process.sentinel if self._watched is None else self._watched.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether there is something to receive, or the process has ended; wait for it."""
        return bool(connection.wait([self.pipe, self.fileno()], timeout))

    def wait_for_end(self, timeout: float | None = None) -> bool:
        """Return whether the process has ended; wait for it."""
        return bool(connection.wait([self.fileno()], timeout))

    def kill(self) -> None:
        """Kill the process; harmless if it has ended."""
        with self._lock:
            if self._closed:
                return
            if self._watched is None:
                self._process.kill()
            else:
                with suppress(ProcessLookupError):  # it was waited for
                    signal.pidfd_send_signal(self._watched.fileno(), signal.SIGKILL)

    def death(self, *, started: bool = True) -> WorkerError:
        """Return why the process is dead, which it is or will be in a moment; the same exception each time.

        Args:
            started: whether it got as far as its own work; else the message says what to look at.
        """
        with self._lock:
            if self._death is None:
                if not connection.wait([self.fileno()], _DYING_SECONDS):
                    self._process.kill()
                self._process.join()
                # There is no exit code if someone else has waited for all children of this process.
                self._death = death_of(self._name, self.pid, self._process.exitcode, started=started)
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
            self._process.join()
            with suppress(ValueError):  # its exit code was taken by someone else: it counts as running for ever
                self._process.close()
            if self._watched is not None:
                self._watched.close()
            self.pipe.close()


def check_start_method(start_method: object) -> None:
    """Refuse what isn't a way to start our processes.

    Raises:
        UsageError: it is none.
    """
    if start_method not in (None, "spawn", "forkserver"):
        raise UsageError(
            f"start_method must be 'spawn', 'forkserver' or None, for 'spawn'; got start_method={start_method!r}. A "
            "forked process would inherit locks that threads hold"
        )
