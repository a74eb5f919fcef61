"""The memory of one client's jobs, for its scheduler and its queue."""

import sys
from typing import Final

from penstock._memory import Region, forks
from penstock._runtime._policy import COPIED_BYTES, MAX_KEPT

ANY_SIZE: Final = sys.maxsize
"""The largest size of a region where all are small enough."""


class RegionPool:
    """The memory of one client's jobs: leased regions and idle ones. It changes with the scheduler owned.

    Args:
        copies: whether all arrays are copied out of it.
        is_bounded: whether there is a bound on its bytes. Copies, which nothing counts, would evade it.
    """

    def __init__(self, *, copies: bool, is_bounded: bool) -> None:
        self.most_idle = 0
        """The number of idle regions that are worth keeping."""
        self._copies, self._is_bounded = copies, is_bounded
        self._leased: dict[int, Region] = {}
        self._used: dict[int, int] = {}  # bytes in use of each
        self._forks: dict[int, int] = {}  # before each was leased
        self._idle: list[Region] = []
        self._jobs = 0  # that were delivered
        self._delivered: dict[int, int] = {}  # for leased regions of delivered jobs: the jobs delivered before

    @property
    def leased(self) -> int:
        """The number of regions that are being written, ready or viewed."""
        return len(self._leased)

    @property
    def used_bytes(self) -> int:
        """The bytes in use of the leased regions."""
        return sum(self._used.copy().values())

    def take(self, least_bytes: int, most_bytes: int) -> Region | None:
        """Remove and return an idle region of a size between these two; None if there is none."""
        for index in reversed(range(len(self._idle))):  # the region that was returned last may still be in the caches
            if least_bytes <= len(self._idle[index]) <= most_bytes:
                return self._idle.pop(index)
        return None

    def put_back(self, region: Region) -> None:
        """Make a region idle again that was taken, or is new, and wasn't leased."""
        self._idle.append(region)

    def add(self, number: int, region: Region) -> None:
        """Record that a region is leased to a job."""
        self._leased[number] = region
        self._used[number] = len(region)
        self._forks[number] = forks()

    def use(self, number: int, used_bytes: int) -> None:
        """Record how many bytes of a job's region are in use."""
        self._used[number] = used_bytes

    def delivered(self, number: int) -> None:
        """Record that the consumer has a job, with its region if it has one."""
        if number in self._leased:
            self._delivered[number] = self._jobs
            self._jobs += 1

    def kept(self, newest: int) -> int:
        """Return the number of regions that are viewed, without those of the newest delivered jobs.

        Args:
            newest: the number of jobs whose batches a loop uses in passing.
        """
        return sum(before < self._jobs - newest for before in self._delivered.copy().values())

    def copied_bytes(self, newest: int) -> int:
        """Return the size of arrays that are copied out of a region, at most: that of all, if many regions are kept.

        Args:
            newest: as for `kept`.
        """
        copies_all = self._copies or (not self._is_bounded and self.kept(newest) > MAX_KEPT)
        return sys.maxsize if copies_all else COPIED_BYTES

    def take_back(self, number: int) -> list[Region]:
        """Record that a job's region is idle again; remove and return it if the process was forked meanwhile.

        The child may have the batches in it, and would see what is written there next.
        """
        region = self._leased.pop(number)
        del self._used[number]
        self._delivered.pop(number, None)
        if self._forks.pop(number) != forks():
            return [region]
        self._idle.append(region)
        return []

    def oldest(self) -> list[Region]:
        """Remove and return the region that has been idle for longest, if there is any."""
        return [self._idle.pop(0)] if self._idle else []

    def close(self) -> list[Region]:
        """Remove and return all idle regions; from now on none is worth keeping."""
        self.most_idle = 0
        return self.spare()

    def spare(self) -> list[Region]:
        """Remove and return the idle regions beyond the number worth keeping."""
        count = max(len(self._idle) - self.most_idle, 0)
        spared, self._idle = self._idle[:count], self._idle[count:]
        return spared
