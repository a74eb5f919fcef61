"""The time that functions of random datasets take: they work or wait before they return.

The definition is computed at once, without this time.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from tests.faults.chance import Chance

Kind = Literal["numpy", "python", "wait", "mixed"]

SECONDS: Final = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 2e-2)
EPOCH_SECONDS: Final = 1.5  # about the work of an epoch, on one processor
_KINDS_OF_WORK: Final[tuple[Kind, ...]] = ("numpy", "python", "wait", "mixed")
_STRAGGLES_ONE_IN: Final = 16
_STRAGGLERS_TIMES: Final = 5
_NUMBERS: Final = np.arange(2_000, dtype=np.float64)[::-1].copy()


class _Hurry:
    """Whether functions return at once, in this process."""

    is_on = False


def is_hurried() -> bool:
    """Return whether functions return at once, in this process."""
    return _Hurry.is_on


@contextmanager
def at_once() -> Generator[None]:
    """Let functions of this process return at once, for the definition."""
    before, _Hurry.is_on = _Hurry.is_on, True
    try:
        yield
    finally:
        _Hurry.is_on = before


@dataclass(frozen=True)
class Pace:
    """The time of each call (a few take several times as long), and the work meanwhile.

    It is NumPy's without the GIL, Python's with it, waiting, or a mixture of these.
    """

    kind: Kind
    seconds: float

    def spend(self) -> None:
        """Take the time."""
        if is_hurried():
            return
        now = time.perf_counter_ns()
        seconds = self.seconds * (_STRAGGLERS_TIMES if now // 64 % _STRAGGLES_ONE_IN == 0 else 1)
        kind = _KINDS_OF_WORK[now // 1_024 % 3] if self.kind == "mixed" else self.kind
        if kind == "wait":
            threading.Event().wait(seconds)
            return
        work = _numpy_work if kind == "numpy" else _python_work
        until = now + int(seconds * 1e9)
        while time.perf_counter_ns() < until:
            work()


def pace_for(chance: Chance, calls: int) -> Pace:
    """Return a random pace at which so many calls take a second or two at most."""
    return Pace(chance.one_of(_KINDS_OF_WORK), min(chance.one_of(SECONDS), EPOCH_SECONDS / calls))


def paced(pace: Pace, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a function's result after the time of the pace."""
    pace.spend()
    return function(*arguments)


def _numpy_work() -> None:
    np.sort(_NUMBERS)


def _python_work() -> None:
    sum(range(200))
