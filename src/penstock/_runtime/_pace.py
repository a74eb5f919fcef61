"""Who of more worker processes than processors stands aside, while blocks only compute.

More of them would finish nothing sooner. They take turns at the processors, and each turn finds its data pushed out of
the caches: photographs took four processes on two processors a quarter longer than two. Where blocks wait, for a disk
or a server, all workers are needed, and nobody stands aside.

Each process tells the others by the board how long a block takes it. Before it claims one, it looks whether as many
others as there are processors are at work, of those that may use the same ones: `worker_init` may share them out. One
whose block takes far longer than usual counts no more, since it may be waiting for once; so a row that waits for once
idles a processor for the time of a few blocks, or 50 ms.

Guarantees:
  - Who stands aside holds no block, is woken by no one in another's place, and looks again after 50 ms at most: all
    that is claimed here is claimed a little later, if nobody else does.
"""

import os
import resource
import time
import zlib
from typing import Final, NamedTuple

from penstock._runtime._board import Board
from penstock._runtime._choosing._processors import usable_processors
from penstock.transport._ring import SlotRing

_FIRST: Final = 4  # blocks that tell nothing, since they import and open what others find there
_BLOCKS: Final = 32  # which pace and waiting are means of; so many are done before anyone stands aside
_MOST_WAITING: Final = 1 / 32  # of the time
_USUAL: Final = 4  # paces that a block takes at most,
_HICCUP_NANOSECONDS: Final = 1_000_000  # and what a scheduler or a fault adds
_SHORTEST_REST, _LONGEST_REST = 0.01, 0.05  # seconds: to look at the others costs them cache, too


class Processors(NamedTuple):
    """What a process may use."""

    number: int
    group: int
    """The same for whoever may use the same ones."""


def shared_processors(num_workers: int) -> Processors | None:
    """Return what this process may use, where that many workers might be too many for it; else None."""
    number = usable_processors(environment={})  # other ranks may leave theirs idle
    if number >= num_workers:
        return None
    return Processors(number, zlib.crc32(repr(sorted(os.sched_getaffinity(0))).encode()))


class Pace:
    """One worker process among the others.

    Args:
        board: where processes tell their paces.
        ring: where it rests.
        worker: its number.
        processors: how many processes can be at work at once; None if there are no more of them than that.
    """

    def __init__(self, board: Board, ring: SlotRing, worker: int, processors: Processors | None) -> None:
        self._board = board
        self._ring = ring
        self._worker = worker
        # A system that counts no waits would show none here, after all that a process waits for until it begins.
        self._processors = processors if _waits() else None
        self._blocks = -_FIRST
        self._seconds = 0.0  # of a block, in the mean
        self._waiting_seconds = 0.0
        board.keep_pace(worker, 0, 0)  # its predecessor's may stand there

    @property
    def is_steady(self) -> bool:
        """Whether enough blocks have been seen, and they hardly wait."""
        return self._blocks >= _BLOCKS and self._waiting_seconds <= _MOST_WAITING * self._seconds

    def waits(self) -> int:
        """Return how often this thread has waited until now, where that is of use."""
        return 0 if self._processors is None else _waits()

    def worked(self, seconds: float, cpu_seconds: float, waits: int) -> None:
        """Learn of a block.

        Args:
            seconds: how long it took.
            cpu_seconds: of which it computed so long.
            waits: how often it waited. If never, all that it didn't compute it was kept off its processor by others.
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
        processors = self._processors
        if processors is None or not self.is_steady:
            return
        while (left := self._crowded_for(processors)) > 0 and not self._ring.stopped:
            self._board.keep_pace(self._worker, processors.group, 0)
            self._ring.rest(min(max(left, _SHORTEST_REST), _LONGEST_REST))
        self._tell(processors)

    def _tell(self, processors: Processors) -> None:
        self._board.keep_pace(self._worker, processors.group, int(self._seconds * 1e9) if self.is_steady else 0)

    def _crowded_for(self, processors: Processors) -> float:
        """Return for how many seconds at least as many others count as being at work, if they finish nothing."""
        others = self._board.paces(processors.group, but=self._worker)
        if len(others) < processors.number:
            return 0.0
        ends = sorted(since + _USUAL * pace + _HICCUP_NANOSECONDS for since, pace in others)
        return (ends[-processors.number] - time.monotonic_ns()) / 1e9


def _waits() -> int:
    # How often this thread gave up its processor by itself, as who waits for something does.
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
