"""Shared memory in which a crew describes its slots' jobs to processes, and they tell what became of them.

The slot ring orders all of it: a description is written before its slot is armed, an outcome and a place before their
block is finished. So none needs a lock, and a description is never read while it is written. A slot's merge is the
block after its last one.
"""

from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NamedTuple, Self, cast

import numpy as np

from penstock._memory import Region, create_region, open_region

if TYPE_CHECKING:
    from numpy.typing import NDArray

FINE: Final = 0
FAILED: Final = 1
"""The block raised, or can't be told here: the consumer computes it."""
IRREGULAR: Final = 2
"""The block's rows didn't fit the layout."""
NO_ROOM: Final = 3
"""What the block computed doesn't fit the memory that it was given."""
DEADLY: Final = 4
"""Processes die of it."""

_RECORD_BYTES: Final = 1 << 20  # addresses, of which as much is touched as a description takes
_HEAD: Final = 8  # words of a slot, before its blocks'
_TAKEN, _NEEDED, _DESCRIBED, _END, _ROWS, _NANOSECONDS, _CPU_NANOSECONDS, _MERGE_NANOSECONDS = range(_HEAD)
_BLOCK_WORDS: Final = 7  # where its parcel lies, and its notes, each with its size; how many died of it; its suspect
_DEATHS: Final = 4
_SUSPECT: Final = 5
_WORKER_WORDS: Final = 16
_SLOT, _JOB, _BLOCK, _IS_BUSY, _STEP, _ROW, _IS_ALONE, _SINCE, _PACE, _GROUP, _HAS_WORKED = range(11)
_UNKNOWN: Final = -1
_COMPUTING: Final = 1
_PREPARING: Final = 2


class Doing(NamedTuple):
    """What a worker is at, or was when it died."""

    slot: int
    job: int
    block: int
    step: int | None
    """Which of the job's steps, counted from 0, where it goes through them one by one."""
    row: int | None
    """Which of that step's rows; None where it is none of them, but the batch as a whole."""
    is_alone: bool
    """Whether it has come to that row before all others."""


