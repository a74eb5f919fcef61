"""A crew of worker threads over one slot ring: slots are armed with jobs, computed by any worker, and come back.

A slot goes from free to armed (its job is being made or ready) and, when the consumer has taken the job, to free again:
at once if the job's batches have memory of their own, else when the last view of the slot's memory has died.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from penstock._graph._apply import Context
from penstock._runtime._jobs import Job, Learned
from penstock._workers._threads import Task, WorkerThreads
from penstock.errors import InternalError
from penstock.transport._bell import Bell
from penstock.transport._memory import Memory, Region
from penstock.transport._ring import Claim, SlotRing

SLOTS: Final = 256
BLOCKS: Final = 256  # row blocks of a slot, at most


class Crew:
    """Owns the ring, the slots' memory and the threads. Serves one queue at a time, and outlives it.

    `lock` makes its holder the ring's owner; whatever changes slots is called with it held.
    """

    def __init__(
        self,
        num_workers: int,
        make_context: Callable[[], Context],
        *,
        merges: int,
        worker_init: Callable[[int], object] | None,
    ) -> None:
        self.lock = threading.Lock()
        self.learned = Learned()
        self.num_workers = num_workers
        self.arm_more: Callable[[], None] = _nothing
        self._bell = Bell()
        self._ring = SlotRing(BLOCKS, capacity=SLOTS, bell=self._bell)
        self._memory = Memory()
        self._jobs: list[Job | None] = [None] * SLOTS
        self._free = list(range(SLOTS - 1, -1, -1))
        self._draining: set[int] = set()
        self._regions: dict[int, Region] = {}
        self._in_use: dict[int, int] = {}  # bytes of the slots whose memory is being written, ready or viewed
        self._number = 0
        self._merging = threading.Semaphore(merges)
        self._make_context = make_context
        self._worker_init = worker_init
        self._threads = WorkerThreads(self._ring, num_workers, self._make_task)

    # -- slots; with the lock held

    @property
    def slots_in_use(self) -> int:
        """How many slots' memory is being written, ready or viewed."""
        return len(self._in_use)

    @property
    def bytes_in_use(self) -> int:
        """The bytes of that memory."""
        return sum(self._in_use.values())

    @property
    def has_free_slot(self) -> bool:
        """Whether a job can be armed."""
        return bool(self._free)

    def collect(self) -> None:
        """Take back the slots whose views have died, and those that were cancelled and have no writer left."""
        for slot in self._memory.released():
            del self._in_use[slot]
            self._free.append(slot)
        for slot in [slot for slot in self._draining if self._ring.drained(slot)]:
            self._draining.remove(slot)
            self.retire(slot)

    def arm(self, job: Job) -> int:
        """Hand a job to the workers; return its slot."""
        slot = self._free.pop()
        size = job.memory_bytes
        if size:
            region = self._regions.get(slot)
            if region is None or len(region) < size:
                region = self._regions[slot] = self._memory.allocate(size)
            self._in_use[slot] = len(region)
            job.use(self._memory.lease(region, slot))
        self._jobs[slot] = job
        self._number += 1
        self._ring.arm(slot, self._number, job.blocks, merge=job.has_merge)
        return slot

    def retire(self, slot: int) -> None:
        """Take back a slot whose job is complete; its memory follows when the last view dies."""
        job = self._jobs[slot]
        if job is None:
            raise InternalError("only an armed slot can be retired")
        self._ring.retire(slot)
        self._jobs[slot] = None
        if not job.memory_bytes:
            self._free.append(slot)

    def cancel(self, slot: int) -> None:
        """Give up a slot's job: blocks that no worker has begun are never run."""
        self._ring.cancel(slot)
        self._draining.add(slot)

    # -- waiting; the consumer's thread alone

    def is_ready(self, slot: int) -> bool:
        """Return whether a slot's job is complete."""
        return self._ring.ready(slot)

    def wait(self, slot: int) -> None:
        """Wait until a slot's job is complete; Ctrl-C comes out of it at once."""
        self._ring.wait_ready(slot)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a job may be complete."""
        return self._bell.fileno()

    def close(self) -> None:
        """Stop the threads. Memory lives on as long as views of it do."""
        self.arm_more = _nothing
        self._threads.close()

    # -- workers

    def _make_task(self, number: int) -> Task:
        context = self._make_context()
        failed = self._initialised(number)

        def run(claim: Claim) -> None:
            job = self._jobs[claim.slot]
            if job is not None and job.error is None:
                if failed is not None:
                    job.error = failed
                else:
                    self._run(job, claim, context)
            del job
            if self.lock.acquire(blocking=False):  # whoever holds it arms what can be armed
                try:
                    self.arm_more()
                finally:
                    self.lock.release()

        return run

    def _initialised(self, number: int) -> BaseException | None:
        try:
            if self._worker_init is not None:
                self._worker_init(number)
        except BaseException as error:  # noqa: BLE001 - raised by the consumer, instead of the first batch
            return error
        return None

    def _run(self, job: Job, claim: Claim, context: Context) -> None:
        started, cpu_started = time.perf_counter(), time.thread_time()
        try:
            if claim.merge:
                with self._merging:
                    job.run_merge(context)
            else:
                rows = job.run_block(claim.block, context)
                self.learned.timed(rows, time.perf_counter() - started, time.thread_time() - cpu_started)
        except BaseException as error:  # noqa: BLE001 - raised by the consumer, in its own thread
            job.error = error


def _nothing() -> None:
    """Arm nothing: no queue is open."""
