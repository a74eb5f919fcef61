"""The extension `native_jobs`, built from the public headers, with jobs that wait at a gate."""

from pathlib import Path
from typing import Protocol, cast

from tests import extensions

SOURCE = Path(__file__).parent / "extension" / "native_jobs.cpp"


class Extension(Protocol):
    """What the extension's module holds; capsules are of jobs."""

    def upper(self, source: object, /) -> object:
        """Return a job that makes Bytes of capitals."""
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
        """Return a job that calls a function with the lock; False stands for null without an exception."""
        ...

    def finishing_badly(self, number: int, /) -> object:
        """Return a job that throws the exception of that number with the lock; without it, if it is negative."""
        ...

    def throwing_an_int(self) -> object:
        """Return a job that throws what is no exception."""
        ...

    def nothing(self) -> object:
        """Return a job without a result."""
        ...

    def filling(self, target: object, /) -> object:
        """Return a job that waits for the gate, then fills the target with x."""
        ...

    def open_gate(self) -> None:
        """Let all through, until it is closed."""
        ...

    def close_gate(self) -> None:
        """Let nobody through."""
        ...

    def await_waiting(self, count: int, /) -> None:
        """Wait until so many jobs wait at the gate."""
        ...

    def living(self) -> int:
        """Return how many owners of jobs and bytes the extension made that live."""
        ...


def build(folder: Path) -> Path:
    """Build the extension into a folder; skip where there is nothing to build it with."""
    return extensions.build(SOURCE, folder)


def load(library: Path) -> Extension:
    """Return the extension's module."""
    return cast("Extension", extensions.load(library))
