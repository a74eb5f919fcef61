"""Jobs as values: the results of several processes make the same batches as those of one."""

import threading
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._runtime._batch_work import BatchWork
from penstock._runtime._batches import StepRange, Unit
from penstock._runtime._jobs import BlockSize, Job, Learned
from penstock.batching import Layout
from tests.runtime.plans import Context, job_of, plan_of


def test_the_merging_process_reports_the_layout() -> None:
    """A process that computed no row reports the layout of the rows, too, so later rows are written in place."""
    plan = plan_of(ps.range(8).map(np.float32).batch(4), "processes", 3)
    learned, step_range = Learned[Layout](), StepRange(Unit(0, 0, 0, 4), 2, 4)
    task = BatchWork(plan, step_range.part(0, 1), BlockSize(2), learned, in_processes=True).task()
    *computing, merging = (Job(task.work(plan)) for _ in range(3))
    for block, each in enumerate(computing):
        each.run_block(block, Context())
        merging.parts[block] = each.parts[block]
    merging.run_merge(Context())
    assert [batch.tolist() for batch in merging.results] == [[0, 1, 2, 3]]
    learned.layout = merging.work.found_layout
    assert not Job(BatchWork(plan, step_range.part(1, 2), BlockSize(2), learned, in_processes=True)).has_merge


def test_blocks_divide_the_rows_of_a_job() -> None:
    """Blocks divide a job's rows without a gap, an overlap, or a row beyond the last one."""
    job = job_of(ps.range(14).batch(7), steps=2, rows=7, block=4)
    assert [job.bounds_of(block) for block in range(job.blocks)] == [(0, 4), (4, 8), (8, 12), (12, 14)]


def test_merges_in_blocks_are_measured_with_the_rows() -> None:
    """Once blocks make their batches, their time counts alone: the first merge, often slow, cuts no later job."""
    learned = Learned[Layout]()
    learned.timed(rows=4, seconds=1e-6, cpu_seconds=1e-6, parent_seconds=0.0)
    learned.timed_merge(steps=1, seconds=1.0)
    learned.merges_in_blocks()
    learned.timed(rows=4, seconds=4e-3, cpu_seconds=2e-3, parent_seconds=0.0)
    assert (learned.row_seconds, learned.row_cpu_seconds, learned.merge_seconds) == (1e-3, 5e-4, 0.0)
    learned.merges_in_blocks()
    assert learned.row_seconds == 1e-3
    learned.timed_merge(steps=2, seconds=1.0)  # apart again, after a crash
    assert learned.merge_seconds == 0.5


def test_threads_compute_rows_of_texts() -> None:
    """Rows whose leaves are all texts need no memory of the job, and are computed by workers, too."""
    threads: set[int] = set()

    def text(number: int) -> str:
        threads.add(threading.get_ident())
        return f"text {number}"

    with ps.Loader(ps.range(400).map(text).batch(4), num_workers=2, workers="threads") as loader:
        batches = list(loader)
    assert batches == [[f"text {number}" for number in range(start, start + 4)] for start in range(0, 400, 4)]
    assert threading.get_ident() not in threads


class Noted:
    """A source of its keys that notes how many of them each call reads."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, key: int) -> int:
        return key

    def read(self, keys: Any) -> list[int]:
        """Return the keys."""
        self.counts.append(len(keys))
        return list(map(int, keys))


def test_hundreds_of_cheap_batches_share_a_job() -> None:
    """Batches of one item of a microsecond are computed by hundreds, since passing a job on takes longer than these."""
    source = Noted()
    with ps.Loader(ps.read(source).batch(1), num_workers=2, workers="threads") as loader:
        assert [batch.tolist() for batch in loader] == [[key] for key in range(len(source))]
    assert max(source.counts) > 100


class Counted:
    """A slow function of batches that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, batch: Any) -> Any:
        """Return the batch, after a while."""
        threading.Event().wait(0.03)
        self.count += 1
        return batch


@pytest.mark.parametrize("where", ["merge", "above"])
def test_slow_batches_have_a_job_each(where: str) -> None:
    """A ready batch doesn't wait for others that a worker merges after it, however cheap the rows are."""
    slow = Counted()
    numbers = ps.range(120)
    dataset = numbers.batch(4, merge=slow) if where == "merge" else numbers.batch(4).map(slow)
    with ps.Loader(dataset, num_workers=2, prefetch=2) as loader:
        for number, _ in enumerate(loader):
            assert slow.count <= number + 1 + 2 + 1  # this one, what is ready or being made, and the next begun
