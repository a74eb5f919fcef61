"""The extension `native_jobs`, built from the public headers, with jobs that wait at a gate."""

from pathlib import Path
from typing import Protocol, cast

import pytest

from tests import extensions

SOURCE = Path(__file__).parent / "extension" / "native_jobs.cpp"


class Extension(Protocol):
    """The functions of the extension's module; a capsule is a job."""

    def upper(self, source: object, /) -> object:
        """Return a job that makes `Bytes` in capitals."""
        ...

    def failing(self) -> object:
        """Return a job that throws `not today`."""
        ...

    def throwing(self, number: int, /) -> object:
        """Return a job that throws the exception of that number."""
        ...

    def word_lengths(self, source: object, /) -> object:
        """Return a job that makes a list of the words' lengths, with the interpreter's lock."""
        ...

    def calling(self, function: object, /) -> object:
        """Return a job that calls a function with the lock; False means null without an exception."""
        ...

    def finishing_badly(self, number: int, /) -> object:
        """Return a job that throws the exception of that number with the lock; without the lock if it is negative."""
        ...

    def throwing_an_int(self) -> object:
        """Return a job that throws an int, which is no exception."""
        ...

    def nothing(self) -> object:
        """Return a job without a result."""
        ...

    def filling(self, target: object, /) -> object:
        """Return a job that waits for the gate, then fills the target with x."""
        ...

    def open_gate(self) -> None:
        """Let all waiting and later jobs pass, until the gate is closed."""
        ...

    def close_gate(self) -> None:
        """Let no job pass."""
        ...

    def await_waiting(self, count: int, /) -> None:
        """Wait until so many jobs are waiting at the gate."""
        ...

    def living(self) -> int:
        """Return how many owners of jobs and bytes that the extension made are alive."""
        ...


def build(folders: pytest.TempPathFactory) -> Path:
    """Build the extension; skip the test if a tool for that is missing."""
    return extensions.build(SOURCE, folders)


def load(library: Path) -> Extension:
    """Return the extension's module."""
    return cast("Extension", extensions.load(library))
