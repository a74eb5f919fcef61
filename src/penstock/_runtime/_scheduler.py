"""The scheduler: it puts jobs into the slots of a ring, worker threads compute them, and the consumer takes them out.

The problem: several threads compute one batch, several batches are computed ahead, and the consumer wants them in
order, in memory that is used again. A queue of tasks with futures would need an object and a lock for each block of
rows, and would send rows through Python. Here a job is written into a slot once; workers claim its blocks from the ring
by compare-and-swap (`_ring`) and write rows straight into the job's memory. The consumer waits on a bell.

A slot is free, or armed: its job is being computed, or is complete. The consumer retires a complete slot, which frees
it. `cancel` gives up the job of a slot: blocks that no worker has begun are never run, and the slot drains until the
last writer has left. Memory is leased to a job apart from its slot: the slot is free as soon as the consumer has the
job, the memory when the last array over it has been collected.

One lock, the *ownership* of the scheduler, orders every change of slots and memory. A thread that can't wait (a worker
that could arm more, the garbage collector that closes a queue) calls `when_free`: the action is postponed, and the
thread that holds the lock runs it when it releases the lock.

Several loaders may share the workers. Each is a *client*, which holds everything that its jobs need and other loaders'
jobs must not share: its plan, measurements of its rows, the recorder of its events, its queues of jobs and its memory.
So no client notices the others, except by their use of the workers. Slots go to the client that asks first, so no
client may have more than `SLOTS_EACH` of them.

Guarantees:
  - Slots and memory change only with the scheduler `owned`, by one thread at a time; Ctrl-C finds a change done, or not
    begun.
  - `when_free` never waits, so the garbage collector may call it anywhere, also where this thread owns the scheduler.
  - User code runs on a worker only inside a job, and its exception stays there: the job is marked as failed.
  - Each of several clients has memory of its own, and waits for its own jobs alone. Workers take the job that was armed
    first, of any client.
  - A claimed block runs exactly once, and is finished in the ring afterwards.
  - Closing returns when no thread runs a block any more, or after `FUNCTION_SECONDS`: a thread can't be stopped inside
    a user's function. Threads are daemons, so one that is stuck there doesn't keep the process alive.
"""

import copy
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock._caught import Caught, CaughtFailure, add_note
from penstock._decisions import DELAY_MICROSECONDS, decide
from penstock._graph import Context, parts_with_names, walk
from penstock._memory import Lease, Memory, Region
from penstock._os import PROGRAM_ENDS, CommonBell, HeldInterrupts, Listener, uninterrupted
from penstock._plan import Plan
from penstock._readings import UNREAD, Cause, Readings
from penstock._ring import Claim, SlotRing
from penstock._runtime._failing_work import Patience, Stall, describe_block, wait_until
from penstock._runtime._fold_choice import FoldChoices
from penstock._runtime._jobs import Job, Learned, Work
from penstock._runtime._policy import BLOCKS, SLOTS, SLOTS_EACH
from penstock._runtime._recorder import Recorder
from penstock._runtime._region_pool import ANY_SIZE, RegionPool
from penstock._runtime._worker_threads import RunClaim, WorkerThreads
from penstock.errors import ClosedError, InternalError, UsageError

_logger = logging.getLogger("penstock")


class MemoryProvider(Protocol):
    """A provider of memory for jobs, in place of the scheduler."""

    def allocate(self, size_bytes: int) -> Region | None:
        """Return memory for a job, or None if the scheduler should allocate it."""
        ...

    def discard(self, region: Region) -> None:
        """Take back memory, if this provider allocated it."""
        ...

    def await_return(self) -> bool:
        """Wait for a region; False if the consumer holds all."""
        ...


