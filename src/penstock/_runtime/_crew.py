"""A crew of worker threads over one slot ring: slots are armed with jobs, computed by any worker, and come back.

A slot goes from free to armed (its job is being made or ready) and to free again when the consumer has taken the job.
The memory that the job was computed in is lent to it apart from the slot, and comes back when its last view has died.

Guarantees:
  - What changes slots and memory runs with the crew `owned`, by one thread at a time; Ctrl-C finds it done, or not
    begun.
  - `when_free` never waits, so the garbage collector may call it anywhere, also where this thread owns the crew.
  - No user code runs on a worker but inside a job, and what it raises there stays there: the job is marked as failed.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from penstock._caught import Caught
from penstock._graph._apply import Context
from penstock._runtime._jobs import Job, Learned
from penstock._workers._threads import Task, WorkerThreads
from penstock.errors import ClosedError, InternalError
from penstock.transport._interrupts import HeldInterrupts
from penstock.transport._memory import Lease, Memory, Region
from penstock.transport._ring import Claim, SlotRing

SLOTS: Final = 256
BLOCKS: Final = 256  # row blocks of a slot, at most
_logger = logging.getLogger("penstock")


class Crew:
    """Owns the ring, the memory that jobs are computed in, and the threads. Serves one queue at a time; outlives it.

    What a queue has to say: `arm_more`, called by workers when they own the crew, must not raise; `most_idle` is how
    many regions of memory are worth keeping while nobody uses them.
    """

    shares = False
    """Whether jobs are computed by other processes."""

    def __init__(
        self,
        num_workers: int,
        make_context: Callable[[], Context],
        *,
        merges: int,
        worker_init: Callable[[int], object] | None,
    ) -> None:
        self.learned = Learned()
        self.num_workers = num_workers
        self.arm_more: Callable[[], None] = _nothing
        self.most_idle = 0
        self.queues: list[Callable[[], None]] = []  # what gives up each one's jobs
        self.told_of_kept_batches = False  # the queue's, but once for all queues
        self.deadly: dict[tuple[int, int], Exception] = {}  # what no worker shall compute, as in `Context`
        self._told_of: set[str] = set()
        self._lock = threading.Lock()  # its holder owns the crew
        self._waiting: deque[Callable[[], None]] = deque()  # for whoever releases the lock next
        self._process = os.getpid()
        self._worker_error: BaseException | None = None
        self._ring = self._make_ring()
        self._bell = self._ring.bell
        self._memory = Memory()
        self._jobs: list[Job | None] = [None] * SLOTS
        self._free = list(range(SLOTS - 1, -1, -1))
        self._draining: set[int] = set()
        self._lent: dict[int, Region] = {}  # by job number: memory that is being written, ready or viewed
        self._used: dict[int, int] = {}  # how many bytes of it
        self._idle: list[Region] = []
        self._number = 0
        self._merging = threading.Semaphore(merges)
        self._make_context = make_context
        self._worker_init = worker_init
        self._start()

    # -- the workers, and their memory; processes have their own

    def _make_ring(self) -> SlotRing:
        return SlotRing(BLOCKS, capacity=SLOTS)

    def _start(self) -> None:
        self._threads = WorkerThreads(self._ring, self.num_workers, self._make_task)

    def _stop(self) -> None:
        self._threads.close()

    def _allocate(self, size_bytes: int) -> Region:
        return self._memory.allocate(size_bytes)

    def _discard(self, regions: list[Region]) -> None:
        """Let go of memory that is not used any more."""

    def _region_bytes(self, job: Job) -> int:
        return job.memory_bytes

    def _lend(self, job: Job, lease: Lease) -> None:
        job.use(lease)

    def _hand_out(self, slot: int, job: Job, region: Region | None) -> None:
        del region
        self._ring.arm(slot, self._number, job.blocks, merge=job.has_merge)

    def _is_complete(self, slot: int) -> bool:
        return self._ring.ready(slot)

    def _conclude(self, slot: int, job: Job) -> None:
        """Learn what became of a job."""

    # -- who owns it

    @contextmanager
    def owned(self) -> Generator[HeldInterrupts]:
        """Own the crew; waits until nobody else does. Ctrl-C comes at the end, or where it is allowed."""
        with HeldInterrupts() as held:
            try:
                with self._lock:
                    yield held
            finally:
                self._run_waiting()

    def when_free(self, action: Callable[[], None]) -> None:
        """Call `action` with the crew owned: now, or, if someone owns it, as soon as they don't."""
        if os.getpid() != self._process:
            return  # in a fork the workers don't exist, and what is shared with them is the parent's
        self._waiting.append(action)
        self._run_waiting()

    def give_up(self) -> None:
        """Give up all queues' jobs, also those of a queue that nobody can close: its maker was interrupted."""
        with self.owned():
            self._give_up_all()

    def _give_up_all(self) -> None:
        while self.queues:
            self.queues[-1]()
        self.arm_more = _nothing

    def _run_waiting(self) -> None:
        # Whoever finds the lock held leaves the rest to its holder, who looks again after releasing it.
        while self._waiting and not self._lock.locked():
            with HeldInterrupts():
                if not self._lock.acquire(blocking=False):
                    return
                try:
                    while self._waiting:
                        self._waiting.popleft()()
                finally:
                    self._lock.release()

    def check(self) -> None:
        """Raise if the crew can't work: in a fork, where it has no threads, or with what `worker_init` raised."""
        if os.getpid() != self._process:
            raise ClosedError("this loader was started before a fork and can't be used in the child; make a new one")
        if self._worker_error is not None:
            raise self._worker_error

    def count_bytes(self) -> int:
        """Return the bytes of memory that is being written, ready or viewed now."""
        if os.getpid() != self._process:
            return 0
        with self.owned():
            self.collect()
            return self.bytes_in_use

    def tell_of(self, complaint: str) -> None:
        """Log, once for each type of exception, what a worker raised and the consumer did not, if that is known."""
        kind = complaint.partition(":")[0]
        if complaint and kind not in self._told_of:
            self._told_of.add(kind)
            _logger.warning(
                "a worker process raised what this one did not when it computed the same again. The batch is as it "
                "should be, but such batches take this process's time: %s",
                complaint,
            )

    # -- slots; with the crew owned

    @property
    def regions_in_use(self) -> int:
        """How many regions of memory are being written, ready or viewed, but for those of cancelled slots."""
        jobs = [self._jobs[slot] for slot in self._draining]
        return len(self._lent) - sum(job is not None and job.memory_bytes > 0 for job in jobs)

    @property
    def bytes_in_use(self) -> int:
        """The bytes of all memory that is being written, ready or viewed."""
        return sum(self._used.copy().values())

    @property
    def has_free_slot(self) -> bool:
        """Whether a job can be armed."""
        return bool(self._free)

    def collect(self) -> None:
        """Take back the memory whose views have died, and cancelled slots that have no writer left."""
        for slot in [slot for slot in self._draining if self._ring.drained(slot)]:
            self._draining.remove(slot)
            self.retire(slot)
        for number in self._memory.released():
            self._idle.append(self._lent.pop(number))
            del self._used[number]
        self._discard(self._idle[: -self.most_idle or None])
        del self._idle[: -self.most_idle or None]

    def arm(self, job: Job) -> int:
        """Hand a job to the workers; return its slot."""
        slot = self._free.pop()
        self._number += 1
        region: Region | None = None
        if job.memory_bytes:
            region = self._lent[self._number] = self._take_region(self._region_bytes(job))
            self._used[self._number] = len(region)
            self._lend(job, self._memory.lease(region, self._number))
        self._jobs[slot] = job
        self._hand_out(slot, job, region)
        return slot

    def _take_region(self, size_bytes: int) -> Region:
        for index in reversed(range(len(self._idle))):  # the last one returned is still in the caches
            if len(self._idle[index]) >= size_bytes:
                return self._idle.pop(index)
        self._discard(self._idle[:1])
        del self._idle[:1]  # the new one takes its place
        return self._allocate(size_bytes)

    def retire(self, slot: int) -> None:
        """Take back a slot whose job is complete; its memory follows when the last view dies."""
        job = self._jobs[slot]
        if job is None:
            raise InternalError("only an armed slot can be retired")
        self._conclude(slot, job)
        self._ring.retire(slot)
        self._jobs[slot] = None
        self._free.append(slot)

    def cancel(self, slot: int) -> None:
        """Give up a slot's job: blocks that no worker has begun are never run."""
        self._ring.cancel(slot)
        self._draining.add(slot)

    def wait_drained(self, held: HeldInterrupts) -> None:
        """Wait until no cancelled slot has a writer left; Ctrl-C comes out of it at once."""
        held.allow()
        for slot in self._draining:
            self._ring.wait_drained(slot)
        held.hold()
        self.collect()

    # -- waiting; the consumer's thread alone

    def is_ready(self, slots: Iterable[int]) -> bool:
        """Return whether one of the slots' jobs is complete; if not, the descriptor becomes readable when it may be."""
        self._bell.clear()
        return self._is_settled(slots)

    def wait(self, slots: Callable[[], Iterable[int]], given_up: Callable[[], bool]) -> None:
        """Wait until one of the slots' jobs is complete, or given up; Ctrl-C comes out of it at once."""
        while not (self._is_settled(slots()) or given_up()):
            self._bell.clear()
            if self._is_settled(slots()) or given_up():
                return
            self._bell.wait()

    def is_complete(self, slot: int) -> bool:
        """Return whether a slot's job is complete."""
        return self._is_complete(slot)

    def _is_settled(self, slots: Iterable[int]) -> bool:
        return any(map(self._is_complete, slots)) or self._ring.stopped or self._worker_error is not None

    def ring_bell(self) -> None:
        """Have who waits for a job look again."""
        self._bell.ring()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a job may be complete."""
        return self._bell.fileno()

    def close(self) -> None:
        """Stop the threads. Memory lives on as long as views of it do."""
        if os.getpid() != self._process:
            return  # in a fork the threads don't exist; nothing may be touched
        self.when_free(self._give_up_all)
        self._stop()
        self.when_free(self._let_go)

    def _let_go(self) -> None:
        self._discard(self._idle)
        self._idle.clear()

    # -- workers

    def _make_task(self, number: int) -> Task:
        context = self._make_context()
        self._initialise(number)

        def run(claim: Claim) -> None:
            job = self._jobs[claim.slot]
            if job is not None and not job.failed:
                self._run(job, claim, context)
            del job
            if self._lock.acquire(blocking=False):  # whoever holds it arms what can be armed
                try:
                    self.arm_more()
                finally:
                    self._lock.release()
            self._run_waiting()

        return run

    def _initialise(self, number: int) -> None:
        if self._worker_init is None:
            return
        with Caught() as caught:
            self._worker_init(number)
        if caught.error is not None:  # raised by the consumer, instead of a batch
            caught.error.add_note(f"in worker_init of worker {number}")
            self._worker_error = caught.error

    def _run(self, job: Job, claim: Claim, context: Context) -> None:
        if self._worker_error is not None:
            job.failed = True
            return
        started, cpu_started = time.perf_counter(), time.thread_time()
        with Caught() as caught:
            if claim.merge:
                with self._merging:
                    job.run_merge(context)
            else:
                rows = job.run_block(claim.block, context)
                self.learned.timed(rows, time.perf_counter() - started, time.thread_time() - cpu_started)
        if caught.error is not None:
            job.failed = True  # the consumer meets it again, in its own thread


def _nothing() -> None:
    """Arm nothing: no queue is open."""
