"""Trees with several branches are shown as chains with abbreviated parts, and as trees with all of them."""

from functools import partial

import numpy as np
import pytest

import penstock as ps
from penstock._graph._describe import chain_text, tree_text
from penstock._graph._flat_map import FlatMap
from penstock._graph._nodes import (
    Batch,
    Combine,
    Fold,
    Group,
    Map,
    Node,
    Split,
    Stream,
)
from penstock._graph._windows import Windows
from penstock._streaming import Bucket, Concatenate, Limit, Pack, WindowShuffle, Zip, check_graph
from penstock.batching import Stack
from penstock.batching._bucketing import Bucketing
from penstock.batching._packing import Packing
from penstock.errors import GraphError
from penstock.sampling import Concatenation, WindowTable
from tests.graph.trees import Tuples, chained, doubled, episodes, interleaved, mixed_in_order, read, zipped

PARTS = (read(4), read(3, 10))
TURNS = interleaved(PARTS, ("web", "code"))

TEXTS: dict[str, Node] = {
    "interleave({web: …, code: …}).map(str).batch(2)": Batch(Map(TURNS, str, "str", 0), 2, Stack()),
    "concatenate(…, …)": Combine(PARTS, ("0", "1"), Concatenate(Concatenation((4, 3))), 0),
    "concatenate({a: …, b: …})": chained(PARTS),
    "zip(…, …)": zipped(PARTS),
    "zip({x: …, y: …}).limit(3)": Fold(Combine(PARTS, ("x", "y"), Zip(as_dict=True), 0), Limit(3)),
    "mix({a: …, b: …, c: …, d: …, … 3 more})": mixed_in_order((PARTS[0],) * 7, tuple("abcdefg")),
    "read(Range(0, 4, 1)).flat_map(doubled).window_shuffle(8)": Fold(
        Split(PARTS[0], FlatMap(doubled, "doubled")), WindowShuffle(8, "window_shuffle", 0)
    ),
    "stream(list).pack(16)": Group(Stream([1], 0), Tuples(()), "pack(16)"),
    "stream(list, times=None).pack(8, how='split')": Fold(Stream([1], 0, None), Pack(Packing((("", 8),), how="split"))),
    "stream(list).bucket(len, [4, 8])": Fold(
        Stream([1], 0), Bucket(Bucketing(len, (4, 8), (2, 1), (Stack(), Stack())))
    ),
    "read(Arrays({'state': float32[2, 6, 2], 'label': int64[2]})).windows(4, stride=2)": Split(
        episodes(2, 6), Windows(WindowTable(np.array([6, 6]), 4, stride=2, partial="drop"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_chain_abbreviates_its_parts(text: str) -> None:
    """Each node is shown as its verb; a node with several parts names at most four of them."""
    assert chain_text(TEXTS[text]) == text


def test_a_tree_shows_parts_below_their_join() -> None:
    """Parts are below the join, indented, by name and with their lengths."""
    node = Map(interleaved((Map(PARTS[0], str, "str", 0), PARTS[1]), ("web", "code")), len, "len", 0)
    assert tree_text(node).split("\n") == [
        "map(len): 7",
        "  └ interleave({web: …, code: …}): 7",
        "    └ web: map(str): 4",
        "      └ read(Range(0, 4, 1)): 4",
        "    └ code: read(Range(10, 13, 1)): 3",
    ]
    assert repr(ps.Dataset(node)) == tree_text(node)


def test_a_tree_of_many_parts_is_cut() -> None:
    """Of hundreds of parts the first are shown, with the number of the others."""
    names = tuple(map(str, range(500)))
    lines = tree_text(chained((PARTS[0],) * 500, names)).split("\n")
    assert len(lines) == 18
    assert lines[-1] == "  └ … 484 more parts"


def drifting(calls: list[int], number: int) -> int:
    """Return another number at every call."""
    calls.append(number)
    return len(calls)


@pytest.mark.parametrize("join", ["turns", "zip", "chain", "mix in order"])
def test_check_looks_into_parts(join: str) -> None:
    """A step that isn't a function of its input is found in each part of a mixture, and above it."""
    bad = Map(PARTS[1], partial(drifting, []), "drifting", 0)
    joins: dict[str, Node] = {
        "turns": interleaved((PARTS[0], bad), ("a", "b")),
        "zip": zipped((PARTS[0], bad)),
        "chain": chained((PARTS[0], bad)),
        "mix in order": mixed_in_order((PARTS[0], bad), ("a", "b")),
    }
    with pytest.raises(GraphError, match=r"'drifting' .* isn't a function of its input"):
        check_graph(joins[join], 4)
    if join != "zip":
        above = Map(chained(PARTS), partial(drifting, []), "above", 0)
        with pytest.raises(GraphError, match=r"'above' .* isn't a function of its input"):
            check_graph(above, 4)
    check_graph(chained((*PARTS, Stream([1], 0)), ("a", "b", "c")), 4)
