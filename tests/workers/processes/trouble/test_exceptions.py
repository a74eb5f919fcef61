"""Exceptions in worker processes are raised as without workers, and nothing hangs."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import WorkerError
from tests.constants import SetConstant
from tests.workers.processes import functions
from tests.workers.processes.trouble import raising

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
STEPS = range(len(raising.KINDS))


def processes(dataset: ps.Dataset, **options: Any) -> ps.Loader:
    """Return a loader with a worker process."""
    return ps.Loader(dataset, num_workers=1, workers="processes", **options)


def raised_at(loader: ps.Loader, step: int) -> tuple[type[BaseException], str, list[str], type[Any]]:
    """Return the exception of a step: its type, text, notes, and the type of its cause."""
    loader.seek(step)
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - it is compared with another
        next(iter(loader))
    error = raised.value
    words = "" if isinstance(error, raising.SilentError) else str(error)
    return type(error), words, getattr(error, "__notes__", []), type(error.__cause__)


@pytest.mark.parametrize("limits", [ps.Limits(), ps.Limits(num_batch_workers=1)], ids=["in a block", "apart"])
def test_a_batch_whose_rows_failed_is_not_merged(tmp_path: Path, limits: ps.Limits) -> None:
    """A step above the batch is never called with unwritten rows, whether a block makes the batch or another job."""
    path = tmp_path / "incomplete"
    dataset = ps.range(1, 129).map(raising.raises_at_sixty).batch(16).map(raising.NotesIncomplete(str(path)))
    with processes(dataset, limits=limits) as loader, pytest.raises(ValueError, match="sixty"):
        list(loader)
    assert not path.exists()


@pytest.mark.parametrize(
    "dataset",
    [
        ps.range(len(STEPS)).map(raising.by_number).batch(1),
        ps.range(len(STEPS)).batch(1, merge=raising.by_rows),
        ps.range(len(STEPS)).batch(1).map(raising.by_batch),
        ps.read(raising.Raising()).batch(1),
    ],
    ids=["a function", "a merge", "a step above", "a source"],
)
def test_every_kind_of_exception_arrives(dataset: ps.Dataset) -> None:
    """Type, text, notes and cause are those of the same loader without workers, wherever it is raised."""
    with ps.Loader(dataset) as inline, processes(dataset) as loader:
        for step in STEPS:
            expected = raised_at(inline, step)
            assert raised_at(loader, step) == expected
            assert expected[0] not in {WorkerError, AssertionError}
        assert loader.stats()["worker_restarts"] == 0.0


@pytest.mark.parametrize(
    ("kind", "expected", "words"),
    [
        ("silent", raising.SilentError, None),
        ("several", WorkerError, r"ExceptionGroup: several \(2 sub-exceptions\)"),
        ("exit", WorkerError, "SystemExit: good bye"),
        ("recursion", RecursionError, "maximum recursion depth"),
    ],
)
def test_every_kind_of_exception_of_worker_init_arrives(
    kind: str, expected: type[Exception], words: str | None
) -> None:
    """The exception of `worker_init` is raised unchanged if it can be pickled, else as text with its traceback."""
    limits = ps.Limits(worker_init=raising.PrepareWith(kind))
    with processes(ps.range(8).batch(4), limits=limits) as loader, pytest.raises(expected, match=words) as raised:
        next(iter(loader))
    assert any("raising.py" in note for note in raised.value.__notes__)


def test_an_exit_in_worker_init_is_an_error() -> None:
    """Processes that exit in `worker_init` are an error, and are not restarted forever."""
    limits = ps.Limits(worker_init=os._exit)
    with (
        processes(ps.range(8).batch(4), limits=limits) as loader,
        pytest.raises(WorkerError, match="exit code 0 before it had started"),
    ):
        next(iter(loader))


def test_an_exit_without_an_exception_is_a_death() -> None:
    """`os._exit` in a function ends each process that calls it, and the error has its exit code."""
    expected = pytest.raises(WorkerError, match=r"position 5, .* exit code 5")
    dataset = ps.range(10)[5:].map(raising.exits_at_once).batch(1)
    with processes(dataset) as loader, expected as raised:
        next(iter(loader))
    assert raised.value.exit_code == 5


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (ps.range(40).map(raising.only_in_workers).batch(4), "LookupError: no device for"),
        (ps.range(40).batch(4, merge=raising.can_not_be_sent), "cannot pickle '_thread.lock'"),
    ],
    ids=["a function", "what can't be sent"],
)
def test_errors_in_a_worker_alone_are_logged(dataset: ps.Dataset, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """The batches equal those without workers; one warning names the reason for the slowness."""
    with caplog.at_level(logging.WARNING, "penstock"), processes(dataset) as loader:
        assert [list(batch)[:4] for batch in loader] == [[*range(start, start + 4)] for start in range(0, 40, 4)]
    (record,) = caplog.records
    assert words in record.getMessage()
    assert "take this process's time" in record.getMessage()


PREPARED = ps.Limits(worker_init=functions.prepare)
BATCHED: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "stacked": lambda rows: rows.batch(8),
    "merged": lambda rows: rows.batch(8, merge=list),
    "in order": lambda rows: rows.filter(np.any).batch(8),
}


@pytest.mark.parametrize(
    ("name", "workers"),
    [("stacked", "processes"), ("merged", "threads"), ("in order", "threads"), ("in order", "processes")],
)
def test_the_consumer_calls_worker_init_before_it_recomputes(name: str, workers: Any) -> None:
    """The exception is that of the failing record, not of missing preparation."""
    functions.prepared.clear()
    dataset = BATCHED[name](ps.range(1, 80).map(functions.prepared_row, name="load"))
    with ps.Loader(dataset, num_workers=2, workers=workers, limits=PREPARED) as loader:
        batches = iter(loader)
        for _ in range((functions.DEADLY - 1) // 8):
            next(batches)
        with pytest.raises(LookupError, match=f"no record {functions.DEADLY}"):
            next(batches)


@pytest.mark.parametrize("name", BATCHED)
def test_the_consumer_computes_nothing_that_lacks_memory(name: str, set_constant: SetConstant) -> None:
    """Workers compute batches that need more memory than planned."""
    set_constant("_ROOM_BYTES", 4096)
    functions.prepared.clear()
    dataset = BATCHED[name](ps.range(1, functions.DEADLY).map(functions.prepared_row))
    with ps.Loader(dataset, num_workers=2, workers="processes", limits=PREPARED) as loader:
        assert [row[0] for batch in loader for row in batch] == [*range(1, functions.DEADLY)]
    assert functions.prepared == []


@pytest.mark.parametrize("name", BATCHED)
def test_batch_at_computes_in_the_calling_process(name: str) -> None:
    """`batch_at` prepares the thread that calls it, by the function of the workers' owner."""
    functions.prepared.clear()
    dataset = BATCHED[name](ps.range(1, functions.DEADLY).map(functions.prepared_row))
    with processes(dataset, limits=PREPARED) as loader:
        first = next(iter(loader))
        assert functions.prepared == []
        for asked in (ps.Loader(dataset, workers=loader), loader):
            next(iter(asked))
            assert np.array_equal(asked.batch_at(0), first)
            assert functions.prepared == [1]


def test_worker_init_may_fail_in_the_consumer() -> None:
    """The error of `worker_init` is raised."""
    limits = ps.Limits(worker_init=functions.prepare_processes)
    with (
        processes(ps.range(8).map(functions.prepared_row).batch(4), limits=limits) as loader,
        pytest.raises(LookupError, match="not here") as raised,
    ):
        loader.batch_at(0)
    assert any("in worker_init" in note for note in raised.value.__notes__)
