"""The scheduler of worker processes: the ring in shared memory, a table of the slots' jobs, recovery from crashes.

The consumer alone arms slots. It writes a job's description into the job table (`_job_table`). A process makes the job
again from that and from the plan, which is in shared memory, computes the block that it claimed, and writes the rows
into the job's region. Nothing is sent for a block, so a block costs a process as little as a thread. The consumer
computes what fails in a process, so the user's exception is raised in the user's process.

A process may be killed at any moment: by the kernel for its memory, by a crash in native code, by a timeout. It leaves
two things: its claim of a block in the ring, and its record in the job table, which says the block. The thread that
watches it (`WorkerProcesses._watch_to_end`) waits until it has certainly ended, then calls `died`, which counts the
crash at the block, and then `SlotRing.release_worker`, which frees the claim. In this order, the next process that
claims the block finds the count. It writes the same rows to the same places, so a crash that has nothing to do with the
data costs time and nothing else.

But a row that crashes every process that computes it must end in an error that names the row. So `died` and the
processes (`_Worker` in `_process_work`) narrow crashes down:

  1. The process that takes over a block computes it row by row, and writes each row's number into its record before it
     computes the row. If it crashes too, the record shows the row.
  2. The next process computes that row before all others of the block, and drops the result. A crash there, with
     nothing else computed, proves the row at fault. If the process survives, it computes the block row by row, like the
     one before.
  3. A block whose crashes show no row is given up after three crashes; one that crashes at changing rows, after ten.

A block is given up in the name of the dead process: its outcome is `CRASHING`, and it is finished in the ring. The job
then ends as failed, its `JobFailure` has the row, and the stream decides, by `_recovery`: a step of the dataset with
`on_error=` replaces the row, or a WorkerError with its position and key takes the place of its batch.

Rejected: to send rows over pipes, which copies every batch twice; to blame the row at the first crash, which would
blame rows for the kernel's choice of a victim; to restart the whole pool at a crash, as it loses the other workers'
blocks.

Guarantees, beyond those of the scheduler of threads:
  - A process may be killed anywhere; the batches and their order stay the same.
  - An error names a row only after a process crashed that had computed nothing else of its block, or after ten crashes
    in its block.
"""

import pickle
import sys
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from penstock._caught import CaughtFailure
from penstock._memory import Lease, Region, aligned, create_region
from penstock._pickles import Pickled
from penstock._processes import Starting, is_imported, observe_seeds, pickled_for_processes
from penstock._readings import words_for
from penstock._ring import SlotRing
from penstock._runtime._job_table import CRASHING, FAILED, FINE, IRREGULAR, NO_ROOM, CurrentBlock, JobTable
from penstock._runtime._jobs import NO_FAILURE, Job, JobFailure, Work
from penstock._runtime._policy import BLOCKS, MAX_CRASHES, MAX_CRASHES_IN_ROWS, SLOTS
from penstock._runtime._process_work import OWNERS_PLAN, JobDescription, merged_batches, parts_of, run_worker
from penstock._runtime._region_pool import ANY_SIZE
from penstock._runtime._scheduler import Armed, AtWork, Client, Scheduler
from penstock._runtime._shared_values import needs_of, shared, without_streams, write
from penstock._runtime._worker_processes import ProcessMain, WorkerProcesses
from penstock.errors import WorkerError
from penstock.events import WorkerDied

if TYPE_CHECKING:
    from penstock._processes import ChildProcess

_ERROR_CHARACTERS: Final = 500  # of a row's error for the workers; enough without the stack of a process that hung
_ROOM_BYTES: Final = 1 << 28  # of address space; a page takes memory once it is written to


