"""Elements of trees with joins, tables and caches: blocks equal the definition, and the definition is as described."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._graph._apply import Context
from penstock._graph._blocks import evaluate_block
from penstock._graph._coordinates import locate, seed_position
from penstock._graph._evaluate import element_at
from penstock._graph._flat_map import FlatMap
from penstock._graph._length import is_endless, is_indexable, length
from penstock._graph._nodes import (
    Cache,
    Combine,
    Element,
    Filter,
    Fold,
    Group,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
)
from penstock._graph._windows import Windows
from penstock._storage import MemoryCache
from penstock._streaming import Limit, Mix, WindowShuffle, Zip
from penstock.errors import GraphError, UsageError
from penstock.sampling import Ragged, Repeat, Shuffle, Slice, WeightedMixture, WindowTable
from penstock.sources import Arrays
from tests.graph.trees import (
    Tuples,
    chained,
    doubled,
    episodes,
    interleaved,
    mixed_in_order,
    origin_map,
    random_map,
    read,
    trees,
    zipped,
)


def block(node: Node, epochs: list[int], positions: list[int], context: Context | None = None) -> list[Element]:
    """Return a block's elements; by default, as a thread that has evaluated nothing before."""
    at = np.array(epochs, np.int64), np.array(positions, np.int64)
    return evaluate_block(node, *at, context or Context()).elements


def whole(node: Node, epoch: int = 0) -> list[Element]:
    """Return an epoch's elements, one by one."""
    return [element_at(node, epoch, position, Context()) for position in range(length(node) or 0)]


@given(trees(), st.data())
def test_blocks_equal_the_definition(node: Node, data: st.DataObject) -> None:
    """A block of any positions, repeated and of several epochs, has the elements that each has alone.

    So have the blocks of one thread, of which one may use parents that another has evaluated.
    """
    count = length(node)
    assert count is not None
    place = st.tuples(st.integers(0, 2), st.integers(0, max(count - 1, 0)))
    places = data.draw(st.lists(place, max_size=20)) if count else []

    def outcome(compute: Callable[[], list[Element]]) -> str:
        try:
            return repr(compute())
        except (UsageError, ValueError) as error:  # stacking leaves that differ
            return type(error).__name__

    singly = outcome(lambda: [element_at(node, *place, Context()) for place in places])
    epochs, positions = [e for e, _ in places], [p for _, p in places]
    assert outcome(lambda: block(node, epochs, positions)) == singly
    context, size = Context(), data.draw(st.integers(1, 8))
    cut = [slice(start, start + size) for start in range(0, len(places), size)]
    blocks = (block(node, epochs[part], positions[part], context) for part in cut)
    assert outcome(lambda: [element for elements in blocks for element in elements]) == singly


@given(trees(), st.data())
def test_origins_equal_located_records(node: Node, data: st.DataObject) -> None:
    """The key and the path of an element's part lead to one source, for every element with a position."""
    count = length(node) or 0
    if not count:
        return
    leaf, component, key = locate(node, 0, data.draw(st.integers(0, count - 1)))
    assert 0 <= key < leaf.length
    assert (component == "") or set(component) <= set("abcd/")


def test_a_mixture_follows_its_rule() -> None:
    """Each element is its part's, at the rule's position."""
    node = interleaved((read(3), read(3, first=10)), ("a", "b"))
    assert whole(node) == block(node, [0] * 6, list(range(6))) == [0, 10, 1, 11, 2, 12]


def test_random_steps_above_a_join_use_its_positions() -> None:
    """Seed positions begin at a node with several parents, whatever is below."""
    part: Node = Reindex(read(9), Slice(4, 1, 3), "[4:7]")
    for join in (interleaved((part, part), ("a", "b")), zipped((part, part))):
        assert seed_position(join, 2, 1) == (2, 1, 0)
    assert seed_position(part, 2, 1) == (2, 5, 0)


def test_components_are_paths() -> None:
    """Parts of parts are joined by a slash, and the key is that of the part's own source."""
    inner = interleaved((read(2), read(2, 10)), ("en", "de"))
    node = origin_map(interleaved((inner, read(4, 20)), ("web", "code")))
    found = [element["origin"].split(", ")[2:5:2] for element in block(node, [0] * 8, list(range(8)))]
    paths = ["'web/en'", "'code'", "'web/de'", "'code'", "'web/en'", "'code'", "'web/de'", "'code'"]
    assert found == [[str(key), path] for key, path in zip([0, 0, 0, 1, 1, 2, 1, 3], paths, strict=True)]


