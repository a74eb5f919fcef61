"""Elements, steps, parts and ranks draw from different random streams, which other steps don't change."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import close_all, digest, epoch_of, ranks_of

EPOCHS = 3
LENGTHS = st.integers(1, 40)
SEEDS = st.integers(0, 1000)


def draw(element: Any, rng: np.random.Generator) -> tuple[int, int]:
    """Return 128 bits from the element's stream, which don't depend on the element itself."""
    del element
    first, second = rng.integers(0, 2**64, 2, dtype=np.uint64).tolist()
    return first, second


def also_draw(element: Any, rng: np.random.Generator) -> tuple[int, int]:
    """Return the same of another step."""
    return draw(element, rng)


def keep(element: Any) -> Any:
    """Return the element."""
    return element


def draws(dataset: ps.Dataset) -> Iterator[Any]:
    """Yield all draws of some epochs."""
    for epoch in range(EPOCHS):
        yield from epoch_of(dataset, epoch)


def assert_distinct(found: list[Any]) -> None:
    """Fail if two draws are equal: with 128 bits each, that is no accident."""
    assert len(set(found)) == len(found)


ORDERS: list[Callable[[ps.Dataset], ps.Dataset]] = [lambda dataset: dataset, lambda dataset: dataset.shuffle()]
ORDER = st.sampled_from(ORDERS)


def parts_of(dataset: ps.Dataset, kind: str) -> list[ps.Dataset]:
    """Return disjoint parts of a dataset."""
    match kind:
        case "shard":
            return [dataset.shard(index, 3) for index in range(3)]
        case "split":
            return list(dataset.split({"train": 0.6, "val": 0.3, "test": 0.1}, seed=5).values())
        case "slice":
            middle = len(dataset) // 2
            return [dataset[:middle], dataset[middle:]]
        case _:
            return [dataset[::2], dataset[1::2].shard(0, 2), dataset[1::2].shard(1, 2)]


PARTS = st.sampled_from(["shard", "split", "slice", "nested"])


@given(LENGTHS, SEEDS, PARTS, ORDER, ORDER, st.integers(1, 3))
def test_parts_draw_apart(
    length: int,
    seed: int,
    kind: str,
    below: Callable[[ps.Dataset], ps.Dataset],
    above: Callable[[ps.Dataset], ps.Dataset],
    times: int,
) -> None:
    """Fixed shards, split parts and slices never share a stream, with shuffles below or above, over several epochs."""
    parts = parts_of(below(ps.range(length, seed=seed)), kind)
    assert_distinct([found for part in parts for found in draws(above(part.repeat(times)).random_map(draw))])


@given(LENGTHS, SEEDS, st.sampled_from([1, 2, 3, 4]), st.booleans(), st.sampled_from(["below", "above"]))
def test_ranks_draw_apart(length: int, seed: int, ranks: int, shuffles: bool, where: str) -> None:  # noqa: FBT001 - drawn
    """The loader's ranks never share a stream, whether the random step is below or above `batch`."""
    rows: ps.Dataset = ps.range(length, seed=seed)
    rows = rows.shuffle() if shuffles else rows
    dataset: ps.Dataset
    if where == "below":
        dataset = rows.random_map(draw).batch(ranks * 2, remainder="drop", merge=list)
    else:
        dataset = rows.batch(ranks * 2, remainder="pad").random_map(draw)
    loaders = ranks_of(dataset, ranks)
    found: list[Any] = []
    for loader in loaders:
        for _ in range(EPOCHS):
            for batch in loader:
                found += batch if where == "below" else [batch]
    close_all(loaders)
    assert_distinct(found)


@given(LENGTHS, SEEDS)
def test_steps_draw_apart(length: int, seed: int) -> None:
    """Two steps of one chain, two lambdas, and two uses of one function, have streams of their own."""
    rows = ps.range(length, seed=seed)
    one: Collect = lambda found, rng: [*found, draw(None, rng)]  # noqa: E731 - lambdas are what is tested
    other: Collect = lambda found, rng: [*found, draw(None, rng)]  # noqa: E731 - likewise
    empty = rows.map(nothing)
    pairs = [
        empty.random_map(collect).random_map(one),
        empty.random_map(one).random_map(other),
        empty.random_map(collect).random_map(collect),
    ]
    for dataset in pairs:
        assert_distinct([drawn for found in draws(dataset) for drawn in found])