class Client:
    """The state of one loader in a scheduler.

    Attributes:
        plan: the plan of the loader.
        recorder: records events.
        memory_provider: provides the memory of the scheduler's jobs; None for the scheduler's own memory.
        learned: measurements of its rows, by which work is cut.
        readings: measurements for a report.
        times_memory: shared memory in which worker processes write the times of steps; None for memory of their own.
        crashing_rows: rows that no worker may compute, as in `Context`.
        ahead: how many batches are taken from the stream before they are delivered.
        region_pool: its memory. It may outlive the client, as delivered batches do.
        merging: a semaphore for the threads that merge its batches.
        queues: for each queue, the function that gives up its jobs.
        arm_more: arms the jobs that its queue can arm; called by workers that own the scheduler; must not raise.
        lacks_memory: returns whether a job of its queue waits for memory, and workers have no other job of it.
        has_warned_of_kept: whether the warning about kept batches was given, once for all its queues.
        listener: woken when one of its jobs may be complete; None before it joins a scheduler.
        is_folded_ahead: whether a thread that folds ahead waits for its jobs; the consumer then looks for stalls.
        before_wait: called before a wait for a job, or other long work; a fold passes on the batches that it has made.
        stall: finds the work that its consumer waits for; None while none waits.
        waited_until: when the last wait ended, or a fold's thread began, by `monotonic`.
        choices: those between workers and the thread of the fold, to compute the elements below it and the steps above.
    """

    def __init__(self, plan: Plan, recorder: Recorder, memory_provider: MemoryProvider | None = None) -> None:
        self.plan = plan
        self.recorder = recorder
        self.memory_provider = memory_provider
        self.learned: Learned[Any] = Learned(counts_all=plan.memory is not None)
        self.readings = Readings(walk(plan.node))
        self.times_memory: Region | None = None
        self.crashing_rows: dict[tuple[int, ...], Exception] = {}
        self.ahead = 0
        self.region_pool = RegionPool(copies=plan.copy, is_bounded=plan.memory is not None)
        self.merging = threading.Semaphore(plan.limits.num_batch_workers or plan.prefetch)
        self.queues: list[Callable[[], None]] = []
        self.arm_more: Callable[[], None] = nothing
        self.lacks_memory: Callable[[], bool] = never
        self.has_warned_of_kept = memory_provider is not None  # the process of the trainer warns
        self.listener: Listener | None = None
        self.is_folded_ahead = False
        self.before_wait: Callable[[], None] = nothing
        self.stall: Callable[[], Stall | None] | None = None
        self.waited_until = 0.0
        self.choices = FoldChoices()
        self._prepared = threading.local()  # `is_done` in threads that called `worker_init`
        self._logged: set[str] = set()
        self._contexts: dict[int, Context] = {}  # by the number of a thread
        self._components = parts_with_names(plan.node)

    def context(self, role: str = "consumer") -> Context:
        """Return a new context for a thread that computes; threads of different roles may compute at the same time."""
        return Context(
            observe=self.recorder.observe,
            substituted=self.recorder.substituted,
            crashing_rows=self.crashing_rows,
            times=self.readings.times(role),
            components=self._components,
        )

    def consumer_context(self) -> Context:
        """Return a context for the consumer; unlike those of workers, it counts the elements that filters leave out."""
        return replace(self.context(), filtered=self.recorder.count_filtered)

    def context_of(self, worker: int) -> Context:
        """Return the context of a worker thread; called in that thread."""
        known = self._contexts.get(worker)
        if known is None:
            known = self._contexts[worker] = self.context(f"worker {worker}")
        return known

    def note_wait(self, cause: Cause) -> None:
        """Note the cause of a wait that has just ended, if it was the consumer's."""
        if not self.is_folded_ahead:
            self.readings.waits.cause = cause

    def prepare(self) -> None:
        """Call `worker_init` in the calling thread, once, before it computes the workers' work."""
        worker_init = self.plan.limits.worker_init
        if worker_init is None or self.plan.place == "inline" or getattr(self._prepared, "is_done", False):
            return
        try:
            worker_init(self.plan.num_workers)
        except Exception as error:
            add_note(error, "in worker_init, which prepares the thread that computes work of the workers")
            raise
        self._prepared.is_done = True

    def give_up(self) -> None:
        """Give up all queues' jobs; with the scheduler owned."""
        while self.queues:
            self.queues[-1]()
        self.arm_more, self.lacks_memory = nothing, never

    def log_complaint(self, complaint: str) -> None:
        """Log an exception that a worker raised and the consumer didn't, if it is known; once for each type."""
        kind = complaint.partition(":")[0]
        if complaint and kind not in self._logged:
            self._logged.add(kind)
            _logger.warning(
                "a worker process raised an exception that this process did not raise when it computed the same batch. "
                "The batch is correct, but such batches take this process's time: %s",
                complaint,
            )