def test_zip_is_as_long_as_its_shortest_part() -> None:
    """Parts are taken at the same position; names make dicts."""
    node = Combine((read(3), read(2, first=10)), ("x", "y"), Zip(as_dict=True, unequal="shortest"), 0)
    assert whole(node) == [{"x": 0, "y": 10}, {"x": 1, "y": 11}]
    assert whole(zipped(node.parts)) == [(0, 10), (1, 11)]


def test_a_flat_map_runs_once_for_each_parent_of_a_block() -> None:
    """The function is called once, however many of its elements a block takes."""
    calls: list[int] = []

    def counted(number: int) -> list[int]:
        calls.append(number)
        return [number * 10 + index for index in range(number)]

    node = Split(read(4), FlatMap(counted, "counted", Ragged(np.arange(4))))
    assert block(node, [0] * 6, [5, 4, 3, 2, 1, 0]) == [32, 31, 30, 21, 20, 10]
    assert calls == [1, 2, 3]
    assert seed_position(node, 0, 4) == (0, 3, 1)


def test_a_flat_map_must_keep_its_counts() -> None:
    """Another count is an error with step, position and both counts."""
    node = Split(read(4), FlatMap(doubled, "double", Ragged(np.array([2, 2, 3, 2]))))
    for compute in (lambda: element_at(node, 0, 5, Context()), lambda: block(node, [0], [5])):
        with pytest.raises(GraphError, match=r"'double' made 2 elements of the one at position 2, where .* 3"):
            compute()
    with pytest.raises(GraphError, match="must return a list of elements; got a str"):
        element_at(Split(read(2), FlatMap(str, "text", Ragged(np.array([1, 1])))), 0, 0, Context())


class Whole:
    """A source that can only read whole records."""

    def __init__(self, source: Arrays) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: int) -> Element:
        return self.source[key]


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 5), st.integers(1, 4), st.sampled_from([0, 1]))
def test_windows_of_spans_equal_those_of_whole_episodes(
    count: int, frames: int, size: int, stride: int, masked: Literal[0, 1]
) -> None:
    """Reading only a window's frames equals cutting the whole episode, with equal padding and masks."""
    spans = episodes(count, frames)
    table = WindowTable(np.full(count, frames), size, stride=stride, partial="pad")
    mask = "mask" if masked else None
    order = Slice(count - 1, -1, count)
    results: list[list[Element]] = []
    for source in (spans, Read(Whole(spans.source), count, 0)):
        node = Split(Reindex(source, order, "[::-1]"), Windows(table, mask))
        singly = whole(node)
        assert repr(singly) == repr(block(node, [0] * len(table), list(range(len(table)))))
        results.append(singly)
    assert repr(results[0]) == repr(results[1])
    for (episode, start, stop), window in zip(map(table.locate_one, range(len(table))), results[0], strict=True):
        expected = spans.source[count - 1 - episode]["state"]
        frames_of = [expected[min(start + index, stop - 1)].tolist() for index in range(size)]
        assert window["state"].tolist() == frames_of
        assert window["label"] == count - 1 - episode
        assert not masked or window["mask"].tolist() == [start + index < stop for index in range(size)]


def test_only_the_frames_of_a_window_are_read() -> None:
    """From a source that reads spans nothing else is requested."""

    class Spans(Arrays):
        def read(self, keys: object) -> list[Element]:
            raise AssertionError(f"whole records {keys!r} were read")

    source = Spans({"x": np.arange(20).reshape(2, 10)})
    node = Split(Read(source, 2, 0), Windows(WindowTable(np.array([10, 10]), 4, stride=3, partial="drop")))
    assert [window["x"].tolist() for window in block(node, [0, 0], [1, 5])] == [[3, 4, 5, 6], [16, 17, 18, 19]]
    assert seed_position(node, 0, 5) == (0, 1, 2)


def test_arrays_without_frames_are_an_error() -> None:
    """An array with another first axis is named, with both lengths; numbers and text pass."""
    element = {"x": np.zeros(4), "name": "a", "goal": np.zeros(3)}
    table = WindowTable(np.array([4]), 2, stride=2, partial="drop")
    node = Split(Read([element], 1, 0), Windows(table))
    with pytest.raises(GraphError, match=r"\['goal'\] at position 0 has shape \(3,\), where 4 frames were expected"):
        element_at(node, 0, 0, Context())
    with pytest.raises(GraphError, match="must name a new leaf of a dict; the window is a ndarray"):
        element_at(Split(Read([np.zeros(4)], 1, 0), Windows(table, "mask")), 0, 0, Context())


def test_windows_that_overlap_share_no_memory() -> None:
    """Writing to one window changes no other."""
    node = Split(Map(episodes(1, 6), dict, "copy", 0), Windows(WindowTable(np.array([6]), 4, stride=1, partial="drop")))
    first, second, _ = block(node, [0] * 3, [0, 1, 2])
    first["state"][:] = -1
    assert second["state"].min() >= 0


