"""A child process, as its parent holds it: with a pipe to it, a descriptor that reports its end, and its death.

A pidfd is a file descriptor of a process (Linux only). It becomes readable when the process has ended. A signal that is
sent through it never reaches another process that got the same pid.
"""

import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import connection, popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing import process as process_module
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock._os import watch_process
from penstock._processes._begin import HASH_VARIABLE, interrupts_blocked, limit_threads, thread_variables
from penstock._processes._fork_client import ForkedProcess, Spare, can_fork, servers, spawn_python, spawning
from penstock._processes._main_module import check_guard, main_path
from penstock._processes._patience import EXIT_CODE_SECONDS
from penstock.errors import UsageError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

StartMethod: TypeAlias = Literal["spawn", "forkserver"]


class ChildProcess:
    """Owns a process, and this end of a pipe to it.

    Args:
        target: runs in the process; called with the other end of the pipe, and the arguments.
        arguments: pickled for it.
        name: of the process, in messages.
        start_method: "forkserver", the default on Linux: our fork server, which has imported the modules that the
            process needs, forks it. "spawn", the default elsewhere: a new Python.
        threads: how many threads BLAS, OpenCV and torch have in it; None leaves them alone. If the main module loads
            BLAS in a spawned process, that is out of reach.
        imports_main: whether the process imports the program's main module; see `_main_module.is_imported`. A spawned
            process imports it in any case.

    Attributes:
        pipe: this end of the pipe.
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
        self._lock = threading.Lock()  # protects the two below, and the descriptors from being closed while in use
        self._closed = False
        self._death: WorkerError | None = None
        self._exit_code: int | None = None  # once it is closed
        self._process: ForkedProcess | _SpawnedProcess
        self.pipe: Connection[Any, Any]
        pipes: Any = multiprocessing.Pipe()
        self.pipe, theirs = pipes
        given = (target, thread_variables(threads), theirs, *arguments)
        try:
            if is_forked:
                self._process = ForkedProcess(_run, given, name=name, threads=threads, imports_main=imports_main)
            else:
                self._process = _SpawnedProcess(_run, given, name=name)
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The pid; waits until the process is started. 0 if it never was."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended; wait until it is started."""
        self.wait_until_started()
        return self._process.fileno()

    def wait_until_started(self) -> None:
        """Wait until the process is started, or never will be."""
        _ = self.pid

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a message or the end of the process; return False if neither came in time."""
        return self._wait([self.pipe], timeout)

    def wait_for_end(self, timeout: float | None = None) -> bool:
        """Wait for the end of the process; return False if it didn't come in time."""
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

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the process, which has started, in any thread; return at once if it was closed."""
        with self._lock:
            watched = None if self._closed else os.dup(self._process.fileno())
        if watched is not None:
            try:
                connection.wait([watched], timeout)
            finally:
                os.close(watched)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        with self._lock:
            return self._closed or self._wait([], 0.0)

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs, or if other code waited for it."""
        with self._lock:
            if self._closed:
                return self._exit_code
            return self._process.join() if self._wait([], 0.0) else None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the process, by SIGKILL or another signal; harmless if it has ended."""
        with self._lock:
            if not self._closed and os.getpid() == self._owner:
                self._process.kill(number)

    def death(self, *, started: bool = True) -> WorkerError:
        """Return why the process died, which it has or is about to; the same exception each time.

        Args:
            started: whether it got as far as its own work; otherwise the message says where to look.
        """
        with self._lock:
            if self._death is None:
                if not self._wait([], EXIT_CODE_SECONDS):
                    self._process.kill()
                self._death = _death(self._name, self._process.pid, self._process.join(), started=started)
            return self._death

    def end(self, patience_seconds: float) -> None:
        """Tell the process to end, by an empty message; kill it if it takes longer."""
        with suppress(OSError):  # it has ended
            self.pipe.send_bytes(b"")
        self.wait_for_end(patience_seconds)
        self.close()

    def close(self) -> None:
        """Kill the process if it runs, wait for its end, and close its descriptors; harmless when repeated."""
        self.kill()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if os.getpid() == self._owner:  # to a fork of the parent it is no child, so the fork can't wait for it
                self._exit_code = self._process.join()
            self._process.close()
            self.pipe.close()


def _run(
    target: Callable[..., None], variables: dict[str, str], pipe: "Connection[Any, Any]", *arguments: object
) -> None:
    limit_threads(variables)
    target(pipe, *arguments)


def _run_spawned(hash_variable: str | None, run: Callable[..., None], *arguments: object) -> None:
    """Run a function in a process that was started with a variable of its own, which becomes the program's."""
    os.environ.pop(HASH_VARIABLE, None)
    if hash_variable is not None:
        os.environ[HASH_VARIABLE] = hash_variable
    run(*arguments)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class _SeededPopen(popen_spawn_posix.Popen):
    """Starts a process as `multiprocessing` does, with the seed of the hashes.

    A change of the program's own environment, even for a moment, could be seen by its other threads.
    """

    _fds: list[int]

    def _launch(self, process_obj: BaseProcess) -> None:
        tracker = resource_tracker.getfd() or 0
        vars(sys.modules["__main__"]).setdefault("__spec__", None)  # `spawn` needs it; a script under `pdb` has none
        prepared = spawn.get_preparation_data(process_obj.name)
        prepared.pop("dir", None)  # it begins there, and its user may not be allowed to enter it again
        if main_path() is None:
            prepared.pop("init_main_from_path", None)
        with io.BytesIO() as file:
            with spawning(self):
                reduction.dump(prepared, file)
                reduction.dump(process_obj, file)
            given = file.getvalue()
        ours: list[int] = []
        self.finalizer = util.Finalize(self, _close, ours)
        with ExitStack() as theirs:
            self.sentinel, child_write = os.pipe()
            ours.append(self.sentinel)
            theirs.callback(os.close, child_write)
            child_read, write = os.pipe()
            ours.append(write)
            theirs.callback(os.close, child_read)
            command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=child_read)
            self.pid = spawn_python(command, [*self._fds, tracker, child_read, child_write])
        with open(write, "wb", closefd=False) as pipe:
            pipe.write(given)