Collect = Callable[[list[Any], np.random.Generator], list[Any]]


def nothing(element: Any) -> list[Any]:
    """Return a list with no draw."""
    del element
    return []


def collect(found: list[Any], rng: np.random.Generator) -> list[Any]:
    """Return the list with one more draw."""
    return [*found, draw(None, rng)]


@given(LENGTHS, SEEDS, st.integers(1, 7))
def test_rows_draw_apart_from_batches(length: int, seed: int, size: int) -> None:
    """Rows taken out of batches have streams of their own, different from each other's."""
    dataset = ps.range(length, seed=seed).shuffle().batch(size).unbatch().random_map(draw)
    assert_distinct(list(draws(dataset)))


@given(LENGTHS, SEEDS, st.lists(st.sampled_from(["map", "shuffle", "random", "epochless"]), max_size=4), st.data())
def test_other_steps_change_no_stream(length: int, seed: int, others: list[str], data: st.DataObject) -> None:
    """Adding a map, a shuffle or another random map, below or above, leaves a named step's streams as they were."""
    alone = list(draws(ps.range(length, seed=seed).random_map(draw)))
    dataset: ps.Dataset = ps.range(length, seed=seed)
    at = data.draw(st.integers(0, len(others)))
    for kind in others[:at]:
        dataset = other_step(dataset, kind)
    assert list(draws(dataset.random_map(draw))) == alone
    dataset = dataset.random_map(draw)
    for kind in others[at:]:
        dataset = other_step(dataset, kind)
    above = set(others[at:])
    keeps_order = not {"shuffle", "random"} & above and not ("epochless" in above and "shuffle" in others)
    if keeps_order:  # a slice of a shuffled dataset keeps the elements of epoch 0, in another order in later epochs
        assert list(draws(dataset)) == alone
    elif "random" not in above:
        assert sorted(draws(dataset)) == sorted(alone)


def other_step(dataset: ps.Dataset, kind: str) -> ps.Dataset:
    """Return the dataset with one more step."""
    match kind:
        case "map":
            return dataset.map(keep)
        case "shuffle":
            return dataset.shuffle()
        case "random":
            return dataset.random_map(also_draw)
        case _:
            return dataset[:]


@given(LENGTHS, SEEDS, st.integers(1, 3))
def test_other_steps_change_no_shuffle(length: int, seed: int, times: int) -> None:
    """The order of a shuffle doesn't depend on the maps and random maps around it."""
    plain = ps.range(length, seed=seed).shuffle()
    dressed = ps.range(length, seed=seed).map(keep).random_map(tag, name="tag")
    for number in range(times):
        dressed = dressed.map(keep, name=f"keep-{number}")
    for epoch in range(EPOCHS):
        assert [element[0] for element in epoch_of(dressed.shuffle(), epoch)] == list(epoch_of(plain, epoch))


def tag(element: Any, rng: np.random.Generator) -> Any:
    """Return the element with a draw."""
    return element, draw(None, rng)


@pytest.mark.parametrize("form", ["generator", "seed"])
def test_epochs_and_seeds_draw_apart(form: Any) -> None:
    """Other epochs, and datasets of other seeds, draw other numbers."""
    function: Any = draw if form == "generator" else seed_itself
    found = [
        drawn
        for seed in (0, 1, 2, -1, 2**63)
        for epoch in range(4)
        for drawn in epoch_of(ps.range(30, seed=seed).random_map(function, rng=form), epoch)
    ]
    assert_distinct(found)


def seed_itself(element: Any, seed: int) -> int:
    """Return the element's derived seed."""
    del element
    return seed


@given(LENGTHS, SEEDS)
def test_renaming_changes_the_stream(length: int, seed: int) -> None:
    """The same name gives the same draws for another function, and another name gives others."""
    rows = ps.range(length, seed=seed)
    first = list(draws(rows.random_map(draw)))
    assert list(draws(rows.random_map(also_draw, name="draw"))) == first
    assert not set(first) & set(draws(rows.random_map(draw, name="renamed")))
    assert digest(first[0]) == digest(rows.random_map(draw)[0])
