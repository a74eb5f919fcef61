"""Programs that run at the same time, and may talk to each other."""

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def run_together(
    programs: Sequence[tuple[list[str], Mapping[str, str]]], patience_seconds: float, folder: Path | None = None
) -> None:
    """Run Python with some arguments and variables, once for each pair, all at the same time; none may fail."""
    started = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=dict(variables),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments, variables in programs
    ]
    try:
        printed = [process.communicate(timeout=patience_seconds)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(printed)
