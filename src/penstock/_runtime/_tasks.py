"""Tasks: jobs as small values, from which another process makes the same job with the plan."""

import pickle
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

from penstock._graph import Context
from penstock._memory import Lease, Region
from penstock._plan._plan import Plan
from penstock._runtime._batches import StepRange
from penstock._runtime._collate_job import CollateJob, CollateTask
from penstock._runtime._jobs import BatchJob, ComeTo, Job, Learned
from penstock._runtime._span_job import SpanJob
from penstock._streaming import BlockInput, InputRange, read_inline
from penstock.batching import Layout


class BatchTask(NamedTuple):
    """The description of a `BatchJob`."""

    step_range: StepRange
    block_rows: int
    layout: bytes | None
    """Pickled, since it's the same for all but the first jobs of a loader, and takes longer to load than all else."""


class SpanTask(NamedTuple):
    """The description of a `SpanJob`."""

    leaf: int
    epoch: int
    step_range: InputRange
    span: range
    block_rows: int


class GivenTask(Protocol):
    """The description of a `GivenJob`."""

    def job(self, plan: Plan) -> "GivenJob":
        """Return the job, in a process that has the plan."""
        ...


class GivenJob(Job, Protocol):
    """A job of a layer above, whose content is given to it, and not described by steps or positions."""

    @property
    def row_bytes(self) -> int:
        """How much memory its rows take; 0 where they aren't written straight into it."""
        ...

    @property
    def was_first(self) -> bool:
        """Whether the job's rows are elements since their layout was not known, and those of later jobs are not."""
        ...

    @property
    def row_count(self) -> int:
        """How many rows the job has."""
        ...

    hands_on: bool
    """Whether a block's result is more than rows in memory: elements, for the merging process or the consumer."""

    joins: bool
    """Whether what is merged comes from all of its blocks, and is merged by a process."""

    def use(self, lease: Lease | Region) -> None:
        """Take memory for its rows."""
        ...

    def among(self, elements: object, /) -> set[tuple[int, ...]]:
        """Return which of some elements, given as in `Context.crashing_rows`, are rows of the job."""
        ...

    def run_block(self, block: int, context: Context, come_to: ComeTo | None = None) -> int:
        """Compute one block, row by row if there is a `come_to`; return how many rows it has."""
        ...

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Compute one row of one of the job's steps, for nothing."""
        ...

    def run_merge(self, context: Context, come_to: ComeTo | None = None) -> None:
        """Compute what needs all blocks."""
        ...

    def elements(self, block: int) -> object:
        """Return the result of a block, and release it."""
        ...

    def take_elements(self, block: int, elements: object, /) -> None:
        """Take what another process computed of a block."""
        ...

    def merged(self) -> object:
        """Return what the merge made."""
        ...

    def take_merged(self, merged: object, /) -> None:
        """Take what another process merged."""
        ...

    def task(self) -> GivenTask:
        """Return the job as a value."""
        ...


SharedJob: TypeAlias = BatchJob | SpanJob | CollateJob | GivenJob
Task: TypeAlias = BatchTask | SpanTask | CollateTask | GivenTask


def task_of(job: SharedJob) -> Task:
    """Return a job as a value."""
    if isinstance(job, BatchJob):
        return BatchTask(job.step_range, job.block_rows, None if job.layout is None else job.layout.pickled)
    if not isinstance(job, SpanJob):
        return job.task()
    return SpanTask(
        job.block_input.number, job.block_input.epoch, job.block_input.input_range, job.span, job.block_rows
    )


def job_of(task: Task, plan: Plan, context: Context) -> SharedJob:
    """Return the job that a task describes."""
    if isinstance(task, BatchTask):
        learned = Learned()
        learned.layout = None if task.layout is None else _unpickled(task.layout)
        return BatchJob(plan, task.step_range, task.block_rows, learned, shared=True)
    if not isinstance(task, SpanTask):
        return task.job(plan)
    node = plan.streaming.inputs[task.leaf]
    return SpanJob(
        BlockInput(task.leaf, node, task.epoch, task.step_range, read_inline, context), task.span, task.block_rows
    )


@lru_cache
def _unpickled(pickled: bytes) -> Layout:
    layout: Layout = pickle.loads(pickled)
    return layout
