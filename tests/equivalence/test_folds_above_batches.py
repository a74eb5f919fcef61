"""Folds above batches, or above their rows: batches are elements like others, and the loader loses none."""

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.errors import GraphError
from tests.dataset.functions import keep, same
from tests.equivalence.definition import digests, epoch_of, rank_of
from tests.equivalence.functions import keeps_two_of_three, twice, with_origin
from tests.places import in_places

THREADS: dict[str, Any] = {"num_workers": 2, "workers": "threads"}
JOINED = {"one part", "parts"}


FOLDS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "filter": lambda dataset: dataset.filter(keeps_two_of_three),
    "skip": lambda dataset: dataset.map(same, on_error="skip"),
    "window_shuffle": lambda dataset: dataset.window_shuffle(2),
    "flat_map": lambda dataset: dataset.flat_map(twice),
    "filter, limit": lambda dataset: dataset.filter(keep).limit(3),
    "filter, batch": lambda dataset: dataset.filter(keep).batch(2),
    "map, window_shuffle": lambda dataset: dataset.map(same, name="below").window_shuffle(2),
    "flat_map, window_shuffle": lambda dataset: dataset.flat_map(twice).window_shuffle(3),
    "one part": lambda dataset: ps.mix({"only": dataset.filter(keep)}),
    "parts": lambda dataset: ps.concatenate([dataset, dataset.filter(keep)]),
}
LONG_FOLDS = ("filter, batch", "map, window_shuffle", "flat_map, window_shuffle")  # two of the others each


def check(dataset: ps.Dataset, *places: dict[str, Any]) -> None:
    """Compare two epochs with the definition in each place, and a resume after two batches."""
    expected = [digests(epoch_of(dataset, epoch)) for epoch in range(2)]
    for place in places:
        with ps.Loader(dataset, **place) as loader:
            assert [digests(loader) for _ in range(2)] == expected
        with ps.Loader(dataset) as first, ps.Loader(dataset, **place) as second:
            batches = iter(first)
            found = digests(next(batches) for _ in range(2))
            second.load_state_dict(first.state_dict())
            assert found + digests(second) == expected[0]


def batches(fold: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    """Return a fold above batches."""
    return fold(ps.range(22, seed=1).batch(4, remainder="drop")).map_with_origin(with_origin)


def rows(fold: Callable[[ps.Dataset], ps.Dataset], remainder: Any) -> ps.Dataset:
    """Return a fold above rows of batches."""
    batches = ps.range(13, seed=1).batch(5, remainder=remainder).map(same, name="batch")
    return fold(batches.unbatch().map_with_origin(with_origin))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG_FOLDS else name for name in FOLDS]
)
def test_folds_take_whole_batches_and_their_rows(name: str) -> None:
    """None is lost or shortened, each has the origin of the definition, and no row of padding is searched.

    Each rank passes its part of a batch to the steps above; batches below a join are elements, which it can't divide.
    """
    check(batches(FOLDS[name]), {}, THREADS)
    check(rows(FOLDS[name], "pad"), {}, THREADS)
    dataset = FOLDS[name](ps.range(22, seed=1).batch(4)).map_with_origin(with_origin)
    shards = [ps.Shard(rank, 2, uneven=True) for rank in range(2)]
    if name in JOINED:
        with pytest.raises(GraphError, match="shard= cuts global batches, and there is none"):
            ps.Loader(dataset, shard=shards[0])
        return
    for rank, shard in enumerate(shards):
        with ps.Loader(dataset, shard=shard) as loader:
            assert digests(loader) == digests(rank_of(dataset, 0, rank, 2))


@in_places("processes", "isolated")
def test_batches_and_rows_are_whole_in_other_processes(place: dict[str, Any]) -> None:
    """Batches that processes compute equal the definition."""
    check(batches(FOLDS["map, window_shuffle"]), place)
    check(rows(FOLDS["window_shuffle"], "keep"), place)


def test_the_origin_of_a_row_is_known_in_windows_of_batches() -> None:
    """`Loader.origin` returns that of each row of a batch that a window shuffle has moved."""
    dataset = ps.range(22).batch(4).window_shuffle(2)
    with ps.Loader(dataset) as loader:
        for step, batch in enumerate(loader):
            assert [loader.origin(step, row).key for row in range(len(batch))] == batch.tolist()


def test_workers_compute_functions_of_batches_that_may_fail() -> None:
    """A function of batches with on_error="skip" runs on any worker, though the dataset is read in order."""
    explanation = ps.range(20).batch(4).map(same, on_error="skip").explain()
    assert {line.split("(")[0]: place for line, _, place in explanation.steps}["map"] == "any worker"