class JobTable:
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
        places = 8 * (_HEAD + (blocks + 1) * _BLOCK_WORDS)
        self._words: NDArray[np.int64] = self._records[:, :places].view(np.int64)
        self._places = self._words[:, _HEAD:].reshape(slots, blocks + 1, _BLOCK_WORDS)
        self._outcomes = self._records[:, places : places + blocks + 1]
        self._description_start = places + blocks + 1
        words = np.frombuffer(cast("memoryview", region), np.int64, offset=slots * _RECORD_BYTES)
        self._workers: NDArray[np.int64] = words.reshape(-1, _WORKER_WORDS)

    @classmethod
    def create(cls, slots: int, blocks: int, workers: int) -> Self:
        """Make a board in new memory."""
        return cls(create_region(slots * _RECORD_BYTES + workers * _WORKER_WORDS * 8), slots, blocks)

    @classmethod
    def attach(cls, descriptor: int, slots: int, blocks: int) -> Self:
        """Use the board of another process."""
        return cls(open_region(descriptor), slots, blocks)

    # -- slots

    def describe(self, slot: int, description: bytes, taken_bytes: int) -> bool:
        """Write a slot's description, and take its blocks for fine; return whether there was room for it.

        Args:
            slot: which one; not armed.
            description: for the processes.
            taken_bytes: how much of the memory that blocks are given places in is taken already.
        """
        record, start = self._records[slot], self._description_start
        end = start + len(description)
        if end > _RECORD_BYTES:
            return False
        self._outcomes[slot] = FINE
        self._places[slot] = 0
        self._words[slot, :_HEAD] = taken_bytes, 0, len(description), end, 0, 0, 0, 0
        record[start:end] = np.frombuffer(description, np.uint8)
        return True

    def description(self, slot: int) -> bytes:
        """Return what was written for an armed slot."""
        start = self._description_start
        return bytes(self._records[slot, start : start + int(self._words[slot, _DESCRIBED])])

    def take_room(self, slot: int, size_bytes: int) -> int:
        """Return where in the slot's memory there is room that nobody else is given, if the memory is large enough."""
        return self._add(slot, _TAKEN, size_bytes)

    def _add(self, slot: int, word: int, amount: int) -> int:
        return self.region.add(slot * _RECORD_BYTES + 8 * word, amount)

    def need_room(self, slot: int, size_bytes: int) -> None:
        """Write how large a slot's memory should have been."""
        self._words[slot, _NEEDED] = size_bytes

    def needed(self, slot: int) -> int:
        """Return how large a slot's memory should have been, or how much of it was used."""
        return int(self._words[slot, [_TAKEN, _NEEDED]].max())

    def put(self, slot: int, block: int, start_bytes: int, size_bytes: int) -> None:
        """Write where what a block computed lies."""
        self._places[slot, block, :2] = start_bytes, size_bytes

    def place(self, slot: int, block: int) -> slice:
        """Return where what a block computed lies."""
        start, size = self._places[slot, block, :2].tolist()
        return slice(start, start + size)

    def note(self, slot: int, block: int, text: bytes) -> bool:
        """Write something about a block; return whether there was room for it."""
        start = self._add(slot, _END, len(text))
        if start + len(text) > _RECORD_BYTES:
            return False
        self._records[slot, start : start + len(text)] = np.frombuffer(text, np.uint8)
        self._places[slot, block, 2:_DEATHS] = start, len(text)
        return True

    def forget(self, slot: int, block: int) -> None:
        """Forget what was written about a block."""
        self._places[slot, block, 2:_DEATHS] = 0

    def notes(self, slot: int, outcome: int = FINE) -> list[bytes]:
        """Return what was written about those of a slot's blocks of which an outcome was told."""
        if int(self._words[slot, _END]) == self._description_start + int(self._words[slot, _DESCRIBED]):
            return []
        told = self._outcomes[slot] == outcome
        places: list[list[int]] = self._places[slot, told, 2:_DEATHS].tolist()
        return [bytes(self._records[slot, start : start + size]) for start, size in places if size]

    def tell(self, slot: int, block: int, outcome: int) -> None:
        """Write what became of a block."""
        self._outcomes[slot, block] = outcome

    def outcome(self, slot: int) -> int:
        """Return the worst of what became of a slot's blocks."""
        return int(self._outcomes[slot].max())

    def count_death(self, slot: int, block: int) -> int:
        """Count a worker that died of a block, or after it; return how many there were."""
        self._places[slot, block, _DEATHS] += 1
        return self.deaths(slot, block)

    def deaths(self, slot: int, block: int) -> int:
        """Return how many workers died of a block."""
        return int(self._places[slot, block, _DEATHS])

    def suspect(self, slot: int, block: int, step: int, row: int) -> None:
        """Write at which row of which of the job's steps a worker has died."""
        self._places[slot, block, _SUSPECT:] = step + 1, row

    def suspected(self, slot: int, block: int) -> tuple[int, int] | None:
        """Return the step and the row at which the last worker of a block has died; None if that isn't known."""
        step, row = self._places[slot, block, _SUSPECT:].tolist()
        return (step - 1, row) if step else None

    def any_deaths(self, slot: int) -> bool:
        """Return whether workers died of a slot's blocks."""
        return bool(self._places[slot, :, _DEATHS].any())

    def count(self, slot: int, rows: int, seconds: float, cpu_seconds: float) -> None:
        """Add rows, and the time they took, to what was computed in a slot."""
        self._add(slot, _ROWS, rows)
        self._add(slot, _NANOSECONDS, int(seconds * 1e9))
        self._add(slot, _CPU_NANOSECONDS, int(cpu_seconds * 1e9))

    def counted(self, slot: int) -> tuple[int, float, float]:
        """Return how many rows were computed in a slot, the seconds and the processor's seconds that they took."""
        rows, nanoseconds, cpu_nanoseconds = self._words[slot, _ROWS : _CPU_NANOSECONDS + 1].tolist()
        return rows, nanoseconds / 1e9, cpu_nanoseconds / 1e9

    def count_merge(self, slot: int, seconds: float) -> None:
        """Write how long the slot's merge took."""
        self._words[slot, _MERGE_NANOSECONDS] = int(seconds * 1e9)

    def counted_merge(self, slot: int) -> float:
        """Return how many seconds the slot's merge took."""
        return int(self._words[slot, _MERGE_NANOSECONDS]) / 1e9

    # -- workers

    def prepare(self, worker: int) -> None:
        """Write that a worker is being prepared, which is no block's work."""
        self._workers[worker, _SINCE] = monotonic_ns()
        self._workers[worker, _IS_BUSY] = _PREPARING

    def begin(self, worker: int, slot: int, job: int, block: int) -> None:
        """Write what a worker is at."""
        words = self._workers[worker]
        words[_SLOT : _BLOCK + 1] = slot, job, block
        words[_STEP : _SINCE + 1] = _UNKNOWN, _UNKNOWN, False, monotonic_ns()
        words[_IS_BUSY] = _COMPUTING

    def come_to(self, worker: int, step: int, row: int | None, *, is_alone: bool = False) -> None:
        """Write which row of which of the job's steps a worker has come to, and whether before all others."""
        at = step, _UNKNOWN if row is None else row, is_alone
        self._workers[worker, _STEP : _SINCE + 1] = *at, monotonic_ns()

    def end(self, worker: int) -> None:
        """Write that a worker is at nothing."""
        self._workers[worker, _IS_BUSY] = 0

    def finish(self, worker: int) -> None:
        """Write that a worker has finished a block, and is at nothing."""
        self._workers[worker, _HAS_WORKED] = 1
        self.end(worker)

    def has_worked(self, worker: int) -> bool:
        """Return whether a worker has ever finished a block."""
        return bool(self._workers[worker, _HAS_WORKED])

    def forget_worker(self, worker: int) -> None:
        """Forget what a worker has written of itself, before another one gets its number."""
        self._workers[worker] = 0

    def doing(self, worker: int) -> Doing | None:
        """Return what a worker is at, or was when it died; None if it is at no block."""
        slot, job, block, busy_with, step, row, is_alone = self._workers[worker, : _IS_ALONE + 1].tolist()
        if busy_with != _COMPUTING:
            return None
        at = None if step == _UNKNOWN else step, None if row == _UNKNOWN else row
        return Doing(slot, job, block, *at, bool(is_alone))

    def keep_pace(self, worker: int, group: int, nanoseconds: int) -> None:
        """Write how long a block takes a worker that keeps one of its group's processors busy; 0 if it doesn't."""
        self._workers[worker, _PACE : _GROUP + 1] = nanoseconds, group

    def paces(self, group: int, but: int) -> list[tuple[int, int]]:
        """Return, for each worker of a group that keeps a processor busy, when it began and how long blocks take it.

        Both are in nanoseconds, the first by `monotonic_ns`. It may have finished the block that it began.

        Args:
            group: of workers that may use the same processors.
            but: the worker that is left out.
        """
        records: list[list[int]] = self._workers[:, _SINCE : _GROUP + 1].tolist()
        return [
            (since, pace)
            for worker, (since, pace, its_group) in enumerate(records)
            if pace and its_group == group and worker != but
        ]

    def busy_since(self, worker: int) -> float | None:
        """Return since when, by `monotonic`, a worker is at what it is at; None if it is at nothing."""
        words = self._workers[worker]
        return int(words[_SINCE]) / 1e9 if words[_IS_BUSY] else None
