"""A crew of processes: its slots are described on a board, its memory is shared, and a death is nobody's loss.

Only the consumer arms slots, so the processes are busy as long as there is a window of jobs to do; between them and the
consumer nothing is sent. What they failed on the consumer computes itself.

Guarantees, beyond a crew's:
  - A process may be killed anywhere: its block is computed by another, and the batches stay as they are. A block
    that has killed one is gone through row by row, so that the row that kills the third is known: a WorkerError names
    it, in the place of its batch.
"""

import pickle
import sys
from contextlib import suppress
from typing import Any, Final, cast

from penstock._graph._apply import Context
from penstock._plan._plan import Plan
from penstock._runtime._board import DEADLY, FAILED, FINE, IRREGULAR, NO_ROOM, Board, Doing
from penstock._runtime._crew import BLOCKS, SLOTS, Crew
from penstock._runtime._jobs import Job
from penstock._runtime._parcels import LARGE_BYTES, read
from penstock._runtime._process_work import Described, shared, work
from penstock._runtime._tasks import SharedJob, task_of
from penstock._runtime._trouble import NO_TROUBLE, Trouble
from penstock._workers._processes import Starting, Work, WorkerProcesses
from penstock.errors import InternalError, WorkerError
from penstock.events import Observer, WorkerDied
from penstock.transport._arena._table import create_region
from penstock.transport._memory import Lease, Region, aligned
from penstock.transport._ring import SlotRing

_MOST_DEATHS: Final = 3  # of one block
_DEADLY_CHARACTERS: Final = 500  # of what is told of an element; without the stack of one that hung
_ROOM_BYTES: Final = 1 << 28  # addresses: no page is there before something lies in it


