"""The threads that claim blocks from a ring, and run them."""

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeAlias

from penstock._memory import RECYCLED_BYTES, allow_recycled, recycle_arrays
from penstock._os import DaemonThread
from penstock._processes import FUNCTION_SECONDS
from penstock._ring import Claim, SlotRing

_logger = logging.getLogger("penstock")
RunClaim: TypeAlias = Callable[[Claim], None]
"""Runs a claimed block, or the merge."""


class WorkerThreads:
    """Owns `count` threads; each claims, runs and finishes blocks until the ring is stopped."""

    def __init__(self, ring: SlotRing, count: int, make_run: Callable[[int], RunClaim]) -> None:
        """Start the threads.

        Args:
            ring: the ring in which blocks are claimed.
            count: the number of threads, at least 1.
            make_run: called in each thread, with its number; returns the function that runs a claimed block there, and
                must not raise.
        """
        self._ring = ring
        self._recycled_bytes = RECYCLED_BYTES
        allow_recycled(self._recycled_bytes)
        # The threads refer only to the ring and this function, so that the owner of this object can be collected.
        self._threads: list[DaemonThread] = []
        try:
            for number in range(count):
                self._threads.append(DaemonThread(partial(_run_claims, ring, number, make_run), f"penstock-{number}"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop claiming blocks, and wait for those that run."""
        self._ring.stop()
        deadline = monotonic() + FUNCTION_SECONDS
        for thread in self._threads:
            if not thread.is_current:
                thread.wait(max(deadline - monotonic(), 0.0))
        stuck = [thread.name for thread in self._threads if not thread.has_ended]
        if stuck:
            _logger.warning("still inside a function of the dataset after %s s: %s", FUNCTION_SECONDS, stuck)
        self._threads = []
        recycled_bytes, self._recycled_bytes = self._recycled_bytes, 0  # another thread may close this, too
        allow_recycled(-recycled_bytes)


def _run_claims(ring: SlotRing, number: int, make_run: Callable[[int], RunClaim]) -> None:
    recycle_arrays()
    run = make_run(number)
    while (claim := ring.claim_wait(number)) is not None:
        run(claim)
        ring.finish(claim.slot, claim.block, number)
        del claim  # so that a waiting thread keeps nothing alive
