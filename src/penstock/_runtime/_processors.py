"""The processors that this program may use, the time that work takes on them, and a throttle of CPU-bound processes.

The throttle limits worker processes to the number of processors.

The number of processors is within the limits of system, container and launcher.

The problem of the throttle: with more computing processes than processors the system takes turns, and each turn finds
its data evicted from the caches. Decoding photographs took four processes on two processors a quarter longer than two.
Where blocks wait, for a disk or a server, all workers are needed, and none is throttled. Whether blocks wait is not
known before they run, and may change; so each process measures its own blocks.

Each process writes into the job table how long its blocks take. Before it claims a block, it counts the other processes
that compute, among those that may use the same processors (`worker_init` may divide them). If there are as many as
processors, it rests, and looks again. A process whose block takes four times as long as usual is not counted, since it
may be waiting this time; so a row that waits once leaves a processor idle for the time of a few blocks, or 50 ms.
Merges are not counted.

A throttled worker looks again on a timer; only the ring's end wakes it. No event marks the moment at which another
worker's row begins to wait, so there is nothing else that could wake it. A semaphore of as many permits as processors
was rejected: a killed process would keep its permit, and a row that waits would hold one.

A `Stopwatch` leaves out the time for which a thread waits for a processor. Jobs are cut by the time of their rows, and
on a busy machine the whole time made them several times as small, so that passing them on took the time. Processor time
alone would be wrong for rows that wait for storage: their jobs would take seconds. A thread that waits for storage, for
the interpreter's lock or for another thread gives up its processor, and the system counts that. So the whole time
counts for a block in which it did, and processor time for one in which it never did.

Guarantees:
  - A throttled worker holds no block and takes no other worker's wake-up. It looks again after 50 ms at most, so a
    block that no other worker claims is claimed then.
"""

import math
import os
import resource
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from penstock._decisions import THROTTLED, decide
from penstock._os import control_groups
from penstock._ring import SlotRing
from penstock._runtime._job_table import JobTable
from penstock._runtime._policy import (
    LATE_NANOSECONDS,
    LATE_PACES,
    LONGEST_REST_SECONDS,
    MAX_WAITING_SHARE,
    MEASURED_BLOCKS,
    SHORTEST_REST_SECONDS,
    UNMEASURED_BLOCKS,
)

LOCAL_RANKS = "LOCAL_WORLD_SIZE"  # launchers that start several ranks on a machine set it


