"""The sizes of chunks: how many batches make a job, how many rows a block, and how many batches are computed inline.

Arming and taking a job, and scheduling a block (about 100 microseconds), are Python. So small batches share a job, and
rows share a block. The sizes follow from measurements (`Learned`); every choice is a `decide`, and no byte depends on
it. There are three controllers: `units_per_job` (of messages, too), `block_rows` and `InlineSizes`.

Where rows are pieces of larger elements (`unbatch`, `flat_map`, `windows`), each block evaluates the parents of its
rows, unless its worker has kept them (`_graph._kept_pieces`). If these parents take most of the time, workers that
share a parent waste it. So blocks then end where a parent's rows end, jobs do so if a batch ends there, too, and a job
has at least two parents (`ParentRows`). If the functions of rows take most of the time, workers share the rows of a
parent. Where records of async sources are requested ahead, blocks always have whole parents, since records are
requested for each block.

| constant | value | bounds | reason |
| --- | --- | --- | --- |
| `JOB_SECONDS` | 20 ms | work of a job of several small batches or positions | its batches come together |
| `COLLATE_JOB_SECONDS` | 5 ms | the same, above the folds | passing batches of a fold on takes a tenth of that |
| `SMALL_BATCHES_BYTES` | 16 MB | all jobs of several batches | with 4 MB threads wait for each other |
| `MAX_JOB_BATCHES` | 64 | batches of a job | a bound for batches that take no time |
| `MAX_COLLATE_BATCHES` | 32 | the same, above the folds | the fold has made all of them before the job begins |
| `ISOLATED_TIMES` | 3 | times bytes and batches, if isolated | a job is a message, which costs as much again |
| `ISOLATED_BYTES` | 1 MB | a batch for which that holds | larger batches are sent without a copy |
| `MAX_POSITIONS` | 16,384 | positions of a job of a block input | divided by the inputs, so many parts take no more |
| `SPAN_BYTES` | 4 MB | elements of a job of a block input | if they are like the ones before |
| `_MAX_BLOCK_SECONDS` | 5 ms | work of a block, from above | scheduling a block stays below 2 % |
| `_MIN_BLOCK_SECONDS` | 0.3 ms | work of a block, from below | below it, scheduling takes the time |
| `_MIN_PARENTS` | 2 | parents of a job of known bytes | a parent in two jobs is evaluated twice; every other one is |
| `MAX_PARENT_BATCHES` | 4,096 | batches of a job that has whole parents | a parent may have as many rows |
| `_INLINE_SECONDS` | 1 ms | batches computed at once inline | starting them takes 20 microseconds |
| `_MAX_INLINE_SECONDS` | 10 ms | the same, if that makes a batch cheaper by `_GAIN` | rows of a mixture, for example |
| `_GAIN` | 0.75 | the time of a batch, against that in half as large a chunk | each doubling gains less |
| `INLINE_BYTES` | 1 MB | batches computed at once inline | they share memory: a batch that is kept keeps all |
| `_MAX_INLINE_BATCHES` | 64 | batches computed at once inline | a bound for batches that take no time |
| `_ROWS_PER_PART` | 32 | rows of a mixture's part in a chunk, from below | in larger blocks a row is hardly cheaper |
| `MAX_DIRECT_ROWS` | 4,096 | rows whose keys are computed at once | that takes about 0.1 ms |
| `FOLD_SECONDS` | 2 ms | batches that the fold passes on together | a crossing takes tens of microseconds |
| `MESSAGE_SECONDS` | 2 ms | work of the batches of a message, if isolated | sending takes a twentieth of that |
| `MAX_MESSAGE_BATCHES` | 64 | batches of a message | a bound for batches that take no time |
| `SMALL_LEAF_BYTES` | 64 KiB | arrays that are copied out of a job's memory | kept labels don't keep the images |

With `ISOLATED_TIMES` of 4 the jobs would have 64 MB, of which a quarter is left for jobs that are copied into messages,
since they are too small to be computed in the memory of the pipe: on a busy machine these may wait for a while.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from penstock._decisions import JOB_BLOCKS, WHOLE_PARENTS, Decision, decide
from penstock._graph import Combine, Node, awaits, elements_per_parent, parents_of, root
from penstock._plan import Plan
from penstock._runtime._jobs import Learned
from penstock._runtime._scheduler import BLOCKS, Client

JOB_SECONDS: Final = 0.02
COLLATE_JOB_SECONDS: Final = 0.005
SMALL_BATCHES_BYTES: Final = 16_000_000
MAX_JOB_BATCHES: Final = 64
MAX_COLLATE_BATCHES: Final = 32
ISOLATED_TIMES: Final = 3
ISOLATED_BYTES: Final = 1_000_000
MAX_POSITIONS: Final = 1 << 14
SPAN_BYTES: Final = 4_000_000
_MAX_BLOCK_SECONDS: Final = 0.005
_MIN_BLOCK_SECONDS: Final = 0.0003
_INLINE_SECONDS: Final = 0.001
_MAX_INLINE_SECONDS: Final = 0.01
_GAIN: Final = 0.75
_MIN_PARENTS: Final = 2.0
MAX_PARENT_BATCHES: Final = 1 << 12
INLINE_BYTES: Final = 1_000_000
_MAX_INLINE_BATCHES: Final = 64
_ROWS_PER_PART: Final = 32
MAX_DIRECT_ROWS: Final = 4096
FOLD_SECONDS: Final = 0.002
MESSAGE_SECONDS: Final = 0.002
MAX_MESSAGE_BATCHES: Final = 64
SMALL_LEAF_BYTES: Final = 1 << 16


def units_per_job(
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


def block_rows(rows: int, workers: int, learned: Learned[Any]) -> int:
    """Return the number of rows of a block. Each worker has two blocks; more where rows take long, fewer where not.

    Only processor time counts: rows that wait for storage are better spread over many blocks.
    """
    blocks = 2 * workers
    seconds = learned.row_cpu_seconds
    if seconds is not None:
        least, most = rows * seconds / _MAX_BLOCK_SECONDS, rows * seconds / _MIN_BLOCK_SECONDS
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
        self._is_read_ahead = each is not None and client.plan.place == "threads" and awaits(node)

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
        parents = max(self._workers / self._window, _MIN_PARENTS) if knows_bytes else 1.0
        return math.ceil(parents * (self._each or 0.0) / rows)


class InlineSizes:
    """Controls how many batches are computed at once inline: more while that makes a batch cheaper.

    Args:
        plan: the plan of an indexable dataset.
        batch: the elements in a full global batch.

    Attributes:
        most: the maximum.
    """

    def __init__(self, plan: Plan, batch: int) -> None:
        base = root(plan.batches.rows)
        self._is_mixture = isinstance(base, Combine) and base.value.takes_one
        rows = _ROWS_PER_PART * len(parents_of(base)) if self._is_mixture else 1
        self._wanted = -(-rows // max(batch // plan.shard.count, 1))
        self._seconds_each: dict[int, float] = {}  # of one batch, by the number computed at once
        self.most = max(_MAX_INLINE_BATCHES, self._wanted)

    def next(self, seconds: float, batches: int) -> int:
        """Return how many batches to compute at once next, after `batches` took `seconds`."""
        each = self._seconds_each[batches] = seconds / batches
        if seconds * 2 < _INLINE_SECONDS:
            return batches * 2
        fewer, more = self._seconds_each.get(batches // 2), self._seconds_each.get(batches * 2)
        if more is not None:
            more_gain = more < _GAIN * each
        else:  # each doubling gains less, so stop at the first that doesn't; but the rows of a mixture differ
            more_gain = self._is_mixture or fewer is None or each < _GAIN * fewer
        if seconds * 2 < _MAX_INLINE_SECONDS and (batches < self._wanted or more_gain):
            return batches * 2  # a mixture has few rows of each part, so more rows at once will pay
        if seconds < _MAX_INLINE_SECONDS and batches // 2 < self._wanted:
            return batches
        is_cheap = seconds < _INLINE_SECONDS or (fewer is not None and each < _GAIN * fewer)
        return batches if is_cheap else batches // 2
