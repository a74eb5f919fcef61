"""Deaths of worker processes are counted, reported as events, and logged."""

import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from tests.workers.processes import functions
from tests.workers.processes.trouble import dying

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def processes(dataset: ps.Dataset, num_workers: int = 1, **options: Any) -> ps.Loader:
    """Return a loader with worker processes."""
    return ps.Loader(dataset, num_workers=num_workers, workers="processes", **options)


def test_a_death_is_counted_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A killed process is an event with its number, exit code and rows; it is counted and logged."""
    dataset = ps.range(64).map(dying.Once(str(tmp_path / "died"), dying.killed)).batch(8)
    with caplog.at_level(logging.WARNING, "penstock"), processes(dataset) as loader:
        assert [batch.tolist() for batch in loader] == [[*range(start, start + 8)] for start in range(0, 64, 8)]
        (death,) = loader.deaths()
        assert loader.stats()["worker_restarts"] == 1.0
        assert loader.replaced() == ()
    assert death.worker == 0
    assert death.exit_code == -signal.SIGKILL
    assert f"pid {death.pid}" in death.reason
    assert "SIGKILL" in death.reason
    assert death.step is not None
    assert death.rows is not None
    first = death.step * 8
    assert first + death.rows[0] <= functions.DEADLY <= first + death.rows[1]
    assert any("replaces one that died" in record.message for record in caplog.records)


def test_an_exception_where_a_death_is_logged_is_raised(tmp_path: Path) -> None:
    """A filter of the log that raises ends the thread that watches the process; the consumer doesn't wait for it."""

    def refuse(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError(record.msg)

    logger = logging.getLogger("penstock")
    logger.addFilter(refuse)
    try:
        dataset = ps.range(64).map(dying.Once(str(tmp_path / "died"), dying.killed)).batch(8)
        with processes(dataset) as loader, pytest.raises(ZeroDivisionError):
            list(loader)
    finally:
        logger.removeFilter(refuse)


@pytest.mark.parametrize("finish", functions.FINISHES)
def test_crashes_at_changing_rows_lose_no_batch(tmp_path: Path, finish: str) -> None:
    """A batch whose processes are killed repeatedly, as from outside, is complete in the end."""
    dataset = functions.FINISHES[finish](ps.range(80).map(dying.EachOnce(str(tmp_path))))
    with processes(dataset) as loader:
        assert [number for batch in loader for number in list(batch)] == [*range(80)]
        assert len(loader.deaths()) == dying.EachOnce.COUNT


def test_a_row_that_survived_its_trial_is_not_blamed_for_a_later_death(tmp_path: Path) -> None:
    """The process that has tried the row alone is killed, as from outside, before it computes the block."""
    dataset = ps.stream(partial(dying.parcels, str(tmp_path))).map(dying.Parcel.opened).batch(functions.DEADLY + 1)
    with processes(dataset) as loader:
        assert [batch.tolist() for batch in loader] == [[*range(functions.DEADLY + 1)]]
        assert len(loader.deaths()) == 3


def test_processes_that_die_before_any_work_are_replaced(tmp_path: Path) -> None:
    """However many die before they have computed anything, the batches are delivered; later starts are delayed."""
    limits = ps.Limits(worker_init=dying.StaysLater(str(tmp_path)))
    with processes(ps.range(16).batch(8), limits=limits) as loader:
        assert [batch.tolist() for batch in loader] == [[*range(8)], [*range(8, 16)]]
        assert len(loader.deaths()) == dying.StaysLater.COUNT


@pytest.mark.parametrize("merge", [None, list], ids=["stacked", "merged"])
def test_reports_of_dead_processes_are_discarded(tmp_path: Path, merge: Any) -> None:
    """The report of a process that dies doesn't count when another process computes its rows again."""
    failing = dying.FailsAndDies(str(tmp_path / "died"))
    with processes(ps.range(64).map(failing).batch(8, merge=merge), num_workers=2) as loader:
        assert [list(batch) for batch in loader] == [[*range(start, start + 8)] for start in range(0, 64, 8)]
        assert len(loader.deaths()) == 1


def test_a_loader_without_deaths_has_none() -> None:
    """Processes that are closed, or that have done their work, don't count as dead."""
    loader = processes(ps.range(64).batch(8))
    assert len(list(loader)) == 8
    loader.close()
    assert loader.deaths() == ()
    assert loader.stats()["worker_restarts"] == 0.0