class ProcessCrew(Crew):
    """Owns the ring, the board, the memory, and the processes.

    Beside the memory of batches there is *spill* memory, for what processes hand to each other, and elements to the
    consumer. A job has it until it is complete.

    Args:
        plan: sent to each process.
        observe: told of the events of jobs, and of each death.
    """

    shares = True

    def __init__(self, plan: Plan, observe: Observer) -> None:
        self._plan = plan
        self._observe = observe
        self._board = Board.create(SLOTS, BLOCKS, plan.num_workers)
        self._newest = -1  # number of a region
        self._regions: dict[int, tuple[int, Region]] = {}  # by identity: its number, and itself
        self._room_bytes = _ROOM_BYTES
        self._spills: dict[int, Region] = {}  # by slot
        self._idle_spills: list[Region] = []
        self._leases: dict[int, Lease] = {}  # by slot, of what is merged
        self._deaths: dict[int, tuple[Doing, WorkerError]] = {}  # by job number: of the first row that processes die of
        self._counted = 0, 0.0, 0.0
        self._jobs_numbers = [0] * SLOTS
        super().__init__(plan.num_workers, _unused, merges=1, worker_init=None)

    # -- the workers, and their memory

    def _make_ring(self) -> SlotRing:
        return SlotRing.shared(BLOCKS, capacity=SLOTS)

    def _start(self) -> None:
        self._shared_plan = shared(self._plan)
        descriptors = (*self._ring.descriptors(), self._board.region.descriptor, self._shared_plan.descriptor)
        self._processes = WorkerProcesses(
            self._ring,
            self.num_workers,
            Work(work, descriptors, self._plan.limits.timeout),
            self,
            Starting(self._plan.limits.start_method, self._plan.limits.worker_threads),
        )

    def _stop(self) -> None:
        self._processes.close()

    def _allocate(self, size_bytes: int) -> Region:
        region = create_region(size_bytes)
        self._newest += 1
        number = self._newest
        self._processes.share(number, region.descriptor)
        self._regions[id(region)] = number, region
        return region

    def _discard(self, regions: list[Region]) -> None:
        for region in regions:
            number, _ = self._regions.pop(id(region))
            self._processes.unshare(number)

    def _let_go(self) -> None:
        super()._let_go()
        self._discard(self._idle_spills)
        self._idle_spills.clear()

    def _region_bytes(self, job: Job) -> int:
        return self._room_bytes if job.has_merge else job.memory_bytes

    def _lend(self, job: Job, lease: Lease) -> None:
        self._used[self._number] = job.memory_bytes  # of a room there are pages as far as something lies in it
        if job.has_merge:
            self._leases[self._number] = lease
        else:
            job.use(lease)

    def _spill_of(self, slot: int, job: SharedJob) -> Region | None:
        """Return memory for what a job's processes hand on, if there is any."""
        if not job.has_merge and job.row_bytes:
            self._discard(self._idle_spills)  # of the first jobs, before a row's layout was known
            self._idle_spills.clear()
            return None
        size = max(self._room_bytes, 2 * job.row_bytes)
        while self._idle_spills and len(self._idle_spills[-1]) < size:
            self._discard([self._idle_spills.pop()])
        region = self._spills[slot] = self._idle_spills.pop() if self._idle_spills else self._allocate(size)
        return region

    def _hand_out(self, slot: int, job: Job, region: Region | None) -> None:
        job = cast("SharedJob", job)
        self._learn_times()
        spill = self._spill_of(slot, job)
        described = Described(
            self._number,
            task_of(job),
            None if spill is None else self._regions[id(spill)][0],
            None if region is None else self._regions[id(region)][0],
            tuple(known for known, _ in self._regions.values()),
            {at: str(self.deadly[at])[:_DEADLY_CHARACTERS] for at in job.among(self.deadly)} if self.deadly else {},
        )
        taken = aligned(job.row_bytes)
        if not self._board.describe(slot, pickle.dumps(described, pickle.HIGHEST_PROTOCOL), taken):
            self._board.describe(slot, pickle.dumps(None), taken)  # which they fail on
        self._ring.arm(slot, self._number, job.blocks, merge=job.has_merge and job.joins)
        self._jobs_numbers[slot] = self._number

    def _learn_times(self) -> None:
        counted = self._board.counted()
        rows, seconds, cpu_seconds = (now - before for now, before in zip(counted, self._counted, strict=True))
        self._counted = counted
        self.learned.timed(int(rows), seconds, cpu_seconds)

    def _conclude(self, slot: int, job: Job) -> None:
        job = cast("SharedJob", job)
        number = self._jobs_numbers[slot]
        lease, spill = self._leases.pop(number, None), self._spills.pop(slot, None)
        outcome = self._board.outcome(slot)
        job.failed = outcome != FINE
        job.trouble = self._trouble_of(slot, number) if job.failed else NO_TROUBLE
        if outcome == IRREGULAR:
            self.learned.is_irregular = True
        if outcome == NO_ROOM:
            self._room_bytes = max(self._room_bytes, 2 * self._board.needed(slot))
        if not job.failed and self._ring.ready(slot):
            for note in self._board.notes(slot):
                for event in pickle.loads(note):
                    self._observe(event)
            if spill is not None:
                with suppress(Exception):  # of the elements' own, which the consumer then meets
                    job.failed = True
                    self._take(slot, job, lease, spill)
                    job.failed = False
        if spill is not None:
            self._idle_spills.append(spill)

    def _trouble_of(self, slot: int, number: int) -> Trouble:
        at, death = self._deaths.pop(number, (None, None))
        complaint = b"".join(self._board.notes(slot, FAILED)[:1]).decode(errors="replace").strip()
        step, row = (0, None) if at is None or at.step is None else (at.step, at.row)
        return Trouble(death, step, row, self._board.any_deaths(slot), complaint)

    def _take(self, slot: int, job: SharedJob, lease: Lease | None, spill: Region) -> None:
        """Take what a job's processes made."""
        if lease is None:
            for block in range(job.blocks):
                elements: Any = read(spill, self._board.place(slot, block), sys.maxsize)
                job.take_elements(block, elements)
            job.run_merge(Context())
            return
        place = self._board.place(slot, job.blocks)
        merged: Any = read(lease, place, sys.maxsize if self._plan.copy else LARGE_BYTES)
        job.take_merged(merged)
        self._used[self._jobs_numbers[slot]] = place.stop
        each = (self._board.needed(slot) + place.stop) / max(job.row_count, 1)
        self.learned.merged_row_bytes = max(self.learned.merged_row_bytes, each)

    # -- the watchers of the processes

    def busy_since(self, number: int) -> float | None:
        """Return since when a process is at what it is at; None if it is at nothing."""
        return self._board.busy_since(number)

    def died(self, number: int, pid: int, death: WorkerError) -> tuple[int, int] | None:
        """Tell of a death; return the slot and the block that the process was at if that has killed enough of them."""
        at = self._board.doing(number)
        self._board.end(number)  # the next one with this number begins at nothing
        job = None if at is None else self._job_of(at)
        step, rows = (None, None) if at is None or job is None else job.extent(at.block)
        self._observe(WorkerDied(number, pid, death.exit_code, str(death), step, rows))
        if at is None or job is None or self._board.count_death(at.slot, at.block) < _MOST_DEATHS:
            return None
        known = self._deaths.get(at.job)
        if known is None or (at.step or 0, at.row or 0) < (known[0].step or 0, known[0].row or 0):
            self._deaths[at.job] = at, death
        self._board.tell(at.slot, at.block, DEADLY)
        return at.slot, at.block

    def _job_of(self, at: Doing) -> Job | None:
        # Else the process had finished its block, and the slot has gone on to another job.
        return self._jobs[at.slot] if self._jobs_numbers[at.slot] == at.job else None

    def fail(self, error: BaseException) -> None:
        """Have the consumer told that there are no processes."""
        self._worker_error = error
        self.ring_bell()


def _unused() -> Context:
    raise InternalError("processes make their own contexts")
