"""A program that loads: started in a new interpreter and session, commanded, and killed.

It runs a function of a module, which is called with this process's commands. So contestants don't share an interpreter,
its memory or its fork server, and everything that a trainer leaves behind can be found by its session.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from benchmarks.machine import ROOT
from benchmarks.processes.held import running

Main = Callable[[Connection], None]  # it is pickled
END_SECONDS = 20
# A thread of NumPy's OpenBLAS spins for 0.1 s after the import. On two processors it would compete with a cold loader.
CALM = {"OPENBLAS_NUM_THREADS": "1"}
QUIET = "ignore:This DataLoader will create"  # torch advises against more workers than cores, each time


class Trainer:
    """Owns the program, and a pipe to the function that it runs.

    Args:
        main: the function, which gets the other end of the pipe; it returns when that is closed.
        variables: environment variables in addition to this process's.

    Attributes:
        commands: this end of the pipe.
        session: the number of its session, which is also its process id.
    """

    def __init__(self, main: Main, variables: Mapping[str, str] | None = None) -> None:
        self.commands, theirs = Pipe()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.processes.trainer", str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": QUIET, **CALM, **(variables or {})},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.session = self._process.pid
        self.commands.send_bytes(pickle.dumps(main))

    def ask(self, command: object = None) -> Any:  # noqa: ANN401 - what the function that runs sends back
        """Send a command and return the answer."""
        self.commands.send(command)
        return self.commands.recv()

    def kill(self) -> None:
        """Kill only the program, so that it can't end its workers, as when the system is out of memory."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let the program end; kill it, and the rest of its session, if it doesn't."""
        self.commands.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        for process in running(self.session):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _main() -> None:
    with Connection(int(sys.argv[1])) as commands, suppress(EOFError, BrokenPipeError):
        main: Main = pickle.loads(commands.recv_bytes())
        main(commands)


if __name__ == "__main__":
    _main()