class _SeededProcess(SpawnProcess):
    _Popen: Any = _SeededPopen


class _SpawnedProcess:
    """Owns a process that `multiprocessing` spawns; has the methods of `ForkedProcess`."""

    is_starting = False  # it has a pid from the beginning

    def __init__(self, target: Callable[..., None], arguments: tuple[object, ...], *, name: str) -> None:
        if (program := multiprocessing.current_process()).daemon:
            raise UsageError(
                "`multiprocessing` lets a daemonic process spawn no others, and this is one; got "
                f"{program.name!r}. Start it with daemon=False, or let the fork server (start_method='forkserver', "
                "only on Linux) start them"
            )
        # A daemon, so that a forgotten process never keeps Python from ending.
        given = (os.environ.get(HASH_VARIABLE), target, *arguments)
        self._process = _SeededProcess(target=_run_spawned, args=given, name=name, daemon=True)
        with interrupts_blocked():
            self._process.start()
        self.pid: int = self._process.pid or 0
        # A fork of this program inherits the list, and would end the processes of its parent when it exits.
        children: set[object] = getattr(process_module, "_children", set())
        children.discard(self._process)
        self._watched: io.FileIO | None = watch_process(self.pid)

    def fileno(self) -> int:
        return self._process.sentinel if self._watched is None else self._watched.fileno()

    def learn(self) -> None:
        pass

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._watched is None:
            self._process.kill()
        else:
            with suppress(ProcessLookupError):  # it has been waited for
                signal.pidfd_send_signal(self._watched.fileno(), number)

    def join(self) -> int | None:
        """Wait for the end of the process; return its exit code, or None if other code has waited for it."""
        self._process.join()
        return self._process.exitcode

    def close(self) -> None:
        with suppress(ValueError):  # other code has taken its exit code: to `multiprocessing` it runs for ever
            self._process.close()
        if self._watched is not None:
            self._watched.close()


def check_start_method(start_method: object) -> None:
    """Check a start method.

    Raises:
        UsageError: there is no such start method.
    """
    if start_method not in (None, "spawn", "forkserver"):
        raise UsageError(
            f"start_method must be 'forkserver', 'spawn' or None; got start_method={start_method!r}. A process that is "
            "forked from the program would inherit locks that its threads hold"
        )


def uses_server(start_method: StartMethod | None) -> bool:
    """Return whether the fork server starts processes; only on Linux."""
    return start_method != "spawn" and can_fork()


def open_spare(start_method: StartMethod | None, threads: int | None) -> Spare | None:
    """Return the object that, until it is closed, keeps a process forked ahead; None if processes are spawned."""
    return Spare(threads) if uses_server(start_method) else None


def follow_reloads(start_method: StartMethod | None) -> None:
    """Have processes that the fork server starts from now on import modules as the program has them now."""
    if uses_server(start_method):
        servers.follow_reloads()


def import_ahead(start_method: StartMethod | None, threads: int | None, modules: tuple[str, ...]) -> None:
    """Start the fork server, and let it import modules, so that the first process starts sooner; return at once.

    Nothing is started in a child process, where the main module is being imported, or if processes are spawned.
    """
    is_program = multiprocessing.parent_process() is None and not getattr(
        multiprocessing.current_process(), "_inheriting", False
    )
    if is_program and uses_server(start_method):
        servers.import_ahead(threads, modules)


def _death(process: str, pid: int, exit_code: int | None, *, started: bool) -> WorkerError:
    if exit_code is not None and exit_code < 0:
        how = f"was killed by {_signal_name(-exit_code)}"
    else:
        how = f"ended with exit code {'unknown' if exit_code is None else exit_code}"
    if exit_code == -signal.SIGKILL:
        how += " (by the system, if memory ran out)"
    if not started:
        how += (
            " before it had started. Its own output says why; a script must start its work under "
            "`if __name__ == '__main__':`, since each process imports it"
        )
    return WorkerError(f"the {process} (pid {pid}) {how}", exit_code=exit_code, has_started=started)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
