"""Jobs as values: what several processes do of one comes together as if one had done it."""

from typing import cast

import numpy as np

import penstock as ps
from penstock._graph._apply import Context
from penstock._runtime._batches import Course, Unit
from penstock._runtime._jobs import BatchJob, Learned
from penstock._runtime._tasks import job_of, task_of
from tests.runtime.plans import plan_of


def test_who_merges_learns_the_layout() -> None:
    """One that has computed no row of a batch tells the layout of its rows too, so the next's are written in place."""
    plan = plan_of(ps.range(8).map(np.float32).batch(4), "processes", 3)
    learned, course = Learned(), Course(Unit(0, 0, 0, 4), 2, 4)
    job = BatchJob(plan, course.part(0, 1), 2, learned, shared=True)
    *computing, merging = (cast("BatchJob", job_of(task_of(job), plan, Context())) for _ in range(3))
    for block, each in enumerate(computing):
        each.run_block(block, Context())
        merging.take_elements(block, cast("list[object]", each.elements(block)))
    merging.run_merge(Context())
    job.take_merged(merging.merged())
    assert [batch.tolist() for batch in job.batches()] == [[0, 1, 2, 3]]
    assert not BatchJob(plan, course.part(1, 2), 2, learned, shared=True).has_merge
