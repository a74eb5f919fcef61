"""Only the seen elements of a mixture count for its fingerprint, so that its future may change."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock._graph._fingerprint import fingerprint
from penstock._graph._flat_map import FlatMap
from penstock._graph._nodes import Batch, Cache, Combine, Filter, Map, Node, Reindex, Split
from penstock._streaming import Mix
from penstock.batching import Stack
from penstock.sampling import Shuffle, WeightedMixture
from tests.graph.trees import doubled, read, zipped

if TYPE_CHECKING:
    from collections.abc import Callable

Schedule = tuple[tuple[int, tuple[int, ...]], ...]
CHANGING: Schedule = ((0, (1, 1, 0)), (8, (1, 1, 2)))


def mix(schedule: Schedule, names: str = "abc", seed: int = 7) -> Combine:
    """Return a mixture of three parts of 20."""
    parts = {name: Map(read(20, ord(name) * 100), str, f"map {name}", 0) for name in "abcde"}
    rule = WeightedMixture(tuple(names), (20,) * len(names), schedule=schedule, stop="first", seed=seed)
    return Combine(tuple(parts[name] for name in names), tuple(names), Mix(rule, schedule, "first"), 3)


def above(node: Node) -> Node:
    """Return steps through which a mixture's seen elements are known."""
    return Batch(Cache(Map(node, str, "str", 0), None, "cache()"), 4, Stack())


def same(first: Node, second: Node, epoch: int | None = 0, position: int | None = 8) -> bool:
    """Return whether source and order are the same."""
    one, other = fingerprint(first, epoch, position), fingerprint(second, epoch, position)
    return (one.source, one.order) == (other.source, other.order)


OTHER_FUTURE = mix(((0, (1, 1, 0)), (8, (3, 1, 2))))
OTHER_PAST = mix(((0, (1, 2, 0)), (8, (1, 1, 2))))
ONE_MORE = mix(((0, (0, 1, 1, 0)), (8, (1, 1, 1, 2))), "dabc")


def test_the_future_does_not_count() -> None:
    """Another schedule from here on, or one more component, leaves the fingerprint as it is."""
    for other in (OTHER_FUTURE, ONE_MORE, mix(((0, (1, 1, 0)),))):
        assert same(mix(CHANGING), other)
        assert same(above(mix(CHANGING)), above(other))
        assert fingerprint(mix(CHANGING), 0, 8) == fingerprint(other, 0, 8)


def test_the_past_counts() -> None:
    """Another past, seed or part of it gives another fingerprint."""
    node = mix(CHANGING)
    changed_part = replace(node, parts=(read(20, 5), *node.parts[1:]))
    for other in (OTHER_PAST, mix(CHANGING, seed=8), mix(CHANGING, "dba"), changed_part, replace(node, seed=4)):
        assert not same(node, other)
    assert not same(node, mix(CHANGING, "adc"))
    assert same(node, replace(node, parts=(*node.parts[:2], read(20))))
    assert not same(node, replace(node, parts=(*node.parts[:2], read(20))), 0, 9)


@pytest.mark.parametrize(("epoch", "position"), [(0, 9), (1, 8), (0, None), (None, None)])
def test_beyond_the_past_everything_counts(epoch: int | None, position: int | None) -> None:
    """After the change, in later epochs, and without a position, fingerprints with other futures differ."""
    assert not same(mix(CHANGING), OTHER_FUTURE, epoch, position)


def test_a_reordered_mixture_counts_as_a_whole() -> None:
    """If a step above a mixture changes the number or order of its elements, its future counts."""
    wraps: list[Callable[[Node], Node]] = [
        lambda node: Reindex(node, Shuffle(10, 1), "shuffle()"),
        lambda node: Filter(node, bool, "bool"),
        lambda node: zipped((node, node)),
        lambda node: Split(node, FlatMap(doubled, "double")),
    ]
    for wrap in wraps:
        assert not same(wrap(mix(CHANGING)), wrap(OTHER_FUTURE))


def test_a_cache_is_no_part_of_a_dataset() -> None:
    """Source, order and functions are the same with and without a cache."""
    node = mix(CHANGING)
    assert fingerprint(Cache(node, None, "cache()")) == fingerprint(node)
