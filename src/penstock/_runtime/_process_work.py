"""The work of a worker process: it computes the blocks of jobs that the job table describes, in the scheduler's memory.

Rows are written straight into their batch where their layout is known. Else elements are written into spill memory, for
the process that merges them, or for the consumer. A block that raises is marked as failed; the consumer computes it
again, so that the user's exception is raised in the consumer's thread.
"""

import mmap
import os
import pickle
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from penstock._caught import Caught
from penstock._decisions import DELAY_MICROSECONDS, decide
from penstock._graph import Context, leave_accelerators
from penstock._memory import Region, aligned, open_region
from penstock._pickles import dump_by_value
from penstock._plan._plan import Plan
from penstock._processes import error_text, pack_error
from penstock._ring import Claim, SlotRing
from penstock._runtime._collate_job import CollateJob
from penstock._runtime._cpu_throttle import CpuThrottle, shared_processors
from penstock._runtime._file_semaphore import FileSemaphore
from penstock._runtime._job_failure import ToldError
from penstock._runtime._job_table import FAILED, FINE, IRREGULAR, NO_ROOM, JobTable
from penstock._runtime._jobs import ComeTo
from penstock._runtime._pickle_buffers import read, write
from penstock._runtime._process_regions import Regions
from penstock._runtime._scheduler import BLOCKS, SLOTS
from penstock._runtime._tasks import SharedJob, Task, job_of
from penstock._workers._processes import Inherited, SharedDescriptors
from penstock._workers._stack import answer_with_stack
from penstock.batching import LayoutMismatchError
from penstock.errors import InternalError, UsageError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.events import Event

OWNERS_PLAN: Final = -1
"""The number of the plan that a process gets at its start; others have those of the memory they lie in."""

_WORDS_CHARACTERS: Final = 500
_TRACEBACK_CHARACTERS: Final = 2_000  # from its end


class Described(NamedTuple):
    """A job, as it is described to processes."""

    number: int
    plan: int
    """The number of the plan that it is part of."""
    task: Task
    spill: int | None
    """The number of the memory for what processes hand to each other or to the consumer; None where there is none."""
    region: int | None
    """The number of the memory for batches; None where elements are what is wanted."""
    living: tuple[int, ...]
    """The numbers of all memory that was in use when the job was armed; a process lets go of others."""
    crashing_rows: dict[tuple[int, ...], str]
    """The errors of the job's rows that crash processes, as in `Context`."""


