"""A line on the terminal for work that takes long, and nothing for work that doesn't."""

import sys
import time
from types import TracebackType
from typing import Final, Self

SHOWN_AFTER_SECONDS: Final = 0.5
_REDRAWN_AFTER_SECONDS: Final = 0.1


class Progress:
    """Shows how much of some bytes is done, on stderr if that is a terminal, from half a second on.

    Args:
        label: what is done, as in "indexing lines".
        total_bytes: how much there is to do.
        enabled: False shows nothing.
    """

    def __init__(self, label: str, total_bytes: int, *, enabled: bool) -> None:
        self._label = label
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._enabled = enabled and sys.stderr is not None and sys.stderr.isatty()
        self._next_seconds = time.monotonic() + SHOWN_AFTER_SECONDS
        self._shown = False

    def advance(self, done_bytes: int) -> None:
        """Count `done_bytes` more as done."""
        self._done_bytes += done_bytes
        if not self._enabled or time.monotonic() < self._next_seconds:
            return
        self._next_seconds = time.monotonic() + _REDRAWN_AFTER_SECONDS
        self._shown = True
        share = self._done_bytes / max(1, self._total_bytes)
        done, total = self._done_bytes / 1e9, self._total_bytes / 1e9
        sys.stderr.write(f"\r{self._label}: {share:4.0%} of {total:.2f} GB ({done:.2f} GB)")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\n")
            sys.stderr.flush()
