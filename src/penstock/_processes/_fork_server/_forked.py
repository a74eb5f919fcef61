"""A process that the fork server forks for the program, as the program holds it.

The object exists at once. The server forks the process later, since it may have to import modules before; so every wait
for the process waits for the server's answer first.
"""

import errno
import importlib
import io
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import connection, reduction
from typing import Any, Final, NotRequired, TypedDict

from penstock._processes._fork_server._blank import MAX_DESCRIPTORS, START, ForkedDescriptor, ForkedProgram
from penstock._processes._fork_server._client import servers
from penstock._processes._fork_server._modules import modules_of
from penstock._processes._fork_server._preparation import preparation
from penstock._processes._patience import SERVER_ANSWER_SECONDS
from penstock._processes._thread_limits import thread_variables
from penstock.errors import InternalError

_NEEDED: Final = ("numpy.random",)  # NumPy imports it late, and every child process seeds it
_MESSAGE_BYTES: Final = 1 << 16
_logger = logging.getLogger("penstock")


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
        prepared = preparation(name, thread_variables(threads), modules, imports_main=imports_main)
        streams = [number for number in (1, 2) if _is_open(number)]
        if len(parts.descriptors) + len(streams) + 2 > MAX_DESCRIPTORS:
            raise InternalError(f"a process can inherit {MAX_DESCRIPTORS} descriptors; got {len(parts.descriptors)}")
        with ExitStack() as resources:
            memory = resources.enter_context(open(os.memfd_create("penstock-process"), "wb", buffering=0))
            for part in (parts.dump(prepared), given):
                view = memoryview(part)
                while view:
                    view = view[memory.write(view) :]
            self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            resources.enter_context(theirs)
            descriptors = [theirs.fileno(), memory.fileno(), *streams, *parts.descriptors]
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
                message, descriptors, _, _ = socket.recv_fds(self._status, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
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
        spawning: Any = importlib.import_module("multiprocessing.context")
        spawning.set_spawning_popen(self)
        try:
            reduction.dump(value, file)
        finally:
            spawning.set_spawning_popen(None)
        return file.getvalue()


def _is_open(number: int) -> bool:
    with suppress(OSError):
        os.fstat(number)
        return True
    return False
