"""With more worker processes than processors, no more processes compute at once than there are processors."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock._ring import SlotRing
from penstock._runtime._job_table import JobTable
from penstock._runtime._processors import CpuThrottle, Processors, shared_processors, usable_processors
from tests.promptness import PATIENCE_SECONDS
from tests.workers.processes import functions

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")

AN_HOUR: Final = 3_600 * 10**9  # in nanoseconds
WORKERS: Final = 4
GROUP: Final = 7
EPOCHS: Final = 6  # one must show it: on a busy machine, a row that other programs hold back counts as waiting


def rows_of(
    function: Callable[[int], NDArray[np.int64]], worker_init: Callable[[int], None] = functions.use_one_processor
) -> NDArray[np.int64]:
    """Return the worker, processor, begin and end of each of the last rows."""
    dataset = ps.range(1_000).map(function).batch(8)
    limits = ps.Limits(worker_init=worker_init)
    with ps.Loader(dataset, num_workers=WORKERS, workers="processes", limits=limits) as loader:
        return np.concatenate(list(loader)).astype(np.int64)[-300:]


def others_at_work(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each row, how many other processes computed a row when it began."""
    others = rows[:, 0, None] != rows[None, :, 0]
    within = (rows[None, :, 2] <= rows[:, 2, None]) & (rows[:, 2, None] < rows[None, :, 3])
    return np.asarray((others & within).sum(axis=1))


def test_rows_that_compute_leave_the_processor_to_one() -> None:
    """Of four processes on one processor, one computes at a time, with few exceptions."""
    assert any((others_at_work(rows_of(functions.computed)) > 0).mean() < 0.3 for _ in range(EPOCHS))


@pytest.mark.skipif(usable_processors() < 2, reason="there is one processor to use")
def test_processors_that_were_shared_out_are_all_at_work() -> None:
    """Of the processes on each of two processors, one computes at a time."""

    def is_shown() -> bool:
        rows = rows_of(functions.computed, functions.share_processors_out)
        by_processor = np.unique(rows[:, 1], return_counts=True)[1]
        return bool((others_at_work(rows) > 1).mean() < 0.3 and by_processor.min() > len(rows) / 20)

    assert any(is_shown() for _ in range(EPOCHS))


def test_rows_that_wait_are_waited_for_by_all() -> None:
    """All four processes run at once if their rows only wait, for any number of processors."""

    def is_shown() -> bool:
        rows = rows_of(functions.waited)
        return len(np.unique(rows[:, 0])) == WORKERS and bool((others_at_work(rows) > 0).mean() > 0.7)

    assert any(is_shown() for _ in range(EPOCHS))


def test_a_throttled_worker_replaces_a_killed_one() -> None:
    """Throttled workers take over from killed ones, repeatedly, and no batch is lost."""
    dataset = ps.range(600).map(functions.computed).batch(8)
    limits = ps.Limits(worker_init=functions.use_one_processor)
    numbers: list[int] = []
    with ps.Loader(dataset, num_workers=WORKERS, workers="processes", limits=limits) as loader:
        for step, batch in enumerate(loader):
            numbers += batch[:, -1].tolist()
            if step % 15 == 14:
                with suppress(ProcessLookupError):  # one that was killed before
                    os.kill(int(batch[-1, 0]), signal.SIGKILL)
        assert loader.deaths()
    assert numbers == list(range(600))


