"""A crew of processes: its slots are described on a board, its memory is shared, and a death is nobody's loss.

Only the consumer arms slots, so the processes are busy as long as there is a window of jobs to do; between them and the
consumer nothing is sent but batches that don't lie in shared memory. What they failed on the consumer computes itself.

Guarantees, beyond a crew's:
  - A process may be killed anywhere: its block is computed by another, and the batches stay as they are. A block that
    kills one process after the other is told of by a WorkerError in the place of its batches.
"""

import pickle
from typing import cast

from penstock._graph._apply import Context
from penstock._plan._plan import Batches, Plan
from penstock._runtime._board import DEADLY, FINE, IRREGULAR, Board
from penstock._runtime._crew import BLOCKS, SLOTS, Crew
from penstock._runtime._jobs import BatchJob, Job, can_be_cut
from penstock._runtime._process_work import Described, Sent, pickled, work
from penstock._workers._processes import Work, WorkerProcesses
from penstock.errors import InternalError, WorkerError
from penstock.transport._arena._table import create_region
from penstock.transport._memory import Region
from penstock.transport._ring import SlotRing


class ProcessCrew(Crew):
    """Owns the ring, the board, the memory, and the processes.

    Args:
        plan: of an indexable dataset; sent to each process.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._board = Board.create(SLOTS, BLOCKS, plan.num_workers)
        self._newest = -1  # number of a region
        self._regions: dict[int, tuple[int, Region]] = {}  # by identity: its number, and itself
        self._expected: dict[int, Sent | None] = {}  # by job number: what a whole job is to send
        self._deaths: dict[int, WorkerError] = {}
        self._counted = 0, 0.0, 0.0
        self._jobs_numbers = [0] * SLOTS
        super().__init__(plan.num_workers, _unused, merges=1, worker_init=None)

    def cuts(self, program: Batches) -> bool:
        return can_be_cut(program, self.learned)

    # -- the workers, and their memory

    def _make_ring(self) -> SlotRing:
        return SlotRing.shared(BLOCKS, capacity=SLOTS)

    def _start(self) -> None:
        descriptors = (*self._ring.descriptors(), self._board.region.descriptor)
        self._processes = WorkerProcesses(
            self._ring,
            self.num_workers,
            Work(work, descriptors, pickled(self._plan)),
            self,
            self._plan.limits.start_method,
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

    def _hand_out(self, slot: int, job: Job, region: Region | None) -> None:
        job = cast("BatchJob", job)
        self._learn_times()
        number = None if region is None else self._regions[id(region)][0]
        living = tuple(known for known, _ in self._regions.values())
        described = Described(
            self._number,
            job.course,
            None if job.is_whole else job.block_rows,
            job.layout,
            number,
            living,
            self._newest,
        )
        if job.is_whole:
            self._expected[self._number] = None
        if not self._board.describe(slot, pickle.dumps(described, pickle.HIGHEST_PROTOCOL), job.blocks):
            self._board.describe(slot, pickle.dumps(None), job.blocks)  # which they fail on
        self._ring.arm(slot, self._number, job.blocks)
        self._jobs_numbers[slot] = self._number

    def _learn_times(self) -> None:
        counted = self._board.counted()
        rows, seconds, cpu_seconds = (now - before for now, before in zip(counted, self._counted, strict=True))
        self._counted = counted
        self.learned.timed(int(rows), seconds, cpu_seconds)

    def _is_complete(self, slot: int) -> bool:
        if not self._ring.ready(slot):
            return False
        job = self._jobs[slot]
        if job is None or self._board.outcome(slot, job.blocks) != FINE:
            return True
        number = self._jobs_numbers[slot]
        return number not in self._expected or self._expected[number] is not None

    def _conclude(self, slot: int, job: Job) -> None:
        job = cast("BatchJob", job)
        number = self._jobs_numbers[slot]
        sent, outcome = self._expected.pop(number, None), self._board.outcome(slot, job.blocks)
        job.failed = outcome != FINE
        job.death = self._deaths.pop(number, None)
        if outcome == IRREGULAR:
            self.learned.is_irregular = True
        if sent is not None:
            job.deliver(sent.batches)
            self.learned.layout = self.learned.layout or sent.layout
            self.learned.timed(sent.rows, sent.seconds, sent.cpu_seconds)

    # -- the watchers of the processes

    def doing(self, number: int) -> tuple[int, int, int] | None:
        """Return what a process is at."""
        return self._board.doing(number)

    def told(self, message: object) -> None:
        """Take the batches of a whole job."""
        if isinstance(message, Sent) and message.number in self._expected:
            self._expected[message.number] = message
            self.ring_bell()

    def condemn(self, slot: int, job: int, block: int, death: WorkerError) -> None:
        """Have the consumer told of a block that kills processes."""
        at = self._jobs[slot]
        rows = "what the processes compute here kills them"
        if isinstance(at, BatchJob) and not at.is_whole:
            first = block * at.block_rows
            last = min(first + at.block_rows, at.row_count) - 1
            rows = f"{f'row {first}' if first == last else f'one of the rows {first} to {last}'} kills processes"
        if self._jobs_numbers[slot] != job:
            return  # it had finished it
        self._deaths[job] = WorkerError(f"{rows}, one after the other; the last: {death}", exit_code=death.exit_code)
        self._board.tell(slot, block, DEADLY)

    def fail(self, error: BaseException) -> None:
        """Have the consumer told that there are no processes."""
        self._worker_error = error
        self.ring_bell()


def _unused() -> Context:
    raise InternalError("processes make their own contexts")
