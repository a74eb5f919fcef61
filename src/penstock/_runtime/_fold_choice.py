"""The choices between workers and the thread of a fold, to compute the elements below the fold and the steps above it.

The problem: many elements take a microsecond, such as a document that is a view of a token array, and so do many
functions of batches. Worker threads that compute them hold the interpreter's lock, which the thread of the fold needs
for its own work, so two workers made packing slower than none. Where functions take long and release the lock, workers
are several times as fast. No time of an element shows which it is. So the two are tried in turns, and the rate of the
whole fold decides.

A turn is some milliseconds of the fold's thread, without its waits for room. Each turn by one that follows a turn by
the other shows which is faster; the median of the last such pairs decides, since other programs slow down single turns,
and long ones differ from each other for the same reason. From time to time the slower one is tried again. Rejected: a
bound for the time of an element alone, since it doesn't show whether functions release the lock. What takes long is
left to the workers untried, since the thread of the fold would have one at a time:
  - elements below the fold that take more than `TRIED_SECONDS`: what passing them on costs is less than a hundredth;
  - steps above the fold that take longer than the fold's own part of a batch.
And steps above that take less time than passing a batch on (`PASSED_SECONDS`) are not left to the workers.

The steps above a fold are tried once the choice below it is made, so that a turn shows the difference of one choice.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock._decisions import ABOVE_BY_FOLD, READ_BY_FOLD, Decision, decide
from penstock._runtime._policy import LEFT_AGAIN_TIMES, PASSED_SECONDS, TRIED_SECONDS, TURN_SECONDS, TURNS_UNTIL_RETRY

_PAIRS: Final = 5  # the last ones, whose median decides: it needs three of them to change it


class FoldChoice(ABC):
    """A choice for one loader. The thread of the fold alone uses it, in one epoch after the other.

    Attributes:
        by_fold: whether the thread of the fold computes the next elements.
        waited_seconds: the time for which that thread has waited for room.
    """

    _DECISION: Decision

    def __init__(self) -> None:
        self.by_fold = False
        self.waited_seconds = 0.0
        self._chosen = False  # `by_fold`, unless decisions are random
        self._turns = 0
        self._last: tuple[bool, float] | None = None  # of the turn before: `by_fold`, and the time of an element
        self._ratios: deque[float] = deque(maxlen=_PAIRS)  # of an element's time by the fold to that by workers
        self._first = 0
        self._began = 0.0

    @abstractmethod
    def _certain(self, seconds_each: float) -> bool | None:
        """Return `by_fold` for the next turn, after one in which an element took so long; None if trials decide."""

    def begin(self, number: int) -> None:
        """Begin a turn with the element `number`."""
        self._first, self._began = number, self._now()

    def changes(self, number: int) -> bool:
        """Return whether the other one computes from element `number` on; those before it are folded."""
        seconds = self._now() - self._began
        if seconds >= TURN_SECONDS and number > self._first:
            self._end_turn(seconds / (number - self._first))
            self.begin(number)
        before, self.by_fold = self.by_fold, bool(decide(self._DECISION, int(self._chosen)))
        if self.by_fold != before:
            self.begin(number)
        return self.by_fold != before

    def _end_turn(self, seconds_each: float) -> None:
        last, self._last = self._last, (self.by_fold, seconds_each)
        self._turns += 1
        if last is not None and last[0] != self.by_fold:
            self._ratios.append(seconds_each / last[1] if self.by_fold else last[1] / seconds_each)
        certain = self._certain(seconds_each)
        if certain is not None:
            self._chosen = certain
        elif len(self._ratios) < _PAIRS or self._turns % TURNS_UNTIL_RETRY == 0:
            self._chosen = not self.by_fold
        else:
            self._chosen = sorted(self._ratios)[_PAIRS // 2] < 1

    def _now(self) -> float:
        return time.perf_counter() - self.waited_seconds


class ReadChoice(FoldChoice):
    """The choice between workers and the fold's thread for the elements below the fold."""

    _DECISION = READ_BY_FOLD

    def __init__(self) -> None:
        super().__init__()
        self._is_used = False

    @property
    def is_settled(self) -> bool:
        """Whether both were tried, or it was seen that one shouldn't be; also where there is nothing to choose."""
        return not self._is_used or self._turns > 2 * _PAIRS

    def begin(self, number: int) -> None:
        self._is_used = True
        super().begin(number)

    def _certain(self, seconds_each: float) -> bool | None:
        return False if seconds_each > TRIED_SECONDS else None


class AboveChoice(FoldChoice):
    """The same choice for the steps above the fold; its elements are batches.

    Args:
        below: the choice of the same fold's elements, which knows its waits for room.
        above_seconds: returns the time that the steps above take for a batch, as workers have measured it; None before.
    """

    _DECISION = ABOVE_BY_FOLD

    def __init__(self, below: ReadChoice, above_seconds: Callable[[], float | None]) -> None:
        super().__init__()
        self._below = below
        self._above_seconds = above_seconds
        self._workers_each = 0.0  # the time of a batch in the last turn by workers

    def changes(self, number: int) -> bool:
        if not self._below.is_settled:
            self.begin(number)
        return super().changes(number)

    def _certain(self, seconds_each: float) -> bool | None:
        if not self.by_fold:
            self._workers_each = seconds_each
        elif seconds_each > LEFT_AGAIN_TIMES * self._workers_each:
            return False  # a function takes long from some batch on; while workers apply it, they measure it
        above = self._above_seconds()
        if above is None or above > self._workers_each:
            return False
        return True if above <= PASSED_SECONDS else None

    def _now(self) -> float:
        return time.perf_counter() - self._below.waited_seconds


class FoldChoices:
    """The choices of one loader.

    Attributes:
        read: for the elements below the fold.
        above: for the steps above it; None where only workers may apply them.
    """

    def __init__(self) -> None:
        self.read = ReadChoice()
        self.above: AboveChoice | None = None
