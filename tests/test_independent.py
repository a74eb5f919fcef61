"""Elements that share memory are copied, and nothing else is."""

import pickle
import threading
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from penstock._independent import are_apart, copied, independent
from penstock.batching import independent_rows, split_rows
from penstock.errors import UsageError
from tests.equivalence.kinds import is_dict, is_list_or_tuple
from tests.written import Counted, Element, Slotted, Thing, shown, write_to, written

torch: Any = pytest.importorskip("torch")

STRUCTURE = np.dtype([("a", "i4"), ("b", "f8")])


def parts_of_one_memory() -> list[Element]:
    """Return leaves many of which share memory, in some way or other."""
    frames = np.arange(12.0)
    fixed = frames[2:5]
    fixed.flags.writeable = False
    tensor = torch.arange(6.0)
    data = bytearray(b"abcd")
    structures = np.ones(3, STRUCTURE)
    inner = [1, 2]
    objects = np.array([inner, None], object)
    thing = Thing(inner)
    mask = np.ma.masked_array(frames[4:6], [False, True])
    return [
        *(np.arange(3), frames, frames[3:9], frames[::-2], fixed, frames.reshape(3, 4).T, mask),
        *(tensor, tensor[2:5], tensor.view(2, 3).T, torch.from_numpy(frames)[1:4], torch.ones(2)),
        *(data, np.frombuffer(data, np.uint8)[1:], memoryview(b"abc"), {1, 2}, inner, objects, thing, {"x": inner}),
        *(Thing(frames[0:2]), Slotted(thing), Counted(tensor[0:1]), Counted(3), structures, structures[1], (inner, 1)),
        *(1, "a", None, b"bytes", np.float32(1), object, len, Ellipsis),
    ]


def nested(leaves: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Return elements whose leaves are numbers of leaves."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
            | st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.builds(Counted, inner)
        ),
        max_leaves=5,
    )


plans = nested(st.integers(0, len(parts_of_one_memory()) - 1))


def made(plan: Any, parts: list[Element]) -> Element:
    """Return an element with the leaves in place of their numbers."""
    if isinstance(plan, Counted):
        return Counted(made(plan.inside, parts))
    if is_dict(plan):
        return {key: made(each, parts) for key, each in plan.items()}
    if is_list_or_tuple(plan):
        return type(plan)(made(each, parts) for each in plan)
    return parts[plan]


@given(st.lists(plans, min_size=1, max_size=4), st.data())
def test_a_write_to_one_element_changes_no_other(drawn: list[Any], data: st.DataObject) -> None:
    """Elements have the values that they had, and each can be written to."""
    parts = parts_of_one_memory()
    elements = [made(plan, parts) for plan in drawn]
    elements += [elements[0]] * data.draw(st.integers(0, 2))
    before = [shown(element) for element in elements]
    found = independent(elements)
    assert [shown(element) for element in found] == before
    for number, element in enumerate(found):
        assert shown(element) == before[number]
        write_to(element)


@pytest.mark.parametrize(
    "element",
    [[memoryview(b"abc")], {"x": memoryview(b"abc")}, [[1], memoryview(b"abc")]],
    ids=["list", "dict", "nested"],
)
def test_read_only_memoryviews_are_kept(element: Element) -> None:
    """An element that is there twice is copied, with the memoryview in it: nothing can write to that."""
    one, other = independent([element, element])
    assert one is not other
    assert one == other == element


def test_a_row_that_owns_its_memory_is_kept() -> None:
    """NumPy drops what is written to it, so no other element changes; a copy would be a view, and keep the write."""
    row = pickle.loads(pickle.dumps(np.ones(3, STRUCTURE)[1]))
    assert all(each is row for each in [*independent([row, row]), copied({"x": row}, exactly=True)["x"]])


@given(plans)
def test_an_exact_copy_behaves_like_its_element(plan: Any) -> None:
    """A write has the same result as for the element; an element with views of the same memory is refused."""
    element = made(plan, parts_of_one_memory())
    before = shown(element)
    try:
        twin = copied(element, exactly=True)
    except UsageError:
        event("refused")
        return
    changed = written(twin)
    assert shown(element) == before
    assert written(element) == changed


def shown_after_each_write(rows: list[Element]) -> list[str]:
    """Return the text of each row before any of it was written to, but after the rows before it were."""
    found: list[str] = []
    for row in rows:
        found.append(shown(row))
        write_to(row)
    return found


BATCHES: dict[str, tuple[Callable[[], Any], bool]] = {
    "an array": (lambda: np.ones((4, 2)), True),
    "numbers": (lambda: np.arange(8)[::2], True),
    "a view": (lambda: np.arange(20.0).reshape(2, 10)[:, 2:6].T, True),
    "text": (lambda: {"x": np.ones((4, 2)), "name": ["a"] * 4, "none": None}, True),
    "a structure": (lambda: np.ones(4, STRUCTURE)[:3], True),
    "a tensor": (lambda: torch.ones(4, 2), True),
    "a tensor and an array": (lambda: {"x": torch.ones(4, 2), "y": np.ones((4, 2))}, True),
    "now and next": (lambda: (lambda x: {"now": x[:-1], "next": x[1:]})(np.arange(8.0).reshape(4, 2)), False),
    "tensors of now and next": (lambda: (lambda x: (x[:-1], x[1:]))(torch.arange(8.0).view(4, 2)), False),
    "a tensor over an array": (lambda: (lambda x: (x[:-1], torch.from_numpy(x)[1:]))(np.ones((4, 2))), False),
    "windows": (lambda: np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3, writeable=True), False),
    "a repeated row": (lambda: torch.ones(2).as_strided((3, 2), (0, 1)), False),
    "objects": (lambda: np.array([[1]] * 3 + [None], object).repeat(2), False),
    "a list": (lambda: ["a", *[bytearray(b"ab")] * 2], False),
    "arrays": (lambda: {"x": np.ones((3, 2)), "o": np.array([{}, {}, {}], object)}, False),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_rows_of_a_batch_are_apart(kind: str) -> None:
    """A write to one row changes no other; where rows are apart from the beginning, they are views of the batch."""
    make, is_apart = BATCHES[kind]
    batch = make()
    columns = (
        list(batch.values())
        if is_dict(batch)
        else list(batch)
        if is_list_or_tuple(batch) and kind != "a list"
        else [batch]
    )
    assert are_apart(columns) == is_apart
    assert shown_after_each_write(independent_rows(batch)) == [shown(row) for row in split_rows(make())]


