"""The fork servers of the program, and the processes that they fork, as the program holds them.

There is one server for each limit of threads, usually one. It belongs to the program, no other library uses it, and it
runs until the program ends. It is started on first use, and again if it was killed. A fork of the program has servers
of its own.

A `ForkedProcess` exists at once. The server forks the process later, since it may have to import modules first; so
every wait for the process waits for the server's answer first.
"""

import errno
import importlib
import io
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection, reduction, resource_tracker, spawn, util
from typing import Any, Final, NotRequired, TypedDict

from penstock._module_search import current_path
from penstock._os import uninterrupted, watch_process
from penstock._processes._begin import HASH_SEED, HASH_VARIABLE, interrupts_blocked, thread_variables
from penstock._processes._fork_preparation import preparation
from penstock._processes._fork_server import (
    IMPORT,
    MAX_DESCRIPTORS,
    NO_SPARE,
    RELOADED,
    SPARE,
    START,
    STDERR,
    Begun,
    ForkedDescriptor,
    ForkedProgram,
    receive_descriptors,
)
from penstock._processes._named_modules import modules_of
from penstock._processes._patience import SERVER_ANSWER_SECONDS, SERVER_END_SECONDS
from penstock._processes._reloads import LoadedModules
from penstock.errors import InternalError

_NEEDED: Final = ("numpy.random",)  # NumPy imports it late, and every child process seeds it
_MESSAGE_BYTES: Final = 1 << 16
# With these variables, libraries start no threads while they are imported; a server that has some can't be forked.
_WITHOUT_THREADS: Final = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow; its pools use another allocator anyway
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # `torch.cuda.is_available()`, at the top of many scripts, would start CUDA
}
_logger = logging.getLogger("penstock")
# Before NumPy is loaded the variables must be set; and before Penstock is, its path.
_PROGRAM: Final = (
    "import json, os, sys; begun = json.loads(sys.argv[1]); os.environ.update(begun['environment']); "
    "sys.path[:] = begun['path']; from penstock._processes._fork_server import main; main(begun)"
)


def _variables(threads: int | None) -> dict[str, str]:
    """Return the variables of a server and its forks that the user has not set."""
    unset = {name: value for name, value in _WITHOUT_THREADS.items() if name not in os.environ}
    return {**unset, **thread_variables(threads)}


