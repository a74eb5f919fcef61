"""Jobs for other processes, as values that with the plan make the same job there."""

from typing import NamedTuple, TypeAlias

from penstock._graph._apply import Context
from penstock._graph._ordered._build import leaves_of
from penstock._graph._ordered._leaf import Leaf, LeafCourse, read_inline
from penstock._plan._plan import Plan
from penstock._runtime._batches import Course
from penstock._runtime._jobs import BatchJob, Learned, SpanJob
from penstock.batching._layout import Layout

SharedJob: TypeAlias = BatchJob | SpanJob


class BatchTask(NamedTuple):
    """What makes a `BatchJob`."""

    course: Course
    block_rows: int
    layout: Layout | None


class SpanTask(NamedTuple):
    """What makes a `SpanJob`."""

    leaf: int
    epoch: int
    course: LeafCourse
    span: range
    block_rows: int


Task: TypeAlias = BatchTask | SpanTask


def task_of(job: SharedJob) -> Task:
    """Return a job as a value."""
    if isinstance(job, BatchJob):
        return BatchTask(job.course, job.block_rows, job.layout)
    return SpanTask(job.leaf.number, job.leaf.epoch, job.leaf.course, job.span, job.block_rows)


def job_of(task: Task, plan: Plan, context: Context) -> SharedJob:
    """Return the job that a value stands for."""
    if isinstance(task, BatchTask):
        learned = Learned()
        learned.layout = task.layout
        return BatchJob(plan, task.course, task.block_rows, learned, shared=True)
    node = leaves_of(plan.node)[task.leaf]
    return SpanJob(Leaf(task.leaf, node, task.epoch, task.course, read_inline, context), task.span, task.block_rows)