def test_a_read_only_view_is_kept_from_writes_to_its_memory() -> None:
    """The element that can write gets memory of its own; two read-only elements keep theirs."""
    frames = np.arange(4.0)
    fixed = frames[1:]
    fixed.flags.writeable = False
    first, second = independent([fixed, frames])
    second += 1
    assert (first.tolist(), first is fixed) == ([1, 2, 3], True)
    assert all(one is other for one, other in zip(independent([fixed, fixed[1:]])[:1], [fixed], strict=True))


def test_elements_that_share_nothing_are_not_copied() -> None:
    """Rows of one tensor stay views of its storage; a constant tuple, a sentinel and functions are no memory."""
    missing, constant = object(), (1, 2)
    elements = [{"row": row, "of": constant, "none": missing, "f": len} for row in torch.ones(3, 2)]
    assert all(one is other for one, other in zip(independent(elements), elements, strict=True))
    (twin,) = [copied({"none": missing, "kind": Thing, (missing,): 1})]
    assert twin == {"none": missing, "kind": Thing, (missing,): 1}


def test_copies_keep_what_an_array_or_tensor_is() -> None:
    """The strides, whether it is read-only, the class, attributes and whether it needs a gradient."""
    image = torch.ones(1, 3, 4, 4).to(memory_format=torch.channels_last)
    labelled = torch.ones(2)
    labelled.label = ["a"]
    parameter = torch.nn.Parameter(torch.ones(2))
    needing = torch.ones(2, requires_grad=True)
    made_of_it = needing * 2
    ordered = np.ones((2, 3), order="F")
    fixed = np.ones(2)
    fixed.flags.writeable = False
    given_ = [image, labelled, parameter, needing, made_of_it, ordered, fixed, torch.ones(3).to_sparse()]
    twins = copied(given_)
    assert [type(each) for each in twins] == [type(each) for each in given_]
    assert twins[0].stride() == image.stride()
    assert (twins[1].label, twins[1].label is labelled.label) == (["a"], False)
    assert [each.requires_grad for each in twins[:5]] == [False, False, True, True, True]
    assert (twins[3].is_leaf, made_of_it.is_leaf) == (True, False)
    assert (twins[5].flags.f_contiguous, twins[6].flags.writeable) == (True, False)
    assert not any(one is other for one, other in zip(twins, given_, strict=True))
    views = [ordered[:, ::2], np.broadcast_to(fixed, (3, 2)), np.ones((2, 4))[::-1, 1:], ordered.reshape(2, 1, 3)]
    assert [twin.strides for twin in copied(views)] == [view.strides for view in views]
    assert copied([image[:, :, ::2]])[0].stride() == image[:, :, ::2].stride()
    needing.grad = torch.ones(2)
    assert copied([needing])[0].grad.tolist() == [1, 1]


def test_sparse_tensors_are_copied() -> None:
    """Their memory isn't known, so they count as sharing it."""
    sparse = torch.eye(2).to_sparse()
    first, second = independent([sparse, {"x": sparse}])
    first.mul_(3)
    assert second["x"].to_dense().tolist() == torch.eye(2).tolist()


def test_attributes_of_arrays_are_copied() -> None:
    """A masked array has its own mask."""
    mask = np.ma.masked_array([1, 2], [False, True])
    first, second = independent([[mask], (mask,)])
    first[0].mask[0] = True
    assert second[0].mask.tolist() == [False, True]


class Attributes(dict[str, Any]):
    """A dict whose items are attributes, as those of many libraries: no other attribute raises an AttributeError."""

    def __getattr__(self, key: str) -> Any:
        return self[key]


class Single:
    """An object that refuses to be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise TypeError("there is one")


def test_a_dict_that_can_not_be_copied_as_an_object_is_copied_by_its_items() -> None:
    """Its type stays; an exact copy is refused."""
    named = Attributes(x=np.zeros(2))
    first, second = independent([named, named])
    first.x += 1
    assert (type(second), second.x.tolist()) == (Attributes, [0, 0])
    with pytest.raises(UsageError, match=r"must be copyable.*type Attributes \(KeyError"):
        copied(named, exactly=True)
    with pytest.raises(UsageError, match="one of type Attributes"):
        independent([Attributes(x=Counted(1))] * 2)


@pytest.mark.parametrize("leaf", [threading.Lock(), Single()])
def test_an_object_that_can_not_be_copied_is_not_shared(leaf: object) -> None:
    """One element may have it; for several it is an error with the reason and a remedy."""
    assert independent([{"x": leaf}, {"x": 1}])[0]["x"] is leaf
    with pytest.raises(UsageError, match=r"got one of type dict \(TypeError.*\)\. Give each element its own objects"):
        independent([{"x": leaf}, {"x": leaf}])
