"""A live line about one loader, for the block of a `with` statement."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from numbers import Real
from types import TracebackType
from typing import Final, Self

from penstock._live_page import Seen
from penstock._os import DaemonThread
from penstock.errors import UsageError
from penstock.observe._live import Window, cut, report_between, summary
from penstock.observe._sums import Sums

_REDRAWN_SECONDS: Final = 1.0
_MAX_SECONDS: Final = 1_000_000  # the system refuses much longer waits


class Watch:
    """Shows what a loader does while the block of a `with` statement runs; made by `Loader.watch`.

    A thread writes to stderr: on a terminal one line, which it redraws each second; elsewhere a line at each interval.
    At the end it writes a line about the whole time. A program without stderr gets none.

    Example:
        >>> import penstock as ps
        >>> with ps.Loader(ps.range(64).batch(8)) as loader, loader.watch():
        ...     batches = list(loader)
    """

    def __init__(self, read: Callable[[], Seen | None], interval: object) -> None:
        """Make one that doesn't show anything yet.

        Args:
            read: returns the content of the loader's live page; called in the thread.
            interval: the seconds from one line to the next, where there is no terminal.

        Raises:
            UsageError: `interval` isn't a number above 0, or more than the system waits.
        """
        if isinstance(interval, bool) or not isinstance(interval, Real) or not 0 < float(interval) <= _MAX_SECONDS:
            raise UsageError(
                f"interval must be a number above 0 and at most {_MAX_SECONDS:,}, the seconds from one line to the "
                f"next; got interval={interval!r}"
            )
        self._read = read
        self._stream = sys.stderr  # None in a program without one, such as a daemon's
        self._is_live = self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._seconds = _REDRAWN_SECONDS if self._is_live else float(interval)
        self._stop = threading.Event()
        self._thread: DaemonThread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        if self._stream is not None:
            self._thread = DaemonThread(self._run, "penstock-watch")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.wait(None)

    def _run(self) -> None:
        window = Window() if self._is_live else Window(self._seconds)
        while not self._stop.wait(self._seconds):
            sums = self._sums()
            if sums is not None:
                self._write(summary(sums, window.add(sums)), is_last=False)
        sums = self._sums()
        if sums is not None:
            self._write(summary(sums, report_between(sums.start, sums)), is_last=True)

    def _sums(self) -> Sums | None:
        seen = self._read()
        return None if seen is None else Sums.seen(seen, time.perf_counter())

    def _write(self, text: str, *, is_last: bool) -> None:
        if self._is_live:
            text = f"\r{cut(text, shutil.get_terminal_size().columns - 1)}\x1b[K"
        self._stream.write(text if self._is_live and not is_last else f"{text}\n")
        self._stream.flush()
