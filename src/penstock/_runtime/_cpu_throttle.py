"""Who of more worker processes than processors stands aside, while blocks only compute.

More of them would finish little sooner, if at all. They take turns at the processors, and each turn finds its data
pushed out of the caches: photographs took four processes on two processors a quarter longer than two. Where blocks
wait, for a disk or a server, all workers are needed, and nobody stands aside.

Each process tells the others by the board how long a block takes it. Before it claims one, it looks whether as many
others as there are processors are at work, of those that may use the same ones: `worker_init` may share them out. One
whose block takes far longer than usual counts no more, since it may be waiting for once; so a row that waits for once
idles a processor for the time of a few blocks, or 50 ms. Merges count for nothing here.

Nobody wakes who stands aside but the ring's end: that a row waits is no event to anyone, so there is no more to be told
of it than the time.

Guarantees:
  - Who stands aside holds no block and takes nobody's wake-up. It looks again after 50 ms at most, so what nobody else
    claims is claimed then.
"""

import math
import os
import resource
import time
import zlib
from typing import Final, NamedTuple

from penstock._decisions import ASIDE, decide
from penstock._ring import SlotRing
from penstock._runtime._autotune._processors import processor_share
from penstock._runtime._job_table import JobTable

_FIRST: Final = 4  # blocks that tell nothing, since they import and open what others find there
_BLOCKS: Final = 32  # which pace and waiting are means of; so many are done before anyone stands aside
_MAX_WAITING: Final = 1 / 32  # of the time
_LATE_PACES: Final = 4  # a block that takes longer may be waiting
_LATE_NANOSECONDS: Final = 1_000_000  # what a scheduler or a fault may add to that
_SHORTEST_REST, _LONGEST_REST = 0.01, 0.05  # seconds: looking at the others costs them cache, too
_BLINK: Final = 1e-3  # seconds
_BLINKS: Final = 8  # of which one is a wait, on a machine however busy


class Processors(NamedTuple):
    """What a process may use."""

    number: int
    group: int
    """The same for whoever may use the same ones."""
    workers: int
    """How many processes there are, on these or other ones; more than processors."""


def shared_processors(num_workers: int, root: str = "/") -> Processors | None:
    """Return what this process may use, where that many workers might be too many for it; else None.

    Args:
        num_workers: how many processes there are.
        root: where the file system with `proc` and `sys` is.
    """
    # A part of a processor's time takes one more process; other ranks may leave their share idle.
    number = math.ceil(processor_share(root))
    if number >= num_workers:
        return None
    return Processors(number, zlib.crc32(repr(sorted(os.sched_getaffinity(0))).encode()), num_workers)


class CpuThrottle:
    """One worker process among the others.

    Args:
        job_table: where processes tell their paces.
        ring: where it rests.
        worker: its number.
        processors: how many processes can be at work at once; None if there are no more of them than that.
    """

    def __init__(self, job_table: JobTable, ring: SlotRing, worker: int, processors: Processors | None) -> None:
        self._job_table = job_table
        self._ring = ring
        self._worker = worker
        self._processors = processors
        if processors is not None and not self._counts_waits():
            self._processors = None
        self._blocks = -_FIRST
        self._seconds = 0.0  # of a block, in the mean
        self._waiting_seconds = 0.0
        job_table.keep_pace(worker, 0, 0)  # its predecessor's may stand there

    def _counts_waits(self) -> bool:
        # Else all blocks would look as if they only computed. A blink that is over before it begins, since others
        # had the processor meanwhile, is no wait.
        before = _waits()
        for _ in range(_BLINKS):
            self._ring.rest(_BLINK)
            if _waits() > before:
                return True
        return False

    @property
    def is_steady(self) -> bool:
        """Whether enough blocks have been seen, and they hardly wait."""
        return self._blocks >= _BLOCKS and self._waiting_seconds <= _MAX_WAITING * self._seconds

    def waits(self) -> int:
        """Return how often this thread has waited until now, where that is of use."""
        return 0 if self._processors is None else _waits()

    def worked(self, seconds: float, cpu_seconds: float, waits: int) -> None:
        """Learn of a block.

        Args:
            seconds: how long it took.
            cpu_seconds: of which it computed so long.
            waits: how often it waited. If never, others had its processor while it didn't compute; else all of that
                time counts as waiting.
        """
        processors = self._processors
        if processors is None:
            return
        self._blocks += 1
        if self._blocks <= 0:
            return
        weight = 1 / min(self._blocks, _BLOCKS)
        self._seconds += weight * (seconds - self._seconds)
        self._waiting_seconds += weight * ((seconds - cpu_seconds if waits else 0.0) - self._waiting_seconds)
        self._tell(processors)

    def stand_aside(self) -> None:
        """Wait until fewer others are at work than there are processors, or the ring is stopped."""
        if decide(ASIDE, 0):
            self._ring.rest(_BLINK)
        processors = self._processors
        if processors is None or not self.is_steady:
            return
        self._job_table.keep_pace(self._worker, processors.group, 0)  # of two that look at once, not both shall see two
        shortest = _SHORTEST_REST * processors.workers / processors.number  # together they look as often as a few do
        while (left := self._crowded_for(processors)) > 0 and not self._ring.stopped:
            self._ring.rest(min(max(left, shortest), _LONGEST_REST))
        self._tell(processors)

    def _tell(self, processors: Processors) -> None:
        self._job_table.keep_pace(self._worker, processors.group, int(self._seconds * 1e9) if self.is_steady else 0)

    def _crowded_for(self, processors: Processors) -> float:
        """Return how long as many others as processors count as being at work, if they finish nothing; in seconds."""
        others = self._job_table.paces(processors.group, but=self._worker)
        if len(others) < processors.number:
            return 0.0
        ends = sorted(since + _LATE_PACES * pace + _LATE_NANOSECONDS for since, pace in others)
        return (ends[-processors.number] - time.monotonic_ns()) / 1e9


def _waits() -> int:
    # How often this thread gave up its processor by itself, as who waits for something does.
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
