"""The program's end of the servers that fork its workers: started on first use, and again when one was killed.

There is one server for each limit of threads, as a rule one. It belongs to the program and no other library, stays for
as long as the program runs, and ends with it. A process that the program forks has servers of its own.
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
from penstock._processes._child_ends import interrupts_blocked
from penstock._processes._fork_server._preparation import current_path
from penstock._processes._fork_server._server import NO_SPARE, SPARE, Begun
from penstock._processes._pidfd import watch_process
from penstock._processes._thread_limits import thread_variables

_ENDING_SECONDS: Final = 1.0
# The variables have to be set before NumPy is loaded, and where Penstock is must be known before it is.
_PROGRAM: Final = (
    "import json, os, sys; begun = json.loads(sys.argv[1]); os.environ.update(begun['environment']); "
    "sys.path[:] = begun['path']; from penstock._processes._fork_server._server import main; main(begun)"
)


class Link:
    """Owns a server.

    Args:
        threads: how many threads BLAS and the like have in it, and in what it forks; None leaves them alone.
    """

    def __init__(self, threads: int | None) -> None:
        self._lock = threading.Lock()  # whoever waits for it
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
                "untold": [],
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
        """Say something to the server.

        Raises:
            OSError: it has ended.
        """
        socket.send_fds(self._control, [message], descriptors)

    def exit_code(self, timeout: float) -> int | None:
        """Return how the server has ended, and wait for it; None if it hasn't."""
        with self._lock:
            if self._exit_code is None and connection.wait([self._watched], timeout):
                try:
                    how = os.waitid(os.P_PIDFD, self._watched, os.WEXITED)
                    self._exit_code = 1 if how is None else _exit_code(how.si_code, how.si_status)
                except ChildProcessError:  # somebody else has waited for all children of this process
                    self._exit_code = 1
            return self._exit_code

    def descriptors(self) -> tuple[int, ...]:
        """Return what this process holds for the server."""
        return self._control.fileno(), self._watched

    def close(self) -> None:
        """Let go of the server; it ends, if no other process holds its control."""
        with self._lock:
            if self._exit_code is None:
                self._exit_code = 1  # nobody will know
        self._control.close()
        os.close(self._watched)

    def leave(self) -> None:
        """Keep the descriptors open for as long as this process runs, whatever becomes of this object."""
        self._control.detach()


def _exit_code(how: int, status: int) -> int:
    return status if how == os.CLD_EXITED else -status


class Servers:
    """Owns the servers of a program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # over the two below
        self._links: dict[int | None, Link] = {}  # by threads
        self._spares = Counter[int | None]()

    def ask(self, threads: int | None, message: bytes, descriptors: list[int]) -> Link:
        """Say something to a server, which is started if there is none.

        Returns:
            The server.
        """
        with HeldInterrupts(), self._lock:
            link = self._links.get(threads)
            if link is not None:
                with suppress(OSError):  # it has been killed
                    link.send(message, descriptors)
                    return link
                link.exit_code(_ENDING_SECONDS)
                link.close()
            self._links[threads] = link = Link(threads)
            if self._spares[threads]:
                link.send(SPARE, [])
            link.send(message, descriptors)
            return link

    def want_spare(self, threads: int | None, change: int) -> None:
        """Count who wants a process to be forked ahead."""
        with HeldInterrupts(), self._lock:
            before = self._spares[threads]
            after = self._spares[threads] = before + change
            link = self._links.get(threads)
            if link is not None and (before == 0 or after == 0):
                with suppress(OSError):  # it has been killed; the next one is told
                    link.send(SPARE if after else NO_SPARE, [])

    def leave(self) -> None:
        """Leave the servers to themselves at the end of the program, without a word of what wasn't closed."""
        for link in self._links.values():
            link.leave()

    def forget(self) -> None:
        """Let go of all servers, in a fork of their program; they are the program's."""
        self._lock = threading.Lock()  # a thread that wasn't forked may have it
        for link in self._links.values():
            link.close()
        self._links = {}
        self._spares.clear()

    def held(self) -> tuple[list[int], list[int]]:
        """Return the pids of the servers that run, and the descriptors that belong to them."""
        with self._lock:
            links = list(self._links.values())
        return [link.pid for link in links], [descriptor for link in links for descriptor in link.descriptors()]


servers: Final = Servers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=servers.forget)
util.Finalize(None, servers.leave, exitpriority=-100)  # after the processes have been ended


class Spare:
    """As long as it is open, there is a process that is forked ahead, so that one that died is replaced at once.

    Args:
        threads: of the server.
    """

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._owner = os.getpid()
        servers.want_spare(threads, 1)

    def close(self) -> None:
        """Want it no more; harmless when repeated."""
        owner, self._owner = self._owner, 0
        if owner == os.getpid():
            servers.want_spare(self._threads, -1)


def can_fork() -> bool:
    """Return whether this system has what the server needs."""
    if sys.platform != "linux" or getattr(sys, "frozen", False):  # an executable that isn't Python
        return False
    watched = watch_process(os.getpid())
    if watched is not None:
        watched.close()
    return watched is not None
