"""Elements, steps, parts and ranks draw from different random streams, which other steps don't change."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.dataset.functions import same
from tests.equivalence.definition import close_all, epoch_of, ranks_of
from tests.profiles import in_short

EPOCHS = 3
LENGTHS = st.integers(1, 40)
SEEDS = st.integers(0, 1000)
Verb = Callable[[ps.Dataset], ps.Dataset]
Collect = Callable[[list[Any], np.random.Generator], list[Any]]


def draw(element: Any, rng: np.random.Generator) -> tuple[int, int]:
    """Return 128 bits from the element's stream, which don't depend on the element itself."""
    del element
    first, second = rng.integers(0, 2**64, 2, dtype=np.uint64).tolist()
    return first, second


def also_draw(element: Any, rng: np.random.Generator) -> tuple[int, int]:
    """Return the same of another step."""
    return draw(element, rng)


def collect(found: list[Any], rng: np.random.Generator) -> list[Any]:
    """Return the list with one more draw."""
    return [*found, draw(None, rng)]


def seed_itself(element: Any, seed: int) -> int:
    """Return the element's derived seed."""
    del element
    return seed


def draws(dataset: ps.Dataset) -> Iterator[Any]:
    """Yield all draws of some epochs."""
    for epoch in range(EPOCHS):
        yield from epoch_of(dataset, epoch)


def assert_distinct(drawn: Iterable[Any]) -> None:
    """Fail if two draws are equal: with 128 bits each, that is no accident."""
    found = list(drawn)
    assert len(set(found)) == len(found)


ORDERS: list[Verb] = [same, lambda dataset: dataset.shuffle()]
ORDER = st.sampled_from(ORDERS)
PARTS: list[Callable[[ps.Dataset], list[ps.Dataset]]] = [
    lambda dataset: [dataset.shard(index, 3) for index in range(3)],
    lambda dataset: list(dataset.split({"train": 0.6, "val": 0.3, "test": 0.1}, seed=5).values()),
    lambda dataset: [dataset[: len(dataset) // 2], dataset[len(dataset) // 2 :]],
    lambda dataset: [dataset[::2], dataset[1::2].shard(0, 2), dataset[1::2].shard(1, 2)],
]


@in_short(15)
@given(LENGTHS, SEEDS, st.sampled_from(PARTS), ORDER, ORDER, st.integers(1, 3))
def test_parts_draw_apart(
    length: int, seed: int, parts_of: Callable[[ps.Dataset], list[ps.Dataset]], below: Verb, above: Verb, times: int
) -> None:
    """Fixed shards, split parts and slices never share a stream, with shuffles below or above, over several epochs."""
    parts = parts_of(below(ps.range(length, seed=seed)))
    assert_distinct(found for part in parts for found in draws(above(part.repeat(times)).random_map(draw)))


@given(LENGTHS, SEEDS, st.sampled_from([1, 2, 3, 4]), ORDER, st.sampled_from(["below", "above"]))
def test_ranks_draw_apart(length: int, seed: int, ranks: int, order: Verb, where: str) -> None:
    """The loader's ranks never share a stream, whether the random step is below or above `batch`."""
    rows, size = order(ps.range(length, seed=seed)), ranks * 2
    dataset = (
        rows.random_map(draw).batch(size, remainder="drop", merge=list)
        if where == "below"
        else rows.batch(size, remainder="pad").random_map(draw)
    )
    loaders = ranks_of(dataset, ranks)
    batches = [batch for loader in loaders for _ in range(EPOCHS) for batch in loader]
    close_all(loaders)
    assert_distinct([row for batch in batches for row in batch] if where == "below" else batches)


@in_short(10)
@given(LENGTHS, SEEDS, st.integers(1, 7))
def test_steps_and_rows_draw_apart(length: int, seed: int, size: int) -> None:
    """Steps of one chain, lambdas, uses of one function, and rows of batches have streams of their own.

    The same name gives the same draws for another function, and another name gives others.
    """
    rows = ps.range(length, seed=seed)
    one: Collect = lambda found, rng: [*found, draw(None, rng)]  # noqa: E731 - lambdas are what is tested
    other: Collect = lambda found, rng: [*found, draw(None, rng)]  # noqa: E731 - likewise
    chain = rows.map(lambda _: []).random_map(collect).random_map(one).random_map(other).random_map(collect)
    assert_distinct(drawn for found in draws(chain) for drawn in found)
    assert_distinct(draws(rows.shuffle().batch(size).unbatch().random_map(draw)))
    first = list(draws(rows.random_map(draw)))
    assert list(draws(rows.random_map(also_draw, name="draw"))) == first
    assert not set(first) & set(draws(rows.random_map(draw, name="renamed")))


OTHERS: dict[str, Verb] = {
    "map": lambda dataset: dataset.map(same),
    "shuffle": lambda dataset: dataset.shuffle(),
    "random": lambda dataset: dataset.random_map(also_draw),
    "epochless": lambda dataset: dataset[:],
}


@in_short(15)
@given(LENGTHS, SEEDS, st.lists(st.sampled_from([*OTHERS]), max_size=4), st.data())
def test_other_steps_change_no_stream(length: int, seed: int, others: list[str], data: st.DataObject) -> None:
    """Adding a map, a shuffle or another random map, below or above, leaves a named step's streams as they were."""
    alone = list(draws(ps.range(length, seed=seed).random_map(draw)))
    dataset: ps.Dataset = ps.range(length, seed=seed)
    at = data.draw(st.integers(0, len(others)))
    for kind in others[:at]:
        dataset = OTHERS[kind](dataset)
    dataset = dataset.random_map(draw)
    assert list(draws(dataset)) == alone
    for kind in others[at:]:
        dataset = OTHERS[kind](dataset)
    above = set(others[at:])
    keeps_order = not {"shuffle", "random"} & above and not ("epochless" in above and "shuffle" in others)
    if keeps_order:  # a slice of a shuffled dataset keeps the elements of epoch 0, in another order in later epochs
        assert list(draws(dataset)) == alone
    elif "random" not in above:
        assert sorted(draws(dataset)) == sorted(alone)


@given(LENGTHS, SEEDS, st.lists(st.sampled_from(["map", "random"]), max_size=4))
def test_other_steps_change_no_shuffle(length: int, seed: int, others: list[str]) -> None:
    """The order of a shuffle doesn't depend on the maps and random maps below it."""
    plain = ps.range(length, seed=seed)
    dressed = plain.map(lambda number: [number])
    for number, kind in enumerate(others):
        dressed = dressed.map(same, name=f"{number}") if kind == "map" else dressed.random_map(collect)
    assert [element[0] for element in draws(dressed.shuffle())] == list(draws(plain.shuffle()))


def test_epochs_and_seeds_draw_apart() -> None:
    """Other epochs, and datasets of other seeds, draw other numbers."""
    forms: list[tuple[Any, Any]] = [("generator", draw), ("seed", seed_itself)]
    for form, function in forms:
        seeded = [ps.range(30, seed=seed).random_map(function, rng=form) for seed in (0, 1, 2, -1, 2**63)]
        assert_distinct(drawn for dataset in seeded for epoch in range(4) for drawn in epoch_of(dataset, epoch))
