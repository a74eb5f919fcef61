"""The client of the fork servers, in the program: it starts a server on first use, and again if it was killed.

There is one server for each limit of threads, as a rule one. It belongs to the program, no other library uses it,
and it runs until the program ends. A fork of the program has servers of its own.
"""

import io
import json
import os
import socket
import sys
import threading
from collections import Counter
from contextlib import suppress
from multiprocessing import connection, resource_tracker, spawn, util
from typing import Any, Final

from penstock._os import HeldInterrupts
from penstock._processes._begin import interrupts_blocked
from penstock._processes._fork_server._preparation import current_path
from penstock._processes._fork_server._server import NO_SPARE, SPARE, Begun
from penstock._processes._patience import SERVER_END_SECONDS
from penstock._processes._pidfd import watch_process
from penstock._processes._thread_limits import thread_variables

# Before NumPy is loaded the variables must be set; and before Penstock is, its path.
_PROGRAM: Final = (
    "import json, os, sys; begun = json.loads(sys.argv[1]); os.environ.update(begun['environment']); "
    "sys.path[:] = begun['path']; from penstock._processes._fork_server._server import main; main(begun)"
)


class Server:
    """Owns a server process.

    Args:
        threads: how many threads BLAS and the like have in it and in its forks; None leaves them alone.
    """

    def __init__(self, threads: int | None) -> None:
        self._lock = threading.Lock()  # protects the exit code
        self._exit_code: int | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, io.FileIO(os.pidfd_open(os.getpid())) as program, interrupts_blocked():
            tracker = resource_tracker.getfd() or 0  # it is never None once it runs, as here
            begun: Begun = {
                "control": theirs.fileno(),
                "program": program.fileno(),
                "tracker": tracker,
                "environment": thread_variables(threads),
                "path": current_path(),
                "excluded": [],
                "failures": [],
                "spares": False,
                "children": [],
                "message": "",
                "pending": [],
            }
            flags: Any = vars(util)["_args_from_interpreter_flags"]
            executable = os.fsencode(spawn.get_executable())
            command = [executable, *map(os.fsencode, (*flags(), "-c", _PROGRAM, json.dumps(begun)))]
            self.pid: int = util.spawnv_passfds(executable, command, [theirs.fileno(), program.fileno(), tracker])
        self._watched: Final = os.pidfd_open(self.pid)

    def send(self, message: bytes, descriptors: list[int]) -> None:
        """Send a message to the server.

        Raises:
            OSError: it has ended.
        """
        socket.send_fds(self._control, [message], descriptors)

    def exit_code(self, timeout: float) -> int | None:
        """Wait for the end of the server and return its exit code; None if it didn't end in time."""
        with self._lock:
            if self._exit_code is None and connection.wait([self._watched], timeout):
                try:
                    how = os.waitid(os.P_PIDFD, self._watched, os.WEXITED)
                    self._exit_code = 1 if how is None else _exit_code(how.si_code, how.si_status)
                except ChildProcessError:  # other code has waited for all children of this process
                    self._exit_code = 1
            return self._exit_code

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that this process holds for the server."""
        return self._control.fileno(), self._watched

    def close(self) -> None:
        """Close the control socket; the server ends, unless a fork of this process holds the socket, too."""
        with self._lock:
            if self._exit_code is None:
                self._exit_code = 1  # it can't be known any more
        self._control.close()
        os.close(self._watched)

    def leave(self) -> None:
        """Keep the descriptors open as long as this process runs, even if this object is dropped."""
        self._control.detach()


def _exit_code(how: int, status: int) -> int:
    return status if how == os.CLD_EXITED else -status


class Servers:
    """Owns the servers of a program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the two below
        self._servers: dict[int | None, Server] = {}  # by threads
        self._spares = Counter[int | None]()

    def send(self, threads: int | None, message: bytes, descriptors: list[int]) -> Server:
        """Send a message to a server, which is started if there is none.

        Returns:
            The server.
        """
        with HeldInterrupts(), self._lock:
            server = self._servers.get(threads)
            if server is not None:
                with suppress(OSError):  # it has been killed
                    server.send(message, descriptors)
                    return server
                server.exit_code(SERVER_END_SECONDS)
                server.close()
            self._servers[threads] = server = Server(threads)
            if self._spares[threads]:
                server.send(SPARE, [])
            server.send(message, descriptors)
            return server

    def want_spare(self, threads: int | None, change: int) -> None:
        """Change the number of users that want a process forked ahead."""
        with HeldInterrupts(), self._lock:
            before = self._spares[threads]
            after = self._spares[threads] = before + change
            server = self._servers.get(threads)
            if server is not None and (before == 0 or after == 0):
                with suppress(OSError):  # it has been killed; the next one gets the message
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
    watched = watch_process(os.getpid())
    if watched is not None:
        watched.close()
    return watched is not None
