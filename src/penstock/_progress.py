"""A progress line on the terminal, for work that takes more than half a second."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

SHOWN_AFTER_SECONDS: Final = 0.5
_REDRAWN_AFTER_SECONDS: Final = 0.1


def gigabytes(count: int) -> str:
    """Return a number of bytes as text."""
    return f"{count / 1e9:.2f} GB"


def counted(count: int) -> str:
    """Return a number of things as text."""
    return f"{count:,}"


class Progress:
    """Shows the progress of some work, on stderr if that is a terminal, after half a second.

    Args:
        label: the name of the work, such as "indexing lines".
        total: the amount of work, in bytes or another unit that `advance` counts.
        enabled: whether to show it at all.
        amount: formats an amount.
    """

    def __init__(
        self, label: str, total: int, *, enabled: bool = True, amount: Callable[[int], str] = gigabytes
    ) -> None:
        self._label = label
        self._total = total
        self._amount = amount
        self._done = 0
        self._enabled = enabled and sys.stderr is not None and sys.stderr.isatty()
        self._next_seconds = time.monotonic() + SHOWN_AFTER_SECONDS
        self._shown = False

    def advance(self, done: int) -> None:
        """Add an amount of finished work."""
        self._done += done
        if not self._enabled or time.monotonic() < self._next_seconds:
            return
        self._next_seconds = time.monotonic() + _REDRAWN_AFTER_SECONDS
        self._shown = True
        share = self._done / max(1, self._total)
        sys.stderr.write(f"\r{self._label}: {share:4.0%} of {self._amount(self._total)} ({self._amount(self._done)})")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\n")
            sys.stderr.flush()
