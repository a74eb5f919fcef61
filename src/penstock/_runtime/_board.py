"""Shared memory in which a crew describes its slots' jobs to processes, and they tell what became of them.

The slot ring orders all of it: a description is written before its slot is armed, an outcome before its block is
finished. So neither needs a lock, and a description is never read while it is written.
"""

from typing import TYPE_CHECKING, Final, Self, cast

import numpy as np

from penstock.transport._arena._table import create_region, open_region
from penstock.transport._memory import Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

FINE: Final = 0
FAILED: Final = 1
"""The block raised, or can't be told here: the consumer computes it."""
IRREGULAR: Final = 2
"""The block's rows didn't fit the layout."""
DEADLY: Final = 3
"""Processes die of it."""

_RECORD_BYTES: Final = 1 << 16  # of which as much is touched as a description takes
_WORKER_WORDS: Final = 8
_SLOT, _JOB, _BLOCK, _IS_BUSY, _ROWS, _NANOSECONDS, _CPU_NANOSECONDS = range(7)


class Board:
    """A record for each slot, and one for each worker.

    Args:
        region: the memory; zeroes where it is new.
        slots: how many slots there are.
        blocks: row blocks of a slot, at most.
    """

    def __init__(self, region: Region, slots: int, blocks: int) -> None:
        self.region = region
        records = np.frombuffer(cast("memoryview", region), np.uint8, slots * _RECORD_BYTES)
        self._records: NDArray[np.uint8] = records.reshape(slots, _RECORD_BYTES)
        words = np.frombuffer(cast("memoryview", region), np.int64, offset=slots * _RECORD_BYTES)
        self._workers: NDArray[np.int64] = words.reshape(-1, _WORKER_WORDS)
        self._blocks = blocks

    @classmethod
    def create(cls, slots: int, blocks: int, workers: int) -> Self:
        """Make a board in new memory."""
        return cls(create_region(slots * _RECORD_BYTES + workers * _WORKER_WORDS * 8), slots, blocks)

    @classmethod
    def attach(cls, descriptor: int, slots: int, blocks: int) -> Self:
        """Use the board of another process."""
        return cls(open_region(descriptor), slots, blocks)

    # -- slots

    def describe(self, slot: int, description: bytes, blocks: int) -> bool:
        """Write a slot's description, and take its blocks for fine; return whether there was room for it."""
        record, start = self._records[slot], self._blocks + 8
        if start + len(description) > _RECORD_BYTES:
            return False
        record[:blocks] = FINE
        record[self._blocks : start].view(np.int64)[0] = len(description)
        record[start : start + len(description)] = np.frombuffer(description, np.uint8)
        return True

    def description(self, slot: int) -> bytes:
        """Return what was written for an armed slot."""
        record, start = self._records[slot], self._blocks + 8
        size = int(record[self._blocks : start].view(np.int64)[0])
        return bytes(record[start : start + size])

    def tell(self, slot: int, block: int, outcome: int) -> None:
        """Write what became of a block."""
        self._records[slot, block] = outcome

    def outcome(self, slot: int, blocks: int) -> int:
        """Return the worst of what became of a slot's blocks."""
        return int(self._records[slot, :blocks].max())

    # -- workers

    def begin(self, worker: int, slot: int, job: int, block: int) -> None:
        """Write what a worker is at."""
        words = self._workers[worker]
        words[_SLOT], words[_JOB], words[_BLOCK] = slot, job, block
        words[_IS_BUSY] = 1

    def end(self, worker: int) -> None:
        """Write that a worker is at nothing."""
        self._workers[worker, _IS_BUSY] = 0

    def doing(self, worker: int) -> tuple[int, int, int] | None:
        """Return the slot, job and block that a worker is at, or was when it died; None if it is at none."""
        words = self._workers[worker]
        return (int(words[_SLOT]), int(words[_JOB]), int(words[_BLOCK])) if words[_IS_BUSY] else None

    def count(self, worker: int, rows: int, seconds: float, cpu_seconds: float) -> None:
        """Add rows and the time they took to a worker's."""
        self._workers[worker, _ROWS : _CPU_NANOSECONDS + 1] += (rows, int(seconds * 1e9), int(cpu_seconds * 1e9))

    def counted(self) -> tuple[int, float, float]:
        """Return all workers' rows so far, the seconds and the processor's seconds that they took."""
        rows, nanoseconds, cpu_nanoseconds = self._workers[:, _ROWS : _CPU_NANOSECONDS + 1].sum(axis=0).tolist()
        return rows, nanoseconds / 1e9, cpu_nanoseconds / 1e9
