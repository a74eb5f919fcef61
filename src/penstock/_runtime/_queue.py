"""A queue of jobs that workers compute ahead of the consumer, and the cutters that make its jobs.

The queue decides how far ahead the workers are. Two bounds hold them back. `window` limits the jobs being computed or
ready, so a fast worker can't fill memory with batches that were not requested. The number of regions limits memory: a
batch that the training loop still references keeps its region, so the workers wait. If the loop keeps *every* batch,
waiting would never end; then the queue allocates more, up to `memory=`, with one warning. An error is raised only where
`memory=` itself is too small.

Jobs are armed by the consumer, and, where a client has a single queue, also by a worker that has just finished a block:
the workers stay busy while the consumer trains.

The cutters cut steps and positions into jobs, and jobs into blocks of rows; `_chunk_sizes` chooses the sizes.

Guarantees:
  - `next_job` returns the jobs, each exactly once, complete or with its error: in the order in which they were made, or
    as they become complete.
  - At most `window` jobs are being computed or ready; with the one that the consumer holds, `window` + 1 jobs have
    memory, and as many more as batches are taken ahead, unless the consumer keeps more. Then there will be more, up to
    the plan's `memory`, with one warning; it never deadlocks.
  - Where making a job raises, the jobs before it are returned first; the next call tries to make it again.
  - Closing takes back every block that no worker has begun; blocks that run drain while another queue uses the
    scheduler.

All methods belong to one thread at a time, the consumer's or one that takes or folds ahead of it; only `close` may be
called wherever the garbage collector runs.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock import _runtime
from penstock._caught import CaughtFailure, is_interrupt
from penstock._decisions import (
    JOB_BATCHES,
    JOB_POSITIONS,
    JOBS_AHEAD,
    KNOWN_LAYOUT,
    SEEN_NOW,
    decide,
)
from penstock._graph import Node, awaits, parents_of_block
from penstock._os import HeldInterrupts
from penstock._plan import Batches, Plan
from penstock._readings import Cause
from penstock._runtime._batch_work import BatchJob, BatchWork, row_layout
from penstock._runtime._batches import StepRange, row_coordinates, rows_of, rows_of_batch
from penstock._runtime._chunk_sizes import ParentRows, block_rows, job_size
from penstock._runtime._failing_work import Stall
from penstock._runtime._jobs import BlockSize, Job, Learned, Work
from penstock._runtime._policy import (
    AWAITED_BLOCK_SECONDS,
    AWAITED_BYTES,
    BELOW_MB_BYTES,
    CHEAP_BYTES,
    CHEAP_JOB_SECONDS,
    ISOLATED_TIMES,
    JOB_SECONDS,
    LARGE_ELEMENT_BYTES,
    MADE_BYTES,
    MAX_CHEAP_BATCHES,
    MAX_JOB_BATCHES,
    MAX_PARENT_BATCHES,
    MAX_POSITIONS,
    MIN_BLOCK_SECONDS,
    SHARED_BYTES,
    SLOTS_EACH,
    SMALL_BATCHES_BYTES,
    SPAN_BYTES,
    WHOLE_BLOCK_SECONDS,
)
from penstock._runtime._scheduler import Client, Scheduler, never, nothing
from penstock._runtime._span_work import SpanJob, SpanWork
from penstock._streaming import BlockInput
from penstock.errors import InternalError, UsageError

if TYPE_CHECKING:
    from penstock.batching import Layout


AnyJob = TypeVar("AnyJob", bound=Job[Work])


class JobCutter(ABC, Generic[AnyJob]):
    """Cuts the elements of a node into the jobs of a queue, one after the other.

    Args:
        scheduler: computes the jobs.
        client: owns the jobs.
        node: the node whose elements are the rows of the jobs.
        window: the attribute is at least this, and at least the plan's `prefetch`.
        step: the distance between the positions of two rows.

    Attributes:
        node: the node whose elements are the rows of the jobs.
        window: the largest number of jobs that are being computed or ready.
        queues: the maximum number of queues of the client.
        read_ahead: the largest number of records of async sources that are requested ahead of the workers.
        least_rows: the rows of a job, at least, whose records worker processes request together; 0 for no such rows.
    """

    def __init__(self, scheduler: Scheduler, client: Client, node: Node, window: int, step: int = 1) -> None:
        plan = client.plan
        self.node = node
        self.queues = 1
        self.read_ahead = plan.limits.read_ahead
        self.least_rows = self.read_ahead if scheduler.uses_processes and awaits(node) else 0
        # While the last records of a job are awaited, those of the next one are requested.
        self.window = max(plan.prefetch, window, 2 if self.least_rows else 1)
        self._plan = plan
        self._workers = scheduler.num_workers
        self._learned: Learned[Layout] = client.learned
        self._rows = rows_of_batch(plan)
        self._parents = ParentRows(node, step, client, self._workers, self.window)

    @abstractmethod
    def next_job(self) -> AnyJob | None:
        """Return the next job, or None at the end."""

    def window_now(self) -> int:
        """Return the largest number of jobs that are being computed or ready, by what is known of their memory."""
        return self.window

    def _block_rows(self, rows: int, least_seconds: float = MIN_BLOCK_SECONDS) -> int:
        """Return the number of rows of a block, for a job of so many rows."""
        # However cheap rows are whose records processes request, each process has some of them.
        seconds = AWAITED_BLOCK_SECONDS if self.least_rows else least_seconds
        return block_rows(rows, self._workers, self._learned, least_seconds=seconds)

    def _awaited_together(self, rows: int, bytes_each: float) -> int:
        """Return how many units a job has, at least, so that processes request their records together.

        Args:
            rows: the number of rows of a unit.
            bytes_each: the memory of a unit, in all jobs that have memory.
        """
        most = min(AWAITED_BYTES, self._plan.memory or math.inf) / bytes_each
        return max(int(min(-(-self.least_rows // rows), most)), 1)


def within_memory(plan: Plan, window: int, batch_bytes: float) -> int:
    """Return how many jobs may be computed or ready by threads, whose batches have memory of their own.

    Args:
        plan: the plan; its `memory` also has room for the batch that the program is at, and the one before.
        window: the largest number.
        batch_bytes: the memory of a batch as far as it is known; 0 for none.
    """
    if plan.memory is None or not batch_bytes:
        return window
    return max(min(window, int(plan.memory / batch_bytes) - 2), 1)


class Cutter(JobCutter[BatchJob]):
    """Cuts step ranges into jobs."""

    def __init__(self, scheduler: Scheduler, client: Client, program: Batches, step_ranges: list[StepRange]) -> None:
        # However few rows a batch has, two for each worker are in progress, so that no worker waits for the consumer.
        super().__init__(scheduler, client, program.rows, -(-2 * scheduler.num_workers // rows_of_batch(client.plan)))
        self._program = program
        self._in_processes = scheduler.uses_processes
        self._step_ranges = step_ranges
        self._number, self._next = 0, 0  # the current step range, and its next step
        self._is_isolated = client.memory_provider is not None
        self._jobs_with_memory = self.window + 1 + client.ahead

    def window_now(self) -> int:
        row_bytes = self._learned.merged_row_bytes
        is_large = self._program.batch is None and row_bytes >= LARGE_ELEMENT_BYTES
        window = max(self._plan.prefetch, self._workers) if is_large else self.window
        return window if self._in_processes else within_memory(self._plan, window, row_bytes * self._rows)

    def next_job(self) -> BatchJob | None:
        if self._number < len(self._step_ranges) and self._next == self._step_ranges[self._number].steps:
            self._number, self._next = self._number + 1, 0
        if self._number == len(self._step_ranges):
            return None
        step_range = self._step_ranges[self._number]
        whole = self._parents.come_whole()
        count = min(self._batches_per_job(step_range, whole=whole), step_range.steps - self._next)
        if count <= 0:
            return None
        try:
            return self._make(step_range, count, whole=whole)
        except BaseException as error:
            if count == 1 or is_interrupt(error):
                raise
        # A sampler of the user raised for one of them; the batches before it are delivered first.
        return self._make(step_range, 1, whole=whole)

    def _make(self, step_range: StepRange, count: int, *, whole: bool) -> BatchJob:
        learned = self._learned if decide(KNOWN_LAYOUT, 1) else Learned["Layout"]()
        may_make = not whole and (count > 1 or self._program.has_own_merge) and self._may_make_batches(learned)
        # A block that makes batches also sends them, so it is larger, unless some workers would have no job.
        least = WHOLE_BLOCK_SECONDS if may_make and self.window >= self._workers else MIN_BLOCK_SECONDS
        rows = self._block_rows(count * self._rows, least)
        makes_batches = may_make and (count > 1 or rows >= self._rows)
        cut = BlockSize(rows, whole, makes_batches)
        work = BatchWork(self._plan, step_range.part(self._next, count), cut, learned, in_processes=self._in_processes)
        self._next += count
        return Job(work)

    def _may_make_batches(self, learned: "Learned[Layout]") -> bool:
        """Whether blocks of several batches may make these themselves, with the user's merge and the steps above."""
        if not self._in_processes or self._plan.limits.num_batch_workers is not None or self._learned.has_crashed:
            return False
        has_layout = bool(self._program.above) and row_layout(self._program, learned) is not None
        return has_layout or self._program.has_own_merge

    def _batches_per_job(self, step_range: StepRange, *, whole: bool) -> int:
        seconds = self._learned.row_seconds
        row_bytes, merge_seconds = self._measured(whole=whole)
        lacks_bytes = not self._in_processes and self._plan.memory is not None and not self._learned.knows_memory
        if seconds is None or merge_seconds is None or lacks_bytes:
            # The first job has one batch, to be complete soon; or all up to a parent's end, which are read together.
            whole = whole and not lacks_bytes
            return self._to_parents_end(step_range, self._parents.wanted(self._rows), MAX_JOB_BATCHES) if whole else 1
        # Workers share the rows of a job; its batches are merged one after the other.
        batch_seconds = max(seconds * self._rows / self._workers + merge_seconds, 1e-9)
        by_time = JOB_SECONDS / batch_seconds
        is_small = row_bytes * self._rows < SHARED_BYTES
        times = ISOLATED_TIMES if self._is_isolated and is_small else 1
        memory = self._plan.memory or math.inf
        usual_bytes = BELOW_MB_BYTES if is_small and not self._is_isolated else times * SMALL_BATCHES_BYTES
        bytes_each = self._jobs_with_memory * max(row_bytes * self._rows, 1)
        by_bytes = min(usual_bytes, memory) / bytes_each
        if not self._in_processes:
            by_bytes = min(by_bytes, self._by_made_bytes(whole=whole))
        awaited = self._awaited_together(self._rows, bytes_each)
        if not whole:
            by_cheap_bytes = min(CHEAP_BYTES, memory) / bytes_each if self._in_processes else by_bytes
            cheap = min(CHEAP_JOB_SECONDS / batch_seconds, MAX_CHEAP_BATCHES, by_cheap_bytes)
            most = max(min(by_bytes, times * MAX_JOB_BATCHES), cheap, awaited)
            return job_size(JOB_BATCHES, by_time, most, awaited)
        knows_bytes = row_bytes > 0 or (self._plan.memory is not None and self._learned.merged_row_bytes > 0)
        wanted = max(self._parents.wanted(self._rows, knows_bytes=knows_bytes), awaited)
        to_end = partial(self._to_parents_end, step_range)
        most = max(min(by_bytes, MAX_PARENT_BATCHES), awaited)
        return job_size(JOB_BATCHES, by_time, most, wanted, to_end)

    def _measured(self, *, whole: bool) -> tuple[float, float | None]:
        """Return the bytes of a row in leased memory, and the time of a batch's merge; None if it isn't known yet."""
        learned, program, layout = self._learned, self._program, self._learned.layout
        row_bytes = 0.0 if layout is None else layout.row_bytes
        known_bytes = max(row_bytes, learned.merged_row_bytes) if self._in_processes else row_bytes
        # Blocks that make batches themselves have no merge; the time of the first batches' merge says little of them,
        # unless it is the user's.
        if not whole and self._may_make_batches(learned) and not program.has_own_merge:
            return known_bytes, 0.0
        if program.above or row_layout(program, learned) is None:
            has_merge = bool(program.above) or program.batch is not None
            return known_bytes, learned.merge_seconds if has_merge else 0.0
        return known_bytes if layout is not None and layout.lists else row_bytes, 0.0

    def _by_made_bytes(self, *, whole: bool) -> float:
        """Return how many batches a job may have by the memory that threads take for results of functions."""
        memory, learned, program = self._plan.memory, self._learned, self._program
        usual = MADE_BYTES / max(learned.made_row_bytes * self._rows, 1)
        if whole and memory is None and program.batch is None and not program.above:
            usual = math.inf  # such rows are mostly views, each of which keeps its parent: nothing would be saved
        batch_bytes = max(learned.merged_row_bytes * self._rows, 1)
        # While the next job is made, a loop holds a batch of the one before its own.
        bounded = math.inf if memory is None else memory / batch_bytes - 1
        return min(usual, bounded) / self._jobs_with_memory

    def _to_parents_end(self, step_range: StepRange, count: int, most: int) -> int:
        """Return the number of batches up to the next one, from `count` on, that ends with a parent's last row."""
        last = min(2 * count, count + MAX_JOB_BATCHES, most, step_range.steps - self._next - 1)
        program, shard = self._program, self._plan.shard
        if last <= count or not program.can_recut:  # otherwise a sampler of the user's may move batches, and raise
            return count
        units = [step_range.unit(self._next + number) for number in range(count - 1, last + 1)]
        rows = [rows_of(program, shard, unit) for unit in units]
        ends = [(each, each.total - 1, each.total) for each in rows[:-1]]
        starts = [(each, 0, 1) for each in rows[1:]]
        before, after = (parents_of_block(program.rows, *row_coordinates(spans)) for spans in (ends, starts))
        return count + _first(before != after)


