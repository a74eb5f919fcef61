"""Elements are taken apart and put together again without loss."""

import pickle
from collections import OrderedDict, defaultdict
from dataclasses import InitVar, dataclass, field
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._tree import Element, align_leaves, describe_difference, flatten, leaf_paths, map_leaves, unflatten
from penstock.errors import UsageError
from tests.transport.encoding.samples import Box, Sample

leaves = st.none() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False)
keys = st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=1))
elements: st.SearchStrategy[Element] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Box, inner, inner),
        st.builds(Sample, inner, inner),
    ),
    max_leaves=12,
)


@given(elements)
def test_unflatten_is_the_inverse_of_flatten(element: Element) -> None:
    """An element put together from its own leaves equals it, in type and in the order of its keys."""
    parts, structure = flatten(element)
    assert repr(unflatten(structure, parts)) == repr(element)


@given(elements)
def test_paths_lead_to_the_leaves(element: Element) -> None:
    """Each path, written behind the element, is a Python expression for its leaf."""
    parts, structure = flatten(element)
    paths = leaf_paths(structure)
    assert len(parts) == structure.num_leaves
    assert [eval(f"element{path}", {"element": element}) for path in paths] == parts


@given(elements)
def test_a_structure_is_a_value(element: Element) -> None:
    """Structures of equal elements are equal and hash alike, and survive pickling."""
    structure = flatten(element)[1]
    again = pickle.loads(pickle.dumps(structure))
    assert again == structure
    assert hash(again) == hash(structure)
    assert flatten(map_leaves(lambda _: 0, element))[1] == structure


@given(elements, elements)
def test_a_difference_is_described_exactly_if_there_is_one(first: Element, second: Element) -> None:
    """The description is empty for equal structures and only for these."""
    first_structure, second_structure = flatten(first)[1], flatten(second)[1]
    assert (describe_difference(first_structure, second_structure) == "") == (first_structure == second_structure)


@given(elements.flatmap(lambda element: st.tuples(st.just(element), st.randoms(use_true_random=False))))
def test_leaves_are_aligned_across_another_order_of_keys(drawn: tuple[Element, Element]) -> None:
    """An element whose dicts are reordered gives its leaves in the structure's order."""
    element, generator = drawn

    def reorder(part: Element) -> Element:
        if type(part).__name__ == "dict":
            order = list(part)
            generator.shuffle(order)
            return {key: reorder(part[key]) for key in order}
        return [reorder(value) for value in part] if type(part).__name__ == "list" else part

    parts, structure = flatten(element)
    other_parts, other_structure = flatten(reorder(element))
    assert align_leaves(structure, other_parts, other_structure) == parts


@pytest.mark.parametrize(
    ("first", "second"),
    [({"a": 1}, {"b": 1}), ({"a": 1}, {"a": [1]}), ([1], [1, 2]), ([1], (1,)), (Box(1, 2), (1, 2)), ({"a": {}}, {})],
)
def test_leaves_of_another_structure_are_not_aligned(first: Element, second: Element) -> None:
    """Any difference but the order of keys means that there is no alignment."""
    parts, structure = flatten(second)
    assert align_leaves(flatten(first)[1], parts, structure) is None


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ({"a": 1}, {"b": 1}, "the element has the key 'a' in row 0 but not in row 3"),
        ({"m": {"a": 1}}, {"m": {"a": 1, "b": 2}}, "['m'] has the key 'b' in row 3 but not in row 0"),
        ({"m": [1, 2]}, {"m": [1, 2, 3]}, "['m'] is a list of 2 in row 0 and a list of 3 in row 3"),
        ([1, (2,)], [1, [2]], "[1] is a tuple of 1 in row 0 and a list of 1 in row 3"),
        (
            Sample({"x": 1}),
            Sample(1),
            ".image is a dict in row 0 and a single value (such as an array or None) in row 3",
        ),
        (Sample(Box(1, {2: 3})), Sample(Box(1, {4: 3})), ".image.size has the key 2 in row 0 but not in row 3"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "the keys of the element are in another order in row 3 than in row 0"),
    ],
)
def test_a_difference_names_the_path(first: Element, second: Element, difference: str) -> None:
    """The phrase has the path of the first difference, and the part of each structure there."""
    assert describe_difference(flatten(first)[1], flatten(second)[1], ("row 0", "row 3")) == difference


