"""Plans of small datasets, and jobs of their first steps."""

from typing import Any, Literal

import penstock as ps
from penstock._graph._apply import Context as Context
from penstock._plan._lower import lower
from penstock._plan._plan import Plan as Plan
from penstock._runtime._batch_work import BatchWork
from penstock._runtime._batches import StepRange, Unit
from penstock._runtime._jobs import BlockSize, Job, Learned


def plan_of(
    dataset: ps.Dataset[Any], place: Literal["inline", "threads", "processes"] = "inline", num_workers: int = 0
) -> Plan:
    """Return the plan of a dataset with one batch ahead."""
    return lower(
        dataset.node,
        place=place,
        num_workers=num_workers,
        shard=None,
        prefetch=1,
        memory=None,
        copy=False,
        limits=ps.Limits(),
    )


def job_of(dataset: ps.Dataset[Any], *, steps: int, rows: int, block: int, whole: bool = False) -> Job[BatchWork]:
    """Return the job of the first steps of so many rows, for two threads that share it by blocks."""
    plan = plan_of(dataset, "threads", 2)
    return Job(BatchWork(plan, StepRange(Unit(0, 0, 0, rows), steps, rows), BlockSize(block, whole), Learned()))
