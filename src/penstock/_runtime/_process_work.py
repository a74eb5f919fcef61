"""The work of a worker process: it computes the blocks of jobs that the job table describes, in the scheduler's memory.

A job travels as a *task*, a small value from which the process makes the same job with the plan. The process requests
the regions of the scheduler's memory that a job needs when it gets the job: those that it lacks, by one message, since
each answer waits for a thread of the program.

Of blocks that need records of async sources, a process claims several, and requests the records of all of them before
it computes the first (`_io_prefetch`). If a request crashes it, the block that it computes is blamed, and computed
again row by row, with no request in flight; then the next one, up to the block of that request.

Rows are written straight into their batch where their layout is known. Else elements are written into spill memory, for
the process that merges them, or for the fold. Merged batches are written one by one, in place, so that a process has
one at a time. Where a block makes what is delivered, its arrays are written, or made, in place (`_sent_batches`,
`_sent_elements`). A block that raises is marked as failed; the consumer computes it again, so that the user's exception
is raised in the consumer's thread.
"""

import fcntl
import mmap
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import numpy as np

from penstock import _runtime
from penstock._caught import Caught, CaughtFailure
from penstock._decisions import DELAY_MICROSECONDS, decide
from penstock._graph import Context, Element, GlobalDraws, awaits, leave_accelerators, parts_with_names, walk
from penstock._memory import Lease, Region, aligned, open_region
from penstock._pickles import dump_by_value
from penstock._plan import Plan
from penstock._processes import error_text, pack_error
from penstock._readings import StepTimes, numbered, words_for
from penstock._ring import Claim, SlotRing
from penstock._runtime._job_table import FAILED, FINE, IRREGULAR, NO_ROOM, JobTable
from penstock._runtime._jobs import BeforeRow, Job, NotedError, Task, Unsendable, Work
from penstock._runtime._policy import BLOCKS, SLOTS
from penstock._runtime._processors import CpuThrottle, Stopwatch, shared_processors
from penstock._runtime._room import Offers, Room
from penstock._runtime._sent_batches import RunWriter, WrittenRun, written
from penstock._runtime._shared_values import apart, read, write
from penstock._runtime._worker_processes import Inherited, Prepared, SharedDescriptors, answer_with_stack
from penstock.batching import LayoutMismatchError
from penstock.errors import InternalError, UsageError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock._runtime._io_prefetch import BlockPrefetch, BlockRecords
    from penstock.events import Event, Replaced

OWNERS_PLAN: Final = -1
"""The number of the plan that a process gets when it starts; any other plan has the number of its memory."""
_DESCRIPTION_CHARACTERS: Final = 500
_TRACEBACK_CHARACTERS: Final = 2_000  # the last ones


class JobDescription(NamedTuple):
    """The description of a job, its memory and its plan, for worker processes; it is pickled as a plain tuple."""

    number: int
    plan: int
    """The number of the plan that it is part of."""
    task: Task
    spill: int | None
    """The number of the spill memory: for results that go to another process or to a fold; None for none."""
    region: int | None
    """The number of the memory for what is delivered; None where the results go to a fold."""
    times: int
    """The number of the memory for the times of steps."""
    living: tuple[int, ...]
    """The numbers of all memory that was in use when the job was armed; a process releases other memory."""
    crashing_rows: dict[tuple[int, ...], str]
    """The errors of the job's rows that crash workers, as in `Context`."""
    given: dict[int, slice]
    """The places in the spill memory of the content that was given for blocks; the merge is the block after them."""