class Server:
    """Owns a server process.

    Args:
        threads: how many threads BLAS and the like have in it and in its forks; None leaves them alone.
    """

    def __init__(self, threads: int | None) -> None:
        self._lock = threading.Lock()  # protects the two below
        self._has_ended = False
        self._exit_code: int | None = None
        with ExitStack() as opened, interrupts_blocked():
            # A program without stdout or stderr gives their numbers to other files, and a Python writes to these.
            while opened.enter_context(io.FileIO(os.devnull)).fileno() <= STDERR:
                pass
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            control = opened.enter_context(theirs).fileno()
            program = opened.enter_context(io.FileIO(os.pidfd_open(os.getpid()))).fileno()
            tracker = resource_tracker.getfd() or 0  # it is never None once it runs, as here
            tracker = opened.enter_context(io.FileIO(os.dup(tracker))).fileno()
            begun: Begun = {
                "control": control,
                "program": program,
                "tracker": tracker,
                "environment": _variables(threads),
                "path": current_path(),
                "excluded": [],
                "failures": [],
                "spares": False,
                "children": [],
                "message": "",
                "pending": [],
            }
            flags: Any = vars(util)["_args_from_interpreter_flags"]
            command = [spawn.get_executable(), *flags(), "-c", _PROGRAM, json.dumps(begun)]
            self.pid = spawn_python(command, [control, program, tracker])
        self._watched: Final = os.pidfd_open(self.pid)

    def send(self, message: bytes, descriptors: list[int]) -> None:
        """Send a message to the server.

        Raises:
            ConnectionError: it has ended.
            OSError: the system refuses the message.
        """
        socket.send_fds(self._control, [message], descriptors)

    def exit_code(self, timeout: float) -> int | None:
        """Wait for the end of the server and return its exit code; None if it didn't end in time, or isn't known."""
        with self._lock:
            if not self._has_ended and connection.wait([self._watched], timeout):
                self._has_ended = True
                with suppress(ChildProcessError):  # SIGCHLD is ignored, or other code has waited for all children
                    how = os.waitid(os.P_PIDFD, self._watched, os.WEXITED)
                    self._exit_code = None if how is None else _exit_code(how.si_code, how.si_status)
            return self._exit_code

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that this process holds for the server."""
        return self._control.fileno(), self._watched

    def close(self) -> None:
        """Close the control socket; the server ends, unless a fork of this process holds the socket, too."""
        with self._lock:
            self._has_ended = True  # or its exit code can't be known any more
        self._control.close()
        os.close(self._watched)

    def leave(self) -> None:
        """Keep the descriptors open as long as this process runs, even if this object is dropped."""
        self._control.detach()


def spawn_python(command: Sequence[str | bytes], descriptors: Sequence[int]) -> int:
    """Start a Python that inherits descriptors and the seed of the hashes.

    Returns:
        Its pid; the caller waits for its end.
    """
    environment = {**os.environ, HASH_VARIABLE: HASH_SEED}
    started = subprocess.Popen(command, env=environment, pass_fds=descriptors, restore_signals=False)
    started.returncode = 0  # so that no one else waits for it
    return started.pid


def _exit_code(how: int, status: int) -> int:
    return status if how == os.CLD_EXITED else -status


class Servers:
    """Owns the servers of a program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the four below
        self._servers: dict[int | None, Server] = {}  # by threads
        self._modules: LoadedModules | None = None  # since the first server
        self._reloaded: list[str] = []  # what the servers don't know yet
        self._spares = Counter[int | None]()

    def send(self, threads: int | None, message: bytes, descriptors: list[int]) -> Server:
        """Send a message to a server, which is started if there is none; called with interrupts held.

        Returns:
            The server.

        Raises:
            OSError: the system refuses the message, perhaps since too many descriptors are on their way to the server.
        """
        with self._lock:
            server = self._servers.get(threads)
            if server is not None:
                with suppress(ConnectionError):  # it has been killed
                    server.send(message, descriptors)
                    return server
                server.exit_code(SERVER_END_SECONDS)
                server.close()
            self._modules = self._modules or LoadedModules()
            self._servers[threads] = server = Server(threads)
            if self._spares[threads]:
                server.send(SPARE, [])
            server.send(message, descriptors)
            return server

    @uninterrupted
    def import_ahead(self, threads: int | None, modules: tuple[str, ...]) -> None:
        """Start the server, if there is none, and let it import modules that its processes will need."""
        prepared = preparation("", _variables(threads), (*_NEEDED, *modules), imports_main=False)
        with _memory(pickle.dumps(prepared)) as memory:
            self.send(threads, IMPORT, [memory])

    @uninterrupted
    def follow_reloads(self) -> None:
        """Have all processes that are started from now on import modules as the program has them now.

        Raises:
            OSError: too many files are open, or on their way; the next call repeats what this one didn't do.
        """
        with self._lock:
            self._reloaded += self._modules.take_changed() if self._modules is not None else []
            if not self._reloaded:
                return
            with _memory(json.dumps(self._reloaded).encode()) as memory:
                for server in self._servers.values():
                    with suppress(ConnectionError):  # it has been killed, and the next one has no modules yet
                        server.send(RELOADED, [memory])
            self._reloaded = []

    @uninterrupted
    def want_spare(self, threads: int | None, change: int) -> None:
        """Change the number of users that want a process forked ahead."""
        with self._lock:
            before = self._spares[threads]
            after = self._spares[threads] = before + change
            server = self._servers.get(threads)
            if server is not None and (before == 0 or after == 0):
                with suppress(ConnectionError):  # it has been killed; the next one gets the message
                    server.send(SPARE if after else NO_SPARE, [])

    def leave(self) -> None:
        """Leave the servers to themselves at the end of the program, without warnings of unclosed sockets."""
        for server in self._servers.values():
            server.leave()

    def forget(self) -> None:
        """Drop all servers, in a fork of the program; they belong to the program."""
        self._lock = threading.Lock()  # a thread of the program may have held it
        for server in self._servers.values():
            server.close()
        self._servers = {}
        self._modules = None
        self._reloaded = []
        self._spares.clear()

    def held(self) -> tuple[list[int], list[int]]:
        """Return the pids of the servers that run, and their descriptors here."""
        with self._lock:
            found = list(self._servers.values())
        return [server.pid for server in found], [number for server in found for number in server.descriptors()]


servers: Final = Servers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=servers.forget)
util.Finalize(None, servers.leave, exitpriority=-100)  # after the processes have been ended


class Spare:
    """Until it is closed, the server keeps a process forked ahead, so that one that died is replaced at once.

    The process that is forked ahead when it is closed stays: it is the next one that is started.

    Args:
        threads: of the server.
    """

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._owner = os.getpid()
        servers.want_spare(threads, 1)

    def close(self) -> None:
        """Withdraw the wish; harmless when repeated."""
        owner, self._owner = self._owner, 0
        if owner == os.getpid():
            servers.want_spare(self._threads, -1)


def can_fork() -> bool:
    """Return whether the fork server works on this system."""
    if sys.platform != "linux" or getattr(sys, "frozen", False):  # an executable that isn't Python
        return False
    if not os.path.exists("/proc/self/task"):  # a server counts its threads there
        return False
    watched = watch_process(os.getpid())
    if watched is not None:
        watched.close()
    return watched is not None


class _Answer(TypedDict):
    pid: int
    failures: list[tuple[str, str]]
    failed: NotRequired[str]


