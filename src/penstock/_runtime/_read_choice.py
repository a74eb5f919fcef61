"""The choice between worker threads and the thread of a fold, to compute the elements below the fold.

The problem: many elements take a microsecond, such as a document that is a view of a token array. Workers that compute
them hold the interpreter's lock, which the thread of the fold needs for its own work, so two workers made packing
slower than none. Where elements take long and release the lock, workers are several times as fast. No time of an
element shows which it is. So the two are tried in turns, and the rate of the whole fold decides.

A turn is some milliseconds of the fold's thread, without its waits for room. Each turn by one that follows a turn by
the other shows which is faster; the median of the last such pairs decides, since other programs slow down single turns,
and long ones differ from each other for the same reason. From time to time the slower one is tried again. Rejected: a
bound for the time of an element alone, since it doesn't show whether functions release the lock. Elements that take
more than `TRIED_SECONDS` are left to the workers untried: what passing them on costs is less than a hundredth.
"""

import time
from collections import deque
from typing import Final

from penstock._decisions import READ_BY_FOLD, decide
from penstock._runtime._policy import TRIED_SECONDS, TURN_SECONDS, TURNS_UNTIL_RETRY

_PAIRS: Final = 5  # the last ones, whose median decides: it needs three of them to change it


class ReadChoice:
    """The choice for one input of a loader. The thread of the fold alone uses it, in one epoch after the other.

    Attributes:
        by_fold: whether the thread of the fold computes the next elements.
        waited_seconds: the time for which that thread has waited for room.
    """

    def __init__(self) -> None:
        self.by_fold = False
        self.waited_seconds = 0.0
        self._chosen = False  # `by_fold`, unless decisions are random
        self._turns = 0
        self._last: tuple[bool, float] | None = None  # of the turn before: `by_fold`, and the time of an element
        self._ratios: deque[float] = deque(maxlen=_PAIRS)  # of an element's time by the fold to that by workers
        self._first = 0
        self._began = 0.0

    def begin(self, number: int) -> None:
        """Begin a turn with the element `number`."""
        self._first, self._began = number, self._now()

    def changes(self, number: int) -> bool:
        """Return whether the other one computes from element `number` on; those before it are folded."""
        seconds = self._now() - self._began
        if seconds >= TURN_SECONDS and number > self._first:
            self._end_turn(seconds / (number - self._first))
            self.begin(number)
        before, self.by_fold = self.by_fold, bool(decide(READ_BY_FOLD, int(self._chosen)))
        if self.by_fold != before:
            self.begin(number)
        return self.by_fold != before

    def _end_turn(self, seconds_each: float) -> None:
        last, self._last = self._last, (self.by_fold, seconds_each)
        self._turns += 1
        if last is not None and last[0] != self.by_fold:
            self._ratios.append(seconds_each / last[1] if self.by_fold else last[1] / seconds_each)
        if seconds_each > TRIED_SECONDS:
            self._chosen = False
        elif len(self._ratios) < _PAIRS or self._turns % TURNS_UNTIL_RETRY == 0:
            self._chosen = not self.by_fold
        else:
            self._chosen = sorted(self._ratios)[_PAIRS // 2] < 1

    def _now(self) -> float:
        return time.perf_counter() - self.waited_seconds