def test_groups_are_made_of_their_members() -> None:
    """The members of a block of groups are computed at once; seed position and key are the first member's."""
    node = Group(Reindex(read(9, 100), Slice(8, -1, 9), "[::-1]"), Tuples(((3, 1), (0,), (8, 8, 2))), "pack(3)")
    assert block(node, [0, 0], [2, 0]) == [
        {"group": 2, "members": [100, 100, 106]},
        {"group": 0, "members": [105, 107]},
    ]
    assert locate(node, 0, 0).key == 5
    assert seed_position(node, 0, 0) == (0, 5, 0)


class Broken:
    """A store that always fails."""

    def get(self, key: object) -> Element:
        """Fail."""
        raise RuntimeError(key)

    def put(self, key: object, element: object) -> bool:
        """Fail."""
        raise RuntimeError(key, element)


def test_a_cache_computes_each_element_once() -> None:
    """Elements in the store are not computed again."""
    calls: list[int] = []

    def counted(number: int) -> int:
        calls.append(number)
        return number + 1

    node = Cache(Map(read(5), counted, "counted", 0), MemoryCache(1 << 20), "cache()")
    assert [*block(node, [0, 0], [1, 3]), element_at(node, 2, 1, Context()), *block(node, [1] * 3, [3, 0, 1])] == [
        2, 4, 2, 4, 1, 2,
    ]  # fmt: skip
    assert calls == [1, 3, 0]


def test_a_broken_store_loses_no_element() -> None:
    """Its errors become a warning, even if warnings are errors."""
    node = Cache(read(5), Broken(), "cache()")
    with pytest.warns(RuntimeWarning, match=r"cache\(\) can't use its store: RuntimeError"):
        assert block(node, [0, 0], [4, 2]) == [4, 2]
    assert element_at(node, 0, 3, Context()) == 3


def test_steps_read_in_order_have_no_length() -> None:
    """Steps above such a node have no length either."""
    filtered = Filter(read(9), bool, "bool")
    ordered: list[Node] = [
        filtered, Split(read(3), FlatMap(doubled, "double")),
        Split(filtered, FlatMap(doubled, "double", Ragged(np.array([2])))),
        zipped((read(3), filtered)), chained((read(3), read(3))),
        mixed_in_order((read(3), read(3)), ("a", "b")), Fold(read(9), Limit(3)),
        Fold(filtered, WindowShuffle(4, "window", 0)), Stream([1, 2], 0), Cache(filtered, None, "cache()"),
    ]  # fmt: skip
    assert [is_indexable(node) for node in ordered] == [False] * len(ordered)


def test_an_endless_part_makes_a_join_endless_if_it_counts() -> None:
    """A mixture follows its rule, a zip ends with its shortest part."""
    endless = Reindex(read(3), Repeat(3, None), "repeat()")
    rule = WeightedMixture(("a", "b"), (3, 3), schedule=((0, (1, 1)),), stop="never", seed=0)
    names = ("a", "b")
    expected: dict[str, tuple[Node, bool]] = {
        "mix": (Combine((read(3), read(3)), names, Mix(rule, rule.schedule, "never"), 0), True),
        "turns": (interleaved((read(3), read(3)), names), False),
        "until the first ends": (mixed_in_order((endless, read(3)), names, "first"), False),
        "until all have ended": (mixed_in_order((endless, read(3)), names), True),
        "zip": (zipped((endless, read(3))), False),
        "both": (zipped((endless, endless)), True),
        "chain": (chained((read(3), endless)), True),
        "stream": (Stream([1], 0, None), True),
        "limit": (Fold(endless, Limit(3)), False),
    }
    assert {name: is_endless(node) for name, (node, _) in expected.items()} == {n: e for n, (_, e) in expected.items()}


def test_notes_name_the_part_and_its_record() -> None:
    """An error below or above a join names the part and its record."""

    def fail(number: int) -> int:
        raise ValueError(number)

    mix = interleaved((read(3), Reindex(read(3), Shuffle(3, 1), "shuffle()")), ("web", "code"))
    node = Map(random_map(mix, "noise", 0), fail, "fail", 0)
    key = locate(mix, 0, 3).key
    for compute in (lambda: element_at(node, 0, 3, Context()), lambda: block(node, [0, 0], [3, 1])):
        with pytest.raises(ValueError, match="element") as caught:
            compute()
        assert f"in step 'fail' at epoch 0, position 3, key {key} of 'code'" in caught.value.__notes__[0]