class Standing:
    """A throttled worker, and others in the job table."""

    def __init__(self, count: int | None = 2) -> None:
        self.board = JobTable.create(1, 1, WORKERS)
        self.ring = SlotRing.shared(1, capacity=1)
        self.board.keep_pace(0, GROUP, AN_HOUR)  # a predecessor's
        self.others = 0  # that are at work
        self.pace = CpuThrottle(self.board, self.ring, 0, None if count is None else Processors(count, GROUP, WORKERS))
        for _ in range(4):  # the first blocks open files
            self.pace.worked(0.1, 0.01, 1)

    def compute(self, blocks: int) -> None:
        """Record blocks of 2 ms for the worker."""
        for _ in range(blocks):
            self.pace.worked(0.002, 0.002, 0)

    def occupy(self, *workers: int, pace: int = AN_HOUR, group: int = GROUP) -> None:
        """Record that others begin blocks now."""
        for worker in workers:
            self.board.begin(worker, 0, 0, 0)
            self.board.keep_pace(worker, group, pace)
        self.others = len(workers)

    def stand_aside(self) -> threading.Thread:
        """Start a thread in which the worker waits for a processor; return the thread once the worker rests."""
        thread = threading.Thread(target=self.pace.wait_for_processor, daemon=True)
        thread.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.keeps_pace and thread.is_alive() and time.monotonic() < deadline:
            thread.join(0.001)
        assert thread.is_alive()
        return thread

    @property
    def keeps_pace(self) -> bool:
        """Whether the others count the worker as computing."""
        return len(self.board.paces(GROUP, but=-1)) > self.others


def ends(thread: threading.Thread) -> bool:
    """Return whether a thread ends."""
    thread.join(PATIENCE_SECONDS)
    return not thread.is_alive()


def test_a_throttled_worker_takes_a_free_processor() -> None:
    """It rests while two others compute, doesn't count as computing then, and continues when one of them stops."""
    standing = Standing()
    standing.compute(32)
    assert standing.keeps_pace
    standing.occupy(1, 2)
    thread = standing.stand_aside()
    standing.board.keep_pace(2, GROUP, 0)
    assert ends(thread)


def test_a_worker_that_takes_too_long_is_not_counted() -> None:
    """Others whose block takes many times as long as usual may be waiting, so the worker continues."""
    standing = Standing()
    standing.compute(32)
    began = time.monotonic()
    standing.occupy(1, 2, pace=50_000_000)
    standing.pace.wait_for_processor()
    assert time.monotonic() - began >= 4 * 0.05


def test_the_ring_s_end_is_the_end_of_resting() -> None:
    """No worker rests, or continues to rest, when the ring is stopped."""
    standing = Standing()
    standing.compute(32)
    standing.occupy(1, 2, 3)
    thread = standing.stand_aside()
    standing.ring.stop()
    assert ends(thread)
    standing.pace.wait_for_processor()


def test_no_worker_is_throttled_while_processors_are_free() -> None:
    """The throttle is off with three processors, with one for each process, or for processes on other processors."""
    for count, group in (3, GROUP), (None, GROUP), (2, GROUP + 1):
        standing = Standing(count)
        standing.compute(32)
        standing.occupy(1, 2, group=group)
        standing.pace.wait_for_processor()


def test_only_more_workers_than_processors_share_them(tmp_path: Path) -> None:
    """A quota or the scheduler limits the processors; a quota of 1.5 counts as 2."""

    def number(workers: int) -> int | None:
        shared = shared_processors(workers, str(tmp_path))
        return None if shared is None else shared.number

    allowed = len(os.sched_getaffinity(0))
    assert [number(allowed), number(allowed + 1)] == [None, allowed]
    group = tmp_path / "sys/fs/cgroup/job"
    for folder in (tmp_path / "proc/self", group):
        folder.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (group / "cpu.max").write_text("50000 100000\n")
    assert number(2) == 1
    (group / "cpu.max").write_text("150000 100000\n")
    assert number(8) == min(2, allowed)


def test_no_worker_is_throttled_before_blocks_are_known_not_to_wait() -> None:
    """A worker is steady after enough blocks, if waits are a small part of their time."""
    standing = Standing()
    assert not standing.keeps_pace
    standing.occupy(1, 2)
    standing.compute(31)
    standing.pace.wait_for_processor()
    standing.compute(1)
    assert standing.pace.is_steady
    standing.pace.worked(0.003, 0.002, 1)
    assert standing.pace.is_steady
    standing.pace.worked(0.2, 0.002, 1)
    standing.pace.wait_for_processor()
    assert not standing.keeps_pace
    standing.pace.worked(0.2, 0.002, 0)  # others had its processor
    standing.compute(400)
    assert standing.pace.is_steady
