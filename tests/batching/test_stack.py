"""A batch holds each element in its row, for elements of any structure, dtypes and memory."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from penstock.batching import Stack, stack
from penstock.errors import UsageError
from tests.batching.strategies import PADDED, element_lists, numbered, with_zeros_between_fields
from tests.trees import Element, is_array, leaves_of, paths_of


def values_of(array: NDArray[Any]) -> list[bytes]:
    """Return the bytes of the values; for a structured dtype, those of each field."""
    if array.dtype.names is not None:
        return [part for name in array.dtype.names for part in values_of(array[name])]
    return [array.tobytes()]


@given(element_lists())
def test_each_row_holds_its_element(elements: list[Element]) -> None:
    """Every leaf of the batch has, in each row, exactly that element's leaf."""
    batch = stack(elements)
    for path in paths_of(elements[0]):
        for row, element in enumerate(elements):
            column: Any = eval(f"batch{path}", {"batch": batch})
            leaf: object = eval(f"element{path}", {"element": element})
            if leaf is None:
                assert column is None
            elif isinstance(leaf, (str, bytes)):
                assert type(column).__name__ == "list"
                assert column[row] is leaf
            else:
                kind = {"bool": np.bool_, "int": np.int64, "float": np.float64}.get(type(leaf).__name__)
                expected: NDArray[Any] = np.asarray(leaf, kind)
                assert is_array(column)
                assert column.dtype == expected.dtype
                assert column.shape == (len(elements), *expected.shape)
                assert values_of(column[row : row + 1]) == values_of(expected)


@given(element_lists())
def test_arrays_of_a_batch_are_new_and_in_order(elements: list[Element]) -> None:
    """A batch's arrays are C-contiguous, writable, and share no memory with the elements."""
    given_arrays = [leaf for element in elements for leaf in leaves_of(element) if is_array(leaf)]
    for column in leaves_of(stack(elements)):
        if is_array(column):
            assert column.flags.c_contiguous
            assert column.flags.writeable
            assert not any(np.shares_memory(column, array) for array in given_arrays if array.size)


def test_containers_are_kept() -> None:
    """The batch has the containers of the elements, in the order of row 0's keys; `Stack()` is `stack` as a value."""
    elements = [{"b": [1, (2.0,)], "a": "x"}, {"a": np.str_("y"), "b": [np.array(3), (4.0,)]}]
    batch = Stack()(elements)
    assert list(batch) == ["b", "a"]
    assert batch["a"] == ["x", "y"]
    assert (batch["b"][0].dtype, batch["b"][0].tolist()) == (np.int64, [1, 3])
    assert batch["b"][1][0].tolist() == [2.0, 4.0]
    assert {Stack(), Stack()} == {Stack()}


def test_bytes_between_fields_are_zero() -> None:
    """The padding between the fields of a structured batch is zero."""
    elements = [numbered(PADDED, (2,), seed) for seed in range(3)]
    batch = stack(elements)
    assert batch.tobytes() == b"".join(with_zeros_between_fields(element).tobytes() for element in elements)


class Exporter:
    """A stand-in for a framework's tensor, with `__array__`."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        return self.values


class Capsule:
    """A stand-in for a tensor that supports only DLPack."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __dlpack__(self, **options: object) -> object:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class OnDevice:
    """A stand-in for a tensor whose values are on a device."""

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        raise RuntimeError("copy it to the host first")


def test_what_exports_an_array_counts_as_it() -> None:
    """Tensors of frameworks are stacked as the arrays they export; an exception passes, with the leaf and the row."""
    for tensor in (Exporter, Capsule):
        batch = stack([{"x": tensor(np.arange(3, dtype=np.float32) + row)} for row in range(2)])
        assert batch["x"].tolist() == [[0, 1, 2], [1, 2, 3]]
        assert batch["x"].dtype == np.float32
    with pytest.raises(RuntimeError, match="copy it to the host first") as caught:
        stack([{"x": Exporter(np.ones(2))}, {"x": OnDevice()}])
    assert caught.value.__notes__ == ["This was raised by ['x'] of row 1, a OnDevice, as it was converted to an array."]


IMAGE = np.zeros((2, 2), np.uint8)
DTYPE = "a leaf must be of one dtype and shape in all rows of a batch, since nothing is promoted; "
LEAF = "every leaf of a batch must be an array, a number, a str, bytes or None; "
STRUCTURE = "the elements of a batch must have one structure; "
MERGE = "or merge the elements yourself with .batch(n, merge=…)."


STRUCTURED = (
    f"Return one structure from .map (a sequence of varying length as an array), leave out others by .filter, {MERGE}"
)
ROWS_OF_IMAGES = "['image'] is uint8 of shape (2, 2) in row 0 and"
FAULTS: list[tuple[list[Element], str]] = [
    ([], "a batch must have at least one element; got none. Pass the elements of its rows."),
    (
        [{"x": 1}, {"x": 2}, {"x": 3.0}, {"x": None}],
        f"{DTYPE}['x'] is int64 in row 0 and float64 in row 2. Convert it to one dtype in .map, {MERGE}",
    ),
    ([1, True], f"{DTYPE}the element is int64 in row 0 and bool in row 1. Convert it to one dtype in .map, {MERGE}"),
    (["a", b"a"], f"{DTYPE}the element is str in row 0 and bytes in row 1. Make it the same in .map, {MERGE}"),
    ([("a",), (None,)], f"{DTYPE}[0] is str in row 0 and None in row 1. Make it the same in .map, {MERGE}"),
    (
        [np.array(1, ">i4"), np.array(1, "<i4")],
        f"{DTYPE}the element is >i4 in row 0 and int32 in row 1. Convert it to one dtype in .map, {MERGE}",
    ),
    (
        [{"image": IMAGE}, {"image": IMAGE.astype("f4")}],
        f"{DTYPE}{ROWS_OF_IMAGES} float32 of shape (2, 2) in row 1. Convert it to one dtype in .map, {MERGE}",
    ),
    (
        [{"image": IMAGE}, {"image": IMAGE[:1]}],
        f"{DTYPE}{ROWS_OF_IMAGES} uint8 of shape (1, 2) in row 1. "
        f"Make it of one length in .map, pad it with .padded_batch(n), {MERGE}",
    ),
    (
        [{"image": IMAGE}, {"image": IMAGE[:, :1]}],
        f"{DTYPE}{ROWS_OF_IMAGES} uint8 of shape (2, 1) in row 1. Make it of one shape in .map, {MERGE}",
    ),
    ([{"a": 1}, {"a": 1, "b": 2}], f"{STRUCTURE}the element has the key 'b' in row 1 but not in row 0. {STRUCTURED}"),
    *(
        (elements, f"{LEAF}{text}. Convert it in .map, {MERGE}")
        for elements, text in (
            ([{"x": 1}, {"x": 2}, {"x": {3}}], "['x'] of row 2 is a set"),
            ([re.compile("")], "the element of row 0 is a re.Pattern"),
            ([np.array([None])], "the element of row 0 is an array of dtype object, which holds references"),
            ([[2**63]], "[0] of row 0 is an int of 64 bits, which int64 cannot hold"),
            ([np.ma.masked_array([1], [True])], "the element of row 0 is a masked array, whose mask would be lost"),
        )
    ),
]


def test_a_fault_is_named() -> None:
    """The message names the rule, the rows, the path, both values and the remedy."""
    for elements, message in FAULTS:
        with pytest.raises(UsageError) as caught:
            stack(elements)
        assert str(caught.value) == message
