"""The sizes of chunks: how many batches make a job, how many rows a block, and how many batches are computed inline.

Arming and taking a job, and scheduling a block (about 100 microseconds), are Python. So small batches share a job, and
rows share a block. The sizes follow from measurements (`Learned`); every choice is a `decide`, and no byte depends on
it. There are three controllers: `job_size` (of messages, too), `block_rows` and `InlineSizes`. Their bounds, with
the reasons, are in `_policy`.

Where rows are pieces of larger elements (`unbatch`, `flat_map`, `windows`), each block evaluates the parents of its
rows, unless its worker has kept them (`_graph._kept_pieces`). If these parents take most of the time, workers that
share a parent waste it. So blocks then end where a parent's rows end, jobs do so if a batch ends there, too, and a job
has at least two parents (`ParentRows`). If the functions of rows take most of the time, workers share the rows of a
parent. Where records of async sources are requested ahead, blocks always have whole parents, since records are
requested for each block.
"""

import math
from collections.abc import Callable
from typing import Any

from penstock._decisions import JOB_BLOCKS, WHOLE_PARENTS, Decision, decide
from penstock._graph import Combine, Node, awaits, elements_per_parent, parents_of, root
from penstock._plan import Plan
from penstock._runtime._jobs import Learned
from penstock._runtime._policy import (
    BLOCKS,
    INLINE_GAIN,
    INLINE_ROWS_PER_PART,
    INLINE_SECONDS,
    MAX_BLOCK_SECONDS,
    MAX_INLINE_BATCHES,
    MAX_INLINE_ELEMENTS,
    MAX_INLINE_SECONDS,
    MIN_BLOCK_SECONDS,
    MIN_PARENTS,
)
from penstock._runtime._scheduler import Client


def job_size(
    decision: Decision,
    by_time: float,
    most: float,
    least: int = 1,
    to_end: Callable[[int, int], int] | None = None,
) -> int:
    """Return how many batches or positions make a job, or how many batches a message.

    Args:
        decision: the decision that this is.
        by_time: how many take as long as a job may.
        most: the maximum, by memory or other reasons; where it is below 1, one makes a job.
        least: the minimum, as far as the maximum allows it.
        to_end: returns a good number to end a job at, from a number and the maximum; None where all are as good.
    """
    highest = max(int(most), 1)
    count = min(max(int(by_time), least), highest)
    return decide(decision, count if to_end is None else to_end(count, highest), highest)


def block_rows(rows: int, workers: int, learned: Learned[Any], *, least_seconds: float = MIN_BLOCK_SECONDS) -> int:
    """Return the number of rows of a block. Each worker has two blocks; more where rows take long, fewer where not.

    Only processor time counts: rows that wait for storage are better spread over many blocks.

    Args:
        rows: the rows of a job.
        workers: the number of workers.
        learned: measurements of the rows.
        least_seconds: the work of a block, at least.
    """
    blocks = 2 * workers
    seconds = learned.row_cpu_seconds
    if seconds is not None:
        least, most = rows * seconds / MAX_BLOCK_SECONDS, rows * seconds / least_seconds
        blocks = math.ceil(max(min(blocks, most), least))
    most = max(min(rows, BLOCKS), 1)
    return -(-rows // decide(JOB_BLOCKS, max(min(blocks, most), 1), most))


class ParentRows:
    """The rows of a loader that are pieces of a parent element, and whether blocks have all of a parent's rows."""

    def __init__(self, node: Node, step: int, client: Client, workers: int, window: int) -> None:
        """Describe the rows.

        Args:
            node: the node of the rows.
            step: the distance between the positions of two rows.
            client: the client that computes them.
            workers: the number of workers.
            window: the number of jobs that are being computed.
        """
        each = elements_per_parent(node)
        self._each = None if each is None else each / step  # on average
        self._workers = workers
        self._window = window
        self._learned = client.learned
        # The time of a parent doesn't show that its records were requested again.
        self._is_read_ahead = each is not None and client.plan.place != "inline" and awaits(node)

    def come_whole(self) -> bool:
        """Return whether the next job's blocks should have all rows of their parents."""
        if self._each is None:
            return False
        return bool(decide(WHOLE_PARENTS, int(self._is_read_ahead or self._learned.parents_take_most)))

    def wanted(self, rows: int, *, knows_bytes: bool = False) -> int:
        """Return how many units a job needs, so that all jobs have a parent for each worker.

        Args:
            rows: the number of rows of a unit.
            knows_bytes: whether the rows' memory is known, and bounds the job; otherwise one parent is enough.
        """
        parents = max(self._workers / self._window, MIN_PARENTS) if knows_bytes else 1.0
        return math.ceil(parents * (self._each or 0.0) / rows)


class InlineSizes:
    """Controls how many batches are computed at once inline: more while that makes a batch cheaper.

    Args:
        plan: the plan of an indexable dataset.
        batch: the elements in a full global batch.

    Attributes:
        most: the maximum.
        most_objects: the maximum of batches whose elements are objects until they are merged.
    """

    def __init__(self, plan: Plan, batch: int) -> None:
        base = root(plan.batches.rows)
        self._is_mixture = isinstance(base, Combine) and base.value.takes_one
        rows = INLINE_ROWS_PER_PART * len(parents_of(base)) if self._is_mixture else 1
        self._wanted = -(-rows // max(batch // plan.shard.count, 1))
        self._seconds_each: dict[int, float] = {}  # of one batch, by the number computed at once
        self.most = max(MAX_INLINE_BATCHES, self._wanted)
        self.most_objects = max(min(self.most, MAX_INLINE_ELEMENTS // max(batch, 1)), self._wanted)

    def next(self, seconds: float, batches: int) -> int:
        """Return how many batches to compute at once next, after `batches` took `seconds`."""
        each = self._seconds_each[batches] = seconds / batches
        if seconds * 2 < INLINE_SECONDS:
            return batches * 2
        fewer, more = self._seconds_each.get(batches // 2), self._seconds_each.get(batches * 2)
        if more is not None:
            more_gain = more < INLINE_GAIN * each
        else:  # each doubling gains less, so stop at the first that doesn't; but the rows of a mixture differ
            more_gain = self._is_mixture or fewer is None or each < INLINE_GAIN * fewer
        if seconds * 2 < MAX_INLINE_SECONDS and (batches < self._wanted or more_gain):
            return batches * 2  # a mixture has few rows of each part, so more rows at once will pay
        if seconds < MAX_INLINE_SECONDS and batches // 2 < self._wanted:
            return batches
        is_cheap = seconds < INLINE_SECONDS or (fewer is not None and each < INLINE_GAIN * fewer)
        return batches if is_cheap else max(batches // 2, 1)
