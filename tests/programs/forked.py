"""Programs that begin in no time: forks of a process that has imported NumPy and Penstock.

The start of Python and these imports take a fifth of a second of processor time, and a fork takes a few milliseconds.
The program is the rest of the fork's main module: it has one thread and streams of its own, and Python ends it as it
ends any other. A program whose promise is about imports or options needs a Python of its own.
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
from typing import Final, NamedTuple

import pytest

import penstock
from tests.promptness import PATIENCE_SECONDS

_PATHS: Final = (str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[2]))

# A request has a program's text, its output and its errors; the answers are its pid and its exit status.
_SERVER: Final = """
import os, socket, sys
import numpy.random
import penstock as ps, penstock.concurrency, penstock.pipeline, penstock.transport
ps.Loader

def forked():
    server = socket.socket(fileno=int(sys.argv.pop()))
    while True:
        _, files, _, _ = socket.recv_fds(server, 1, 3)
        if not files:
            return ""
        child = os.fork()
        if child == 0:
            server.close()
            text, *streams = files
            for number, stream in enumerate(streams, 1):
                os.dup2(stream, number)
                os.close(stream)
            with open(text) as file:
                return file.read()
        for file in files:
            os.close(file)
        server.sendall(b"%d\\n" % child)
        server.sendall(b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

exec(compile(forked(), "<string>", "exec"))
"""


class Ended(NamedTuple):
    """A program that has ended, and whose streams no process has open any more."""

    returncode: int
    stdout: str
    stderr: str


class _Server:
    """Owns the process that forks programs."""

    def __init__(self) -> None:
        own = {"PYTHONPATH": os.pathsep.join(_PATHS), "PYTHONFAULTHANDLER": "", "OPENBLAS_NUM_THREADS": "1"}
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno())],
                env=os.environ | own,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._answers = self._socket.makefile()

    def run(self, program: str) -> Ended:
        with ExitStack() as opened:
            text = opened.enter_context(tempfile.TemporaryFile())
            text.write(program.encode())
            text.seek(0)
            streams = [os.pipe() for _ in range(2)]
            for reading, _ in streams:
                opened.callback(os.close, reading)
            with ExitStack() as sent:
                for _, writing in streams:
                    sent.callback(os.close, writing)
                socket.send_fds(self._socket, [b"\n"], [text.fileno(), *(writing for _, writing in streams)])
            pid = int(self._answers.readline())
            try:
                output, errors = _read([reading for reading, _ in streams])
            except BaseException:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise
            finally:
                status = int(self._answers.readline())
        return Ended(status, output.decode(), errors.decode())

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.wait()


def _read(ends: list[int]) -> list[bytes]:
    """Read some streams to their ends."""
    found = dict.fromkeys(ends, b"")
    until = time.monotonic() + PATIENCE_SECONDS
    with selectors.DefaultSelector() as unended:
        for end in ends:
            unended.register(end, selectors.EVENT_READ)
        while unended.get_map():
            ready = unended.select(until - time.monotonic())
            if not ready:
                raise TimeoutError(f"after {PATIENCE_SECONDS} s the program has printed {found}")
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                found[key.fd] += part
                if not part:
                    unended.unregister(key.fd)
    return [*found.values()]


_server: _Server | None = None


@pytest.fixture(scope="session")
def forked_programs() -> Generator[None]:
    """Have the process that forks programs, which tests that call `outcome` need."""
    global _server
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    _server = _Server()
    try:
        yield
    finally:
        _server.close()
        _server = None


def outcome(program: str) -> Ended:
    """Run a program to its end; a test that does so uses the fixture `forked_programs`."""
    assert _server is not None
    return _server.run(textwrap.dedent(program))


def script_outcome(script: Path, *arguments: str) -> Ended:
    """Run a script to its end, as `outcome` runs a program."""
    return outcome(f"""
        import sys
        __file__ = {str(script)!r}
        sys.argv, sys.path[0] = [__file__, *{arguments!r}], {str(script.parent)!r}
        exec(compile(open(__file__).read(), __file__, "exec"))
    """)
