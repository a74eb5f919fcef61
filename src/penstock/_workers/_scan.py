"""A parallel scan: threads call a function for ranges of all positions, and its results come in order.

Guarantees:
  - The ranges follow each other from 0 to the total. Their results come in that order, each exactly once.
  - At most a few ranges a thread are being computed or wait to be taken, however slowly they are taken.
  - An exception of the function comes in the place of its range's result; results before it come first, none after.
  - When the generator is closed, fails or is interrupted, no further range is begun. Threads are daemons; the ranges
    that they are in take some milliseconds and are waited for, at most `FUNCTION_SECONDS`.

A range has as many positions as are computed in `_RANGE_SECONDS`, and towards the end fewer, so that all threads end
together (guided self-scheduling, after Polychronopoulos and Kuck, 1987).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from penstock._decisions import RANGE_POSITIONS, decide
from penstock._os import Bell, DaemonThread, uninterrupted
from penstock._processes import FUNCTION_SECONDS

_RANGE_SECONDS: Final = 0.02
_MAX_POSITIONS: Final = 1 << 14
_RANGES_PER_THREAD: Final = 4
_logger = logging.getLogger("penstock")

Result = TypeVar("Result")
Task: TypeAlias = Callable[[int, int], Result]


class Scanned(NamedTuple, Generic[Result]):
    """The results of the function for the positions [start, stop)."""

    start: int
    stop: int
    result: Result


def scan(total: int, make_task: Callable[[], Task[Result]], num_threads: int) -> Generator[Scanned[Result]]:
    """Yield a function's results for all ranges, in order.

    Args:
        total: how many positions there are.
        make_task: called once in each thread; returns the function of start and stop that is run there.
        num_threads: how many threads, at least 1.
    """
    ranges: _Ranges[Result] = _Ranges(total, num_threads)
    work = partial(_work, ranges, make_task)
    threads: list[DaemonThread] = []
    try:
        threads += (DaemonThread(work, f"penstock-scan-{number}") for number in range(num_threads))
        while (taken := ranges.take()) is not None:
            yield taken
    finally:
        ranges.stop()
        _join(threads)


def _join(threads: list[DaemonThread]) -> None:
    deadline = time.monotonic() + FUNCTION_SECONDS
    stuck = [thread.name for thread in threads if not thread.wait(max(deadline - time.monotonic(), 0))]
    if stuck:
        _logger.warning("still inside a function of the dataset after %s s: %s", FUNCTION_SECONDS, stuck)


def _work(ranges: "_Ranges[Result]", make_task: Callable[[], Task[Result]]) -> None:
    task: Task[Result] | None = None
    while (claimed := ranges.claim()) is not None:
        began = time.perf_counter()
        with claimed:
            task = task or make_task()
            result = task(claimed.start, claimed.stop)
            claimed.scanned = Scanned(claimed.start, claimed.stop, result)
            del result
        ranges.finish(claimed, time.perf_counter() - began)
        del claimed  # holds nothing while waiting


@dataclass(slots=True, eq=False, repr=False)
class _Range(Generic[Result]):
    """A range, and its result or exception: a `with` block over it keeps the exception that is raised inside."""

    start: int
    stop: int
    scanned: Scanned[Result] | None = None
    error: BaseException | None = None
    is_finished: bool = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.error = error
        return True


class _Ranges(Generic[Result]):
    """The ranges that are being computed or wait to be taken."""

    def __init__(self, total: int, num_threads: int) -> None:
        self._total = total
        self._threads = num_threads
        self._finished = Bell()
        self._changed = threading.Condition()  # protects all below
        self._ranges: deque[_Range[Result]] = deque()
        self._next = 0
        self._size = 1
        self._stopped = False

    def claim(self) -> _Range[Result] | None:
        """Return the next range once there is room for it; None when there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or len(self._ranges) < _RANGES_PER_THREAD * self._threads)
            if self._is_over():
                return None
            share = (self._total - self._next) // (2 * self._threads)
            most = min(self._total - self._next, _MAX_POSITIONS)
            stop = self._next + decide(RANGE_POSITIONS, max(min(self._size, share), 1), most)
            claimed: _Range[Result] = _Range(self._next, stop)
            self._next = stop
            self._ranges.append(claimed)
            return claimed

    def finish(self, claimed: _Range[Result], seconds: float) -> None:
        """Mark a range as finished."""
        with self._changed:
            claimed.is_finished = True
            if claimed.error is not None:
                self._stopped = True
            fitting = int((claimed.stop - claimed.start) * _RANGE_SECONDS / max(seconds, 1e-9))
            self._size = max(min(fitting, 2 * self._size, _MAX_POSITIONS), 1)
            self._changed.notify_all()
        self._finished.ring()

    def take(self) -> Scanned[Result] | None:
        """Wait for the next result and return it, or raise its exception; None at the end."""
        taken: list[_Range[Result]] = []
        self._finished.clear()
        while not self._takes(taken):
            self._finished.wait()
            self._finished.clear()
        if not taken:
            return None
        if taken[0].error is not None:
            raise taken[0].error
        return taken[0].scanned

    @uninterrupted
    def _takes(self, taken: list[_Range[Result]]) -> bool:
        """Take the next range if it is finished; return whether that was so, or there is none."""
        with self._changed:
            ready = self._can_take()
            if ready and self._ranges:
                taken.append(self._ranges.popleft())
                self._changed.notify_all()
            return ready

    @uninterrupted
    def stop(self) -> None:
        """Let no further range begin."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._stopped or self._next >= self._total

    def _can_take(self) -> bool:
        return self._ranges[0].is_finished if self._ranges else self._is_over()
