"""What a sampler has given, from being drawn to being handed out; the caller's thread alone draws."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from penstock._caught import Caught
from penstock._decisions import KNOWN_LAYOUT, decide
from penstock._os import HeldInterrupts
from penstock._runtime._client import Client
from penstock._runtime._cutting import block_rows
from penstock._runtime._queue import JobQueue, ReadyQueue
from penstock._runtime._scheduler import Scheduler
from penstock._seeds import derive
from penstock.torch._data_loader._pickling import pickled
from penstock.torch._data_loader._work._job import BatchJob, BatchTask, Given, RowsLearned, Way

_NOTHING = object()  # in the place of what a sampler gives, after its last
_SMALL_BATCHES_BYTES = 16_000_000  # of all that are ahead: as long as they take no more, there are more of them


class _NotDrawnError(Exception):
    """The next batch was not drawn yet; told to a queue, which leaves it to the consumer."""


class Making:
    """How a loader's batches become jobs.

    Args:
        learned: of their rows.
        num_workers: how many processes there are.
        stacks: whether batches are made by `default_collate`.
        is_batched: whether indices come in lists.
        at_once: whether a batch's elements are read at once.
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
        """Whether nothing is known of the size of batches yet."""
        return self.learned.row_layout is None and not self.learned.merged_row_bytes

    @property
    def is_whole(self) -> bool:
        """Whether one worker makes all of a batch, so that each needs one of its own."""
        return self.at_once or not self.is_batched

    def job(self, given: Given, seed: int) -> BatchJob:
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
    """The batches of one epoch: drawn, under way, and handed out.

    Args:
        sampler: gives indices, or lists of them.
        making: how they become jobs.
        seed: of the epoch.
        number: of the first batch that is drawn.

    Attributes:
        error: what the sampler raised, to be raised in its place.
    """

    def __init__(self, sampler: Iterator[Any], making: Making, seed: int, number: int) -> None:
        self.error: BaseException | None = None
        self._sampler = sampler
        self._making = making
        self._seed = seed
        self._number = number
        self._has_ended = False
        self._waiting: deque[Given] = deque()
        self._under_way: list[BatchJob] = []

    def draw(self, most: int) -> None:
        """Have so many batches drawn that are not handed out."""
        while len(self._waiting) + len(self._under_way) < most and not self._has_ended and self.error is None:
            with Caught(Exception) as caught:
                drawn = next(self._sampler, _NOTHING)  # an exception would keep its callers, and a batch, for a while
                if drawn is _NOTHING:
                    self._has_ended = True
                else:
                    self._waiting.append(self._given(drawn))
            if caught.error is not None:
                self.error = caught.taken()  # raised in its place, after the batches before it

    def _given(self, drawn: object) -> Given:
        indices: Any = drawn
        is_plain = isinstance(drawn, list)
        is_list, rows = False, 1
        if self._making.is_batched:
            if not self._making.at_once and not is_plain and hasattr(indices, "__iter__"):
                indices = list(indices)
            rows = len(indices) if hasattr(indices, "__len__") else 1
            is_list = hasattr(indices, "__len__")
        given = Given(self._number, pickled(indices), rows, is_list)
        self._number += 1
        return given

    def next_job(self) -> BatchJob | None:
        """Return the job of the next batch; None at the end."""
        if self._waiting:
            job = self._making.job(self._waiting.popleft(), self._seed)
            self._under_way.append(job)
            return job
        if self.error is not None:
            raise self.error
        if not self._has_ended:
            raise _NotDrawnError
        return None

    def handed_out(self, job: BatchJob) -> None:
        """Take a batch for done."""
        self._under_way.remove(job)

    def again(self) -> None:
        """Have all that is under way computed again."""
        self._waiting.extendleft(job.given for job in reversed(self._under_way))
        self._under_way.clear()

    def is_at(self, error: Exception) -> bool:
        """Return whether an error is the sampler's; it is over with that, and the sampler may be asked again."""
        if error is not self.error:
            return False
        self.error = None
        return True


class InOrder(JobQueue[BatchJob]):
    """The jobs of drawn batches, in order.

    Args:
        scheduler: who computes them.
        client: whose they are.
        drawn: what they are of.
        making: how they are made.
        bounds: how many are under way or ready in any case; and how many where they are small.
    """

    def __init__(
        self, scheduler: Scheduler, client: Client, drawn: Sampled, making: Making, bounds: tuple[int, int]
    ) -> None:
        self._making = making
        self._least, most = bounds
        self._allowed = self._least + 1  # in memory, with the one in use
        super().__init__(scheduler, client, drawn.next_job, most)

    def _window_now(self) -> int:
        # The first batch lies in memory twice, so it is alone. What comes after it is made when its rows are known.
        is_alone = self._making.is_learning and not self._making.is_whole
        return 1 if is_alone else self._jobs_ahead()

    def _fits(self, job: BatchJob) -> bool:
        """Return whether a job may be under way too; bounds what large batches take."""
        if not super()._fits(job):
            return False
        ahead, held = len(self._armed) + 1, self._scheduler.regions_in_use(self._client)
        is_small = not self._making.is_learning and (held + 1) * job.memory_bytes <= _SMALL_BATCHES_BYTES
        return is_small or (ahead <= self._least and held < self._allowed)

    def _grow(self, held: HeldInterrupts) -> None:
        self._allowed = self._scheduler.regions_in_use(self._client) + self._least  # the consumer keeps batches
        super()._grow(held)


class AsReady(InOrder, ReadyQueue[BatchJob]):
    """The jobs of drawn batches, as they become complete."""
