"""A throttle that limits CPU-bound worker processes to the number of processors.

With more computing processes than processors the system takes turns, and each turn finds its data evicted from the
caches: decoding photographs took four processes on two processors a quarter longer than two. Where blocks wait, for a
disk or a server, all workers are needed, and none is throttled. Whether blocks wait is not known before they run, and
may change; so each process measures its own blocks.

Each process writes into the job table how long its blocks take. Before it claims a block, it counts the other processes
that compute, among those that may use the same processors (`worker_init` may divide them). If there are as many as
processors, it rests, and looks again. A process whose block takes four times as long as usual is not counted, since it
may be waiting this time; so a row that waits once leaves a processor idle for the time of a few blocks, or 50 ms.
Merges are not counted.

A throttled worker looks again on a timer; only the ring's end wakes it. No event marks the moment at which another
worker's row begins to wait, so there is nothing else that could wake it. A semaphore of as many permits as processors
was rejected: a killed process would keep its permit, and a row that waits would hold one.

Guarantees:
  - A throttled worker holds no block and takes no other worker's wake-up. It looks again after 50 ms at most, so a
    block that no other worker claims is claimed then.
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

_FIRST: Final = 4  # first blocks, which import modules and open files, and so measure nothing
_BLOCKS: Final = 32  # that the means are over; no worker is throttled before so many
_MAX_WAITING: Final = 1 / 32  # of the time
_LATE_PACES: Final = 4  # a block that takes longer may be waiting
_LATE_NANOSECONDS: Final = 1_000_000  # that the system's scheduler or a page fault may add to that
_SHORTEST_REST, _LONGEST_REST = 0.01, 0.05  # seconds; looking at the table costs the others cache misses
_BLINK: Final = 1e-3  # seconds
_BLINKS: Final = 8  # of which one is a wait, on a machine however busy


class Processors(NamedTuple):
    """The processors that a process may use."""

    number: int
    group: int
    """The same number for all processes that may use the same processors."""
    workers: int
    """How many processes there are, on these or other ones; more than processors."""


def shared_processors(num_workers: int, root: str = "/") -> Processors | None:
    """Return the processors of this process, if there are fewer than workers; else None.

    Args:
        num_workers: how many processes there are.
        root: where the file system with `proc` and `sys` is.
    """
    # A fraction of a processor counts as one more: other ranks may leave their share idle.
    number = math.ceil(processor_share(root))
    if number >= num_workers:
        return None
    return Processors(number, zlib.crc32(repr(sorted(os.sched_getaffinity(0))).encode()), num_workers)


class CpuThrottle:
    """One worker process among the others.

    Args:
        job_table: processes write their paces there.
        ring: the process rests on it.
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
        job_table.keep_pace(worker, 0, 0)  # clears that of the worker that had the number before

    def _counts_waits(self) -> bool:
        # On a system that doesn't count waits, all blocks would look as if they only computed. A rest that is over
        # before it begins, since others had the processor meanwhile, is no wait; so it is tried several times.
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
        """Return how often this thread has waited until now; 0 where the throttle is off."""
        return 0 if self._processors is None else _waits()

    def worked(self, seconds: float, cpu_seconds: float, waits: int) -> None:
        """Learn of a block.

        Args:
            seconds: how long it took.
            cpu_seconds: how long it computed.
            waits: how often it waited. If never, other processes had its processor while it didn't compute; else all
                of the rest counts as waiting.
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

    def wait_for_processor(self) -> None:
        """Wait until fewer others compute than there are processors, or the ring is stopped."""
        if decide(ASIDE, 0):
            self._ring.rest(_BLINK)
        processors = self._processors
        if processors is None or not self.is_steady:
            return
        self._job_table.keep_pace(
            self._worker, processors.group, 0
        )  # of two workers that look at once, at most one may count the other
        shortest = (
            _SHORTEST_REST * processors.workers / processors.number
        )  # together they look as often as a few workers do
        while (left := self._crowded_for(processors)) > 0 and not self._ring.stopped:
            self._ring.rest(min(max(left, shortest), _LONGEST_REST))
        self._tell(processors)

    def _tell(self, processors: Processors) -> None:
        self._job_table.keep_pace(self._worker, processors.group, int(self._seconds * 1e9) if self.is_steady else 0)

    def _crowded_for(self, processors: Processors) -> float:
        """Return for how many seconds too many others count as computing, if none of them finishes a block."""
        others = self._job_table.paces(processors.group, but=self._worker)
        if len(others) < processors.number:
            return 0.0
        ends = sorted(since + _LATE_PACES * pace + _LATE_NANOSECONDS for since, pace in others)
        return (ends[-processors.number] - time.monotonic_ns()) / 1e9


def _waits() -> int:
    # Voluntary context switches: how often this thread gave up its processor to wait.
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
