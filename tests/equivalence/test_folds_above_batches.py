"""Batches are elements like others: what is read in order may take them, or their rows, and the loader loses none."""

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.errors import GraphError
from tests.equivalence.definition import digests, epoch_of, rank_of
from tests.equivalence.functions import keeps_two_of_three, with_origin

THREADS: dict[str, Any] = {"num_workers": 2, "workers": "threads"}
CHILDREN = pytest.mark.parametrize(
    "place", [{"num_workers": 1, "workers": "processes"}, {"isolated": True}], ids=["processes", "isolated"]
)


def same(element: Any) -> Any:
    """Return the element."""
    return element


def twice(element: Any) -> list[Any]:
    """Return the element two times."""
    return [element, element]


def always(element: Any) -> bool:
    """Return true."""
    del element
    return True


FOLDS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "filter": lambda dataset: dataset.filter(keeps_two_of_three),
    "skip": lambda dataset: dataset.map(same, on_error="skip"),
    "window_shuffle": lambda dataset: dataset.window_shuffle(2),
    "flat_map": lambda dataset: dataset.flat_map(twice),
    "filter, limit": lambda dataset: dataset.filter(always).limit(3),
    "filter, batch": lambda dataset: dataset.filter(always).batch(2),
    "map, window_shuffle": lambda dataset: dataset.map(same, name="below").window_shuffle(2),
    "flat_map, window_shuffle": lambda dataset: dataset.flat_map(twice).window_shuffle(3),
    "one part": lambda dataset: ps.mix({"only": dataset.filter(always)}),
    "parts": lambda dataset: ps.concatenate([dataset, dataset.filter(always)]),
}
FOLD = pytest.mark.parametrize("fold", FOLDS.values(), ids=[*FOLDS])


def check(dataset: ps.Dataset, *places: dict[str, Any]) -> None:
    """Compare two epochs with the definition in each place, and what follows a state of two batches."""
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


@FOLD
def test_steps_that_are_read_in_order_take_whole_batches(fold: Callable[[ps.Dataset], ps.Dataset]) -> None:
    """No batch is lost or made of fewer rows, and each has the origin that the definition gives."""
    check(batches(fold), {}, THREADS)


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@FOLD
def test_rows_of_batches_keep_their_origins(fold: Callable[[ps.Dataset], ps.Dataset], remainder: Any) -> None:
    """A row that was taken out of a batch has its own key, and no row of padding is looked for in the source."""
    check(rows(fold, remainder), {}, THREADS)


@CHILDREN
def test_batches_and_rows_are_whole_in_other_processes(place: dict[str, Any]) -> None:
    """What processes compute above batches is what the definition says."""
    check(batches(FOLDS["map, window_shuffle"]), place)
    check(rows(FOLDS["window_shuffle"], "pad"), place)


@pytest.mark.parametrize("name", sorted(FOLDS.keys() - {"one part", "parts"}))
def test_ranks_make_their_parts_of_batches_below(name: str) -> None:
    """Each rank gives the steps above a batch its part of the rows, as the definition says of ranks."""
    dataset = FOLDS[name](ps.range(22, seed=1).batch(4)).map_with_origin(with_origin)
    for rank in range(2):
        with ps.Loader(dataset, shard=ps.Shard(rank, 2, uneven=True)) as loader:
            assert digests(loader) == digests(rank_of(dataset, 0, rank, 2))


@pytest.mark.parametrize("name", ["one part", "parts"])
def test_where_parts_are_joined_no_batch_is_shared(name: str) -> None:
    """Batches that were joined are elements like others, which ranks can't cut."""
    dataset = FOLDS[name](ps.range(22, seed=1).batch(4))
    with pytest.raises(GraphError, match="shard= cuts global batches, and there is none"):
        ps.Loader(dataset, shard=ps.Shard(0, 2, uneven=True))


def test_the_origin_of_a_row_is_known_in_windows_of_batches() -> None:
    """`Loader.origin` answers for each row of a batch that a window shuffle has moved."""
    dataset = ps.range(22).batch(4).window_shuffle(2)
    with ps.Loader(dataset) as loader:
        for step, batch in enumerate(loader):
            assert [loader.origin(step, row).key for row in range(len(batch))] == batch.tolist()


def test_a_step_that_replaces_batches_is_not_cut_by_ranks() -> None:
    """A substitute is a whole batch, so it can't take the place of a rank's part of one."""
    dataset = ps.range(20).batch(4).map(same, on_error=ps.Substitute()).window_shuffle(2)
    with pytest.raises(GraphError, match=r"on_error=Substitute\(…\) of step 'same' stands above batch\(\)"):
        ps.Loader(dataset, shard=ps.Shard(0, 2, uneven=True))


def test_workers_compute_functions_of_batches_that_may_fail() -> None:
    """A function of batches with on_error="skip" runs on any worker, though the dataset is read in order."""
    explanation = ps.range(20).batch(4).map(same, on_error="skip").explain()
    assert {line.split("(")[0]: who for line, _, who in explanation.steps}["map"] == "any worker"