class _NoRoomError(Exception):
    """The result of a block doesn't fit its memory."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class _ElsewhereError(Exception):
    """Only the consumer can compute the block."""


class FileSemaphore:
    """Lets `count` processes at a time run a section. It consists of file locks, which end with their process."""

    def __init__(self, region: Region, count: int, number: int) -> None:
        self._region = region  # nothing else locks its file
        self._descriptor = region.descriptor
        self._turns = [(number + offset) % count for offset in range(count)]
        self._turn = 0

    def __enter__(self) -> None:
        for turn in self._turns:
            self._turn = turn
            with suppress(BlockingIOError, PermissionError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, turn)
                return
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._turn)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._turn)


class Regions:
    """The regions that this process has opened, by number."""

    def __init__(self, descriptors: SharedDescriptors) -> None:
        self._descriptors = descriptors
        self.known: dict[int, Region] = {}

    def get(self, number: int) -> Region:
        """Return a region by its number."""
        if number not in self.known:
            self.open((number,))
        return self.known[number]

    def open(self, numbers: Iterable[int]) -> None:
        """Open the regions with some numbers that aren't open yet; one request serves all of them."""
        missing = [number for number in numbers if number not in self.known]
        if not missing:
            return
        descriptors = self._descriptors.ask(missing)
        try:
            self.known.update(zip(missing, map(open_region, descriptors), strict=True))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def reopen(self, number: int) -> Region:
        """Return a region that was opened again: a part of it isn't shared any more."""
        del self.known[number]
        return self.get(number)

    def keep(self, living: tuple[int, ...]) -> None:
        """Release all regions but those with some numbers."""
        for number in self.known.keys() - living:
            del self.known[number]


class _OpenedPlan(NamedTuple):
    """A loader's plan, the semaphore for its merges, and, if it has async sources, what requests their records."""

    plan: Plan
    merging: FileSemaphore
    block_prefetch: "BlockPrefetch | None"


class _Requested(NamedTuple):
    """A block that was claimed, and whose records were requested."""

    claim: Claim
    records: "BlockRecords"
    keys: int
    """The number of its records."""
    share: int
    """The number of blocks of the job that this process should take."""
    limit: int
    """The largest number of records that this process may have requested."""


def run_worker(pipe: "Connection[Any, Any]", number: int, descriptors: Inherited, *, needs: bytes = b"") -> None:
    """Run blocks until the ring is stopped.

    Args:
        pipe: the connection to the scheduler.
        number: the number of this worker.
        descriptors: the descriptors of the scheduler's memory.
        needs: names the modules that the fork server imports in advance; not used here.
    """
    del needs
    leave_accelerators()
    memory, bell, table_memory, plan_memory, *stack = descriptors.taken
    ring = SlotRing.attach(memory, bell)
    job_table = JobTable.attach(table_memory, SLOTS, BLOCKS)
    region = open_region(plan_memory)
    for descriptor in (memory, bell, table_memory, plan_memory):
        os.close(descriptor)
    if stack:
        answer_with_stack(stack[0])  # the descriptor stays open as long as the process lives
    opened = _prepared(pipe, number, region, job_table)
    if opened is not None:
        _Worker(pipe, number, ring, job_table, opened).run()