class ForkedProcess:
    """Owns a process.

    Args:
        target: what runs in it.
        arguments: pickled for it, with descriptors where `multiprocessing` sends some.
        name: of the process.
        threads: how many threads BLAS and the like have in it; None leaves them alone.
        imports_main: whether it imports the program's main module.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[object, ...],
        *,
        name: str,
        threads: int | None,
        imports_main: bool = True,
    ) -> None:
        self._lock = threading.Lock()  # held to read the status socket
        self._pid = 0
        self._watched: io.FileIO | None = None
        self._exit_code: int | None = None
        self._has_ended = False  # without having been forked
        process = ForkedProgram(target=target, args=arguments, name=name, daemon=True)
        parts = _Parts()
        given = parts.dump(process)
        modules = (*_NEEDED, *modules_of(given))
        prepared = preparation(name, _variables(threads), modules, imports_main=imports_main)
        streams = [number for number in (1, 2) if _is_stream(number)]
        if len(parts.descriptors) + len(streams) + 2 > MAX_DESCRIPTORS:
            raise InternalError(f"a process can inherit {MAX_DESCRIPTORS} descriptors; got {len(parts.descriptors)}")
        with ExitStack() as resources:
            memory = resources.enter_context(_memory(parts.dump(prepared), given))
            self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            resources.enter_context(theirs)
            descriptors = [theirs.fileno(), memory, *streams, *parts.descriptors]
            self._server = servers.send(threads, START + bytes(streams), descriptors)

    @property
    def pid(self) -> int:
        """The pid, once there is one; 0 if the process was never forked."""
        while self.is_starting:
            connection.wait([self.fileno()])
            self.learn()
        return self._pid

    @property
    def is_starting(self) -> bool:
        """Whether the server hasn't answered yet; the descriptor becomes readable when it does, and `learn` is due."""
        return self._watched is None and not self._has_ended

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended, or when the server first answers."""
        return self._status.fileno() if self._watched is None else self._watched.fileno()

    def learn(self) -> None:
        """Receive the server's answer, if it has arrived.

        Raises:
            OSError: this program may open no more files, so it can't hold the process.
        """
        with self._lock:
            if not self.is_starting or not connection.wait([self._status], 0):
                return
            message, descriptors = b"", list[int]()
            with suppress(OSError):
                message, descriptors = receive_descriptors(self._status, _MESSAGE_BYTES)
            if not message:  # killed
                self._exit_code = self._exit_code or self._server.exit_code(SERVER_ANSWER_SECONDS)
                self._has_ended = True
                return
            answer: _Answer = json.loads(message)
            if "failed" in answer:
                _logger.warning("the fork server could not fork a process: %s", answer["failed"])
                self._has_ended = True
                return
            self._pid = answer["pid"]
            if not descriptors:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
                self._has_ended = True
                raise OSError(errno.EMFILE, "too many files are open for one more process")
            self._watched = io.FileIO(descriptors[0])
        for module, reason in answer["failures"]:
            _logger.warning(
                "module %s could not be imported ahead for worker processes; each imports it itself: %s",
                "of the program (__main__)" if module == "__main__" else module,
                reason,
            )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the process, by SIGKILL or another signal; if it isn't forked yet, the server won't fork it."""
        with suppress(OSError):  # then `learn` has killed it
            self.learn()
        if self._watched is not None:
            with suppress(ProcessLookupError):  # it has been waited for
                signal.pidfd_send_signal(self._watched.fileno(), number)
        elif not self._has_ended:
            self._exit_code = -signal.SIGKILL
            with suppress(OSError):
                self._status.shutdown(socket.SHUT_RDWR)

    def join(self) -> int | None:
        """Wait for the end of the process.

        Returns:
            Its exit code; None if the server can't send it any more.
        """
        while self.is_starting:
            connection.wait([self.fileno()])
            self.learn()
        connection.wait([self.fileno()])
        with self._lock:
            if self._exit_code is None and connection.wait([self._status], SERVER_ANSWER_SECONDS):
                with suppress(OSError, ValueError):  # the server was killed
                    self._exit_code = int(self._status.recv(_MESSAGE_BYTES))
            return self._exit_code

    def close(self) -> None:
        """Close the descriptors of the process, which has ended."""
        if self._watched is not None:
            self._watched.close()
        self._status.close()


class _Parts:
    """Pickles for a process, and collects the descriptors to send; `multiprocessing` takes it for its own `Popen`."""

    DupFd = ForkedDescriptor

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        """Add a descriptor.

        Returns:
            Its index among the descriptors.
        """
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    def dump(self, value: object) -> bytes:
        """Return a pickle for the process."""
        file = io.BytesIO()
        with spawning(self):
            reduction.dump(value, file)
        return file.getvalue()


@contextmanager
def spawning(popen: object) -> Generator[None]:
    """Have `multiprocessing` send descriptors through a `Popen`, while a process is pickled."""
    context: Any = importlib.import_module("multiprocessing.context")
    context.set_spawning_popen(popen)
    try:
        yield
    finally:
        context.set_spawning_popen(None)


@contextmanager
def _memory(*parts: bytes) -> Generator[int]:
    """Have a descriptor of memory that holds these bytes."""
    with io.FileIO(os.memfd_create("penstock-process"), "wb") as file:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]
        yield file.fileno()


def _is_stream(number: int) -> bool:
    """Return whether a number is that of a standard stream; a file that got it later isn't passed on to programs."""
    with suppress(OSError):
        return os.get_inheritable(number)
    return False
