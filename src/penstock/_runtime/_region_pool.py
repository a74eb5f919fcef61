"""The memory of one loader's jobs: regions that are leased to jobs, and idle ones.

Changed with the scheduler owned.
"""

from typing import Protocol

from penstock._memory import Region


class Lender(Protocol):
    """A provider of memory for jobs, in place of the scheduler's."""

    def allocate(self, size_bytes: int) -> Region | None:
        """Return memory for a job, or None if it is to be allocated as usual."""
        ...

    def discard(self, region: Region) -> None:
        """Take back memory, if it came from here."""
        ...

    def await_return(self) -> bool:
        """Wait for a region; False if the consumer holds all."""
        ...


class RegionPool:
    """Knows which regions are leased, by job number, and which are idle; the scheduler's owner allocates them."""

    def __init__(self) -> None:
        self.most_idle = 0
        """How many idle regions are worth keeping."""
        self._lent: dict[int, Region] = {}
        self._used: dict[int, int] = {}  # how many bytes of each
        self._idle: list[Region] = []

    @property
    def lent(self) -> int:
        """How many regions are being written, ready or viewed."""
        return len(self._lent)

    @property
    def used_bytes(self) -> int:
        """How many bytes of them."""
        return sum(self._used.copy().values())

    def take(self, size_bytes: int) -> Region | None:
        """Take out an idle region that is large enough, if there is any."""
        for index in reversed(range(len(self._idle))):  # the last one returned is still in the caches
            if len(self._idle[index]) >= size_bytes:
                return self._idle.pop(index)
        return None

    def lend(self, number: int, region: Region) -> None:
        """Note that a job has a region."""
        self._lent[number] = region
        self._used[number] = len(region)

    def use(self, number: int, used_bytes: int) -> None:
        """Note how much of a job's region is used."""
        self._used[number] = used_bytes

    def take_back(self, number: int) -> None:
        """Note that a job has its region no longer."""
        self._idle.append(self._lent.pop(number))
        del self._used[number]

    def oldest(self) -> list[Region]:
        """Take out the region that has been idle for longest, if there is any."""
        return [self._idle.pop(0)] if self._idle else []

    def spare(self) -> list[Region]:
        """Take out the idle regions that are more than are worth keeping."""
        count = max(len(self._idle) - self.most_idle, 0)
        spared, self._idle = self._idle[:count], self._idle[count:]
        return spared
