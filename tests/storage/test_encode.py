"""An element that is encoded and decoded is the same."""

import collections
import itertools
import pickle
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock._pickles import pickler
from penstock.errors import UsageError
from penstock.testing import assert_same
from tests.profiles import in_short
from tests.storage.caches import decode, encode
from tests.written import written

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
    """Return whether two elements are equal in type, structure, dtype, strides and every bit."""
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
        if not second.flags.c_contiguous:  # else strides of axes of a single item may differ, which nothing reads
            alike = alike and first.strides == second.strides
        alike = alike and bool(first.flags.writeable == second.flags.writeable)
        return alike and (first.dtype.hasobject or first.tobytes() == second.tobytes())
    if kind is float:
        return struct.pack("<d", first) == struct.pack("<d", second)
    return bool(first == second or first != first)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that can't be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


@in_short(10)
@example({"": [np.array([], ">M8[Y]")], None: np.zeros((2, 2), ">f4")[::-1]})
@example([np.bytes_(b"a\0"), np.str_("a\0"), np.bytes_(b""), np.str_("\ud800")])
@example({None: np.ndarray(3, ">U0"), "": np.zeros(2, np.dtype(">f4", metadata={"unit": "m"}))})
@example([read_only(np.array([1, "a", None], object)), read_only(np.zeros(2, [("text", object)]))])
@given(ELEMENTS)
def test_decoded_elements_are_the_same(element: Any) -> None:
    """Types, structures, the order of keys, dtypes and bits are kept."""
    assert same(decode(encode(element)), element)


@in_short(10)
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


VIEWS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "transposed": lambda array: array.transpose(2, 0, 1),
    "columns first": np.asfortranarray,
    "with gaps": lambda array: array[:, 1:],
    "backwards": lambda array: array[::-1, :, ::-2],
    "repeated": lambda array: np.broadcast_to(array[0, :, 0], (3, array.shape[1])),
    "windows": lambda array: np.lib.stride_tricks.sliding_window_view(array[0, 0], 2),
    "read-only": read_only,
    "read-only, transposed": lambda array: read_only(array).T,
    "read-only, a single item": lambda array: read_only(array[0, 0, 0, ...]),
    "read-only, no items": lambda array: read_only(array[:0]),
    "read-only, no items of many": lambda array: read_only(np.empty((0, 1 << 40), array.dtype)),
}


def test_views_keep_their_strides() -> None:
    """Sums of equal values have other last bits where the strides differ; read-only arrays stay so."""
    dtypes: list[Any] = ["float32", ">M8[s]", [("rgb", "u1", 3), ("time", ">i4")]]
    for view, dtype in itertools.product(VIEWS, dtypes):
        array = VIEWS[view](np.arange(3 * 5 * 4).reshape(3, 5, 4).astype(dtype))
        assert same(decode(encode({"x": array, "y": 1})), {"x": array, "y": 1}), (view, dtype)
        assert same(decode(encode([array])), [array])


def test_bytes_between_fields_are_kept() -> None:
    """Not those of the memory that a decoded array gets."""
    rows = np.frombuffer(bytearray(range(240)), np.dtype([("a", "i1"), ("b", "f8")], align=True))
    for array in (rows, rows[::2], rows[::7], rows[::-1].reshape(3, 5).T, read_only(rows)):
        assert decode(encode(array)).view("V16").tobytes() == array.view("V16").tobytes()


def pairs() -> Any:
    """Return an array with named fields."""
    return np.zeros(3, [("a", "i4"), ("b", "f8")]).view(np.recarray)


def mapped() -> Any:
    """Return a view of a mapped array that is read-only, as one of a file that is opened to be read."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(24))
        return read_only(np.memmap(file, "f8", shape=3))


ALONE: list[Callable[[], Any]] = [
    lambda: np.asarray(pairs())[1],
    lambda: read_only(np.asarray(pairs()))[1],
    lambda: np.zeros(3, [("a", "i4"), ("b", "u1", 5_000)])[1],  # its bytes are no part of a pickle
    lambda: pickle.loads(pickle.dumps(np.asarray(pairs())[1])),  # NumPy drops what is written to it
    lambda: pairs()[1],
    lambda: pairs()[::2],
    lambda: read_only(pairs()),
    lambda: read_only(np.zeros((3, 2)).view(np.matrix)).T,
    lambda: read_only(np.zeros((3, 2), object).view(np.matrix)),
    mapped,
]
"""Rows of arrays of structures, and arrays of NumPy's subclasses."""


