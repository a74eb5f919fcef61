"""Parts of a dataset keep their records over epochs: train and validation never exchange any."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import epoch_of

LENGTHS = st.integers(0, 60)
SEEDS = st.integers(0, 1000)
Verb = Callable[[ps.Dataset], ps.Dataset]

PLAIN: Verb = lambda dataset: dataset  # noqa: E731 - one of a list of verbs
SHUFFLED: Verb = lambda dataset: dataset.shuffle()  # noqa: E731 - likewise
ORDER = st.sampled_from([PLAIN, SHUFFLED])
EPOCHS = 5


def bag(dataset: ps.Dataset, epoch: int) -> list[Any]:
    """Return an epoch's elements, sorted."""
    return sorted(epoch_of(dataset, epoch), key=repr)


@given(LENGTHS, SEEDS, SEEDS, ORDER, ORDER)
def test_train_and_validation_never_mix(length: int, seed: int, split_seed: int, below: Verb, above: Verb) -> None:
    """The parts of a split are disjoint and complete, and the same over 5 epochs, with shuffles below or above."""
    parts = below(ps.range(length, seed=seed)).split({"train": 0.8, "val": 0.2}, seed=split_seed)
    train, val = above(parts["train"]), above(parts["val"])
    first = set(epoch_of(train, 0))
    assert sorted([*epoch_of(train, 0), *epoch_of(val, 0)]) == list(range(length))
    for epoch in range(EPOCHS):
        assert set(epoch_of(train, epoch)) == first
        assert set(epoch_of(val, epoch)) == set(range(length)) - first


BETWEEN: list[Verb] = [
    PLAIN,
    lambda dataset: dataset.repeat(2),
    lambda dataset: dataset.repeat(2, reshuffle=False),
    lambda dataset: dataset.batch(3, merge=tuple),
    lambda dataset: dataset.repeat(3).batch(4, remainder="drop", merge=tuple),
    lambda dataset: dataset.map(lambda element: element + 1).shuffle(),
    lambda dataset: dataset.subset(len(dataset) // 2),
    lambda dataset: dataset.repeat(2).shuffle().repeat(2),
]
CHOICES: list[Verb] = [
    lambda dataset: dataset[2:11],
    lambda dataset: dataset[::-2],
    lambda dataset: dataset.take(7),
    lambda dataset: dataset.skip(5),
    lambda dataset: dataset.shard(1, 3),
    lambda dataset: dataset.select([0, len(dataset) // 2, -1, 0]) if len(dataset) else dataset,
    lambda dataset: dataset.split({"a": 0.5, "b": 0.5})["b"],
]


@given(LENGTHS, SEEDS, st.sampled_from(BETWEEN), st.sampled_from(CHOICES))
def test_a_choice_above_a_shuffle_fixes_the_set(length: int, seed: int, between: Verb, choice: Verb) -> None:
    """A slice, shard, selection or split of a shuffle has the same elements in every epoch, with any steps between."""
    part = choice(between(ps.range(length, seed=seed).shuffle()))
    first = bag(part, 0)
    for epoch in range(1, EPOCHS):
        assert bag(part, epoch) == first


@pytest.mark.parametrize("between", BETWEEN[:2])
@pytest.mark.parametrize("choice", CHOICES[:5])
def test_the_set_is_reordered(between: Verb, choice: Verb) -> None:
    """The elements of a slice of a shuffle have another order in later epochs."""
    part = choice(between(ps.range(40, seed=3).shuffle()))
    orders = {tuple(epoch_of(part, epoch)) for epoch in range(EPOCHS)}
    assert len(orders) == EPOCHS
