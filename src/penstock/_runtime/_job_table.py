"""The job table: shared memory in which the scheduler describes jobs to processes, and processes report about blocks.

It has a record for each slot: the job's description, and for each block an outcome, the memory of its result, its notes
and its crashes. It has a record for each worker: its block, since when, and how long its blocks take. A process that
crashes leaves its record as it was, so the scheduler knows the block, and the row, at which it crashed.

The slot ring orders all accesses: a description is written before its slot is armed; an outcome and a result's memory
are written before their block is finished. So no access needs a lock, which a killed process could keep, and a
description is never read while it is written. Counters that several processes add to are atomic.

The merge of a slot is the block after its last block of rows.
"""

from struct import Struct
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NamedTuple, Self, cast

import numpy as np

from penstock._memory import Region, create_region, open_region

if TYPE_CHECKING:
    from numpy.typing import NDArray

FINE: Final = 0
FAILED: Final = 1
"""The block raised, or its notes have no room here: the consumer computes it."""
IRREGULAR: Final = 2
"""Rows of the block don't fit the layout."""
NO_ROOM: Final = 3
"""The block's result doesn't fit the memory that it was given."""
CRASHING: Final = 4
"""The block crashes processes."""

_RECORD_BYTES: Final = 1 << 20  # of address space; only pages that were written to take memory
_HEAD: Final = 11  # words of a slot, before those of its blocks
_TAKEN, _NEEDED, _DESCRIBED, _END, _ROWS, _NANOSECONDS, _CPU_NANOSECONDS, _PARENT_NANOSECONDS, _MERGE_NANOSECONDS = (
    range(9)
)
_WAITED_NANOSECONDS: Final = 9
_IS_CANCELLED: Final = 10
_DESCRIPTION_HEAD: Final = Struct("=4q")  # the first four words
_BLOCK_WORDS: Final = 7  # start and size of its result, and of its notes; its crashes; the suspected batch and row
_CRASHES: Final = 4
_SUSPECT: Final = 5
_WORKER_WORDS: Final = 16
_SLOT, _JOB, _BLOCK, _IS_BUSY, _INDEX, _ROW, _IS_TRIAL, _SINCE, _PACE, _GROUP, _HAS_WORKED, _FINISHED = range(12)
_UNKNOWN: Final = -1
_COMPUTING: Final = 1
_PREPARING: Final = 2


class CurrentBlock(NamedTuple):
    """The block that a worker computes, or computed when it crashed."""

    slot: int
    job: int
    block: int
    batch_index: int | None
    """The index of the batch in the job, where the worker computes row by row."""
    row: int | None
    """The row of that batch; None where the worker computes the batch as a whole."""
    is_trial: bool
    """Whether that row is computed before all others of the block."""