class _NoRoomError(Exception):
    """The result of a block doesn't fit its memory."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class _ElsewhereError(Exception):
    """Only the consumer can compute this."""


def work(pipe: "Connection[Any, Any]", number: int, descriptors: Inherited, *, needs: bytes = b"") -> None:
    """Run tasks until the ring is stopped.

    Args:
        pipe: to the scheduler.
        number: of this worker.
        descriptors: of the scheduler's memory.
        needs: names the modules that the fork server imports before; not used here.
    """
    del needs
    leave_accelerators()
    memory, bell, board_memory, plan_memory, *stack = descriptors.taken
    ring = SlotRing.attach(memory, bell)
    job_table = JobTable.attach(board_memory, SLOTS, BLOCKS)
    region = open_region(plan_memory)
    for descriptor in (memory, bell, board_memory, plan_memory):
        os.close(descriptor)
    if stack:
        answer_with_stack(stack[0])  # which is open as long as the process lives
    program = _prepared(pipe, number, region, job_table)
    if program is not None:
        _Worker(pipe, number, ring, job_table, program).run()


class _Program(NamedTuple):
    """The work for one loader."""

    plan: Plan
    merging: FileSemaphore


def _program(region: Region, number: int) -> _Program:
    """Return what a worker computes by the plan in some memory, which it locks for its turns to merge."""
    # What is done to a source here, by intent or not, is neither another process's nor its successor's.
    private = mmap.mmap(region.descriptor, len(region), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    plan = cast("Plan", read(private, slice(None), 0))
    return _Program(plan, FileSemaphore(region, plan.limits.num_batch_workers or plan.prefetch, number))


def _prepared(pipe: "Connection[Any, Any]", number: int, region: Region, job_table: JobTable) -> _Program | None:
    """Return the program of a process that is ready to work, and tell whether it is."""
    with Caught() as caught:
        program = _program(region, number)
        if program.plan.limits.worker_init is not None:
            job_table.prepare(number)
            program.plan.limits.worker_init(number)
            job_table.end(number)
        pipe.send_bytes(pickle.dumps(None))
        return program
    error = caught.taken()
    error.add_note(f"while worker {number} was being prepared, in a process of its own")
    pipe.send_bytes(pickle.dumps(pack_error(error)))
    return None


class _Worker:
    """Runs what it claims."""

    def __init__(
        self, pipe: "Connection[Any, Any]", number: int, ring: SlotRing, job_table: JobTable, program: _Program
    ) -> None:
        self._pipe = pipe
        self._number = number
        self._ring = ring
        self._job_table = job_table
        self._pace = CpuThrottle(job_table, ring, number, shared_processors(program.plan.num_workers))
        self._programs = {OWNERS_PLAN: program}
        self._regions = Regions(SharedDescriptors(pipe))
        self._events: list[Event] = []  # of the block at hand
        self._is_elsewhere = False  # whether only the consumer can tell what becomes of the block at hand
        self._context = Context(observe=self._events.append, substituted=self._substituted)
        self._jobs: dict[int, tuple[Described, SharedJob]] = {}  # by slot
        self._living: tuple[int, ...] = ()  # memory that was in use when the last job was armed

    def run(self) -> None:
        """Work until there is nothing to be done any more."""
        while (claim := self._claim()) is not None:
            slot, block = claim.slot, claim.block
            if delay := decide(DELAY_MICROSECONDS, 0):
                self._ring.rest(delay / 1e6)
            self._job_table.begin(self._number, slot, claim.number, block)
            self._events.clear()
            self._is_elsewhere = False
            come_to: ComeTo | None = None
            if self._job_table.deaths(slot, block):
                # What has killed a process is gone through with care, so that it is known what kills the next one.
                come_to = partial(self._job_table.come_to, self._number)
                self._job_table.forget(slot, block)  # what the dead one has told
            with Caught() as caught:
                self._compute(claim, come_to)
                if self._is_elsewhere:
                    raise _ElsewhereError
                if self._events and not self._job_table.note(slot, block, pickle.dumps(self._events)):
                    raise _ElsewhereError
            outcome = self._outcome(slot, caught.error)
            if outcome == FAILED:
                self._job_table.note(slot, block, _complaint(caught.error))
            self._job_table.tell(slot, block, outcome)  # a process that died at it may have written another outcome
            del caught
            self._ring.finish(slot, block, self._number)
            self._job_table.finish(self._number)

    def _compute(self, claim: Claim, come_to: ComeTo | None) -> None:
        slot, block = claim.slot, claim.block
        described, job = self._job(slot, claim.number)
        if not claim.merge:
            suspect = None if come_to is None else self._job_table.suspected(slot, block)
            if suspect is not None:
                self._try(described, job, block, *suspect)
            self._run(slot, described, job, block, come_to)
        elif self._job_table.outcome(slot) == FINE:  # else some rows were not written
            self._merge(claim, described, job, come_to)

    def _claim(self) -> Claim | None:
        self._pace.wait_for_processor()
        return self._ring.claim_wait(self._number)

    def _substituted(self, step: str, epoch: int, position: int) -> int:
        """Return 0, to finish the block here: the consumer, which counts substitutions, will compute it again."""
        del step, epoch, position
        self._is_elsewhere = True
        return 0

    def _outcome(self, slot: int, error: BaseException | None) -> int:
        if isinstance(error, _NoRoomError):
            self._job_table.need_room(slot, error.size_bytes)
            return NO_ROOM
        if isinstance(error, LayoutMismatchError):
            return IRREGULAR
        return FINE if error is None else FAILED

    def _job(self, slot: int, number: int) -> tuple[Described, SharedJob]:
        known = self._jobs.get(slot)
        if known is not None and known[0].number == number:
            return known
        described: Described | None = pickle.loads(self._job_table.description(slot))
        if described is None:
            raise UsageError("the job's description is too long for the job table; elements have too many leaves")
        job = job_of(described.task, self._program(described).plan, self._context)
        memory = described.spill if job.has_merge else described.region
        if job.row_bytes and memory is not None:
            job.use(self._regions.get(memory))
        if described.living != self._living:
            self._living = described.living
            self._forget_others(described.living)
        self._jobs[slot] = described, job
        return described, job

    def _forget_others(self, living: tuple[int, ...]) -> None:
        """Release memory that is not in use any more, and the jobs and plans in it."""
        self._regions.keep(living)
        for gone in self._programs.keys() - self._regions.known - {OWNERS_PLAN}:
            del self._programs[gone]
        # Columns of an earlier job keep its memory mapped.
        self._jobs = {at: known for at, known in self._jobs.items() if known[0].region in living}

    def _program(self, described: Described) -> _Program:
        number = described.plan
        if number not in self._programs:
            self._programs[number] = _program(self._regions.get(number), self._number)
        return self._programs[number]

    def _give(self, described: Described, job: SharedJob, block: int) -> None:
        """Give a job a copy of a block's rows: a function may write to them, and crash."""
        if isinstance(job, CollateJob) and job.has_rows:
            place = job.cut.places[block]
            job.take_given(
                block, cast("Any", read(self._regions.get(cast("int", described.spill)), place, sys.maxsize))
            )

    def _try(self, described: Described, job: SharedJob, block: int, step: int, row: int) -> None:
        """Compute the row at which another process crashed, and drop the result: a crash proves the row at fault."""
        self._job_table.come_to(self._number, step, row, is_alone=True)
        self._give(described, job, block)
        with Caught():  # it is raised again by the block
            job.try_row(step, row, Context(crashing_rows=_deaths(described)))

    def _run(self, slot: int, described: Described, job: SharedJob, block: int, come_to: ComeTo | None) -> None:
        self._give(described, job, block)
        waits, began, cpu_began = self._pace.waits(), time.perf_counter(), time.thread_time()
        context = replace(self._context, crashing_rows=_deaths(described)) if described.crashing_rows else self._context
        rows = job.run_block(block, context, come_to)
        seconds, cpu_seconds = time.perf_counter() - began, time.thread_time() - cpu_began
        self._job_table.count(slot, rows, seconds, cpu_seconds)
        self._pace.worked(seconds, cpu_seconds, self._pace.waits() - waits)
        if described.spill is None or not job.hands_on:
            return
        parcel = dump_by_value(job.elements(block))
        region = self._regions.get(described.spill)
        start = self._job_table.take_room(slot, aligned(parcel.nbytes))
        if start + parcel.nbytes > len(region):
            raise _NoRoomError(start + parcel.nbytes)
        write(parcel, region, start)
        self._job_table.put(slot, block, start, parcel.nbytes)

    def _merge(self, claim: Claim, described: Described, job: SharedJob, come_to: ComeTo | None) -> None:
        if described.spill is None or described.region is None:
            raise InternalError("batches are merged in memory, from memory")
        slot = claim.slot
        self._job_table.end(self._number)  # to wait for a turn is no work
        with self._program(described).merging:
            self._job_table.begin(self._number, slot, claim.number, claim.block)
            region = self._regions.get(described.region)
            self._take_in(slot, described, job)
            began = time.perf_counter()
            job.run_merge(self._context, come_to)
            self._job_table.count_merge(slot, time.perf_counter() - began)
            parcel = dump_by_value(job.merged())
            if parcel.nbytes > len(region):
                raise _NoRoomError(parcel.nbytes)
            write(parcel, region, 0)
            self._job_table.put(slot, job.blocks, 0, parcel.nbytes)
        del self._jobs[slot]  # with the batches

    def _take_in(self, slot: int, described: Described, job: SharedJob) -> None:
        """Take a copy of the rows that a merge is made of: a function may write to them, and crash.

        Mapping it privately would take longer, up to some 10 MB at least.
        """
        spill = self._regions.get(cast("int", described.spill))
        if isinstance(job, CollateJob) and not job.has_rows:
            given: Any = read(spill, job.cut.places[0], sys.maxsize)
            job.take_given(0, given)
            return
        if job.row_bytes:
            rows: Any = np.frombuffer(cast("memoryview", spill), np.uint8, job.row_bytes).copy()
            job.use(rows)
        for block in range(job.blocks) if job.hands_on else ():
            elements: Any = read(spill, self._job_table.place(slot, block), sys.maxsize)
            job.take_elements(block, elements)


def _deaths(described: Described) -> dict[tuple[int, ...], Exception]:
    return {at: WorkerError(text) for at, text in described.crashing_rows.items()}


def _complaint(error: BaseException | None) -> bytes:
    """Return what the consumer logs if it doesn't meet the same error."""
    if isinstance(error, ToldError):
        return error.note
    if error is None or isinstance(error, _ElsewhereError):
        return b" "
    description, traceback = error_text(error)
    return f"{description[:_WORDS_CHARACTERS]}\n{traceback[-_TRACEBACK_CHARACTERS:]}".encode(errors="replace")
