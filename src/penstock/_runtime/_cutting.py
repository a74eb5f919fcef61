"""Cutting steps and positions into jobs, and jobs into blocks of rows.

Arming and taking a job, and scheduling a block (about 100 microseconds), are Python. So small batches share a job, and
rows share a block. The sizes follow from measurements (`Learned`); every choice is a `decide`.

| constant | value | bounds | reason |
| --- | --- | --- | --- |
| `_JOB_SECONDS` | 20 ms | work of a job of several small batches | the batches of a job come together, so not more |
| `_MAX_BLOCK_SECONDS` | 5 ms | work of a block, from above | scheduling a block stays below 2 % |
| `_MIN_BLOCK_SECONDS` | 0.3 ms | work of a block, from below | below it, scheduling takes the time |
| `_SMALL_BATCHES_BYTES` | 16 MB | all jobs of several batches | with 4 MB threads wait for each other |
| `_MAX_UNITS` | 64 | batches of a job | a bound for batches that take no time |
| `_LENT_TIMES` | 3 | times the last two, for an isolated loader | a job is a message, which costs as much again |
| `_LENT_BYTES` | 1 MB | a batch for which that holds | larger batches are sent without a copy |
| `_MAX_POSITIONS` | 16,384 | positions of a job of a block input | divided by the inputs, so many parts take no more |
| `_SPAN_BYTES` | 4 MB | elements of a job of a block input | if they are like the ones before |
"""

import math
from typing import Final

from penstock._caught import raised_by_handler
from penstock._decisions import JOB_BATCHES, JOB_BLOCKS, JOB_POSITIONS, KNOWN_LAYOUT, decide
from penstock._plan._program import Batches
from penstock._runtime._batches import StepRange
from penstock._runtime._client import Client
from penstock._runtime._jobs import BatchJob, Learned, row_layout
from penstock._runtime._scheduler import BLOCKS, Scheduler
from penstock._runtime._span_job import SpanJob
from penstock._streaming import BlockInput

_JOB_SECONDS: Final = 0.02  # a job of several small batches is at most about this much work
_MAX_BLOCK_SECONDS: Final = 0.005  # scheduling a block, about 100 microseconds of Python, stays below 2 %
_MIN_BLOCK_SECONDS: Final = 0.0003  # below this, it is scheduling that takes the time
_SMALL_BATCHES_BYTES: Final = 16_000_000  # of all slots together; with a quarter of it threads wait for each other
_MAX_UNITS: Final = 64
# As much and as many where a job is a message to another process, which costs as much again. The fourth part is for
# jobs that are copied into messages, being too small to be lent memory: they may be so for a while, on a busy machine.
_LENT_TIMES: Final = 3
_LENT_BYTES: Final = 1_000_000  # of a batch that is small there
_MAX_POSITIONS: Final = 1 << 14  # of a job; inputs of one dataset share them, so many parts take no more memory
_SPAN_BYTES: Final = 4_000_000  # of the elements of a job, if they are like the ones before