@pytest.mark.parametrize("number", range(len(ALONE)))
def test_a_write_to_a_row_or_an_array_of_a_subclass(number: int) -> None:
    """It is kept or refused as before, with a row beside it or not, and in other processes, too."""
    element, beside = ALONE[number](), [ALONE[number](), pairs()[0]]
    others = decode(encode(element)), decode(encode(beside))[0], pickle.loads(pickler().dumps(element))
    assert all(same(each, element) for each in others)
    assert [written(each) for each in others] == [written(element)] * 3


def halves(one: Any) -> tuple[Any, Any]:
    """Return two parts of an array or tensor, which overlap."""
    return one[:4], one[2:]


SHARING: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (lambda: {"x": (one := np.arange(6)), "y": one}, lambda element: element["x"]),
    (lambda: halves(np.arange(6, dtype=">f4")), lambda element: element[0]),
    (lambda: halves(np.arange(6)[::-1]), lambda element: element[0]),
    (lambda: {"in": [halves(np.arange(6))], "other": {"box": Box(3)}}, lambda element: element["in"][0][0]),
    (lambda: [(one := np.arange(12).reshape(6, 2))[:, 0], one.T], lambda element: element[0]),
    (lambda: [read_only((one := np.arange(6))[2:]), one], lambda element: element[1]),
    (lambda: [(one := np.zeros((3, 2)).view(np.matrix))[:2], one[1:]], lambda element: element[0]),
    (lambda: [(one := pairs())["a"], one[1:]], lambda element: element[1]["a"]),
    (lambda: [(one := np.asarray(pairs()))["a"], one[2], one[2]], lambda element: element[0]),
    (lambda: [one := [1, 2], one], lambda element: element[0]),
    (lambda: (one := Box(np.arange(6)), one.x[3:]), lambda element: element[0].x),
]
"""Elements whose parts share memory or are one object, and one of these parts."""


@pytest.mark.parametrize("number", range(len(SHARING)))
def test_a_write_to_one_part_is_seen_in_the_others(number: int) -> None:
    """Where parts of an element are one object, or share memory, those of a decoded one are, too."""
    make, part_of = SHARING[number]
    element = make()
    decoded = decode(encode(element))
    assert repr(decoded) == repr(element)
    for each in (element, decoded):
        part_of(each)[-1] = 9
    assert repr(decoded) == repr(element)
    assert repr(decoded).count("9") > 1


def test_small_parts_share_memory_wherever_it_begins() -> None:
    """The place of an array in its line of the processor's cache doesn't count as a gap."""
    memory = np.zeros(128, np.uint8)
    for start in range(0, 64, 4):
        one, other = decode(encode(halves(memory[start : start + 24].view(">f4"))))
        assert np.shares_memory(one, other), start


def test_wide_gaps_take_no_memory() -> None:
    """A column of a large table, and two that share it, come back without the rest of the table, with their values."""
    table = np.arange(40_000.0).reshape(1000, 40)
    elements: list[dict[str, NDArray[Any]]] = [
        {"x": table[:, 3]},
        {"x": table[:, 0], "y": table[:, 1]},
        {"x": table[::-1, 5], "y": table[::500]},
    ]
    for element in elements:
        found = cast("dict[str, NDArray[Any]]", decode(encode(element)))
        assert_same(found, element)
        assert all(array.flags.c_contiguous and array.flags.writeable for array in found.values())
        assert len(encode(element)) < 20_000


def test_tensors_share_memory() -> None:
    """A write to one of two tensors that overlap, or to an array over one, is seen in the others."""
    torch = pytest.importorskip("torch")
    one, other = decode(encode(halves(torch.arange(6.0).bfloat16())))
    one += 1
    assert other.tolist() == [3, 4, 4, 5]
    tensor = torch.arange(8.0).reshape(2, 4)[:, ::2]
    tensor, array = decode(encode([tensor, tensor.numpy()]))
    tensor += 1
    assert (array.tolist(), tensor.stride(), array.strides) == ([[1, 3], [5, 7]], (4, 2), (16, 8))


class Pair(NamedTuple):
    """A container that is no plain tuple."""

    first: int
    second: str


@dataclass
class Box:
    """An element of the user's own type, which counts how often it is made."""

    x: Any

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
    assert b'"pickle"' not in encode([pixels.copy().T, read_only(pixels.copy())[:1, 1:], np.arange(3)[::-1]])
    assert b'"pickle"' not in encode({"a": [pixels, 1, 2**80, 0.5, "a", b"b", None, True, np.float32(1)], 3: ()})
    assert b'"pickle"' in encode({"a": 1j})


def test_a_leaf_that_cannot_be_encoded_is_named() -> None:
    """A leaf that can't be encoded is an error with its type and the remedy."""
    with pytest.raises(UsageError, match=r"got function \(.*\)\. Cache before the step that makes it"):
        encode({"f": [lambda: None]})