def _opened_plan(region: Region, number: int) -> _OpenedPlan:
    """Return the plan in a region; the file of the region is locked for merges."""
    # A private mapping: if a function changes the arrays of a source, other processes and later ones don't see it.
    private = mmap.mmap(region.descriptor, len(region), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    plan = cast("Plan", read(private, slice(None), 0))
    merging = FileSemaphore(region, plan.limits.num_batch_workers or plan.prefetch, number)
    return _OpenedPlan(plan, merging, _block_prefetch(plan, number) if awaits(plan.node) else None)


def _block_prefetch(plan: Plan, number: int) -> "BlockPrefetch":
    """Return what requests the records of blocks in this process; the processes share the limit."""
    each, more = divmod(plan.limits.read_ahead, max(plan.num_workers, 1))
    return _runtime.BlockPrefetch(plan.node, max(each + (number < more), 1))


def _prepared(pipe: "Connection[Any, Any]", number: int, region: Region, job_table: JobTable) -> _OpenedPlan | None:
    """Prepare the process and report the outcome to the scheduler; return its plan, or None if that failed."""
    report: int | None = None
    with Caught() as caught:
        opened = _opened_plan(region, number)
        if opened.plan.limits.worker_init is not None:
            job_table.prepare(number)
            found = opened.plan.limits.worker_init(number)
            report = found if type(found) is int else None
            job_table.end(number)
        pipe.send_bytes(pickle.dumps(Prepared(report)))
        return opened
    error = caught.taken()
    error.add_note(f"while worker {number} was being prepared, in its process")
    pipe.send_bytes(pickle.dumps(pack_error(error)))
    return None


class _Worker:
    """Claims blocks and runs them."""

    def __init__(
        self, pipe: "Connection[Any, Any]", number: int, ring: SlotRing, job_table: JobTable, opened: _OpenedPlan
    ) -> None:
        self._pipe = pipe
        self._number = number
        self._ring = ring
        self._job_table = job_table
        self._throttle = CpuThrottle(job_table, ring, number, shared_processors(opened.plan.num_workers))
        self._plans = {OWNERS_PLAN: opened}
        self._regions = Regions(SharedDescriptors(pipe))
        self._offers = Offers()
        self._events: list[Event] = []  # of the current block
        self._is_elsewhere = False  # whether only the consumer can compute the current block
        self._context = Context(observe=self._events.append, substituted=self._substituted, draws=GlobalDraws())
        self._contexts: dict[int, Context] = {}  # by the number of the memory for times
        self._jobs: dict[int, tuple[JobDescription, Job[Work]]] = {}  # by slot
        self._requested: deque[_Requested] = deque()  # blocks that were claimed, in the order of their claims
        self._records: BlockRecords | None = None  # of the current block
        self._living: tuple[int, ...] = ()  # memory that was in use when the last job was armed

    def run(self) -> None:
        """Run blocks until the ring is stopped."""
        while (claim := self._claim()) is not None:
            slot, block = claim.slot, claim.block
            if self._records is not None and self._job_table.is_cancelled(slot):
                self._ring.finish(slot, block, self._number)
                self._job_table.end(self._number)
                continue
            if delay := decide(DELAY_MICROSECONDS, 0):
                self._ring.rest(delay / 1e6)
            self._begin(claim)
            self._events.clear()
            self._is_elsewhere = False
            before_row: BeforeRow | None = None
            if self._job_table.crashes(slot, block):
                # The block has crashed a process: compute it row by row, so that the next crash shows its row.
                before_row = partial(self._job_table.begin_row, self._number)
                self._job_table.forget(slot, block)  # the note of the process that crashed
            with Caught() as caught:
                self._compute(claim, before_row)
                if self._is_elsewhere:
                    raise _ElsewhereError
                if self._events and not self._job_table.note(slot, block, pickle.dumps(self._events)):
                    raise _ElsewhereError
            outcome = self._outcome(slot, caught.error)
            if outcome == FAILED:
                self._job_table.note(slot, block, _complaint(caught.error))
            self._job_table.set_outcome(slot, block, outcome)  # replaces the outcome of a process that crashed at it
            del caught
            self._ring.finish(slot, block, self._number)
            self._job_table.finish(self._number)

    def _compute(self, claim: Claim, before_row: BeforeRow | None) -> None:
        slot, block = claim.slot, claim.block
        described, job = self._job(slot, claim.number)
        if not claim.merge:
            began = time.perf_counter()
            suspect = None if before_row is None else self._job_table.suspected(slot, block)
            if suspect is not None:
                self._try_suspect(described, job, block, *suspect)
                self._job_table.begin(self._number, slot, claim.number, block)  # from here a crash proves no row
            self._run(slot, described, job, block, before_row)
            self._context_of(described).times.work(time.perf_counter() - began)
        elif self._job_table.outcome(slot) == FINE:  # otherwise some rows were not written
            self._merge(claim, described, job, before_row)

    def _claim(self) -> Claim | None:
        """Return the block to compute next; None once the ring is stopped.

        Of blocks that need records of async sources, further ones are claimed, too, and their records are requested.
        """
        self._records = None
        if not self._requested:
            self._throttle.wait_for_processor()
            if not any(opened.block_prefetch for opened in self._plans.values()):  # that of a new plan comes with a job
                return self._ring.claim_wait(self._number)
        while not self._holds_enough():
            claim = self._ring.claim(self._number) if self._requested else self._ring.claim_wait(self._number)
            if claim is None:
                break
            if not self._requests(claim):
                return claim
        if not self._requested or self._ring.stopped:
            return None
        first = self._requested.popleft()
        self._records = first.records
        return first.claim

    def _holds_enough(self) -> bool:
        """Return whether enough blocks are claimed: one and the next, this process's share of a job, or the limit."""
        if len(self._requested) < 2:
            return False
        last = self._requested[-1]
        share = sum(each.claim.number == last.claim.number for each in self._requested)
        later = sum(each.keys for each in self._requested) - self._requested[0].keys
        return share >= last.share or later >= last.limit

    def _requests(self, claim: Claim) -> bool:
        """Request the records of a block; return False if it needs none, or must be computed without requests."""
        with CaughtFailure():  # the computation raises it again
            if self._job_table.crashes(claim.slot, claim.block):
                for each in self._requested:  # a crash of their requests must not look like one of this block
                    self._begin(each.claim)
                    each.records.wait()
                return False
            self._begin(claim)
            described, job = self._job(claim.slot, claim.number)
            plan, _, prefetch = self._opened(described)
            upcoming = [] if claim.merge or prefetch is None else job.upcoming(claim.block)
            if prefetch is None or not upcoming:
                return False
            keys, share = sum(len(each.keys) for each in upcoming), -(-job.blocks // max(plan.num_workers, 1))
            self._requested.append(_Requested(claim, prefetch.request(upcoming), keys, share, prefetch.limit))
            return True
        return False

    def _begin(self, claim: Claim) -> None:
        self._job_table.begin(self._number, claim.slot, claim.number, claim.block)

    def _substituted(self, event: "Replaced") -> int:
        """Return 0, so that the block ends here: the consumer, which counts substitutions, computes it again."""
        del event
        self._is_elsewhere = True
        return 0

    def _outcome(self, slot: int, error: BaseException | None) -> int:
        if isinstance(error, _NoRoomError):
            self._job_table.need_room(slot, error.size_bytes)
            return NO_ROOM
        if isinstance(error, LayoutMismatchError):
            return IRREGULAR
        return FINE if error is None else FAILED

    def _job(self, slot: int, number: int) -> tuple[JobDescription, Job[Work]]:
        known = self._jobs.get(slot)
        if known is not None and known[0].number == number:
            return known
        fields: tuple[Any, ...] = pickle.loads(self._job_table.description(slot))
        if not fields:
            raise UsageError("the job's description is too long for the job table; elements have too many leaves")
        described = JobDescription(*fields)
        needed = (described.plan, described.times, described.spill, described.region)
        self._regions.open(number for number in needed if number not in (None, OWNERS_PLAN))
        job = Job(described.task.work(self._opened(described).plan))
        memory = described.spill if job.has_merge else described.region
        if job.work.shape.row_bytes and memory is not None:
            job.work.use(self._regions.get(memory))
        if described.living != self._living:
            self._living = described.living
            self._forget_others(described.living)
        self._jobs[slot] = described, job
        return described, job

    def _forget_others(self, living: tuple[int, ...]) -> None:
        """Release memory that is not in use any more, and the jobs and plans in it."""
        self._regions.keep(living)
        for gone in self._plans.keys() - self._regions.known - {OWNERS_PLAN}:
            del self._plans[gone]
            self._context.kept.clear()  # parents of a step of that plan keep its memory mapped
        self._contexts = {number: context for number, context in self._contexts.items() if number in living}
        # Columns of an earlier job keep its memory mapped.
        self._jobs = {at: known for at, known in self._jobs.items() if known[0].region in living}

    def _opened(self, described: JobDescription) -> _OpenedPlan:
        number = described.plan
        if number not in self._plans:
            self._plans[number] = _opened_plan(self._regions.get(number), self._number)
        return self._plans[number]

    def _context_of(self, described: JobDescription) -> Context:
        """Return the context for a job, which writes the times of its steps."""
        known = self._contexts.get(described.times)
        if known is None:
            node = self._opened(described).plan.node
            numbers = numbered(walk(node))
            words = words_for(numbers)
            parts = np.frombuffer(cast("memoryview", self._regions.get(described.times)), np.float64)
            times = StepTimes(numbers, parts[words * self._number : words * (self._number + 1)])
            known = replace(self._context, times=times, components=parts_with_names(node))
            self._contexts[described.times] = known
        return known

    def _give(self, described: JobDescription, job: Job[Work], block: int) -> None:
        """Give a job a copy of the content for a block or the merge: a function may write to it, and crash."""
        if block not in described.given or described.spill is None:
            return
        content = read(self._regions.get(described.spill), described.given[block], sys.maxsize)
        if isinstance(content, Unsendable):
            raise UsageError(content.why)
        job.work.given = {block: content}

    def _try_suspect(self, described: JobDescription, job: Job[Work], block: int, index: int, row: int) -> None:
        """Compute the row at which another process crashed, and drop the result: a crash proves the row at fault."""
        self._job_table.begin_row(self._number, index, row, is_trial=True)
        self._give(described, job, block)
        with Caught():  # it is raised again by the block
            job.try_row(index, row, Context(crashing_rows=_crashing_rows(described)))

    def _run(
        self, slot: int, described: JobDescription, job: Job[Work], block: int, before_row: BeforeRow | None
    ) -> None:
        self._give(described, job, block)
        stopwatch = Stopwatch()
        context = self._context_of(described)
        if described.crashing_rows:
            context = replace(context, crashing_rows=_crashing_rows(described))
        parents_before = context.kept.parent_seconds
        shape = job.work.shape
        delivers = shape.delivers_blocks
        memory = described.region if delivers else described.spill
        region = None if memory is None or not shape.sends_results else self._regions.get(memory)
        if delivers and region is not None:
            job.work.room = Room(region, partial(self._take_room, slot, len(region)), self._offers)
        try:
            if self._records is not None:
                context = self._records.context_with_records(context)
                self._job_table.count_wait(slot, self._records.waited_seconds)
            rows = job.run_block(block, context, before_row)
        finally:
            if self._offers.was_kept and memory is not None:
                self._offers.was_kept = False
                region = self._regions.reopen(memory)
        worked = stopwatch.worked()
        parent_share = (context.kept.parent_seconds - parents_before) / max(worked.seconds, 1e-9)
        seconds = worked.own_seconds
        self._job_table.count(slot, rows, seconds, worked.cpu_seconds, parent_share * seconds)
        self._throttle.worked(worked.seconds, worked.cpu_seconds, worked.waits)
        job.work.given = {}
        if region is None:
            return
        pickled = dump_by_value(apart(job.parts[block]) if delivers else job.parts[block])
        job.parts[block] = []
        start = self._take_room(slot, len(region), pickled.nbytes)
        write(pickled, region, start)
        self._job_table.put(slot, block, start, pickled.nbytes)

    def _take_room(self, slot: int, most_bytes: int, size_bytes: int) -> int:
        """Reserve room in a slot's memory, and return its start."""
        start = self._job_table.take_room(slot, aligned(size_bytes))
        if start + size_bytes > most_bytes:
            raise _NoRoomError(start + size_bytes)
        return start

    def _merge(self, claim: Claim, described: JobDescription, job: Job[Work], before_row: BeforeRow | None) -> None:
        if described.spill is None or described.region is None:
            raise InternalError("batches are merged in memory, from memory")
        slot = claim.slot
        self._job_table.end(self._number)  # waiting for the semaphore is no work
        with self._opened(described).merging:
            self._begin(claim)
            received = time.perf_counter()
            region = self._regions.get(described.region)
            self._take_in(slot, described, job)
            stopwatch = Stopwatch()
            batches = _WrittenBatches(region, job)
            job.run_merge(self._context_of(described), before_row, batches.add)
            worked = stopwatch.worked()
            self._job_table.count_merge(slot, worked.own_seconds)
            if not job.blocks:  # all work is in the merge
                self._throttle.worked(worked.seconds, worked.cpu_seconds, worked.waits)
            place = batches.end(job.work.found_layout)
            self._job_table.put(slot, job.blocks, place.start, place.stop - place.start)
            self._context_of(described).times.work(time.perf_counter() - received)
        del self._jobs[slot]

    def _take_in(self, slot: int, described: JobDescription, job: Job[Work]) -> None:
        """Give the job the results of its blocks.

        A function may write to them, and crash. So these are copies, and the merge copies rows that are in memory.
        """
        spill = self._regions.get(cast("int", described.spill))
        self._give(described, job, job.blocks)
        if job.work.shape.sends_results:
            job.parts = parts_of(self._job_table, slot, job.blocks, spill)


_Place: TypeAlias = tuple[int, int]
"""The start and the end of a pickle."""


class _MergedMemory:
    """The memory of a job's merged batches, from its start on.

    Attributes:
        made: the number of batches in it.
    """

    def __init__(self, region: Region, steps: int) -> None:
        self.made = 0
        self._region = region
        self._steps = steps
        self._end = 0

    def take(self, size_bytes: int) -> int:
        """Reserve memory, and return its start."""
        start, end = self._end, self._end + size_bytes
        if end > len(self._region):
            raise _NoRoomError(end * self._steps // max(self.made, 1))
        self._end = aligned(end)
        return start

    def add(self, value: object) -> _Place:
        """Write a pickle."""
        pickled = dump_by_value(value)
        start = self.take(pickled.nbytes)
        write(pickled, self._region, start)
        return start, start + pickled.nbytes


class _WrittenBatches:
    """The merged batches of a job, each written when it is made, so that a process has one batch at a time."""

    def __init__(self, region: Region, job: Job[Work]) -> None:
        self._memory = memory = _MergedMemory(region, job.steps)
        pickled = job.work.pickled
        self._runs: RunWriter[_Place] = RunWriter(
            Room(region, memory.take, Offers()), job.steps, lambda batch: memory.add(pickled(batch))
        )

    def add(self, batch: Element) -> None:
        """Write the next batch."""
        self._runs.add(batch)
        self._memory.made += 1

    def end(self, layout: object) -> slice:
        """Write the places of all batches, and the layout of the rows; return where these are."""
        return slice(*self._memory.add((self._runs.sent(), layout)))


def merged_batches(memory: Lease, place: slice, copied_bytes: int) -> tuple[list[Element], object]:
    """Return the batches that a merge has written, and the layout of their rows, from the place of their places."""
    runs, layout = cast("tuple[list[WrittenRun | _Place], object]", read(memory, place, copied_bytes))
    batches: list[Element] = []
    for run in runs:
        batches += [read(memory, slice(*run), copied_bytes)] if len(run) == 2 else written(run, memory, copied_bytes)
    return batches, layout


def parts_of(
    job_table: JobTable, slot: int, blocks: int, memory: Region | Lease, copied_bytes: int = sys.maxsize
) -> list[list[Any]]:
    """Return the results that processes have left in memory, for each block; arrays above `copied_bytes` are views."""
    return [cast("list[Any]", read(memory, job_table.place(slot, block), copied_bytes)) for block in range(blocks)]


def _crashing_rows(described: JobDescription) -> dict[tuple[int, ...], Exception]:
    return {at: WorkerError(text) for at, text in described.crashing_rows.items()}


def _complaint(error: BaseException | None) -> bytes:
    """Return the text that the consumer logs if it computes the block without an error."""
    if isinstance(error, NotedError):
        return error.note
    if error is None or isinstance(error, _ElsewhereError):
        return b" "
    description, traceback = error_text(error)
    return f"{description[:_DESCRIPTION_CHARACTERS]}\n{traceback[-_TRACEBACK_CHARACTERS:]}".encode(errors="replace")