class JobTable:
    """A record for each slot, and one for each worker.

    Args:
        region: the memory; zeroes where it is new.
        slots: the number of slots.
        blocks: the maximum number of row blocks of a slot.
    """

    def __init__(self, region: Region, slots: int, blocks: int) -> None:
        self.region = region
        records = np.frombuffer(cast("memoryview", region), np.uint8, slots * _RECORD_BYTES)
        self._records: NDArray[np.uint8] = records.reshape(slots, _RECORD_BYTES)
        places = 8 * (_HEAD + (blocks + 1) * _BLOCK_WORDS)
        self._words: NDArray[np.int64] = self._records[:, :places].view(np.int64)
        self._places = self._words[:, _HEAD:].reshape(slots, blocks + 1, _BLOCK_WORDS)
        self._outcomes = self._records[:, places : places + blocks + 1]
        self._all_fine = bytes([FINE]) * (blocks + 1)
        self._cleared = bytes(places) + self._all_fine
        self._description_start = len(self._cleared)
        words = np.frombuffer(cast("memoryview", region), np.int64, offset=slots * _RECORD_BYTES)
        self._workers: NDArray[np.int64] = words.reshape(-1, _WORKER_WORDS)

    @classmethod
    def create(cls, slots: int, blocks: int, workers: int) -> Self:
        """Make a table in new memory."""
        return cls(create_region(slots * _RECORD_BYTES + workers * _WORKER_WORDS * 8), slots, blocks)

    @classmethod
    def attach(cls, descriptor: int, slots: int, blocks: int) -> Self:
        """Open the table of another process."""
        return cls(open_region(descriptor), slots, blocks)

    # -- slots

    def describe(self, slot: int, description: bytes, taken_bytes: int) -> bool:
        """Write a slot's description, and mark its blocks as fine; return whether there was room.

        Args:
            slot: a slot that isn't armed.
            description: the job, for the processes.
            taken_bytes: how many bytes of the memory for its results are in use already.
        """
        record, start = self._records[slot], self._description_start
        end = start + len(description)
        if end > _RECORD_BYTES:
            return False
        data = record.data
        data[:start] = self._cleared
        _DESCRIPTION_HEAD.pack_into(data, 0, taken_bytes, 0, len(description), end)
        data[start:end] = description
        return True

    def description(self, slot: int) -> bytes:
        """Return the description of an armed slot."""
        start = self._description_start
        return bytes(self._records[slot, start : start + int(self._words[slot, _DESCRIBED])])

    def take_room(self, slot: int, size_bytes: int) -> int:
        """Reserve room in the slot's memory for results; return its start, which may be beyond the end of the memory.

        That memory is the region, if blocks make what is delivered, else the spill memory.
        """
        return self._add(slot, _TAKEN, size_bytes)

    def _add(self, slot: int, word: int, amount: int) -> int:
        return self.region.add(slot * _RECORD_BYTES + 8 * word, amount)

    def need_room(self, slot: int, size_bytes: int) -> None:
        """Write the size that a slot's memory should have had."""
        self._words[slot, _NEEDED] = size_bytes

    def needed(self, slot: int) -> int:
        """Return the size that a slot's memory should have had, or how much of it was used."""
        return int(max(self._words[slot, _TAKEN], self._words[slot, _NEEDED]))

    def put(self, slot: int, block: int, start_bytes: int, size_bytes: int) -> None:
        """Write the place of a block's result."""
        self._places[slot, block, :2] = start_bytes, size_bytes

    def place(self, slot: int, block: int) -> slice:
        """Return the place of a block's result."""
        start, size = self._places[slot, block, :2].tolist()
        return slice(start, start + size)

    def note(self, slot: int, block: int, text: bytes) -> bool:
        """Write a note about a block; return whether there was room for it."""
        start = self._add(slot, _END, len(text))
        if start + len(text) > _RECORD_BYTES:
            return False
        self._records[slot, start : start + len(text)] = np.frombuffer(text, np.uint8)
        self._places[slot, block, 2:_CRASHES] = start, len(text)
        return True

    def forget(self, slot: int, block: int) -> None:
        """Clear the note about a block."""
        self._places[slot, block, 2:_CRASHES] = 0

    def notes(self, slot: int, outcome: int = FINE) -> list[bytes]:
        """Return the notes about the blocks of a slot that have a given outcome."""
        if int(self._words[slot, _END]) == self._description_start + int(self._words[slot, _DESCRIBED]):
            return []
        blocks = self._outcomes[slot] == outcome
        places: list[list[int]] = self._places[slot, blocks, 2:_CRASHES].tolist()
        return [bytes(self._records[slot, start : start + size]) for start, size in places if size]

    def set_outcome(self, slot: int, block: int, outcome: int) -> None:
        """Write the outcome of a block."""
        self._outcomes[slot, block] = outcome

    def outcome(self, slot: int) -> int:
        """Return the worst outcome of a slot's blocks."""
        outcomes = self._outcomes[slot].tobytes()
        return FINE if outcomes == self._all_fine else max(outcomes)

    def count_crash(self, slot: int, block: int) -> int:
        """Count a crash at a block, or right after it; return the number of crashes so far."""
        self._places[slot, block, _CRASHES] += 1
        return self.crashes(slot, block)

    def crashes(self, slot: int, block: int) -> int:
        """Return the number of crashes at a block."""
        return int(self._places[slot, block, _CRASHES])

    def suspect(self, slot: int, block: int, index: int, row: int) -> None:
        """Write the index of the batch in the job, and its row, at which a worker crashed."""
        self._places[slot, block, _SUSPECT:] = index + 1, row

    def suspected(self, slot: int, block: int) -> tuple[int, int] | None:
        """Return the index of the batch and the row of a block's last crash; None if they aren't known."""
        index, row = self._places[slot, block, _SUSPECT:].tolist()  # counted from 1; new memory has zeroes
        return (index - 1, row) if index else None

    def any_crashes(self, slot: int) -> bool:
        """Return whether any worker crashed at a slot's blocks."""
        return bool(self._places[slot, :, _CRASHES].any())

    def count(self, slot: int, rows: int, seconds: float, cpu_seconds: float, parent_seconds: float) -> None:
        """Add rows, and their time, to the counts of a slot."""
        self._add(slot, _ROWS, rows)
        self._add(slot, _NANOSECONDS, int(seconds * 1e9))
        self._add(slot, _CPU_NANOSECONDS, int(cpu_seconds * 1e9))
        self._add(slot, _PARENT_NANOSECONDS, int(parent_seconds * 1e9))

    def counted(self, slot: int) -> tuple[int, float, float, float]:
        """Return the rows computed in a slot, their seconds, those of processor time, and those of their parents."""
        rows, total, cpu, parents = self._words[slot, _ROWS : _PARENT_NANOSECONDS + 1].tolist()
        return rows, total / 1e9, cpu / 1e9, parents / 1e9

    def count_wait(self, slot: int, seconds: float) -> None:
        """Add the time for which a worker waited for records that it had requested; `count` counts it as well."""
        self._add(slot, _WAITED_NANOSECONDS, int(seconds * 1e9))

    def waited(self, slot: int) -> tuple[float, float]:
        """Return the seconds for which workers waited for the slot's records, and those of other work at it."""
        waited = int(self._words[slot, _WAITED_NANOSECONDS])
        return waited / 1e9, max(int(self._words[slot, _NANOSECONDS]) - waited, 0) / 1e9

    def cancel(self, slot: int) -> None:
        """Write that the job of an armed slot is given up."""
        self._words[slot, _IS_CANCELLED] = 1

    def is_cancelled(self, slot: int) -> bool:
        """Return whether the job of an armed slot is given up; its claimed blocks need no results then."""
        return bool(self._words[slot, _IS_CANCELLED])

    def count_merge(self, slot: int, seconds: float) -> None:
        """Write the seconds of the slot's merge."""
        self._words[slot, _MERGE_NANOSECONDS] = int(seconds * 1e9)

    def counted_merge(self, slot: int) -> float:
        """Return the seconds of the slot's merge."""
        return int(self._words[slot, _MERGE_NANOSECONDS]) / 1e9

    # -- workers

    def prepare(self, worker: int) -> None:
        """Write that a worker is being prepared, and has no block yet."""
        self._workers[worker, _SINCE] = monotonic_ns()
        self._workers[worker, _IS_BUSY] = _PREPARING

    def begin(self, worker: int, slot: int, job: int, block: int) -> None:
        """Write the block that a worker begins."""
        words = self._workers[worker]
        words[_SLOT : _BLOCK + 1] = slot, job, block
        words[_INDEX : _SINCE + 1] = _UNKNOWN, _UNKNOWN, False, monotonic_ns()
        words[_IS_BUSY] = _COMPUTING

    def begin_row(self, worker: int, index: int, row: int | None, *, is_trial: bool = False) -> None:
        """Write the row that a worker begins, and the index of its batch; `is_trial`: before the rows of its block."""
        at = index, _UNKNOWN if row is None else row, is_trial
        self._workers[worker, _INDEX : _SINCE + 1] = *at, monotonic_ns()

    def end(self, worker: int) -> None:
        """Write that a worker is idle."""
        self._workers[worker, _IS_BUSY] = 0

    def finish(self, worker: int) -> None:
        """Write that a worker has finished a block, and is idle."""
        self._workers[worker, _HAS_WORKED] = 1
        self._workers[worker, _FINISHED] = monotonic_ns()
        self.end(worker)

    def idle_seconds(self, count: int = 1) -> float:
        """Return for how long some workers that have finished a block have had no other; 0 if fewer are idle."""
        since = sorted(words[_FINISHED] for words in self._workers.tolist() if words[_FINISHED] and not words[_IS_BUSY])
        return (monotonic_ns() - since[count - 1]) / 1e9 if len(since) >= count else 0.0

    def has_worked(self, worker: int) -> bool:
        """Return whether a worker has ever finished a block."""
        return bool(self._workers[worker, _HAS_WORKED])

    def forget_worker(self, worker: int) -> None:
        """Clear a worker's record, before another worker gets its number."""
        self._workers[worker] = 0

    def current_block(self, worker: int) -> CurrentBlock | None:
        """Return the block that a worker computes, or computed when it crashed; None if it is idle."""
        slot, job, block, busy_with, index, row, is_trial = self._workers[worker, : _IS_TRIAL + 1].tolist()
        if busy_with != _COMPUTING:
            return None
        at = None if index == _UNKNOWN else index, None if row == _UNKNOWN else row
        return CurrentBlock(slot, job, block, *at, bool(is_trial))

    def keep_pace(self, worker: int, group: int, nanoseconds: int) -> None:
        """Write the time of a block, for a worker that keeps one of its group's processors busy; 0 if it doesn't."""
        self._workers[worker, _PACE : _GROUP + 1] = nanoseconds, group

    def paces(self, group: int, but: int) -> list[tuple[int, int]]:
        """Return the start of the block and the time of a block for each worker in a group that keeps a processor busy.

        Both are in nanoseconds, the first by `monotonic_ns`. It may have finished the block that it began.

        Args:
            group: the number of the workers that may use the same processors.
            but: the worker to leave out.
        """
        records: list[list[int]] = self._workers[:, _SINCE : _GROUP + 1].tolist()
        return [
            (since, pace)
            for worker, (since, pace, its_group) in enumerate(records)
            if pace and its_group == group and worker != but
        ]

    def busy_since(self, worker: int) -> float | None:
        """Return the time, by `monotonic`, at which a worker began its block; None if it is idle."""
        words = self._workers[worker]
        return int(words[_SINCE]) / 1e9 if words[_IS_BUSY] else None