class SpanCutter(JobCutter[SpanJob]):
    """Cuts the input range of a block input into jobs."""

    def __init__(self, scheduler: Scheduler, client: Client, block_input: BlockInput, start: int) -> None:
        step = max((span.step for span in block_input.input_range.spans), default=1)
        super().__init__(scheduler, client, block_input.node, 2, step)
        inputs = client.plan.streaming.inputs
        self.queues = len(inputs)
        # Inputs that read async sources share the limit.
        self.read_ahead = max(self.read_ahead // max(sum(map(awaits, inputs)), 1), 1)
        self.least_rows = min(self.least_rows, self.read_ahead)
        self._block_input = block_input
        self._max_positions = MAX_POSITIONS // len(inputs)
        self._start = start
        self._end = block_input.input_range.total

    def next_job(self) -> SpanJob | None:
        if self._start >= self._end:
            return None
        seconds, element_bytes = self._learned.row_seconds, self._learned.element_bytes
        by_time = 0.0
        if seconds is not None and element_bytes is not None:
            by_time = JOB_SECONDS * self._workers / max(seconds, 1e-9)
        row_bytes = max(element_bytes or 0, 1)
        awaited = self._awaited_together(1, row_bytes * (self.window + 1)) if by_time else 1
        least = max(self._rows, 2 * self._workers, awaited)
        most = min(self._max_positions, max(SPAN_BYTES / row_bytes, awaited))
        whole = self._parents.come_whole()
        if whole:
            least = max(least, self._parents.wanted(1, knows_bytes=bool(element_bytes)))
        count = job_size(JOB_POSITIONS, by_time, most, least, self._to_parents_end if whole else None)
        span = range(self._start, min(self._start + count, self._end))
        self._start = span.stop
        cut = BlockSize(self._block_rows(len(span)), whole)
        return Job(SpanWork(self._block_input, span, cut))

    def _to_parents_end(self, count: int, most: int) -> int:
        """Return the number of positions up to the next one, from `count` on, that is its parent's last."""
        start, stop = self._start + count - 1, min(self._start + min(2 * count, most) + 1, self._end)
        if stop <= start:
            return count
        positions = self._block_input.input_range.positions(start, stop)
        parents = parents_of_block(self._block_input.node, np.zeros_like(positions), positions)
        return count + _first(parents[1:] != parents[:-1])


def _first(mask: NDArray[np.bool_]) -> int:
    """Return the index of the first true value; 0 if there is none."""
    return int(mask.argmax()) if len(mask) else 0


class JobQueue(Generic[AnyJob]):
    """The jobs of one stream, in order."""

    _remedy = "or use copy=True, which delivers copies"
    """The end of the advice for a program that keeps batches."""
    is_in_order = True
    """Whether jobs are returned in the order in which they were made."""

    def __init__(
        self,
        scheduler: Scheduler,
        client: Client,
        make_job: Callable[[], AnyJob | None],
        window: Callable[[], int],
        *,
        queues: int = 1,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """Start to compute ahead.

        Args:
            scheduler: computes the jobs.
            client: the client that the jobs belong to.
            make_job: returns the next job, or None when there are no more; called in order, on any thread.
            window: returns the largest number of jobs that are being computed or ready, at least 1; a larger one than
                before is ignored.
            queues: the maximum number of queues of the client. If it is 1, workers arm jobs, too; otherwise only the
                consumer does.
            ended: called when the jobs are given up, so that no worker waits for records that won't arrive; may be
                called again.
        """
        self._scheduler = scheduler
        self._client = client
        self._make_job = make_job
        self._find_window = window
        self._most_window = max(SLOTS_EACH // queues, 1)
        self._window = min(window(), self._most_window)
        self._memory = client.plan.memory
        self._most_regions = self._window + 1 + client.ahead
        # Another iterator's jobs, and those that a helper has sent on, look like kept ones.
        self._sees_kept = queues == 1 and client.memory_provider is None
        self._kept = 0  # the number of regions in use when there was no room, to be warned of
        self._in_passing = 1  # the number of jobs of which a loop that keeps no batches may hold some
        self._armed: deque[tuple[int, AnyJob]] = deque()
        self._made: AnyJob | None = None  # waits for a slot or for memory
        self._ended = False
        self._on_end = ended
        self._late_since = 0.0  # in this wait, since when a later job is complete and the next isn't; or 0
        scheduler.check()
        with scheduler.owned():
            client.queues.append(self._give_up)
            if queues == 1:
                client.arm_more, client.lacks_memory = self._arm_ahead, self._lacks_memory
                client.region_pool.most_idle = self._window + 1 + client.ahead
            self._arm_ahead()

    def next_job_nowait(self) -> AnyJob | None:
        """Return the next job if it is complete, else None."""
        self._scheduler.check()
        if not any(map(self._scheduler.is_complete, self._wanted())) or not decide(SEEN_NOW, 1):
            return None
        return self._received()

    def next_job(self, held: HeldInterrupts | None = None) -> AnyJob | None:
        """Return the next job when it is complete; None at the end.

        Args:
            held: the scope in which the caller holds signals; they are allowed during the wait.
        """
        self._scheduler.check()
        self._in_passing = 1  # the program has assigned the batches that it got
        while draining := self._begin_next():
            self._wait_drained(draining, held)
        self._warn_of_kept()
        if not self._armed:
            return None
        if held is not None:
            held.allow()
        lacks_memory = self._made is not None and self._scheduler.idle_seconds() > 0
        is_starting = self._scheduler.is_starting()
        self._late_since = 0.0
        waited = self._scheduler.wait(self._client, self._wanted, self._is_over)
        if waited:
            cause: Cause = "start" if is_starting else "memory" if lacks_memory else self._cause(waited)
            self._client.note_wait(cause)
        if held is not None:
            held.hold()
        self._scheduler.check()
        return self._received()

    def _received(self) -> AnyJob | None:
        """Return a complete job; None if another thread gave up the jobs."""
        with self._scheduler.owned():
            job = self._retired() if self._armed else None
        for event in () if job is None else job.events:
            self._client.recorder.observe(event)  # not with the scheduler owned: a log's handler may use the loader
        return job

    def _begin_next(self) -> dict[int, int]:
        """Arm the next job, unless it is, or there is none; return the cancelled jobs that have its memory."""
        with self._scheduler.owned():
            if self._armed:
                self._arm_ahead()
                return {}
            self._arm()
            draining = self._grow() if self._lacks_room() else {}
            if not draining and self._lacks_room() and not self._scheduler.has_free_slot:
                raise InternalError("no slot is free for the next job")
            return draining

    def _lacks_room(self) -> bool:
        return not self._armed and not self._ended

    def _wait_drained(self, draining: dict[int, int], held: HeldInterrupts | None) -> None:
        """Wait until no worker writes into cancelled jobs; other clients of the workers go on meanwhile."""
        if held is not None:
            held.allow()
        self._scheduler.wait_drained(self._client, draining, lambda: self._ended)
        if held is not None:
            held.hold()
        self._scheduler.check()

    def _is_over(self) -> bool:
        """Return whether there is no next job; also note since when a later job is complete and the next one isn't."""
        if not self._late_since and self.is_in_order:
            later = [slot for slot, _ in self._armed.copy()][1:]
            if any(map(self._scheduler.is_complete, later)):
                self._late_since = monotonic()
        return self._ended and not self._armed

    def _cause(self, waited: float) -> Cause:
        """Return the cause of a wait that has just ended."""
        armed = self._armed.copy()
        is_late = self._late_since and monotonic() - self._late_since > waited / 2
        is_awaited = bool(armed) and armed[0][1].awaited
        # A straggler leaves workers idle for most of the wait: one, if a later job is complete, and otherwise half of
        # them, since each job may have a late row. One may also be idle between two jobs, and many if no job is left.
        idle = 1 if is_late else max(self._scheduler.num_workers // 2, 2)
        if (is_late or not is_awaited) and not self._ended and self._scheduler.idle_seconds(idle) > waited / 2:
            return "stragglers"
        return "storage" if is_awaited else "workers"

    def _retired(self) -> AnyJob:
        """Retire the slot of a complete job, and return the job; with the scheduler owned."""
        slot, job = self._taken()
        self._scheduler.deliver(slot)
        self._in_passing = 2
        self._arm_ahead()
        return job

    def _wanted(self) -> Iterable[int]:
        """Return the slots of the jobs that may be returned next. Another thread may arm more, or give up all."""
        try:
            return [self._armed[0][0]]
        except IndexError:
            return []

    def _taken(self) -> tuple[int, AnyJob]:
        """Remove the job to return, and its slot; at least one job is complete."""
        return self._armed.popleft()

    def is_ready(self) -> bool:
        """Return whether `next_job` would return without waiting, as far as this can be known without waiting."""
        if not self._armed and not self._ended:
            self._scheduler.is_ready(self._client, ())  # the descriptor is readable after what happens from now on
            with CaughtFailure(), self._scheduler.owned():  # `next_job` raises the error
                self._arm()
                if self._client.memory_provider is not None and not self._armed:
                    return self._ended  # it waits for memory
                if self._lacks_room() and self._grow():
                    return False
        return not self._armed or self._scheduler.is_ready(self._client, self._wanted())

    def close(self) -> None:
        """Give up all jobs."""
        self._ended = True
        self._scheduler.when_free(self._give_up)

    # -- with the scheduler owned

    def _give_up(self) -> None:
        self._ended = True
        if self._on_end is not None:
            self._on_end()
        if self._give_up in self._client.queues:
            self._client.queues.remove(self._give_up)
        if self._client.arm_more == self._arm_ahead:
            self._client.arm_more, self._client.lacks_memory = nothing, never
        self._made, self._make_job = None, _none  # the function may refer to the owner of this queue
        while self._armed:
            self._scheduler.cancel(self._armed.popleft()[0])
        self._scheduler.collect()
        if self._client.listener is not None:
            self._client.listener.ring()

    def _arm_ahead(self) -> None:
        """Arm jobs as far as the bounds allow. After an error the consumer makes the job again, and raises."""
        with CaughtFailure():
            self._arm_all()

    def _arm(self) -> None:
        """Arm jobs as far as the bounds allow. An error is raised in its job's place, so not before an armed job."""
        with CaughtFailure() as caught:
            self._arm_all()
        if caught.error is not None and not self._armed:
            raise caught.taken()
        del caught  # its error's traceback would keep this frame, and so the loader

    def _arm_all(self) -> None:
        self._scheduler.collect()
        self._narrow_window()
        while not self._ended and len(self._armed) < self._window_now() and self._scheduler.has_free_slot:
            if self._made is None:
                self._made = self._make_job()
            job = self._made
            if job is None:
                self._ended = self._has_no_more()
                return
            if self._fits(job):
                self._armed.append((self._scheduler.arm(self._client, job), job))
                self._made = None
            else:
                return

    def _has_no_more(self) -> bool:
        """Return whether the queue has ended, after `make_job` returned None."""
        return True

    def _narrow_window(self) -> None:
        window = min(self._find_window(), self._most_window)
        if window < self._window and not self._ended:
            self._window = window
            self._most_regions = self._client.region_pool.most_idle = window + 1 + self._client.ahead

    def _window_now(self) -> int:
        """Return how many jobs may be armed at a time now."""
        begins_first = bool(self._armed) and self._scheduler.begins_first(self._client, self._armed[-1][1])
        return 1 if begins_first else self._jobs_ahead()

    def _jobs_ahead(self) -> int:
        return decide(JOBS_AHEAD, self._window, self._window)

    def _fits(self, job: AnyJob) -> bool:
        """Return whether a job's memory is within the bounds."""
        if not job.memory_bytes:
            return True
        if self._memory is not None and self._client.region_pool.used_bytes + job.memory_bytes > self._memory:
            return False
        return self._regions_in_use() < self._most_regions

    def _lacks_memory(self) -> bool:
        """Return whether a job waits for memory, and no other is incomplete: its workers would arm this one as well."""
        return self._made is not None and all(self._scheduler.is_complete(slot) for slot, _ in self._armed.copy())

    def _regions_in_use(self) -> int:
        """Return how many regions are in use, except those that the program keeps longer than a loop does.

        A loop holds the batches of the job that it is at, and, until it assigns the next ones, those of the job before.
        A program that keeps one more batch, such as a sample, would otherwise take the memory of a job ahead, and leave
        workers idle. It may keep as many as there are jobs ahead; if it keeps more, `_grow` makes room, and warns.
        """
        kept = self._client.region_pool.kept(self._in_passing + self._client.ahead) if self._sees_kept else 0
        return self._scheduler.regions_in_use(self._client) - min(kept, self._window)

    def _grow(self) -> dict[int, int]:
        """Make room where the consumer holds all memory.

        Returns:
            The numbers of cancelled jobs that workers may still write into, by slot, if these have the memory.

        Raises:
            UsageError: `memory=` is too small for the batches that the consumer holds and the next ones.
        """
        job, scheduler, client = self._made, self._scheduler, self._client
        if job is None:
            return {}
        if self._memory is not None and client.region_pool.used_bytes + job.memory_bytes > self._memory:
            draining = scheduler.draining_of(client)
            if draining:
                return draining
            raise UsageError(
                f"memory={self._memory} is too small: the next batches need {job.memory_bytes} bytes, and the batches "
                f"that you still reference, such as the one in a loop's variable, use "
                f"{client.region_pool.used_bytes}. Raise memory=, keep fewer batches, "
                f"{self._remedy}."
            )
        while client.memory_provider is not None and client.memory_provider.await_return():
            self._arm()
            if self._armed or self._ended:
                return {}
        self._kept = scheduler.regions_in_use(client)
        self._most_regions = self._kept + self._window
        self._arm()
        return {}

    def _warn_of_kept(self) -> None:
        """Warn once if there was no room; not with the scheduler owned, since a program's hook may use the loader."""
        kept, self._kept = self._kept, 0
        if kept and not self._client.has_warned_of_kept:
            self._client.has_warned_of_kept = True
            warnings.warn(
                f"{kept} batches are kept by the training loop, so the loader takes more memory for "
                "others. Keep fewer, or use copy=True, which delivers copies.",
                stacklevel=7,  # the loop: `next_job`, three of `JobStream`, and the iterator are between
            )


def _none() -> None:
    """Make no job."""


def open_queue(
    kind: type[JobQueue[AnyJob]], scheduler: Scheduler, client: Client, cutter: JobCutter[AnyJob]
) -> JobQueue[AnyJob]:
    """Start to compute a cutter's jobs ahead; for threads, the records of async sources are requested before that.

    Processes request the records of the blocks that they claim.
    """
    next_job, ended = cutter.next_job, None
    if client.plan.place == "threads" and awaits(cutter.node):
        ahead = _runtime.IOPrefetch(cutter.node, next_job, cutter.read_ahead)
        next_job, ended = ahead.next_job, ahead.close
    return kind(scheduler, client, next_job, cutter.window_now, queues=cutter.queues, ended=ended)


class ReadyQueue(JobQueue[AnyJob]):
    """The jobs of one stream, as they become complete; of several complete ones, the first."""

    is_in_order = False

    def _jobs_ahead(self) -> int:
        return self._window  # no `decide`: a smaller number would let a slow job delay others

    def _wanted(self) -> Iterable[int]:
        return [slot for slot, _ in self._armed.copy()]

    def _taken(self) -> tuple[int, AnyJob]:
        for armed in self._armed:
            if self._scheduler.is_complete(armed[0]):
                self._armed.remove(armed)
                return armed
        return super()._taken()  # none is complete: the ring was stopped


class GivenQueue(JobQueue[AnyJob]):
    """Jobs of content that a fold makes, in order; `make_job` returns None until the fold has made more."""

    def _has_no_more(self) -> bool:
        return False

    @property
    def can_arm(self) -> bool:
        """Whether another job would be armed at once."""
        has_slot = len(self._armed) < self._window_now() and self._scheduler.has_free_slot
        return has_slot and self._made is None and not self._ended

    @property
    def is_empty(self) -> bool:
        """Whether no job is being computed, ready, or waiting for memory."""
        return not self._armed and self._made is None

    @property
    def waits_for_memory(self) -> bool:
        """Whether no job is armed, and one waits for memory, which the consumer may hold."""
        return self._made is not None and not self._armed

    @property
    def is_over(self) -> bool:
        """Whether the jobs were given up, perhaps by another thread."""
        return self._ended

    @property
    def has_armed(self) -> bool:
        """Whether a job is being computed, or ready."""
        return bool(self._armed)

    def arm(self) -> None:
        """Arm jobs of the content that the fold has made, as far as there is room."""
        with self._scheduler.owned():
            self._arm()

    def wait(self, has_more: Callable[[], bool], before: Callable[[], Stall | None]) -> None:
        """Wait until the first job is complete, or the fold has made more.

        Args:
            has_more: returns whether the fold has made more.
            before: returns the fold's current work.
        """
        lacks_jobs = not self._armed and self._made is None
        waited = self._scheduler.wait(self._client, self._wanted, lambda: self._ended or has_more(), before)
        if waited:
            armed = self._armed.copy()
            is_awaited = bool(armed) and armed[0][1].awaited
            self._client.note_wait("fold" if lacks_jobs else "storage" if is_awaited else "workers")

    def is_complete(self) -> bool:
        """Return whether the first job is complete; if not, the descriptor becomes readable when it may be."""
        return self._scheduler.is_ready(self._client, self._wanted())
