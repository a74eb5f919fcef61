"""Rewriting of graphs: fixed orders, and the seeds of a mixture's parts."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given

from penstock._graph._apply import Context
from penstock._graph._evaluate import element_at
from penstock._graph._length import length
from penstock._graph._nodes import (
    Combine,
    Filter,
    Fold,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
    walk,
)
from penstock._graph._rewrite import hold_order, prefixed, varies_by_epoch
from penstock._graph._verify import finite_length, need_fixed_order, need_indexable
from penstock._graph._windows import Windows
from penstock._seeds import derive
from penstock._streaming import Concatenate, Limit, Mix, WindowShuffle, Zip
from penstock.errors import GraphError, NoLengthError
from penstock.sampling import (
    Concatenation,
    FixedEpoch,
    FixedOrder,
    Reorder,
    Repeat,
    ScalarSampler,
    Shuffle,
    Slice,
    WeightedMixture,
    WindowTable,
)
from tests.graph.trees import (
    chained,
    episodes,
    interleaved,
    mixed_in_order,
    origin_map,
    random_map,
    read,
    trees,
    zipped,
)


def over(parent: Node, sampler: ScalarSampler) -> Reindex:
    """Return a node in the order of a sampler."""
    return Reindex(parent, sampler, "order")


def keys(node: Node, epoch: int, count: int | None = None) -> list[object]:
    """Return an epoch's elements, or its first ones."""
    total = (length(node) or 0) if count is None else count
    return [element_at(node, epoch, position, Context()) for position in range(total)]


SHUFFLED = over(read(9), Shuffle(9, 7))


@given(trees())
def test_a_fixed_order_is_the_same_in_every_epoch(node: Node) -> None:
    """Without a random map, a fixed order makes equal epochs."""
    if varies_by_epoch(node) or any(isinstance(step, Map) for step in walk(node)):
        return
    try:
        first = repr(keys(node, 0))
    except ValueError:  # leaves that can't be stacked
        return
    assert all(repr(keys(node, epoch)) == first for epoch in (1, 5))


@pytest.mark.parametrize("stop", ["first", "all", "never"])
def test_a_held_mixture_has_epoch_0s_order(stop: Literal["first", "all", "never"]) -> None:
    """Every epoch has the order of the first, passes of an endless mixture included; random maps change."""
    lengths = (9, 4)
    parts = (SHUFFLED, over(read(4, 100), Shuffle(4, 8)))
    rule = WeightedMixture(("a", "b"), lengths, schedule=((0, (1, 1)),), stop=stop, seed=0)
    node = Combine(parts, ("a", "b"), Mix(rule, rule.schedule, stop), 0)
    held = hold_order(node)
    first = keys(node, 0, min(len(rule), 40))
    assert keys(held, 0, len(first)) == keys(held, 1, len(first)) == keys(held, 4, len(first)) == first
    assert varies_by_epoch(node)
    noisy = hold_order(random_map(node, "noise", 0))
    assert keys(noisy, 0, 8) != keys(noisy, 1, 8)


def test_zips_and_concatenations_are_held_part_by_part() -> None:
    """Parts without a shuffle don't vary; the order of the others is fixed."""
    plain = zipped((read(9), read(9)))
    assert not varies_by_epoch(plain)
    for node in (
        zipped((read(9), SHUFFLED)),
        Combine((read(9), SHUFFLED), ("a", "b"), Concatenate(Concatenation((9, 9))), 0),
        Split(over(episodes(4, 6), Shuffle(4, 1)), Windows(WindowTable(np.full(4, 6), 3, stride=3, partial="drop"))),
    ):
        assert varies_by_epoch(node)
        held = hold_order(node)
        assert not varies_by_epoch(held)
        assert repr(keys(held, 3)) == repr(keys(node, 0))


def seeds_of(node: Node) -> list[int]:
    """Return all seeds of a tree, from the source up."""
    found: list[int] = []
    for step in walk(node):
        seed = getattr(step, "seed", None)
        if seed is None and isinstance(step, Reindex):
            seed = getattr(step.sampler, "seed", None)
        if isinstance(step, Fold) and step.value.random is not None:
            seed = step.value.random.seed
        if seed is not None:
            found.append(seed)
    return found


def test_a_part_has_seeds_of_its_name() -> None:
    """Sources, random steps, shuffles and joins below all change; equal parts of two names share no seed."""
    inner = replace(interleaved((SHUFFLED, read(9)), ("x", "y")), seed=4)
    part = Fold(
        Filter(random_map(over(inner, Reorder(18, 5)), "noise", 6), bool, "bool"), WindowShuffle(4, "window", 8)
    )
    assert seeds_of(prefixed(part, "a")) == [derive(seed, "a") for seed in seeds_of(part)]
    stream: tuple[Node, ...] = (Stream([1], 3),)
    joins: list[Node] = [mixed_in_order(stream, ("x",), seed=9), chained(stream, ("x",), 9)]
    for join in joins:
        assert seeds_of(prefixed(join, "a")) == [derive(3, "a"), derive(9, "a")]


@pytest.mark.parametrize("choice", [Slice(0, 1, 4), FixedEpoch(9, 0), FixedOrder(Shuffle(9, 2))], ids=repr)
def test_the_order_below_a_choice_is_kept(choice: ScalarSampler) -> None:
    """Shuffles below a choice keep their seeds, and those above it don't; random maps always change."""
    below = random_map(SHUFFLED, "noise", 3)
    node = over(over(below, choice), Reorder(len(choice), 6))
    expected = [derive(0, "a"), 7, derive(3, "a"), derive(6, "a")]
    assert seeds_of(prefixed(node, "a")) == expected
    assert seeds_of(prefixed(over(over(SHUFFLED, Repeat(9, 2)), Shuffle(18, 1)), "a")) == [
        derive(seed, "a") for seed in (0, 7, 1)
    ]


def test_parts_of_a_split_stay_apart() -> None:
    """Two parts of one split, in mixtures of their own under other names, have no record in common."""
    dealt = over(SHUFFLED, FixedOrder(Shuffle(9, 2)))
    parts = [over(over(hold_order(dealt), Slice(start, 1, 3)), Reorder(3, 1)) for start in (0, 3)]
    for epoch in range(4):
        first, second = (keys(prefixed(part, name), epoch) for part, name in zip(parts, "ab", strict=True))
        assert not set(first) & set(second)
        assert set(first) == set(keys(parts[0], 0))


def test_tables_need_a_fixed_order() -> None:
    """Verbs that rely on positions refuse a shuffle below, with a remedy."""
    need_fixed_order(over(SHUFFLED, FixedEpoch(9, 0)), "windows()")
    with pytest.raises(GraphError, match=r"windows\(\) relies on the positions.*has another order.*shuffle after it"):
        need_fixed_order(SHUFFLED, "windows()")


def test_the_step_without_positions_is_named() -> None:
    """Errors name the lowest step that can only be read in order, and its part."""
    filtered = Filter(read(9), bool, "bool")
    node = origin_map(Combine((read(9), filtered), ("x", "y"), Zip(as_dict=True), 0))
    with pytest.raises(NoLengthError, match=r"filter\(bool\) \(part 'y' of zip\({x: …, y: …}\)\) can only be read in"):
        finite_length(node)
    with pytest.raises(
        GraphError, match=r"shuffle\(\) needs .*concatenate\({a: …}\) can only be read in order. Sorry."
    ):
        need_indexable(Fold(chained((Read([1], 1, 0),), ("a",)), Limit(3)), "shuffle()", "Sorry.")
