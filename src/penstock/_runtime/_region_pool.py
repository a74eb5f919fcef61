"""The memory that one loader's jobs are computed in: regions that are lent to jobs, and those that wait for one.

Changed with the crew owned.
"""

from typing import Protocol

from penstock._memory import Region


class Lender(Protocol):
    """Has memory of its own for jobs."""

    def allocate(self, size_bytes: int) -> Region | None:
        """Return memory for a job, or None if it is to be allocated as usual."""
        ...

    def discard(self, region: Region) -> None:
        """Take back memory, if it is of this."""
        ...

    def await_return(self) -> bool:
        """Wait until memory may have come back, or won't: what is lent is kept by who waits for more; False then."""
        ...


class RegionPool:
    """Knows which of its regions are lent, by job number, and which lie idle; who owns the crew allocates them."""

    def __init__(self) -> None:
        self.most_idle = 0
        """How many regions are worth keeping while nobody uses them."""
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
