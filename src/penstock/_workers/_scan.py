"""One pass over all positions on threads: a function of a range at a time, its results in order.

Guarantees:
  - The ranges follow each other from 0 to the total. Their results come in that order, each exactly once.
  - At most a few ranges a thread are being computed or wait to be taken, however slowly they are taken.
  - What the function raises comes where its range's result would have; results before it come first, none after.
  - When the generator is closed, fails or is interrupted, no further range is begun. Threads are daemons; the ranges
    that they are in take some milliseconds and are waited for, at most `_PATIENCE_SECONDS`.

A range has as many positions as are computed in `_RANGE_SECONDS`, and towards the end fewer, so that all threads end
together (guided self-scheduling, after Polychronopoulos and Kuck, 1987).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from penstock.errors import InternalError

_RANGE_SECONDS: Final = 0.02
_MOST_POSITIONS: Final = 1 << 14
_RANGES_PER_THREAD: Final = 4
_PATIENCE_SECONDS: Final = 2.0
_logger = logging.getLogger("penstock")

Result = TypeVar("Result")
Task: TypeAlias = Callable[[int, int], Result]


class Scanned(NamedTuple, Generic[Result]):
    """What the function returned for the positions [start, stop)."""

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
    threads = [
        threading.Thread(target=_work, args=(ranges, make_task), name=f"penstock-scan-{number}", daemon=True)
        for number in range(num_threads)
    ]
    try:
        for thread in threads:
            thread.start()
        while (taken := ranges.take()) is not None:
            yield taken
    finally:
        ranges.stop()
        _join(threads)


def _join(threads: list[threading.Thread]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(deadline - time.monotonic(), 0))
    stuck = [thread.name for thread in threads if thread.is_alive()]
    if stuck:
        _logger.warning("still inside a function of the dataset after %s s: %s", _PATIENCE_SECONDS, stuck)


def _work(ranges: "_Ranges[Result]", make_task: Callable[[], Task[Result]]) -> None:
    task: Task[Result] | None = None
    outcome: _Outcome[Result]
    while (claimed := ranges.claim()) is not None:
        began = time.perf_counter()
        try:
            task = task or make_task()
            result = task(claimed.start, claimed.stop)
            outcome = _Outcome(Scanned(claimed.start, claimed.stop, result), None)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that takes the results
            outcome = _Outcome(None, error)
        ranges.finish(claimed, outcome, time.perf_counter() - began)
        del claimed, outcome  # holds nothing while waiting


class _Outcome(NamedTuple, Generic[Result]):
    scanned: Scanned[Result] | None
    error: BaseException | None


@dataclass(slots=True, eq=False)
class _Range(Generic[Result]):
    start: int
    stop: int
    outcome: _Outcome[Result] | None = None


class _Ranges(Generic[Result]):
    """The ranges that are being computed or wait to be taken."""

    def __init__(self, total: int, num_threads: int) -> None:
        self._total = total
        self._threads = num_threads
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
            stop = self._next + max(min(self._size, share), 1)
            claimed: _Range[Result] = _Range(self._next, stop)
            self._next = stop
            self._ranges.append(claimed)
            return claimed

    def finish(self, claimed: _Range[Result], outcome: _Outcome[Result], seconds: float) -> None:
        """Hand in what came of a range."""
        with self._changed:
            claimed.outcome = outcome
            if outcome.error is not None:
                self._stopped = True
            fitting = int((claimed.stop - claimed.start) * _RANGE_SECONDS / max(seconds, 1e-9))
            self._size = max(min(fitting, 2 * self._size, _MOST_POSITIONS), 1)
            self._changed.notify_all()

    def take(self) -> Scanned[Result] | None:
        """Return the next result when it is there, or raise its error; None at the end."""
        with self._changed:
            self._changed.wait_for(self._can_take)
            if not self._ranges:
                return None
            outcome = self._ranges.popleft().outcome
            self._changed.notify_all()
        if outcome is None:
            raise InternalError("a range is taken when it is finished")
        if outcome.error is not None:
            raise outcome.error
        return outcome.scanned

    def stop(self) -> None:
        """Let no further range begin."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._stopped or self._next >= self._total

    def _can_take(self) -> bool:
        return self._ranges[0].outcome is not None if self._ranges else self._is_over()