def usable_processors(root: str = "/", environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processors the program may use, at least 1.

    Args:
        root: the directory that contains `proc` and `sys`.
        environment: the environment variables; `LOCAL_WORLD_SIZE` is the number of programs that share the processors.
    """
    count = processor_share(root)
    ranks = environment.get(LOCAL_RANKS, "")
    if ranks.isdecimal() and int(ranks) > 1:
        count /= int(ranks)
    return max(math.floor(count), 1)


def processor_share(root: str = "/") -> float:
    """Return how many processors this thread and the threads it starts may use; it may be a fraction."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(count), *_quotas(root)])


def _quotas(root: str) -> Iterator[float]:
    """Yield the numbers of processors that the control groups of this program, and those above them, may use."""
    for group in control_groups("cpu", root):
        with suppress(ValueError, IndexError):  # no quota: "max", -1, or no file
            files = ("cpu.max",) if group.is_unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [word for file in files for word in group.words(file)]
            quota, period = int(words[0]), int(words[1])
            if quota > 0 and period > 0:
                yield quota / period


_BLINK: Final = 1e-3  # seconds
_BLINKS: Final = 8  # at least one of them is a wait, also on a very busy machine


class Processors(NamedTuple):
    """The processors that a process may use."""

    number: int
    group: int
    """The same number for all processes that may use the same processors."""
    workers: int
    """The number of worker processes, on these processors or others; larger than `number`."""


def shared_processors(num_workers: int, root: str = "/") -> Processors | None:
    """Return the processors of this process, if there are fewer than workers; else None.

    Args:
        num_workers: the number of worker processes.
        root: the directory that contains `proc` and `sys`.
    """
    # A fraction of a processor counts as one more: other ranks may leave their share idle.
    number = math.ceil(processor_share(root))
    if number >= num_workers:
        return None
    return Processors(number, zlib.crc32(repr(sorted(os.sched_getaffinity(0))).encode()), num_workers)


class Worked(NamedTuple):
    """The time of some work in one thread."""

    seconds: float
    """From its begin to its end."""
    cpu_seconds: float
    """The processor time."""
    waits: int
    """The number of times that the thread gave up its processor to wait."""
    are_counted: bool
    """Whether the system counts these waits."""

    @property
    def own_seconds(self) -> float:
        """The time, without the waits for a processor if there were no other waits."""
        is_known = self.are_counted and not self.waits
        return min(self.cpu_seconds, self.seconds) if is_known else self.seconds


class Stopwatch:
    """Measures the work of the calling thread, from now on."""

    def __init__(self) -> None:
        self._waits, self._began, self._cpu_began = _waits(), time.perf_counter(), time.thread_time()

    def worked(self) -> Worked:
        """Return the time of the work so far."""
        seconds, cpu_seconds = time.perf_counter() - self._began, time.thread_time() - self._cpu_began
        waits = _waits()
        return Worked(seconds, cpu_seconds, waits - self._waits, waits > 0)


class CpuThrottle:
    """One worker process among the others.

    Args:
        job_table: processes write the times of their blocks there.
        ring: the process rests on it.
        worker: the number of the process.
        processors: the processors of this process; None turns the throttle off.
    """

    def __init__(self, job_table: JobTable, ring: SlotRing, worker: int, processors: Processors | None) -> None:
        self._job_table = job_table
        self._ring = ring
        self._worker = worker
        self._processors = processors
        if processors is not None and not self._counts_waits():
            self._processors = None
        self._blocks = -UNMEASURED_BLOCKS
        self._seconds = 0.0  # the mean time of a block
        self._waiting_seconds = 0.0
        job_table.keep_pace(worker, 0, 0)  # clears the entry of the worker that had the number before

    def _counts_waits(self) -> bool:
        # On a system that doesn't count waits, no block would seem to wait. A rest may be over before
        # it begins, because other processes had the processor meanwhile; then it is no wait. So several are tried.
        before = _waits()
        for _ in range(_BLINKS):
            self._ring.rest(_BLINK)
            if _waits() > before:
                return True
        return False

    @property
    def is_steady(self) -> bool:
        """Whether enough blocks were measured, and they hardly wait."""
        return self._blocks >= MEASURED_BLOCKS and self._waiting_seconds <= MAX_WAITING_SHARE * self._seconds

    def worked(self, seconds: float, cpu_seconds: float, waits: int) -> None:
        """Record a block.

        Args:
            seconds: the time that it took.
            cpu_seconds: the processor time that it took.
            waits: how often it waited. If it never waited, other processes had the processor in the rest of the time;
                otherwise all of the rest counts as waiting.
        """
        processors = self._processors
        if processors is None:
            return
        self._blocks += 1
        if self._blocks <= 0:
            return
        weight = 1 / min(self._blocks, MEASURED_BLOCKS)
        self._seconds += weight * (seconds - self._seconds)
        self._waiting_seconds += weight * ((seconds - cpu_seconds if waits else 0.0) - self._waiting_seconds)
        self._publish(processors)

    def wait_for_processor(self) -> None:
        """Wait until fewer other processes compute than there are processors, or the ring is stopped."""
        if decide(THROTTLED, 0):
            self._ring.rest(_BLINK)
        processors = self._processors
        if processors is None or not self.is_steady:
            return
        # Of two workers that look at the same time, at most one may count the other.
        self._job_table.keep_pace(self._worker, processors.group, 0)
        # All workers together look as often as a few workers would.
        shortest = SHORTEST_REST_SECONDS * processors.workers / processors.number
        while (left := self._crowded_for(processors)) > 0 and not self._ring.stopped:
            self._ring.rest(min(max(left, shortest), LONGEST_REST_SECONDS))
        self._publish(processors)

    def _publish(self, processors: Processors) -> None:
        self._job_table.keep_pace(self._worker, processors.group, int(self._seconds * 1e9) if self.is_steady else 0)

    def _crowded_for(self, processors: Processors) -> float:
        """Return for how many seconds too many other processes count as computing, if none finishes its block."""
        others = self._job_table.paces(processors.group, but=self._worker)
        if len(others) < processors.number:
            return 0.0
        ends = sorted(since + LATE_PACES * pace + LATE_NANOSECONDS for since, pace in others)
        return (ends[-processors.number] - time.monotonic_ns()) / 1e9


def _waits() -> int:
    # Voluntary context switches: how often this thread gave up its processor to wait.
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
