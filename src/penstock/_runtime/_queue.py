"""A queue of jobs that workers compute ahead of the consumer; the streams of batches read from it.

The queue decides how far ahead the workers are. Two bounds hold them back. `window` limits the jobs in the making or
ready, so a fast worker can't fill memory with batches that nobody has requested. The number of regions limits memory: a
batch that the training loop still references keeps its region, so the workers wait. If the loop keeps *every* batch,
waiting would never end; then the queue allocates more, up to `memory=`, with one warning. An error is raised only where
`memory=` itself is too small.

Jobs are armed by the consumer, and, where a client has a single queue, also by a worker that has just finished a block:
the workers stay busy while the consumer trains.

Guarantees:
  - `next_job` returns the jobs, each exactly once, complete or with its error: in the order in which they were made, or
    as they become complete.
  - At most `window` jobs are in the making or ready; with the one that the consumer holds, `window` + 1 jobs have
    memory, and as many more as batches are taken ahead, unless the consumer keeps more. Then there will be more, up to
    the plan's `memory`, with one warning; it never deadlocks.
  - Where making a job raises, the jobs before it are returned first; the next call tries to make it again.
  - Closing takes back every block that no worker has begun; blocks that run drain while another queue uses the
    scheduler.

All methods belong to one thread at a time, the consumer's or one that takes or folds ahead of it; only `close` may be
called wherever the garbage collector runs.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from penstock._caught import Caught
from penstock._decisions import JOBS_AHEAD, SEEN_NOW, decide
from penstock._os import HeldInterrupts
from penstock._runtime._client import Client, nothing
from penstock._runtime._jobs import Job
from penstock._runtime._scheduler import SLOTS_EACH, Scheduler
from penstock._runtime._stalls import Stall
from penstock.errors import UsageError

AnyJob = TypeVar("AnyJob", bound=Job)


class JobQueue(Generic[AnyJob]):
    """The jobs of one stream, in order."""

    _ends = True
    """Whether the queue has ended once `make_job` returns None."""

    def __init__(
        self,
        scheduler: Scheduler,
        client: Client,
        make_job: Callable[[], AnyJob | None],
        window: int,
        *,
        queues: int = 1,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """Start computing ahead.

        Args:
            scheduler: it computes the jobs.
            client: the jobs belong to it.
            make_job: returns the next job, or None when there are no more; called in order, on any thread.
            window: how many jobs may be in the making or ready, at least 1.
            queues: how many queues the client has, at most. Where this is the only one, workers arm jobs too; else only
                the consumer does.
            ended: called when the jobs are given up, so that no worker waits for records that won't arrive; may be
                called again.
        """
        self._scheduler = scheduler
        self._client = client
        self._make_job = make_job
        window = min(window, max(SLOTS_EACH // queues, 1))
        self.window = window
        self._memory = client.plan.memory
        self._most_regions = window + 1 + client.ahead
        self._armed: deque[tuple[int, AnyJob]] = deque()
        self._made: AnyJob | None = None  # made, and waiting for a slot
        self._ended = False
        self._tell_ended = ended
        scheduler.check()
        with scheduler.owned():
            client.queues.append(self._give_up)
            if queues == 1:
                client.arm_more = self._arm_ahead
                client.region_pool.most_idle = window + 1 + client.ahead
            self._arm_ahead()

    def next_job_nowait(self) -> AnyJob | None:
        """Return the next job if it is complete."""
        self._scheduler.check()
        if not any(map(self._scheduler.is_complete, self._wanted())) or not decide(SEEN_NOW, 1):
            return None
        with self._scheduler.owned():
            return self._retired() if self._armed else None  # another thread gave up the jobs

    def next_job(self, held: HeldInterrupts | None = None) -> AnyJob | None:
        """Return the next job when it is complete; None at the end.

        Args:
            held: the caller's scope in which signals are held; they are allowed while this waits.
        """
        self._scheduler.check()
        with self._scheduler.owned() as held_here:
            if self._armed:
                self._arm_ahead()
            else:
                self._arm()
            if not self._armed and not self._ended:
                self._grow(held_here)
            if not self._armed:
                return None
        if held is not None:
            held.allow()
        self._scheduler.wait(self._client, self._wanted, lambda: self._ended and not self._armed)
        if held is not None:
            held.hold()
        self._scheduler.check()
        with self._scheduler.owned():
            return self._retired() if self._armed else None  # another thread gave up the jobs

    def _retired(self) -> AnyJob:
        """Take a complete job out of its slot, with the scheduler owned."""
        slot, job = self._taken()
        self._scheduler.retire(slot)
        self._arm_ahead()
        return job

    def _wanted(self) -> Iterable[int]:
        """Return the slots of the jobs that may be returned next. Another thread may arm more, or give all up."""
        return [slot for slot, _ in islice(self._armed.copy(), 1)]

    def _taken(self) -> tuple[int, AnyJob]:
        """Take out the job to return; one is complete."""
        return self._armed.popleft()

    def is_ready(self) -> bool:
        """Return whether `next_job` would return without waiting, as far as that can be told without waiting."""
        if not self._armed and not self._ended:
            with Caught(Exception), self._scheduler.owned() as held:  # `next_job` raises the error
                self._arm()
                if self._client.lender is not None and not self._armed:
                    return self._ended  # it waits for memory
                if not self._armed and not self._ended:
                    self._grow(held)
        return not self._armed or self._scheduler.is_ready(self._client, self._wanted())

    def close(self) -> None:
        """Give up all jobs."""
        self._ended = True
        self._scheduler.when_free(self._give_up)

    # -- with the scheduler owned

    def _give_up(self) -> None:
        self._ended = True
        if self._tell_ended is not None:
            self._tell_ended()
        if self._give_up in self._client.queues:
            self._client.queues.remove(self._give_up)
        if self._client.arm_more == self._arm_ahead:
            self._client.arm_more = nothing
        self._made = None
        while self._armed:
            self._scheduler.cancel(self._armed.popleft()[0])
        self._scheduler.collect()
        if self._client.listener is not None:
            self._client.listener.ring()

    def _arm_ahead(self) -> None:
        """Arm jobs as far as the bounds allow; an error of making one is left to the consumer, which makes it again."""
        with Caught(Exception):
            self._arm()

    def _arm(self) -> None:
        self._scheduler.collect()
        while not self._ended and len(self._armed) < self._window_now() and self._scheduler.has_free_slot:
            if self._made is None:
                self._made = self._make_job()
            job = self._made
            if job is None:
                self._ended = self._ends
                return
            if self._fits(job):
                self._armed.append((self._scheduler.arm(self._client, job), job))
                self._made = None
            else:
                return

    def _window_now(self) -> int:
        begins_alone = bool(self._armed) and self._scheduler.begins_alone(self._client, self._armed[-1][1])
        return 1 if begins_alone else self._jobs_ahead()

    def _jobs_ahead(self) -> int:
        return decide(JOBS_AHEAD, self.window, self.window)

    def _fits(self, job: AnyJob) -> bool:
        if not job.memory_bytes:
            return True
        if self._memory is not None and self._client.region_pool.used_bytes + job.memory_bytes > self._memory:
            return False
        return self._scheduler.regions_in_use(self._client) < self._most_regions

    def _grow(self, held: HeldInterrupts) -> None:
        """Make room where the consumer holds all memory, or raise the error that says why there is none."""
        job, scheduler, client = self._made, self._scheduler, self._client
        if job is None:
            return
        if self._memory is not None and client.region_pool.used_bytes + job.memory_bytes > self._memory:
            scheduler.wait_drained(client, held)  # an earlier iterator's jobs may still have memory
            self._arm()
            if self._armed:
                return
            raise UsageError(
                f"memory={self._memory} is too small: the next batches need {job.memory_bytes} bytes, and the batches "
                f"that you still reference use {client.region_pool.used_bytes}. Raise memory=, keep fewer batches, "
                "or use copy=True, which delivers copies."
            )
        while client.lender is not None and client.lender.await_return():
            self._arm()
            if self._armed or self._ended:
                return
        if not client.has_warned_of_kept:
            client.has_warned_of_kept = True
            kept = scheduler.regions_in_use(client)
            warnings.warn(
                f"{kept} batches are kept by the training loop, so the loader takes more memory for "
                "others. Keep fewer, or use copy=True, which delivers copies.",
                stacklevel=6,
            )
        self._most_regions = scheduler.regions_in_use(client) + self.window
        self._arm()


class ReadyQueue(JobQueue[AnyJob]):
    """The jobs of one stream, as they become complete; of several the first."""

    def _jobs_ahead(self) -> int:
        return self.window  # a slow job must not delay others

    def _wanted(self) -> Iterable[int]:
        return [slot for slot, _ in self._armed.copy()]

    def _taken(self) -> tuple[int, AnyJob]:
        for armed in self._armed:
            if self._scheduler.is_complete(armed[0]):
                self._armed.remove(armed)
                return armed
        return super()._taken()  # the ring was stopped


class GivenQueue(JobQueue[AnyJob]):
    """Jobs whose content comes from a fold, in order; `make_job` returns None as long as no more has come."""

    _ends = False

    @property
    def has_room(self) -> bool:
        """Whether another job would be armed at once."""
        has_place = len(self._armed) < self._window_now() and self._scheduler.has_free_slot
        return has_place and self._made is None and not self._ended

    @property
    def is_empty(self) -> bool:
        """Whether no job is in the making, ready, or waiting for memory."""
        return not self._armed and self._made is None

    @property
    def waits_for_memory(self) -> bool:
        """Whether no job is armed, and one is made that waits for memory, which the consumer may hold."""
        return self._made is not None and not self._armed

    @property
    def is_over(self) -> bool:
        """Whether the jobs were given up, maybe by another thread."""
        return self._ended

    @property
    def has_armed(self) -> bool:
        """Whether a job is in the making, or ready."""
        return bool(self._armed)

    def arm(self) -> None:
        """Arm jobs of the content that has come, as far as there is room."""
        with self._scheduler.owned():
            self._arm()

    def wait(self, has_come: Callable[[], bool], before: Callable[[], Stall | None]) -> None:
        """Wait until the first job is complete, or more has come; `before` finds the work that it comes from."""
        self._scheduler.wait(self._client, self._wanted, lambda: self._ended or has_come(), before)

    def is_complete(self) -> bool:
        """Return whether the first job is complete; if not, the descriptor becomes readable when it may be."""
        return self._scheduler.is_ready(self._client, self._wanted())
