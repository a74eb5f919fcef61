"""An element that is encoded and decoded is the same."""

import collections
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import UsageError
from tests.storage.caches import decode, encode

DTYPES = st.one_of(
    arrays.scalar_dtypes(),
    arrays.unicode_string_dtypes(),
    arrays.byte_string_dtypes(),
    arrays.array_dtypes(allow_subarrays=True),
)
ARRAYS = DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.text(st.characters()), st.complex_numbers()
)
KEYS = st.one_of(st.text(st.characters()), st.integers(), st.booleans(), st.none(), st.tuples(st.integers()))
ELEMENTS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(SCALARS, ARRAYS, ARRAYS.map(lambda array: array.reshape(-1)[0] if array.size else array)),
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner), st.sets(st.integers())
    ),
    max_leaves=8,
)


def same(first: Any, second: Any) -> bool:
    """Return whether two elements are equal in type, structure, dtype and every bit."""
    kind: Any = cast("Any", type(first))
    if kind is not type(second):
        return False
    if kind is dict:
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if kind in {list, tuple}:
        return len(first) == len(second) and all(map(same, first, second))
    if issubclass(kind, (np.ndarray, np.generic)):
        alike = bool(first.dtype == second.dtype) and first.shape == second.shape
        if kind in {np.bytes_, np.str_}:  # whose comparison leaves out NULs at the end
            return alike and bool(first[:] == second[:])
        return alike and (first.dtype.hasobject or first.tobytes() == second.tobytes())
    if kind is float:
        return struct.pack("<d", first) == struct.pack("<d", second)
    return bool(first == second or first != first)


@example({"": [np.array([], ">M8[Y]")], None: np.zeros((2, 2), ">f4")[::-1]})
@example([np.bytes_(b"a\0"), np.str_("a\0"), np.bytes_(b""), np.str_("\ud800")])
@example({None: np.ndarray(3, ">U0"), "": np.zeros(2, np.dtype(">f4", metadata={"unit": "m"}))})
@given(ELEMENTS)
def test_decoded_elements_are_the_same(element: Any) -> None:
    """Types, structures, the order of keys, dtypes and bits are kept."""
    assert same(decode(encode(element)), element)


@given(ARRAYS)
def test_decoded_arrays_are_new(array: Any) -> None:
    """A decoded array is writable, and shares no memory with another decoded one."""
    data = encode({"array": array})
    first = decode(data)["array"]
    assert first.flags.writeable
    assert first.flags.c_contiguous
    if first.nbytes:
        first.reshape(-1).view(np.uint8)[:] ^= 0xFF
    assert same(decode(data)["array"], array)


@pytest.mark.parametrize("step", [-1, 2])
@pytest.mark.parametrize("size", [4, 400])
def test_views_are_kept_by_their_values(step: int, size: int) -> None:
    """Arrays of any strides, small or large, keep their values."""
    array = np.arange(size * size, dtype=">i4").reshape(size, size).T[::step]
    assert same(decode(encode(array)), array)


class Pair(NamedTuple):
    """A container that is no plain tuple."""

    first: int
    second: str


@dataclass
class Box:
    """An element of the user's own type, which counts how often it is made."""

    x: int

    def __post_init__(self) -> None:
        self.made = True


def test_other_types_are_pickled() -> None:
    """Named tuples, dataclasses, subclasses of containers and arrays of objects keep their types."""
    element: list[Any] = [
        *(Pair(1, "a"), Box(3), collections.OrderedDict(b=1, a=2), collections.defaultdict(list, a=[1])),
        *(np.array(["a", None], object), np.ma.masked_array([1, 2], [True, False]), bytearray(b"ab"), slice(1, 2)),
    ]
    back = decode(encode(element))
    assert [type(part) for part in back] == [type(part) for part in element]
    assert [repr(part) for part in back] == [repr(part) for part in element]


def test_plain_elements_are_not_pickled() -> None:
    """Arrays, also structured ones, numbers, bytes and text have forms that run no code when they are decoded."""
    pixels = np.zeros((2, 2), [("rgb", "u1", 3), ("time", "<M8[ns]")])
    assert b'"pickle"' not in encode({"a": [pixels, 1, 2**80, 0.5, "a", b"b", None, True, np.float32(1)], 3: ()})
    assert b'"pickle"' in encode({"a": 1j})


def test_a_leaf_that_cannot_be_encoded_is_named() -> None:
    """A leaf that can't be encoded is an error with its type and the remedy."""
    with pytest.raises(UsageError, match=r"got function \(.*\)\. Cache before the step that makes it"):
        encode({"f": [lambda: None]})
