"""A progress line on a terminal or in a notebook, for work that takes more than half a second.

A thread draws the line, so it is there, and moves, also while one part of the work takes long.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from penstock._os import DaemonThread
from penstock._printable import printable

SHOWN_AFTER_SECONDS: Final = 0.5
_REDRAWN_AFTER_SECONDS: Final = 0.1
_NOTEBOOK_STREAMS: Final = "ipykernel.iostream"  # the module of a notebook's stderr, which says that it is no terminal


def gigabytes(count: int) -> str:
    """Return a number of bytes as text."""
    return f"{count / 1e9:.2f} GB"


def counted(count: int) -> str:
    """Return a number of things as text."""
    return f"{count:,}"


class Progress:
    """Shows the progress of some work, on stderr if that is a terminal or a notebook, after half a second.

    Args:
        label: the name of the work, such as "indexing lines".
        total: the amount of work, in bytes or another unit that `advance` counts; None if it isn't known.
        enabled: whether to show it at all.
        amount: formats an amount.
        measure: returns the amount of finished work, where other processes do it; in place of `advance`.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        *,
        enabled: bool = True,
        amount: Callable[[int], str] = gigabytes,
        measure: Callable[[], int] | None = None,
    ) -> None:
        self._label = printable(label)
        self._total = total
        self._amount = amount
        self._measure = measure
        self._done = 0
        self._stream = sys.stderr
        self._enabled = enabled and _is_watched()
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread: DaemonThread | None = None

    def advance(self, done: int) -> None:
        """Add an amount of finished work."""
        self._done += done

    def __enter__(self) -> Self:
        if self._enabled:
            self._thread = DaemonThread(self._draw_until_end, "penstock-progress")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.wait(None)
            if self._takes_long():
                self._draw("\n")

    def _draw_until_end(self) -> None:
        while not self._ended.wait(_REDRAWN_AFTER_SECONDS):
            if self._takes_long():
                self._draw()

    def _takes_long(self) -> bool:
        return time.monotonic() - self._began >= SHOWN_AFTER_SECONDS

    def _draw(self, end: str = "") -> None:
        done = self._done if self._measure is None else self._measure()
        text = self._amount(done)
        if self._total is not None:
            text = f"{min(done / max(1, self._total), 1):4.0%} of {self._amount(self._total)} ({text})"
        self._stream.write(f"\r{self._label}: {text}{end}")
        self._stream.flush()


def _is_watched() -> bool:
    """Return whether a person sees what stderr gets at once."""
    stream = sys.stderr
    return stream is not None and (stream.isatty() or type(stream).__module__ == _NOTEBOOK_STREAMS)
