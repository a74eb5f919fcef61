"""Workers compute merges and the steps above the folds of streaming datasets, several batches at once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.equivalence.definition import digests
from tests.places import LINUX, PLACES, in_places, place_of
from tests.workers.processes import functions

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
PLACED = in_places("processes", "threads", "isolated threads")
BATCHES = ps.range(80).filter(functions.is_any).batch(8)
FIRSTS = range(0, 80, 8)


@pytest.mark.parametrize(
    "dataset",
    [ps.range(160).filter(functions.is_any).batch(8), ps.range(50).window_shuffle(7)],
    ids=["batches", "elements"],
)
def test_several_processes_compute_steps_above_a_fold(dataset: ps.Dataset) -> None:
    """Each worker computes some batches, and the consumer none."""
    with ps.Loader(dataset.map(functions.process_of_batch), **PLACES["processes"]) as loader:
        found = list(loader)
    assert digests(each["batch"] for each in found) == digests(dataset)
    workers = {each["by"] for each in found}
    assert len(workers) == 2
    assert os.getpid() not in workers


def test_threads_compute_steps_above_a_fold() -> None:
    """Several threads compute some batches each."""
    with ps.Loader(BATCHES.map(functions.process_of_batch), **PLACES["threads"]) as loader:
        assert len({batch["thread"] for batch in loader}) > 1


@pytest.mark.parametrize(
    ("kind", "workers", "at_once"),
    [("indexed", "threads", 1), ("indexed", "processes", 2), ("in order", "processes", 1), ("in order", "threads", 2)],
)
def test_so_many_at_once(kind: str, workers: Any, at_once: int, tmp_path: Path) -> None:
    """`num_batch_workers` bounds them, over all workers."""
    path = tmp_path / "merges"
    rows = ps.range(80) if kind == "indexed" else ps.range(80).filter(functions.is_any)
    dataset = rows.batch(4, merge=functions.LoggedMerge(str(path)))
    limits = ps.Limits(num_batch_workers=at_once)
    with ps.Loader(dataset, num_workers=3, workers=workers, prefetch=3, limits=limits) as loader:
        assert len(list(loader)) == 20
    steps = np.array([1 if line == "begin" else -1 for line in path.read_text("ascii").splitlines()])
    assert len(steps) == 40
    assert steps.cumsum().max() == at_once or (kind == "indexed" and steps.cumsum().max() < at_once)


@PLACED
def test_a_failing_batch_raises_in_order_and_is_recomputed_from_its_rows(place: dict[str, Any]) -> None:
    """Its function has changed its argument; neither other batches nor the next attempt see that."""
    dataset = BATCHES.map(functions.fails_at_deadly)
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        found = [next(batches).tolist() for _ in range(4)]
        for _ in range(2):
            with pytest.raises(ValueError, match="no batch with 37"):
                next(batches)
    assert found == [[2 * number for number in range(first, first + 8)] for first in FIRSTS[:4]]


@PLACED
def test_batches_that_fail_may_be_left_out(place: dict[str, Any]) -> None:
    """`on_error="skip"` above a batch leaves the batch out, and the loader counts it once."""
    dataset = BATCHES.map(functions.fails_at_deadly, on_error="skip").map(functions.halved)
    with ps.Loader(dataset, **place) as loader:
        batches = [batch.tolist() for batch in loader]
        assert loader.stats()["skipped"] == 1
    assert batches == [[*range(first, first + 8)] for first in FIRSTS if first != 32]


@pytest.mark.parametrize(
    "place",
    [
        place_of("processes"),
        place_of("isolated threads"),
        pytest.param(PLACES["isolated"], marks=[LINUX, pytest.mark.long]),  # the process is lost in the same way
    ],
)
def test_a_crashing_batch_can_be_left_out(place: dict[str, Any]) -> None:
    """The crash counts as an error of the outermost step with on_error="skip"."""
    dataset = BATCHES.map(functions.batch_kills, on_error="skip")
    with ps.Loader(dataset, **place) as loader:
        batches = [batch.tolist() for batch in loader]
        assert loader.stats()["skipped"] == 1
    assert batches == [[*range(first, first + 8)] for first in FIRSTS if first != 32]


MAKES: dict[str, Callable[[Any, Any], Any]] = {
    "merged": lambda rows, function: rows.batch(4, merge=function),
    "above a batch": lambda rows, function: rows.batch(4).map(function),
    "merged in order": lambda rows, function: rows.filter(functions.is_any).batch(4, merge=function),
    "above a batch in order": lambda rows, function: rows.filter(functions.is_any).batch(4).map(function),
}


@pytest.mark.each_value
@pytest.mark.parametrize("at_once", [None, 1], ids=["in a block", "apart"])
@pytest.mark.parametrize("steps", list(MAKES))
def test_a_crash_leaves_the_batch_unchanged(steps: str, at_once: int | None, tmp_path: Path) -> None:
    """A function may change its argument; if its process is killed then, the next process gets it unchanged."""
    function = functions.ChangesAndDies(str(tmp_path / "died"))
    dataset = MAKES[steps](ps.range(80).map(functions.large_row), function)
    with ps.Loader(dataset, limits=ps.Limits(num_batch_workers=at_once), **PLACES["processes"]) as loader:
        found = [batch[:, 0].tolist() for batch in loader]
        assert len(loader.deaths()) == 1
    assert found == [[number + 1 for number in range(first, first + 4)] for first in range(0, 80, 4)]


@PLACED
def test_filtered_elements_are_counted_once(place: dict[str, Any]) -> None:
    """The loader counts it when the batch after it is delivered."""
    dataset = ps.range(400).filter(functions.is_odd).batch(10).map(functions.halved)
    with ps.Loader(dataset, **place) as loader:
        assert len(list(loader)) == 20
        assert loader.stats()["filtered"] == 200


def test_the_consumer_computes_failing_batches_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Of several small batches in a job, the consumer computes only the one that fails."""
    dataset = ps.range(4_000).filter(functions.is_any).batch(2).map(functions.fails_in_workers)
    with ps.Loader(dataset, **PLACES["processes"]) as loader:
        batches = list(loader)
    assert [int(number) for batch in batches for number in batch["batch"]] == [*range(4_000)]
    assert [batch["batch"][0] for batch in batches if batch["by"] == os.getpid()] == [functions.LATE]
    warned = [record.message for record in caplog.records if "did not raise when" in record.message]
    assert len(warned) == 1
    assert "only here" in warned[0]