def _copied(error: BaseException) -> BaseException:
    """Return a copy of a kept exception, to raise; itself if it can't be copied.

    Raising the original would add the caller's frames to its traceback. They refer to the scheduler, which keeps the
    exception, so neither would ever be collected.
    """
    with CaughtFailure():
        copied = copy.copy(error)
        if type(copied) is type(error):
            copied.__cause__, copied.__context__ = error.__cause__, error.__context__
            copied.__suppress_context__ = error.__suppress_context__
            return copied.with_traceback(error.__traceback__)
    return error


def nothing() -> None:
    """Do nothing: no queue is open, or no fold waits."""


def never() -> bool:
    """Return False: no queue is open, so none waits for memory."""
    return False


class Armed(NamedTuple):
    """A job in a slot: its number, its client, and itself."""

    number: int
    client: Client
    job: Job[Work]


class AtWork(NamedTuple):
    """The work of one worker, and when it began, by `monotonic`.

    Attributes:
        worker: the number of the worker.
        since: when it began the block.
        armed: the job that it computes; None for none.
        slot: the slot of the job.
        block: the block of the job; the merge is the block after all blocks of rows.
        is_idle: whether it waits for work, or for permission to merge.
    """

    worker: int
    since: float
    armed: Armed | None = None
    slot: int = -1
    block: int = 0
    is_idle: bool = False


class Ownership:
    """The scope in which a thread owns a scheduler; at its end the thread calls the postponed actions (`when_free`).

    It is a class and no generator, which would take twice the time, and each batch enters it.
    """

    __slots__ = ("_held", "_lock", "_run_postponed")

    def __init__(self, lock: threading.Lock, run_postponed: Callable[[], None]) -> None:
        self._held = HeldInterrupts()
        self._lock = lock
        self._run_postponed = run_postponed

    def __enter__(self) -> HeldInterrupts:
        self._held.__enter__()
        self._lock.acquire()  # released by `__exit__`; signals wait until then
        return self._held

    def __exit__(self, *error: object) -> None:
        try:
            self._lock.release()
            self._held.hold()
            self._run_postponed()
        finally:
            self._held.__exit__(*error)


