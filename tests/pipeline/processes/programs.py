"""Programs that end in different ways while their child process is watched."""

import os
import signal
from pathlib import Path

from tests.processes.helping import ends_promptly, program, watched

SECONDS = 1.0  # in which a crash must be reported


def check_end(folder: Path, text: str, end: signal.Signals | None, *arguments: str) -> None:
    """Run a program whose first line is a child's pid, end it, and check that the child ends and prints nothing.

    Args:
        folder: where the program is written.
        text: the program, which ends by itself when its input has a line.
        end: the signal that ends it; an interrupt is sent to all of its processes, as by a terminal.
        *arguments: the program's arguments.
    """
    with program(text, folder, *arguments) as parent:
        with watched(int(parent.stdout.readline())) as has_ended:
            if end is signal.SIGKILL:
                parent.kill()
            elif end is not None:
                os.killpg(parent.pid, end)
            _, errors = parent.communicate("\n", timeout=100)
            assert ends_promptly(has_ended)
        assert errors.count("Traceback") == (1 if end is signal.SIGINT else 0), errors