class Cutter:
    """Cuts step ranges into jobs."""

    def __init__(self, scheduler: Scheduler, client: Client, program: Batches, step_ranges: list[StepRange]) -> None:
        plan = client.plan
        self._plan = plan
        self._learned: Learned = client.learned
        self._workers = scheduler.num_workers
        self._program = program
        self._shared = scheduler.shares
        self._step_ranges = step_ranges
        self._number, self._next = 0, 0  # of the step range, and of its next step
        # As a floor, two rows a worker are in the making.
        self._rows = max(plan.batch_size // plan.shard.count, 1)
        self._is_lent = client.lender is not None
        self.window = max(plan.prefetch, -(-2 * scheduler.num_workers // self._rows))
        self._jobs_with_memory = self.window + 1 + client.ahead

    def next_job(self) -> BatchJob | None:
        """Return the job of the next steps, or None at the end."""
        if self._number < len(self._step_ranges) and self._next == self._step_ranges[self._number].steps:
            self._number, self._next = self._number + 1, 0
        if self._number == len(self._step_ranges):
            return None
        step_range = self._step_ranges[self._number]
        count = min(self._units_per_job(), step_range.steps - self._next)
        if count <= 0:
            return None
        try:
            return self._make(step_range, count)
        except Exception as error:
            if count == 1 or raised_by_handler(error):
                raise
        return self._make(step_range, 1)  # a user's sampler raised for one of them; the batches before it come first

    def _make(self, step_range: StepRange, count: int) -> BatchJob:
        rows = block_rows(count * self._rows, self._workers, self._learned)
        learned = self._learned if decide(KNOWN_LAYOUT, 1) else Learned()
        job = BatchJob(self._plan, step_range.part(self._next, count), rows, learned, shared=self._shared)
        self._next += count
        return job

    def _units_per_job(self) -> int:
        layout = self._learned.layout
        seconds = self._learned.row_seconds
        row_bytes = 0.0 if layout is None else layout.row_bytes
        merge_seconds: float | None = 0.0
        if self._program.above or row_layout(self._program, self._learned) is None:
            row_bytes = max(row_bytes, self._learned.merged_row_bytes)
            if self._program.above or self._program.batch is not None:
                merge_seconds = self._learned.merge_seconds
        if seconds is None or merge_seconds is None:
            return 1  # the first batch shouldn't wait for others
        # The rows are shared out, the batches are merged one after the other.
        by_time = _JOB_SECONDS / max(seconds * self._rows / self._workers + merge_seconds, 1e-9)
        times = _LENT_TIMES if self._is_lent and row_bytes * self._rows < _LENT_BYTES else 1
        most_bytes = min(times * _SMALL_BATCHES_BYTES, self._plan.memory or math.inf)
        by_bytes = most_bytes / self._jobs_with_memory / max(row_bytes * self._rows, 1)
        most = max(int(min(by_bytes, times * _MAX_UNITS)), 1)
        return decide(JOB_BATCHES, max(min(int(by_time), most), 1), most)


class SpanCutter:
    """Cuts the input range of a block input into jobs."""

    def __init__(self, scheduler: Scheduler, client: Client, block_input: BlockInput, start: int, inputs: int) -> None:
        plan = client.plan
        self._block_input = block_input
        self._most = max(_MAX_POSITIONS // inputs, 1)
        self._learned = client.learned
        self._start = start
        self._end = block_input.input_range.total
        self._workers = scheduler.num_workers
        self._rows = max(plan.batch_size // plan.shard.count, 1)
        self.window = max(plan.prefetch, 2)

    def next_job(self) -> SpanJob | None:
        """Return the next positions' job, or None at the end."""
        if self._start >= self._end:
            return None
        seconds, element_bytes = self._learned.row_seconds, self._learned.element_bytes
        by_time = 2 * self._workers
        if seconds is not None and element_bytes is not None:
            by_time = max(by_time, int(_JOB_SECONDS * self._workers / max(seconds, 1e-9)))
        most = max(min(self._most, _SPAN_BYTES // max(element_bytes or 0, 1)), 1)
        count = decide(JOB_POSITIONS, min(max(self._rows, by_time), most), most)
        span = range(self._start, min(self._start + count, self._end))
        self._start = span.stop
        return SpanJob(self._block_input, span, block_rows(len(span), self._workers, self._learned))


def block_rows(rows: int, workers: int, learned: Learned) -> int:
    """Return how many of a job's rows make a block: two a worker, more if rows take long, fewer if they take little.

    Only processor time counts: rows that wait for storage are better spread over blocks than put together.
    """
    blocks = 2 * workers
    seconds = learned.row_cpu_seconds
    if seconds is not None:
        least, most = rows * seconds / _MAX_BLOCK_SECONDS, rows * seconds / _MIN_BLOCK_SECONDS
        blocks = math.ceil(max(min(blocks, most), least))
    most = max(min(rows, BLOCKS), 1)
    return -(-rows // decide(JOB_BLOCKS, max(min(blocks, most), 1), most))
