"""Bounds on seconds that hold on a busy machine too.

Where a test says that something happens within a second, it means that nothing is waited for. On a quiet machine the
bound is that second. Where other programs take the processors, all that runs gets them late, so a bound that was
exceeded is compared once more: with twice the seconds that this process itself needs for that much computing.
"""

import time
from typing import Final

PATIENCE_SECONDS: Final = 60.0  # until a test that would hang fails instead, on any machine
_SPIN_SECONDS: Final = 0.05
_BUSY: Final = 1.5  # the slowness from which on other programs are to blame
_LARGEST: Final = 60.0  # a wait without an end is found on any machine


def slowness() -> float:
    """Return how many seconds pass while this thread computes for one second: 1 where it has a processor of its own."""
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < _SPIN_SECONDS:
        pass
    return max((time.perf_counter() - began) / _SPIN_SECONDS, 1.0)


def is_prompt(took_seconds: float, within_seconds: float) -> bool:
    """Return whether something took no longer than it may, on a machine as busy as this one is now."""
    if took_seconds < within_seconds:
        return True
    slow = slowness()
    return slow > _BUSY and took_seconds < min(2 * slow * within_seconds, _LARGEST)
