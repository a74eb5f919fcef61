"""Helpers for processes that wait, and are watched until they end."""

from pathlib import Path

SECONDS = 1.0  # in which a crash must be reported


def pid_from(folder: Path) -> int:
    """Return the pid that a process writes into the named pipe of a folder."""
    with (folder / "ready").open() as pipe:
        return int(pipe.readline())
