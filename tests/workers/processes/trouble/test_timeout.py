"""A worker process that hangs is killed and replaced; if its rows hang again and again, the error has the stack."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import UsageError, WorkerError
from tests.workers.processes import functions
from tests.workers.processes.trouble import dying

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
DEADLY = functions.DEADLY


def processes(dataset: ps.Dataset, timeout: float) -> ps.Loader:
    """Return a loader with worker processes that may not hang."""
    limits = ps.Limits(timeout=timeout)
    return ps.Loader(dataset, num_workers=2, workers="processes", limits=limits)


@pytest.mark.parametrize("what", [dying.hangs, pytest.param(dying.stopped, marks=pytest.mark.long)])
def test_a_process_that_hangs_once_is_replaced(tmp_path: Path, what: Callable[[], object]) -> None:
    """It is replaced even if it handles no signal, and no batch is lost."""
    dataset = ps.range(64).map(dying.Once(str(tmp_path / "hung"), what)).batch(8)
    with processes(dataset, 1.0) as loader:
        assert [batch.tolist() for batch in loader] == [[*range(start, start + 8)] for start in range(0, 64, 8)]
        death = loader.deaths()[0]
    assert "timeout=1.0 seconds" in death.reason
    assert ("dying.py" in death.reason) == (what is dying.hangs)


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (ps.range(64).map(dying.hangs_at).batch(8), rf"row {DEADLY % 8} of step {DEADLY // 8}, .* {DEADLY},"),
        pytest.param(
            ps.range(64).batch(8, merge=dying.merge_hangs),
            rf"the collate function or batch-level map of step {DEADLY // 8}",
            marks=pytest.mark.long,
        ),
    ],
    ids=["a row", "a merge"],
)
def test_a_row_that_always_hangs_is_named(dataset: ps.Dataset, named: str) -> None:
    """The error names it like a crashing row, with the last stack; the batches before it are delivered."""
    with processes(dataset, 0.6) as loader:
        batches = iter(loader)
        for _ in range(DEADLY // 8):
            next(batches)
        with pytest.raises(WorkerError, match=rf"(?s){named}.*timeout=0\.6 .*dying\.py.*hangs"):
            next(batches)
        loader.seek(DEADLY // 8 + 1)
        assert len(list(loader)) == 64 // 8 - DEADLY // 8 - 1


@pytest.mark.parametrize("finish", ["stacked", "in order"])
def test_slow_blocks_of_quick_rows_are_no_timeout(finish: str) -> None:
    """A block that exceeds the timeout is computed row by row, so only the time of a single row counts."""
    with processes(functions.FINISHES[finish](ps.range(16).map(dying.takes_a_while)), 0.8) as loader:
        assert [batch.tolist() for batch in loader] == [[*range(16)]]


def test_waiting_to_merge_is_no_timeout() -> None:
    """If few batches may be merged at once, processes may wait for longer than the timeout."""
    limits = ps.Limits(timeout=0.8, num_batch_workers=1)
    dataset = ps.range(24).batch(4, merge=dying.merge_slowly)
    with ps.Loader(dataset, num_workers=6, workers="processes", prefetch=6, limits=limits) as loader:
        assert [number for batch in loader for number in batch] == [*range(24)]
        assert loader.deaths() == ()


def test_a_start_that_hangs_once_is_tried_again(tmp_path: Path) -> None:
    """A `worker_init` that hangs counts as work, and no batch is lost."""
    limits = ps.Limits(worker_init=dying.ReadyLater(str(tmp_path / "hung")), timeout=1.0)
    with ps.Loader(ps.range(16).batch(8), num_workers=1, workers="processes", limits=limits) as loader:
        assert [batch.tolist() for batch in loader] == [[*range(8)], [*range(8, 16)]]
        (death,) = loader.deaths()
    assert "timeout=1.0 seconds" in death.reason
    assert "dying.py" in death.reason
    assert death.step is None


def test_a_start_that_always_hangs_is_an_error() -> None:
    """The second time is an error, which has the stack and the timeout."""
    limits = ps.Limits(worker_init=dying.never_ready, timeout=0.5)
    with (
        ps.Loader(ps.range(16).batch(8), num_workers=2, workers="processes", limits=limits) as loader,
        pytest.raises(WorkerError, match=r"(?s)timeout=0\.5 seconds. Raise the timeout .*dying\.py.*never_ready"),
    ):
        list(loader)


@pytest.mark.parametrize("timeout", [0.0, float("nan")])
def test_a_wrong_timeout_is_refused(timeout: float) -> None:
    """A timeout is a number of seconds."""
    with pytest.raises(UsageError, match="timeout must be a number of seconds above 0"):
        ps.Loader(ps.range(8).batch(4), limits=ps.Limits(timeout=timeout))