class ProcessScheduler(Scheduler):
    """Owns the ring, the job table, the memory, and the processes.

    Beside the memory of batches there is *spill* memory: for results that one process passes to another, and for
    elements that go to the consumer. A job has it until the consumer has taken the job.

    Args:
        owner: the client whose plan each process gets when it starts. The plans of other clients are sent as memory.

    Attributes:
        reports: by the number of a worker, the integer that `worker_init` returned in its first process, once it has
            returned there; None if it returned another object.
    """

    uses_processes = True

    def __init__(self, owner: Client) -> None:
        self._job_table = JobTable.create(SLOTS, BLOCKS, owner.plan.num_workers)
        self._owners_plan = shared(without_streams(owner.plan))
        self._plans: dict[int, Region] = {}  # of other clients, by the identity of the plan
        self._last_shared = OWNERS_PLAN  # the number of the last shared region
        self._regions: dict[int, tuple[int, Region]] = {}  # by identity: the number of a region, and itself
        self._room_bytes = _ROOM_BYTES  # of a region for results of unknown size; doubled when one is too small
        self._spills: dict[int, Region] = {}  # by slot
        self._idle_spills: dict[Client, list[Region]] = {}
        self._times: dict[Client, Region] = {}  # in which the workers write the times of a client's steps
        self._leases: dict[int, Lease] = {}  # of jobs whose results have no known size, by job number
        # By job number: the block with the first row among those that were given up, and the last crash there.
        self._crashes: dict[int, tuple[CurrentBlock, WorkerError]] = {}
        self.reports: dict[int, int | None] = {}
        self._have_all_worked = False
        super().__init__(owner)

    # -- the workers, and their memory

    def _make_ring(self) -> SlotRing:
        return SlotRing.shared(BLOCKS, capacity=SLOTS)

    def _start(self) -> None:
        descriptors = (*self._ring.descriptors(), self._job_table.region.descriptor, self._owners_plan.descriptor)
        limits, shard = self._owner.plan.limits, self._owner.plan.shard
        # Each rank has its own seeds: programs often set the same global seed on all ranks.
        seeds = observe_seeds().child(shard.rank, shard.count)
        # A worker learns the kind of its work with the first job. By then the fork server has imported all kinds but
        # torch's: other loaders may need no torch in workers, and torch's loader has it imported.
        kinds = [kind.__module__ for kind in Work.__subclasses__() if kind.__module__.startswith(f"{__package__}.")]
        needs = needs_of(self._owners_plan, kinds)
        self._processes = WorkerProcesses(
            self._ring,
            self.num_workers,
            main=ProcessMain(partial(run_worker, needs=needs), descriptors, limits.timeout),
            owner=self,
            seeds=seeds,
            starting=Starting(limits.start_method, limits.worker_threads, is_imported(), keeps_spare=True),
        )

    def _stop(self) -> None:
        self._processes.close()

    def processes(self) -> "list[ChildProcess]":
        """Return the newest process of each worker; wait for the first ones. The scheduler alone closes them."""
        return self._processes.newest()

    def _allocate(self, size_bytes: int) -> Region:
        region = create_region(size_bytes)
        self._share(region)
        return region

    def _share(self, region: Region) -> None:
        self._last_shared += 1
        self._processes.share(self._last_shared, region.descriptor)
        self._regions[id(region)] = self._last_shared, region

    def _discard(self, regions: list[Region]) -> None:
        super()._discard(regions)
        for region in regions:
            number, _ = self._regions.pop(id(region))
            self._processes.unshare(number)

    def join(self, client: Client) -> None:
        is_known = client.plan is self._owner.plan or id(client.plan) in self._plans
        plan = None if is_known else shared(without_streams(client.plan))
        super().join(client)
        with self.owned():
            self._idle_spills[client] = []
            if plan is not None:
                self._plans[id(client.plan)] = plan
                self._share(plan)

    def _forget(self, client: Client) -> None:
        super()._forget(client)
        self._discard(self._idle_spills.pop(client, []))
        self._release(client)

    def cancel(self, slot: int) -> None:
        self._job_table.cancel(slot)
        super().cancel(slot)

    def retire(self, slot: int) -> None:
        armed = self._armed[slot]
        super().retire(slot)
        if armed is not None and armed.client not in self.clients:
            self._release(armed.client)

    def _release(self, client: Client) -> None:
        """Release the plan and the times of a client that has left, once no worker is at one of its jobs.

        A worker that has claimed a block requests both before it computes the block.
        """
        draining = (self._armed[slot] for slot in self._draining)
        others = (*self.clients, *(armed.client for armed in draining if armed is not None))
        if client in others:
            return
        if id(client.plan) in self._plans and all(other.plan is not client.plan for other in others):
            self._discard([self._plans.pop(id(client.plan))])
        times = self._times.pop(client, None)
        if times is not None and all(other is not times for other in self._times.values()):
            self._discard([times])  # the client's readings keep what the workers wrote

    def _region_bytes(self, armed: Armed) -> tuple[int, int]:
        _, client, job = armed
        if not job.work.shape.needs_room:
            return super()._region_bytes(armed)
        share = self._share_of(client, job)
        if share is None or share >= self._room_bytes:
            return self._room_bytes, ANY_SIZE
        return share, share + share // 4

    def _share_of(self, client: Client, job: Job[Work]) -> int | None:
        """Return the most memory for a job of several batches, where `memory=` bounds the client; else None.

        Batches may be larger than all before. With more memory, the job would hold that of the next ones; if it lacks
        memory, its batches are made again, in smaller jobs. A batch alone gets what it needs.
        """
        if client.plan.memory is None or job.steps == 1:
            return None
        jobs = max(client.region_pool.most_idle, 1)  # that have memory: each has a region, which is idle between two
        return max(client.plan.memory // jobs, job.memory_bytes)

    def _give_memory(self, armed: Armed, lease: Lease) -> None:
        number, client, job = armed
        client.region_pool.use(number, job.memory_bytes)  # only the pages that were written to take memory
        if job.work.shape.needs_room:
            self._leases[number] = lease
        else:
            job.work.use(lease)

    def begins_first(self, client: Client, job: Job[Work]) -> bool:
        # Rows of unknown layout are in memory twice, as elements and merged, so there is only one such batch at a time.
        # The first element without a batch shows how large they are: of large ones, workers compute fewer ahead.
        return job.work.shape.needs_room and not client.learned.knows_memory

    def _times_of(self, client: Client) -> int:
        """Return the number of the memory for the times of a client's steps: a part for each worker."""
        region = self._times.get(client)
        if region is None:
            memory = client.times_memory
            region = self._own_times_of(client) if memory is None else memory
            if id(region) not in self._regions:
                self._share(region)
            self._times[client] = region
        return self._regions[id(region)][0]

    def _own_times_of(self, client: Client) -> Region:
        words = words_for(client.readings.numbers)
        region = self._allocate(8 * words * self.num_workers)
        parts = np.frombuffer(cast("memoryview", region), np.float64).reshape(self.num_workers, words)
        for number, part in enumerate(parts):
            client.readings.add(part, f"worker process {number}")
        return region

    def _spill_of(self, slot: int, client: Client, job: Job[Work], given: Pickled) -> Region | None:
        """Return memory for the content that is given to a job, and for its results; None if none is needed."""
        shape = job.work.shape
        if not job.has_merge and (shape.needs_room or not shape.sends_results):
            return None
        idle = self._idle_spills[client]
        size = max(self._room_bytes, 2 * shape.row_bytes, 2 * given.nbytes)
        while idle and len(idle[-1]) < size:
            self._discard([idle.pop()])
        region = self._spills[slot] = idle.pop() if idle else self._allocate(size)
        write(given, region, 0)
        return region

    def _describe(self, slot: int, armed: Armed, region: Region | None) -> None:
        client, job = armed.client, armed.job
        given, places = job.packed
        spill = self._spill_of(slot, client, job, given)
        plan = self._plans.get(id(client.plan))
        described = JobDescription(
            armed.number,
            OWNERS_PLAN if plan is None else self._regions[id(plan)][0],
            job.work.task(),
            None if spill is None else self._regions[id(spill)][0],
            None if region is None else self._regions[id(region)][0],
            self._times_of(client),
            tuple(known for known, _ in self._regions.values()),
            {at: str(client.crashing_rows[at])[:_ERROR_CHARACTERS] for at in job.among(client.crashing_rows)}
            if client.crashing_rows
            else {},
            places,
        )
        job.waited_elsewhere = partial(self._job_table.waited, slot)
        taken = aligned(job.work.shape.row_bytes + given.nbytes)
        pickled = pickled_for_processes(tuple(described), searches=False)
        if not self._job_table.describe(slot, pickled, taken):
            # The description is too long for the table: without one the job fails, and the consumer computes it.
            self._job_table.describe(slot, pickle.dumps(()), taken)

    def _forget_description(self, slot: int, armed: Armed) -> None:
        self._leases.pop(armed.number, None)
        spill = self._spills.pop(slot, None)
        if spill is not None:
            self._idle_spills[armed.client].append(spill)

    def _conclude(self, slot: int, armed: Armed) -> None:
        number, client, job = armed
        knew_layout = client.learned.layout is not None
        self._note_times(slot, client, job)
        lease, spill = self._leases.pop(number, None), self._spills.pop(slot, None)
        client.learned.knows_memory |= self._ring.ready(slot)
        outcome = self._job_table.outcome(slot)
        job.failed = outcome != FINE
        job.failure = self._failure_of(slot, number, outcome) if job.failed else NO_FAILURE
        if outcome == IRREGULAR:
            client.learned.is_irregular = True
        if outcome == NO_ROOM:
            self._lacked_room(client, job, self._job_table.needed(slot))
        if not job.failed and self._ring.ready(slot):
            job.events = list(chain.from_iterable(map(pickle.loads, self._job_table.notes(slot))))
            if spill is not None or lease is not None:
                with CaughtFailure():  # an element can't be loaded: the consumer computes the job
                    job.failed = True
                    self._take(slot, armed, lease, spill)
                    job.failed = False
        # Elements were in the spill memory before their layout was known; later jobs need less, so its pages are freed.
        keeps_spill = knew_layout or client.learned.layout is None
        if spill is not None and client in self._idle_spills and keeps_spill:
            self._idle_spills[client].append(spill)
        elif spill is not None:
            self._discard([spill])

    def _lacked_room(self, client: Client, job: Job[Work], needed_bytes: int) -> None:
        """Note that a job needs more memory: about so much, as estimated from its first batches."""
        share = self._share_of(client, job) if job.work.shape.needs_room else None
        if share is None or share >= self._room_bytes:
            self._room_bytes = max(self._room_bytes, 2 * needed_bytes)
        else:  # a large estimate, of which nothing would be forgotten, must not look like a batch of more than a share
            bytes_each = min(needed_bytes, 2 * share) / max(job.work.shape.memory_units, 1)
            client.learned.took_memory(bytes_each, bytes_each, is_merged=job.has_merge)

    def _note_times(self, slot: int, client: Client, job: Job[Work]) -> None:
        learned = client.learned
        if job.work.shape.has_whole_blocks:
            learned.merges_in_blocks()
        learned.timed(*self._job_table.counted(slot))
        learned.timed_merge(job.steps, self._job_table.counted_merge(slot))

    def _failure_of(self, slot: int, number: int, outcome: int) -> JobFailure:
        at, crash = self._crashes.pop(number, (None, None))
        note = b"".join(self._job_table.notes(slot, FAILED)[:1])
        index, row = (0, None) if at is None or at.batch_index is None else (at.batch_index, at.row)
        complaint = note.decode(errors="replace").strip()
        suspect = self._job_table.any_crashes(slot)
        passing = outcome in {IRREGULAR, NO_ROOM}
        return JobFailure(crash, index, row, suspect, complaint, note if outcome == FAILED else b"", is_passing=passing)

    def _take(self, slot: int, armed: Armed, lease: Lease | None, spill: Region | None) -> None:
        """Take the results of a job from the memory in which processes left them."""
        number, client, job = armed
        copied_bytes = client.region_pool.copied_bytes(client.ahead + 1)
        if lease is None:
            self._take_sent(slot, client, job, spill)
            return
        needed = self._job_table.needed(slot)
        if job.has_merge:
            place = self._job_table.place(slot, job.blocks)
            job.results, layout = merged_batches(lease, place, copied_bytes)
            client.learned.layout = client.learned.layout or layout
            used_bytes, needed = place.stop, needed + place.stop
        else:
            job.work.use(lease)
            job.parts = parts_of(self._job_table, slot, job.blocks, lease, copied_bytes)
            used_bytes = needed
        client.region_pool.use(number, used_bytes)
        units = max(job.work.shape.memory_units, 1)
        client.learned.took_memory(needed / units, used_bytes / units, is_merged=job.has_merge)

    def _take_sent(self, slot: int, client: Client, job: Job[Work], spill: Region | None) -> None:
        """Take the results that aren't in leased memory: of rows that are there only texts, or whole elements."""
        if spill is None:
            return
        has_rows = job.work.shape.row_bytes > 0
        job.parts = parts_of(self._job_table, slot, job.blocks, spill, 0 if has_rows else sys.maxsize)
        if has_rows:
            bytes_each = self._job_table.needed(slot) / max(job.work.shape.memory_units, 1)
            client.learned.took_memory(bytes_each, bytes_each, is_merged=False)

    def _at_work(self) -> list[AtWork]:
        found: list[AtWork] = []
        for number in range(self.num_workers):
            since, at = self._job_table.busy_since(number), self._job_table.current_block(number)
            armed = None if at is None else self._armed_at(at)
            if since is not None and at is not None and armed is not None:
                found.append(AtWork(number, since, armed, at.slot, at.block))
        return found

    def idle_seconds(self, count: int = 1) -> float:
        return self._job_table.idle_seconds(count)

    def is_starting(self) -> bool:
        if not self._have_all_worked:
            unused = [number for number in range(self.num_workers) if not self.has_worked(number)]
            self._have_all_worked = not unused
            return any(self.busy_since(number) is not None for number in unused)
        return False

    # -- for the watchers of the processes

    def prepared(self, number: int, report: int | None) -> None:
        """Record that a process is about to claim its first block, and the report of its `worker_init`."""
        self.reports.setdefault(number, report)
        self._bell.bell.ring()

    def busy_since(self, number: int) -> float | None:
        """Return since when a process computes its current block; None if it is idle."""
        return self._job_table.busy_since(number)

    def has_worked(self, number: int) -> bool:
        """Return whether a process has ever finished a block."""
        return self._job_table.has_worked(number)

    def died(self, number: int, pid: int, death: WorkerError) -> tuple[int, int] | None:
        """Record the death of a process; return its slot and block if the block is given up."""
        at = self._job_table.current_block(number)
        self._job_table.forget_worker(number)  # the next process with this number starts idle
        armed = None if at is None else self._armed_at(at)
        # Two clients of one loader have the same recorder.
        for recorder in dict.fromkeys(client.recorder for client in self.clients):
            step, rows = None, None
            if at is not None and armed is not None and armed.client.recorder is recorder:
                step, rows = armed.job.extent(at.block)
            recorder.observe(WorkerDied(number, pid, death.exit_code, str(death), step, rows))
        if at is None or armed is None or not (self._gives_up(at) or armed.job.work.shape.ends_at_crash):
            return None
        known = self._crashes.get(at.job)
        if known is None or (at.batch_index or 0, at.row or 0) < (known[0].batch_index or 0, known[0].row or 0):
            self._crashes[at.job] = at, death
        self._job_table.set_outcome(at.slot, at.block, CRASHING)
        return at.slot, at.block

    def _gives_up(self, at: CurrentBlock) -> bool:
        """Count a crash; return whether the block is given up: its crashing row is proved, or it crashed too often."""
        crashes = self._job_table.count_crash(at.slot, at.block)
        if at.batch_index is not None and at.row is not None:
            self._job_table.suspect(at.slot, at.block, at.batch_index, at.row)
        is_in_rows = self._job_table.suspected(at.slot, at.block) is not None
        return at.is_trial or crashes >= (MAX_CRASHES_IN_ROWS if is_in_rows else MAX_CRASHES)

    def _armed_at(self, at: CurrentBlock) -> Armed | None:
        armed = self._armed[at.slot]
        # The number of another job shows that the process had finished its block.
        return armed if armed is not None and armed.number == at.job else None

    def fail(self, error: BaseException) -> None:
        """Make the consumer raise an error, since no process can work."""
        self._worker_error = error
        self._bell.bell.ring()
