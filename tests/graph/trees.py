"""Small trees of nodes with positions, with tables, rules and groupings written as plainly as possible."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock._graph._flat_map import FlatMap
from penstock._graph._length import length
from penstock._graph._nodes import (
    Batch,
    Cache,
    Combine,
    Group,
    Map,
    Node,
    Origin,
    Read,
    Reindex,
    Split,
    walk,
)
from penstock._graph._rewrite import prefixed, varies_by_epoch
from penstock._graph._unbatch import Unbatch
from penstock._storage import MemoryCache
from penstock._streaming import Concatenate, Interleave, Mix, Zip
from penstock.batching import Stack
from penstock.sampling import Concatenation, Ragged, Repeat, RoundRobin, Select, Shuffle, Slice, WeightedMixture
from penstock.sources import Arrays, Range

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Tuples:
    """Groups of listed members, each made a list of them."""

    groups: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.groups)

    def members(self, groups: Integers, /) -> tuple[Integers, Integers]:
        """Return the number of members of each group, and the members."""
        chosen = [self.groups[int(group)] for group in groups]
        counts = np.array([len(group) for group in chosen], np.int64)
        return counts, np.array([member for group in chosen for member in group], np.int64)

    def merge(self, groups: Integers, elements: list[Any], /) -> list[Any]:
        """Return the members of each group as a dict, with the group's number."""
        left = iter(elements)
        return [{"group": group, "members": [next(left) for _ in self.groups[group]]} for group in map(int, groups)]

    def fingerprint(self) -> str:
        """Return the groups."""
        return repr(self.groups)


def read(count: int, first: int = 0, seed: int = 0) -> Read:
    """Return integers from `first` on, as a source."""
    return Read(Range(first, first + count, 1), count, seed)


def noisy(element: Any, rng: np.random.Generator) -> Any:
    """Return the element with a random number."""
    return {"element": element, "noise": rng.random()}


def with_origin(element: Any, origin: Origin) -> Any:
    """Return the element with its origin."""
    place = (origin.epoch, origin.position, origin.key, origin.ordinal, origin.component, origin.seed >> 1)
    return {"element": element, "origin": str(place)}


def doubled(element: Any) -> list[Any]:
    """Return two elements of one."""
    return [{"of": element, "number": 0}, {"of": element, "number": 1}]


def interleaved(parts: tuple[Node, ...], names: tuple[str, ...]) -> Combine:
    """Return indexable parts in turn."""
    return Combine(parts, names, Interleave(RoundRobin(tuple(length(part) or 0 for part in parts))), 0)


def zipped(parts: tuple[Node, ...]) -> Combine:
    """Return tuples of the parts' elements."""
    return Combine(parts, tuple(map(str, range(len(parts)))), Zip(as_dict=False), 0)


def chained(parts: tuple[Node, ...], names: tuple[str, ...] = ("a", "b"), seed: int = 0) -> Combine:
    """Return the elements of parts one after the other, read in order."""
    return Combine(parts, names, Concatenate(None), seed)


def mixed_in_order(
    parts: tuple[Node, ...], names: tuple[str, ...], stop: Literal["first", "all"] = "all", seed: int = 0
) -> Combine:
    """Return parts with equal weights, read in order."""
    return Combine(parts, names, Mix(None, ((0, (1,) * len(parts)),), stop), seed)


def random_map(node: Node, name: str, seed: int) -> Map:
    """Return a step that draws a random number for each element."""
    return Map(node, noisy, name, seed, "generator")


def origin_map(node: Node, name: str = "origin") -> Map:
    """Return a step that adds each element's origin."""
    return Map(node, with_origin, name, 5, "origin")


def episodes(count: int, frames: int, seed: int = 0) -> Read:
    """Return episodes of a number of frames, with a label each."""
    state = np.arange(count * frames * 2, dtype=np.float32).reshape(count, frames, 2)
    return Read(Arrays({"state": state, "label": np.arange(count)}), count, seed)


@st.composite
def leaves(draw: st.DrawFn) -> Node:
    """Draw a source, perhaps in another order."""
    count = draw(st.integers(1, 9))
    node: Node = read(count, first=draw(st.integers(0, 3)) * 100, seed=draw(st.integers(0, 3)))
    match draw(st.integers(0, 3)):
        case 0:
            return Reindex(node, Shuffle(count, 7), "shuffle()", "shuffle")
        case 1:
            return Reindex(node, Repeat(count, 2), "repeat(2)")
        case _:
            return node


def joined(draw: st.DrawFn, parts: list[Node]) -> Node:
    """Draw a join of parts."""
    names = tuple("abcd"[: len(parts)])
    named = tuple(prefixed(part, name) for part, name in zip(parts, names, strict=True))
    lengths = tuple(length(part) or 0 for part in named)
    match draw(st.integers(0, 3)):
        case 0:
            return Combine(named, names, Interleave(RoundRobin(lengths)), 3)
        case 1:
            return Combine(named, names, Concatenate(Concatenation(lengths)), 3)
        case 2 if all(lengths):
            weights = tuple(draw(st.integers(1, 3)) for _ in lengths)
            rule = WeightedMixture(names, lengths, schedule=((0, weights),), stop="all", seed=1)
            return Combine(named, names, Mix(rule, rule.schedule, rule.stop), 3)
        case _:
            return Combine(named, names, Zip(draw(st.booleans()), "shortest"), 3)


def reordered(draw: st.DrawFn, node: Node, number: int) -> Node:
    """Draw another order or choice of a node's elements."""
    count = length(node) or 0
    match draw(st.integers(0, 2)):
        case 0:
            return Reindex(node, Shuffle(count, number), "shuffle()", f"shuffle{number}")
        case 1:
            return Reindex(node, Slice(0, 1, draw(st.integers(0, count))), "take()")
        case _:
            positions = draw(st.lists(st.integers(0, count - 1), max_size=6)) if count else []
            return Reindex(node, Select(np.array(positions, np.int64)), "select()")


def stepped(draw: st.DrawFn, node: Node, number: int) -> Node:
    """Draw a step above a node."""
    count = length(node) or 0
    match draw(st.integers(0, 7)):
        case 0:
            return random_map(node, f"noise{number}", number)
        case 1:
            return origin_map(node, f"origin{number}")
        case 2:
            return Split(node, FlatMap(doubled, f"double{number}", Ragged(np.full(count, 2))))
        case 3 if count:
            member = st.integers(0, count - 1)
            groups = draw(st.lists(st.lists(member, min_size=1, max_size=3), max_size=4))
            return Group(node, Tuples(tuple(map(tuple, groups))), "pack(3)")
        case 4 if not varies_by_epoch(node) and not any(isinstance(step, Map) for step in walk(node)):
            return Cache(node, MemoryCache(1 << 20), "cache()")
        case 5:
            merged = Batch(node, draw(st.integers(1, 4)), Stack())
            return merged if draw(st.booleans()) else Split(replace(merged, remainder="pad"), Unbatch())
        case _:
            return reordered(draw, node, number)


@st.composite
def trees(draw: st.DrawFn) -> Node:
    """Draw a small tree whose nodes all have positions."""
    node = draw(leaves())
    for number in range(draw(st.integers(0, 4))):
        if draw(st.integers(0, 2)) == 0:
            others = draw(st.lists(leaves(), min_size=0, max_size=2))
            node = joined(draw, [node, *others])
        node = stepped(draw, node, number)
    return node


def dataset(node: Node) -> "ps.Dataset[Any]":
    """Return a node as a dataset."""
    return ps.Dataset(node)