class Scheduler:
    """Owns the ring and the threads, and leases memory to jobs. It outlives the queues that it serves.

    Args:
        owner: the client whose plan has the number of workers and their `worker_init`. The scheduler ends with it.
    """

    uses_processes = False
    """Whether worker processes compute the jobs, and not threads."""

    def __init__(self, owner: Client) -> None:
        self.num_workers = owner.plan.num_workers
        self.clients: tuple[Client, ...] = ()  # replaced as a whole, since other threads read it
        self._owner = owner
        self._lock = threading.Lock()  # its holder owns the scheduler
        self._postponed: deque[Callable[[], None]] = deque()  # run by the thread that releases the lock next
        self._process = os.getpid()
        self._worker_error: BaseException | None = None
        self.is_closed = False
        self._ring = self._make_ring()
        self._bell = CommonBell(self._ring.bell)
        self._memory = Memory()
        self._armed: list[Armed | None] = [None] * SLOTS
        self._free = list(range(SLOTS - 1, -1, -1))
        self._draining: set[int] = set()
        self._pools: dict[int, RegionPool] = {}  # by job number, of memory that is being written, ready or viewed
        self._number = 0  # of the last job
        self._doing = [AtWork(number, time.monotonic(), is_idle=True) for number in range(self.num_workers)]
        self._idents: dict[int, int] = {}  # of worker threads, by their numbers
        self.join(owner)
        self._start()

    # -- the workers, and their memory; processes have their own

    def _make_ring(self) -> SlotRing:
        return SlotRing(BLOCKS, capacity=SLOTS)

    def _start(self) -> None:
        self._threads = WorkerThreads(self._ring, self.num_workers, self._make_run)

    def _stop(self) -> None:
        self._threads.close()

    def _allocate(self, size_bytes: int) -> Region:
        return self._memory.allocate(size_bytes)

    def _share(self, region: Region) -> None:
        """Make memory that was allocated elsewhere known to the workers."""

    def _discard(self, regions: list[Region]) -> None:
        """Release memory that is no longer used."""
        memory_provider = self._owner.memory_provider
        if memory_provider is not None:
            for region in regions:
                memory_provider.discard(region)

    def _region_bytes(self, armed: Armed) -> tuple[int, int]:
        return armed.job.memory_bytes, ANY_SIZE  # at least, and at most

    def _give_memory(self, armed: Armed, lease: Lease) -> None:
        armed.job.work.use(lease)

    def begins_first(self, client: Client, job: Job[Work]) -> bool:
        """Return whether a client's next jobs are armed only after this one has ended."""
        return job.work.shape.makes_own and client.plan.memory is not None and not client.learned.knows_memory

    def _describe(self, slot: int, armed: Armed, region: Region | None) -> None:
        """Describe a job to workers in other processes, which look when its slot is armed."""

    def _forget_description(self, slot: int, armed: Armed) -> None:
        """Undo `_describe`, and the memory that was given, for a job that can't be armed now."""

    def _is_complete(self, slot: int) -> bool:
        return self._ring.ready(slot)

    def _conclude(self, slot: int, armed: Armed) -> None:
        """Record the outcome of a job."""

    # -- clients

    def join(self, client: Client) -> None:
        """Add a client, and compute its jobs from now on.

        Raises:
            UsageError: there are too many.
        """
        with self.owned():
            # Some slots are left over for cancelled jobs, which keep theirs until they have drained.
            most = max((SLOTS - self.num_workers) // SLOTS_EACH, 1)
            if len(self.clients) == most:
                raise UsageError(
                    f"{self.num_workers} workers compute for at most {most} loaders; got another one. Give that one "
                    "workers of its own"
                )
            client.listener = self._bell.listen()
            self.clients = (*self.clients, client)

    def leave(self, client: Client) -> None:
        """Remove a client, and cancel its jobs; delivered batches stay valid. Never waits."""
        if os.getpid() == self._process:
            self.when_free(lambda: self._forget(client))

    def _forget(self, client: Client) -> None:
        client.give_up()
        self.clients = tuple(other for other in self.clients if other is not client)
        self._bell.forget(_listener_of(client))
        self._discard(client.region_pool.close())

    def give_up(self, client: Client) -> None:
        """Cancel a client's jobs, also those of a queue whose construction was interrupted."""
        with self.owned():
            client.give_up()

    # -- ownership

    def owned(self) -> "Ownership":
        """Own the scheduler, once no other thread does. Ctrl-C is raised at the end, or where it is allowed."""
        return Ownership(self._lock, self._run_postponed)

    @uninterrupted
    def when_free(self, action: Callable[[], None]) -> None:
        """Call `action` with the scheduler owned: now, or, if another thread owns it, when that thread releases it."""
        if os.getpid() != self._process:
            return  # in a fork the workers don't exist, and the shared memory belongs to the parent
        self._postponed.append(action)
        self._run_postponed()

    def _run_postponed(self) -> None:
        """Call the postponed actions, with interrupts held."""
        # A thread that finds the lock held leaves the rest to its holder, which looks again after releasing it.
        while self._postponed and not self._lock.locked():
            if not self._lock.acquire(blocking=False):
                return
            try:
                while self._postponed:
                    self._postponed.popleft()()
            finally:
                self._lock.release()

    def check(self) -> None:
        """Raise an error if the scheduler can't compute: in a fork, after `close`, or after `worker_init` failed."""
        if os.getpid() != self._process:
            raise ClosedError("this loader was started before a fork and can't be used in the child; make a new one")
        if self.is_closed:
            raise ClosedError("the loader that owns the workers of this one was closed; close it last")
        if self._worker_error is not None:
            raise _copied(self._worker_error)
        if self._ring.stopped:
            raise ClosedError(PROGRAM_ENDS)

    def prepare_consumer(self) -> None:
        """Call `worker_init` in the calling thread, once, before it computes work that failed in a worker."""
        self._owner.prepare()

    def arm_more(self, client: Client) -> None:
        """Arm the jobs for which returned memory has room; any thread may call this, and never waits."""
        self.when_free(lambda: client.arm_more())

    def memory_returned(self) -> None:
        """Arm the jobs that wait for memory, since a lease has ended; never waits."""
        if any(client.lacks_memory() for client in self.clients):
            self.when_free(self._arm_lacking)

    def _arm_lacking(self) -> None:
        for client in self.clients:
            if client.lacks_memory():
                client.arm_more()

    def count_bytes(self, client: Client) -> int:
        """Return the bytes of a client's memory that is being written, ready or viewed."""
        if os.getpid() != self._process:
            return 0
        with self.owned():
            self.collect()
            return client.region_pool.used_bytes

    # -- slots; with the scheduler owned

    def regions_in_use(self, client: Client) -> int:
        """Return how many of a client's regions are being written, ready or viewed; cancelled slots don't count."""
        # Nearly always no slot is draining, and each job calls this a few times.
        armed = [self._armed[slot] for slot in self.draining_of(client)] if self._draining else ()
        return client.region_pool.leased - sum(each is not None and each.job.memory_bytes > 0 for each in armed)

    def draining_of(self, client: Client) -> dict[int, int]:
        """Return the numbers of a client's cancelled jobs that may have writers, by slot."""
        armed = ((slot, self._armed[slot]) for slot in self._draining)
        return {slot: each.number for slot, each in armed if each is not None and each.client is client}

    @property
    def has_free_slot(self) -> bool:
        """Whether a job can be armed."""
        return bool(self._free)

    def collect(self) -> None:
        """Take back memory without views, and cancelled slots without writers."""
        if self._draining:
            for slot in [slot for slot in self._draining if self._ring.drained(slot)]:
                self._draining.remove(slot)
                self.retire(slot)
        for number in self._memory.released():
            region_pool = self._pools.pop(number)
            self._discard([*region_pool.take_back(number), *region_pool.spare()])

    def arm(self, client: Client, job: Job[Work]) -> int:
        """Put a client's job into a slot for the workers; return the slot.

        Raises:
            Exception: the system gives no memory or no descriptor. Nothing has changed; the job can be armed again.
        """
        self._number += 1
        armed, lease = Armed(self._number, client, job), None
        region = self._take_region(armed) if job.memory_bytes else None
        slot = self._free[-1]
        try:
            self._describe(slot, armed, region)
            if region is not None:
                after = partial(_memory_returned, weakref.ref(self))
                lease = self._memory.lease(region, armed.number, after=after)
                client.region_pool.add(armed.number, region)
                self._pools[armed.number] = client.region_pool
                self._give_memory(armed, lease)
        except BaseException:
            if region is not None and lease is None:
                client.region_pool.put_back(region)
            self._forget_description(slot, armed)
            raise
        self._free.pop()
        self._armed[slot] = armed
        job.release_packed()
        self._ring.arm(slot, armed.number, job.blocks, merge=job.has_merge)
        return slot

    def _take_region(self, armed: Armed) -> Region:
        sizes, region_pool = self._region_bytes(armed), armed.client.region_pool
        region = region_pool.take(*sizes)
        if region is None:
            self._discard(region_pool.oldest())  # the new region replaces it
            region = self._new_region(sizes[0])
        return region

    def _new_region(self, size_bytes: int) -> Region:
        memory_provider = self._owner.memory_provider
        region = None if memory_provider is None else memory_provider.allocate(size_bytes)
        if region is None:
            return self._allocate(size_bytes)
        self._share(region)
        return region

    def retire(self, slot: int) -> None:
        """Free a slot whose job is complete; its memory is free when the last view of it is collected."""
        armed = self._armed[slot]
        if armed is None:
            raise InternalError("only an armed slot can be retired")
        self._conclude(slot, armed)
        self._ring.retire(slot)
        self._armed[slot] = None
        self._free.append(slot)

    def deliver(self, slot: int) -> None:
        """Retire a slot whose job its consumer takes now."""
        armed = self._armed[slot]
        self.retire(slot)
        if armed is not None:
            armed.client.region_pool.delivered(armed.number)

    def cancel(self, slot: int) -> None:
        """Give up a slot's job: blocks that no worker has begun are never run."""
        self._ring.cancel(slot)
        self._draining.add(slot)

    # -- waiting; only in the thread of the client's consumer

    def wait_drained(self, client: Client, cancelled: dict[int, int], given_up: Callable[[], bool]) -> None:
        """Wait until cancelled jobs, of these numbers in these slots, have no writers; Ctrl-C ends the wait at once."""

        def is_over() -> bool:
            return given_up() or not any(self._is_draining(slot, number) for slot, number in cancelled.items())

        patience = Patience(lambda: self._stall(cancelled, any_will_do=False), self.timeout)
        wait_until(_listener_of(client), is_over, patience)

    def _is_draining(self, slot: int, number: int) -> bool:
        armed = self._armed[slot]  # another thread may have freed the slot, and another job may have it now
        return armed is not None and armed.number == number and not self._ring.drained(slot)

    def is_ready(self, client: Client, slots: Iterable[int]) -> bool:
        """Return whether one of the slots' jobs is complete; if not, the descriptor becomes readable when it may be."""
        _listener_of(client).clear()
        return self._is_settled(slots)

    def wait(
        self,
        client: Client,
        slots: Callable[[], Iterable[int]],
        given_up: Callable[[], bool],
        before: Callable[[], Stall | None] | None = None,
    ) -> float:
        """Wait until one of the slots' jobs is complete, or given up; Ctrl-C ends the wait at once.

        Args:
            client: the client whose consumer waits.
            slots: returns the slots of the jobs.
            given_up: returns whether to stop waiting.
            before: returns the work that makes the client's next jobs; called where no worker has work.

        Returns:
            The seconds of the wait; 0 if a job was complete at once.

        Raises:
            WorkerError: a thread has been at the same work for longer than the timeout.
        """
        client.stall = find = lambda: self._stall(slots(), any_will_do=True) or (None if before is None else before())

        def is_over() -> bool:
            return self._is_settled(slots()) or given_up()

        try:
            if is_over():
                return 0.0
            client.before_wait()
            if not self.uses_processes:
                UNREAD.add_lock_waits()  # of this thread, before it waits for the workers of this loader
            began = time.monotonic()
            if client.is_folded_ahead:
                wait_until(_listener_of(client), is_over)
            else:
                wait_until(_listener_of(client), is_over, Patience(find, self.timeout), client.readings.waits)
            if not self.uses_processes:
                client.readings.times("consumer").add_lock_waits()
            return time.monotonic() - began
        finally:
            client.waited_until, client.stall = time.monotonic(), None

    @property
    def timeout(self) -> float | None:
        """The seconds that a consumer waits for the same work; None for processes, which have watchers for that."""
        return None if self.uses_processes else self._owner.plan.limits.timeout

    def _stall(self, slots: Iterable[int], *, any_will_do: bool) -> Stall | None:
        """Return the work that the slots' jobs wait for; None if no worker has work.

        If all of the jobs must be complete, or there is only one, that is the oldest work at them. If any of several
        will do, it is the newest work at them, since there is progress as long as a worker begins a block. If no worker
        is at one of them, it is the newest work of all.
        """
        wanted, doing = set(slots), self._at_work()
        busy = [each for each in doing if not each.is_idle]
        at = [each for each in busy if each.slot in wanted]
        if not busy:
            return None
        text = "worker {}" if at or self.num_workers == 1 else "worker {}, like all others,"
        if at and (len(wanted) == 1 or not any_will_do):
            found, since = min(at, key=lambda each: each.since), 0.0
        else:
            found, since = max(at or busy, key=lambda each: each.since), max(each.since for each in doing)
        worker, armed = found.worker, found.armed
        return Stall(
            text.format(worker),
            max(found.since, since),
            lambda: "worker_init" if armed is None else describe_block(armed.job, found.block),
            self._idents.get(worker),
            None if armed is None or not at or armed.job.steps > 1 else armed.job.extent(found.block)[0],
        )

    def _at_work(self) -> list[AtWork]:
        return self._doing.copy()

    def idle_seconds(self, count: int = 1) -> float:
        """Return for how long at least `count` workers have had no work; 0 if fewer have none."""
        since = [each.since for each in self._doing.copy() if each.is_idle]
        return time.monotonic() - sorted(since)[count - 1] if len(since) >= count else 0.0

    def is_starting(self) -> bool:
        """Return whether a worker is at its first work, and may still import modules for that."""
        return False

    def is_complete(self, slot: int) -> bool:
        """Return whether a slot's job is complete."""
        return self._is_complete(slot)

    def _is_settled(self, slots: Iterable[int]) -> bool:
        return any(map(self._is_complete, slots)) or self._ring.stopped or self._worker_error is not None

    def waker(self, client: Client) -> Callable[[], None]:
        """Return a thread-safe callback that wakes the consumer that waits for a client's jobs."""
        return _listener_of(client).ring

    def fileno(self, client: Client) -> int:
        """Return the descriptor that becomes readable when a job of the client's may be complete."""
        return _listener_of(client).fileno()

    def close(self) -> None:
        """Stop the workers. Memory stays valid as long as views of it live."""
        if os.getpid() != self._process:
            return  # in a fork the threads don't exist; nothing may be touched
        self.is_closed = True
        for client in self.clients:
            self.when_free(client.give_up)
        self._stop()
        self._worker_error = None  # its frames refer to this
        self.when_free(self._forget_all)

    def _forget_all(self) -> None:
        """Remove all clients, and drop the cancelled jobs, which may refer to this; with the scheduler owned."""
        for client in self.clients:
            self._forget(client)
        self._draining.clear()
        self._armed = [None] * SLOTS

    # -- workers

    def _make_run(self, number: int) -> RunClaim:
        self._idents[number] = threading.get_ident()
        self._doing[number] = AtWork(number, time.monotonic())
        self._initialise(number)
        self._note_idle(number)

        def run(claim: Claim) -> None:
            if delay := decide(DELAY_MICROSECONDS, 0):
                self._ring.rest(delay / 1e6)
            armed = self._armed[claim.slot]
            if armed is not None and not armed.job.failed:
                self._run(armed, claim, number)
            del armed
            if self._lock.acquire(blocking=False):  # otherwise the holder arms the jobs that can be armed
                try:
                    for client in self.clients:
                        client.arm_more()
                finally:
                    self._lock.release()
            self._run_postponed()

        return run

    def _initialise(self, number: int) -> None:
        worker_init = self._owner.plan.limits.worker_init
        if worker_init is None:
            return
        with Caught() as caught:
            worker_init(number)
        if caught.error is not None:  # the consumer raises it, instead of returning a batch
            add_note(caught.error, f"in worker_init of worker {number}")
            self._worker_error = caught.taken()

    def _run(self, armed: Armed, claim: Claim, number: int) -> None:
        client, job, slot = armed.client, armed.job, claim.slot
        if self._worker_error is not None:
            job.failed = True
            return
        started, cpu_started = time.perf_counter(), time.thread_time()
        with Caught() as caught:
            context = client.context_of(number)
            if claim.merge:
                with client.merging:
                    self._doing[number] = AtWork(number, time.monotonic(), armed, slot, job.blocks)
                    started = time.perf_counter()
                    job.run_merge(context, learned=client.learned)
                seconds = time.perf_counter() - started
                client.learned.timed_merge(job.steps, seconds)
            else:
                self._doing[number] = AtWork(number, time.monotonic(), armed, slot, claim.block)
                parents_before = context.kept.parent_seconds
                rows = job.run_block(claim.block, context, learned=client.learned)
                seconds, cpu_seconds = time.perf_counter() - started, time.thread_time() - cpu_started
                client.learned.timed(rows, seconds, cpu_seconds, context.kept.parent_seconds - parents_before)
            context.times.work(seconds)
        self._note_idle(number)
        if caught.error is not None:
            job.fail(job.blocks if claim.merge else claim.block, caught.taken())

    def _note_idle(self, number: int) -> None:
        """Note that a worker waits for work from now on."""
        self._doing[number] = AtWork(number, time.monotonic(), is_idle=True)


def _listener_of(client: Client) -> Listener:
    if client.listener is None:
        raise InternalError("a client joins a scheduler before its consumer waits")
    return client.listener


def _memory_returned(scheduler: "weakref.ref[Scheduler]") -> None:
    alive = scheduler()
    if alive is not None:
        alive.memory_returned()
