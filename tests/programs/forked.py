"""Programs that begin in no time: forks of a process that has imported NumPy and Penstock.

The start of Python and these imports take a fifth of a second of processor time, and a fork takes a few milliseconds.
The program is the rest of the fork's main module: it has one thread, streams and a session of its own, and Python ends
it as it ends any other. A program whose promise is about imports or options needs a Python of its own. NumPy's global
generator continues that of the forked process, unless the program seeds it.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

import pytest

import penstock
from tests.promptness import PATIENCE_SECONDS

_PATHS: Final = (str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[2]))

# A request has a program's streams, its text, and a socket. Through this, a second fork, which waits for the program,
# sends its pid and its exit code; the server forks other programs meanwhile.
_SERVER: Final = """
import asyncio, os, signal, socket, sys
import numpy.random
import penstock as ps
from penstock.concurrency import NativeThreadPool, WorkerPool
from penstock.pipeline import PipelineBuilder, run_in_subprocess
from penstock.transport import TensorPipeReader
ps.Loader

def forked():
    server = socket.socket(fileno=int(sys.argv.pop()))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, files, _, _ = socket.recv_fds(server, 1, 5)
        if not files:
            return ""
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    server.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, text, status = files
    program = os.fork()
    if program:
        for file in (*streams, text):
            os.close(file)
        os.write(status, b"%d\\n" % program)
        os.write(status, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        os._exit(0)
    os.close(status)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    with open(text) as file:
        return file.read()

exec(compile(forked(), "<string>", "exec"))
"""


class Ended(NamedTuple):
    """A program that has ended, and whose streams no process has open any more."""

    returncode: int
    stdout: str
    stderr: str


class Program:
    """A program, with the methods and attributes of a `subprocess.Popen` with pipes for all streams."""

    def __init__(self, server: socket.socket, text: str) -> None:
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair()
        (given, stdin), (stdout, printed), (stderr, complained) = (os.pipe() for _ in range(3))
        with tempfile.TemporaryFile() as file, theirs:
            file.write(text.encode())
            file.seek(0)
            socket.send_fds(server, [b"\n"], [given, printed, complained, file.fileno(), theirs.fileno()])
        for end in (given, printed, complained):
            os.close(end)
        with ExitStack() as opened:
            opened.enter_context(self._status)
            self.stdin = opened.enter_context(open(stdin, "w"))
            self.stdout = opened.enter_context(open(stdout))
            self.stderr = opened.enter_context(open(stderr))
            self.pid = self._answer(PATIENCE_SECONDS)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with self._opened:
            if kind is not None:
                self.kill()
            self.wait()

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Wait for the end of the program; return its exit code."""
        if self.returncode is None:
            self.returncode = self._answer(timeout)
        return self.returncode

    def communicate(self, text: str = "", timeout: float = PATIENCE_SECONDS) -> tuple[str, str]:
        """Write to the program, and read until no process has its streams open; return its output and its errors."""
        with suppress(BrokenPipeError):
            self.stdin.write(text)
        with suppress(BrokenPipeError):
            self.stdin.close()
        found = {self.stdout.fileno(): b"", self.stderr.fileno(): b""}
        until = time.monotonic() + timeout
        with selectors.DefaultSelector() as unended:
            for end in found:
                unended.register(end, selectors.EVENT_READ)
            while unended.get_map():
                ready = unended.select(until - time.monotonic())
                if not ready:
                    raise TimeoutError(f"after {timeout} s the program has printed {found}")
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 16)
                    found[key.fd] += part
                    if not part:
                        unended.unregister(key.fd)
        self.wait(timeout)
        output, errors = found.values()
        return output.decode(), errors.decode()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the end of the program was waited for."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _answer(self, seconds: float) -> int:
        self._status.settimeout(seconds)
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._status.recv(1)
            if not part:
                raise EOFError("what waits for the program was killed")
            answer += part
        return int(answer)


_server: socket.socket | None = None


@pytest.fixture(scope="session")
def forked_programs() -> Generator[None]:
    """Have the process that forks programs, for tests that call the functions below."""
    global _server
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    own = {"PYTHONPATH": os.pathsep.join(_PATHS), "PYTHONFAULTHANDLER": "", "OPENBLAS_NUM_THREADS": "1"}
    _server, theirs = socket.socketpair()
    with _server, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(theirs.fileno())],
            env=os.environ | own,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        yield
    _server = None
    process.kill()  # a fork of the tests may have kept the socket open
    process.wait()


def started(program: str) -> Program:
    """Start a program."""
    assert _server is not None
    return Program(_server, textwrap.dedent(program))


def started_script(script: Path, *arguments: str) -> Program:
    """Start a script."""
    return started(f"""
        import sys
        __file__ = {str(script)!r}
        sys.argv, sys.path[0] = [__file__, *{arguments!r}], {str(script.parent)!r}
        exec(compile(open(__file__).read(), __file__, "exec"))
    """)


def outcome(program: str) -> Ended:
    """Run a program to its end."""
    return _ended(started(program))


def script_outcome(script: Path, *arguments: str) -> Ended:
    """Run a script to its end."""
    return _ended(started_script(script, *arguments))


def _ended(program: Program) -> Ended:
    with program:
        output, errors = program.communicate()
    return Ended(program.wait(), output, errors)
