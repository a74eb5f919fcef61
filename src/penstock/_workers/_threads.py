"""Worker threads, which run tasks claimed from a slot ring.

Guarantees:
  - A claimed task runs exactly once, and is finished in the ring afterwards. The task itself reports exceptions to its
    owner, and must not raise.
  - `close` returns when no task runs any more, or after `FUNCTION_SECONDS`: a thread can't be stopped inside a user's
    function. Threads are daemons, so one that is stuck there doesn't keep the process alive.
"""

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic

from penstock._os import DaemonThread
from penstock._processes import FUNCTION_SECONDS
from penstock._ring import Claim, SlotRing

_logger = logging.getLogger("penstock")

Task = Callable[[Claim], None]


class WorkerThreads:
    """Owns `count` threads; each claims, runs and finishes tasks until the ring is stopped."""

    def __init__(self, ring: SlotRing, count: int, make_task: Callable[[int], Task]) -> None:
        """Start the threads.

        Args:
            ring: where tasks are claimed.
            count: how many threads, at least 1.
            make_task: called in each thread, with its number; returns the function that runs a claimed task there.
        """
        self._ring = ring
        # The threads hold only the ring and the task function, so that the owner of this object can be collected.
        self._threads = [
            DaemonThread(partial(_work, ring, number, make_task), f"penstock-{number}") for number in range(count)
        ]

    def close(self) -> None:
        """Stop claiming, and wait for the tasks that run."""
        self._ring.stop()
        deadline = monotonic() + FUNCTION_SECONDS
        for thread in self._threads:
            if not thread.is_current:
                thread.wait(max(deadline - monotonic(), 0.0))
        stuck = [thread.name for thread in self._threads if not thread.has_ended]
        if stuck:
            _logger.warning("still inside a function of the dataset after %s s: %s", FUNCTION_SECONDS, stuck)
        self._threads = []


def _work(ring: SlotRing, number: int, make_task: Callable[[int], Task]) -> None:
    task = make_task(number)
    while (claim := ring.claim_wait(number)) is not None:
        task(claim)
        ring.finish(claim.slot, claim.block, number)
        del claim  # holds nothing while waiting
