"""The batches of a sampler, from drawing to delivery.

The problem: a sampler is the user's code and an iterator. It must run in the caller's thread alone, each batch must be
drawn once, and an exception must come in the place of its batch. A job queue requests the next job whenever it may arm
one, so it must not iterate over the sampler itself.

The solution: drawing and taking jobs are separate. `draw` iterates over the sampler, in the caller's thread, and
pickles the indices of each batch. `next_job`, which the queue calls, takes drawn batches only; if none is left it
raises `_NotDrawnError`, and the queue arms nothing until more are drawn. A batch stays in `_under_way` until its
delivery. So a job whose memory was too small, or whose rows don't fit the layout, is repeated from the same indices,
without drawing again.

Invariants:
  - Each batch is drawn once, and keeps its number and its seed however often it is computed.
  - An error of the sampler is raised in the batch's place, after the batches before it; then the sampler is called
    again.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from penstock._caught import Caught
from penstock._decisions import KNOWN_LAYOUT, decide
from penstock._os import HeldInterrupts
from penstock._runtime import Client, JobQueue, ReadyQueue, Scheduler, block_rows
from penstock._seeds import derive
from penstock.torch._data_loader._pickling import pickled
from penstock.torch._data_loader._work._job import BatchJob, BatchTask, DrawnBatch, RowsLearned, Way

_NOTHING = object()  # marks the sampler's end
_SMALL_BATCHES_BYTES = 16_000_000  # more batches than `prefetch_factor` are loaded ahead while all take no more


class _NotDrawnError(Exception):
    """The next batch is not drawn yet; a queue that gets this error requests it again after the next `draw`."""


class JobRules:
    """The rules by which a loader's batches become jobs.

    Args:
        learned: the layout and sizes learned of their rows.
        num_workers: the number of worker processes.
        stacks: whether `default_collate` makes the batches.
        is_batched: whether indices come in lists.
        at_once: whether the dataset returns all elements of a batch in one call.
    """

    def __init__(
        self, learned: RowsLearned, num_workers: int, *, stacks: bool, is_batched: bool, at_once: bool
    ) -> None:
        self.learned = learned
        self.num_workers = num_workers
        self.is_batched = is_batched
        self.at_once = at_once
        self._stacks = stacks

    @property
    def is_learning(self) -> bool:
        """Whether the size of batches is still unknown."""
        return self.learned.row_layout is None and not self.learned.merged_row_bytes

    @property
    def is_whole(self) -> bool:
        """Whether one worker makes a whole batch, so that each worker needs a batch of its own."""
        return self.at_once or not self.is_batched

    def job(self, given: DrawnBatch, seed: int) -> BatchJob:
        """Return the job of a batch."""
        learned = self.learned
        layout = learned.row_layout if self._stacks and given.is_list and not learned.is_irregular else None
        if layout is not None and not (given.rows and decide(KNOWN_LAYOUT, 1)):
            layout = None
        way: Way = "rows"
        if layout is None:
            way = "merge" if given.is_list and given.rows and not self.at_once else "whole"
        rows = max(given.rows, 1) if self.at_once else block_rows(max(given.rows, 1), self.num_workers, learned)
        return BatchJob(BatchTask(given, derive(seed, given.number), way, rows, layout), learned)


class Sampled:
    """The batches of one epoch: drawn, under way, and delivered.

    Args:
        sampler: an iterator over indices, or lists of them.
        rules: the rules by which they become jobs.
        seed: the epoch's seed.
        number: the number of the first batch that is drawn.

    Attributes:
        error: an exception of the sampler, raised in its batch's place.
    """

    def __init__(self, sampler: Iterator[Any], rules: JobRules, seed: int, number: int) -> None:
        self.error: BaseException | None = None
        self._sampler = sampler
        self._rules = rules
        self._seed = seed
        self._number = number
        self._has_ended = False
        self._waiting: deque[DrawnBatch] = deque()
        self._under_way: list[BatchJob] = []

    def draw(self, most: int) -> None:
        """Draw batches until `most` are drawn and not delivered."""
        while len(self._waiting) + len(self._under_way) < most and not self._has_ended and self.error is None:
            with Caught(Exception) as caught:
                drawn = next(self._sampler, _NOTHING)  # a StopIteration would keep its frames, and a batch, for a while
                if drawn is _NOTHING:
                    self._has_ended = True
                else:
                    self._waiting.append(self._given(drawn))
            if caught.error is not None:
                self.error = caught.taken()  # raised after the batches before it

    def _given(self, drawn: object) -> DrawnBatch:
        indices: Any = drawn
        is_plain = isinstance(drawn, list)
        is_list, rows = False, 1
        if self._rules.is_batched:
            if not self._rules.at_once and not is_plain and hasattr(indices, "__iter__"):
                indices = list(indices)
            rows = len(indices) if hasattr(indices, "__len__") else 1
            is_list = hasattr(indices, "__len__")
        given = DrawnBatch(self._number, pickled(indices), rows, is_list)
        self._number += 1
        return given

    def next_job(self) -> BatchJob | None:
        """Return the job of the next batch; None at the end."""
        if self._waiting:
            job = self._rules.job(self._waiting.popleft(), self._seed)
            self._under_way.append(job)
            return job
        if self.error is not None:
            raise self.error
        if not self._has_ended:
            raise _NotDrawnError
        return None

    def delivered(self, job: BatchJob) -> None:
        """Drop a batch that was delivered, or that failed finally."""
        self._under_way.remove(job)

    def again(self) -> None:
        """Return all undelivered batches to the queue, to be computed again."""
        self._waiting.extendleft(job.given for job in reversed(self._under_way))
        self._under_way.clear()

    def is_at(self, error: Exception) -> bool:
        """Return whether an error is the sampler's; if so, it is forgotten, and the sampler may be called again."""
        if error is not self.error:
            return False
        self.error = None
        return True


class InOrder(JobQueue[BatchJob]):
    """The jobs of drawn batches, in order.

    Args:
        scheduler: computes the jobs.
        client: owns the jobs.
        sampled: the batches.
        rules: the rules by which batches become jobs.
        bounds: the number of batches under way or ready in any case, and the number if they are small.
    """

    def __init__(
        self, scheduler: Scheduler, client: Client, sampled: Sampled, rules: JobRules, bounds: tuple[int, int]
    ) -> None:
        self._rules = rules
        self._least, most = bounds
        self._allowed = self._least + 1  # batches in memory, the one in use included
        super().__init__(scheduler, client, sampled.next_job, most)

    def _window_now(self) -> int:
        # The first batch is in memory twice, as elements and collated, so it is computed alone. The following ones are
        # made when the layout of its rows is known.
        is_alone = self._rules.is_learning and not self._rules.is_whole
        return 1 if is_alone else self._jobs_ahead()

    def _fits(self, job: BatchJob) -> bool:
        """Return whether one more job may be under way; this bounds the memory of large batches."""
        if not super()._fits(job):
            return False
        ahead, held = len(self._armed) + 1, self._scheduler.regions_in_use(self._client)
        is_small = not self._rules.is_learning and (held + 1) * job.memory_bytes <= _SMALL_BATCHES_BYTES
        return is_small or (ahead <= self._least and held < self._allowed)

    def _grow(self, held: HeldInterrupts) -> None:
        self._allowed = self._scheduler.regions_in_use(self._client) + self._least  # the consumer holds batches
        super()._grow(held)


class AsReady(InOrder, ReadyQueue[BatchJob]):
    """The jobs of drawn batches, in the order of their completion."""