def test_subclasses_of_containers_count_as_what_they_are_made_from() -> None:
    """A subclass of dict, list or tuple is taken apart as that, and put together as that."""
    element: Element = [OrderedDict(b=1, a=2), defaultdict(int, c=3)]
    leaves, structure = flatten(element)
    assert [type(part) for part in unflatten(structure, leaves)] == [dict, dict]


class Attributes(dict[str, Any]):
    """A dict whose items are attributes, as those of many libraries: no other attribute raises an AttributeError."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.__dict__["name"] = name

    def __getattr__(self, key: str) -> Any:
        return self[key]


class Frozen(dict[str, int]):
    """A dict that takes no other values."""

    def __setitem__(self, key: str, value: int) -> None:
        raise TypeError("frozen")


class Triple(tuple[int, ...]):
    """A tuple that can't be made of anything else."""

    __slots__ = ()

    def __new__(cls, one: int, two: int, three: int) -> Self:
        """Return a triple."""
        return super().__new__(cls, (one, two, three))


def test_mapped_leaves_keep_the_types_of_containers() -> None:
    """An element with mapped leaves keeps its types, and the attributes of its containers."""
    counted = defaultdict(int, c=3)
    named = Attributes("x")
    named["d"] = [4]
    element: Element = [OrderedDict(b=1, a=2), counted, named]
    ordered, counted_twin, named_twin = map_leaves(str, element)
    assert (type(ordered), list(ordered.items())) == (OrderedDict, [("b", "1"), ("a", "2")])
    assert (type(counted_twin), counted_twin) == (defaultdict, {"c": "3"})
    assert counted_twin["new"] == 0
    assert (type(named_twin), named_twin, named_twin.name) == (Attributes, {"d": ["4"]}, "x")
    assert (counted, named["d"]) == ({"c": 3}, [4])  # what was given stays as it is
    triple = Triple(1, 2, 3)
    assert map_leaves(lambda leaf: leaf, triple) is triple


@pytest.mark.parametrize(("part", "kind"), [(Frozen(a=1), "dict"), (Triple(1, 2, 3), "tuple")])
def test_a_type_that_takes_no_other_leaves_is_refused(part: Any, kind: str) -> None:
    """It isn't silently replaced by a plain container."""
    with pytest.raises(UsageError, match=rf"a subclass of {kind} must be copyable.*{type(part).__qualname__}"):
        map_leaves(str, {"part": part})


@pytest.mark.parametrize("leaf", [np.zeros(3), "text", b"bytes", None, 1.5, {1, 2}, Box, range(3)])
def test_everything_else_is_a_leaf(leaf: object) -> None:
    """An object that is no container is one leaf, unchanged."""
    parts, structure = flatten(leaf)
    assert parts[0] is leaf
    assert leaf_paths(structure) == ("",)


def test_a_predicate_can_keep_a_container_whole() -> None:
    """A part for which `is_leaf` holds is not taken apart."""
    names = ["a", "b"]
    assert flatten({"x": names}, lambda part: part is names)[0] == [names]


def test_a_dataclass_is_rebuilt_through_its_constructor() -> None:
    """The constructor runs once, with the new leaves."""
    calls: list[object] = []

    @dataclass
    class Checked:
        value: object

        def __post_init__(self) -> None:
            calls.append(self.value)

    element = Checked(1)
    assert map_leaves(lambda leaf: leaf + 1, element) == Checked(2)
    assert calls[:2] == [1, 2]


def test_a_dataclass_that_its_fields_cannot_rebuild_is_refused() -> None:
    """Fields that the constructor doesn't take, and arguments that are no fields, are errors with a remedy."""

    @dataclass
    class Derived:
        value: int = field(init=False, default=0)

    @dataclass
    class Scaled:
        value: int
        scale: InitVar[int]

        def __post_init__(self, scale: int) -> None:
            self.value *= scale

    with pytest.raises(UsageError, match=r"Derived\.value has init=False\. Return a dict or a named tuple"):
        flatten({"x": Derived()})
    with pytest.raises(UsageError, match=r"Scaled\(\) can't be called with them alone \(.*'scale'.*\)\. Return a dict"):
        flatten(Scaled(1, 2))


def test_a_wrong_number_of_leaves_is_refused() -> None:
    """`unflatten` takes exactly the structure's number of leaves."""
    with pytest.raises(UsageError, match="as many as the structure's, 2; got 3"):
        unflatten(flatten([1, 2])[1], [1, 2, 3])
