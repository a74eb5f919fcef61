"""Parts of a dataset keep their records over epochs: train and validation never exchange any."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.dataset.functions import same
from tests.equivalence.definition import epoch_of
from tests.profiles import in_short

LENGTHS = st.integers(0, 60)
SEEDS = st.integers(0, 1000)
EPOCHS = 5
Verb = Callable[[ps.Dataset], ps.Dataset]
ORDERS: list[Verb] = [same, lambda dataset: dataset.shuffle()]
BETWEEN: list[Verb] = [
    same,
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


def bag(dataset: ps.Dataset, epoch: int) -> list[Any]:
    """Return an epoch's elements, sorted."""
    return sorted(epoch_of(dataset, epoch), key=repr)


@in_short(15)
@given(LENGTHS, SEEDS, SEEDS, *[st.sampled_from(ORDERS)] * 2)
def test_train_and_validation_never_mix(length: int, seed: int, split_seed: int, below: Verb, above: Verb) -> None:
    """The parts of a split are disjoint and complete, and the same over 5 epochs, with shuffles below or above."""
    parts = below(ps.range(length, seed=seed)).split({"train": 0.8, "val": 0.2}, seed=split_seed)
    train, val = above(parts["train"]), above(parts["val"])
    first = set(epoch_of(train, 0))
    assert sorted([*epoch_of(train, 0), *epoch_of(val, 0)]) == list(range(length))
    for epoch in range(EPOCHS):
        assert set(epoch_of(train, epoch)) == first
        assert set(epoch_of(val, epoch)) == set(range(length)) - first


@given(LENGTHS, SEEDS, st.sampled_from(BETWEEN), st.sampled_from(CHOICES))
def test_a_choice_above_a_shuffle_fixes_the_set(length: int, seed: int, between: Verb, choice: Verb) -> None:
    """A slice, shard, selection or split of a shuffle has the same elements in every epoch, with any steps between."""
    part = choice(between(ps.range(length, seed=seed).shuffle()))
    first = bag(part, 0)
    for epoch in range(1, EPOCHS):
        assert bag(part, epoch) == first


def test_the_set_is_reordered() -> None:
    """The elements of a slice of a shuffle have another order in later epochs."""
    for between in BETWEEN[:2]:
        for choice in CHOICES[:5]:
            part = choice(between(ps.range(40, seed=3).shuffle()))
            assert len({tuple(epoch_of(part, epoch)) for epoch in range(EPOCHS)}) == EPOCHS
