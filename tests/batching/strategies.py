"""Hypothesis strategies for lists of elements that can be one batch, and for faults in them."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.trees import Element, leaves_of, map_leaves, with_leaf

Leaves: TypeAlias = st.SearchStrategy[Any]


class Point(NamedTuple):
    """A named tuple among the containers."""

    x: object
    y: object


@dataclass
class Record:
    """A dataclass among the containers."""

    value: object
    name: object = None


PLAIN = np.dtype([("a", "<i2"), ("b", ">f4"), ("c", "S3")])
PADDED = np.dtype([("flag", "i1"), ("value", "<i8"), ("inner", [("x", "u1"), ("y", "f4")], (2,))], align=True)
PLAIN_NAMES = ("?", "i1", "u1", "<i2", ">i4", "i8", "u8", "f2", "f4", ">f8", "c8", "l", "q")
OTHER_NAMES = ("M8[s]", "m8[ms]", "<U3", ">U2", "S4", "V5")
DTYPES = [*(np.dtype(name) for name in PLAIN_NAMES + OTHER_NAMES), PLAIN, PADDED]
FORMS = ("plain", "fortran", "strided", "reversed", "readonly", "memmap", "unaligned")


def numbered(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return an array of many different values that the seed determines, NaNs and NaTs among them."""
    size = int(np.prod(shape))
    if dtype.kind == "U":
        texts = ["".join(chr(97 + (seed + item + place) % 26) for place in range(item % 4)) for item in range(size)]
        return np.array(texts, dtype).reshape(shape)
    values = (np.arange(size * dtype.itemsize) * 37 + seed * 11 + seed) % 256
    if dtype.kind == "b":
        values %= 2
    return np.frombuffer(values.astype(np.uint8).tobytes(), dtype, count=size).reshape(shape).copy()


def with_zeros_between_fields(rows: NDArray[Any]) -> NDArray[Any]:
    """Return an array with the fields of these rows, and zero bytes between them."""
    found = np.zeros(rows.shape, rows.dtype)
    for name in rows.dtype.names or ():
        found[name] = with_zeros_between_fields(rows[name]) if rows.dtype[name].base.names else rows[name]
    return found


def formed(array: NDArray[Any], form: str) -> NDArray[Any]:
    """Return an array of the same values in another arrangement of memory."""
    match form:
        case "fortran":
            result = array.copy(order="F")
        case "strided":
            result = np.repeat(array[..., np.newaxis], 2, axis=-1)[..., 0]
        case "reversed":
            result = array[::-1].copy()[::-1] if array.ndim else array
        case "memmap":
            result = array.view(np.memmap)
        case "unaligned":
            memory = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
            result = memory.view(array.dtype).reshape(array.shape) if array.size else array
        case _:
            result = array
    if form == "readonly":
        result.flags.writeable = False
    return result


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
seeds = st.integers(0, 10**6)


@st.composite
def arrays(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Arrays of one dtype and shape, of any values and arrangement in memory."""
    return formed(numbered(dtype, shape, draw(seeds)), draw(st.sampled_from(FORMS)))


def scalars(dtype: np.dtype[Any]) -> Leaves:
    """NumPy scalars of one dtype."""
    return seeds.map(lambda seed: numbered(dtype, (1,), seed)[0])


integers = st.integers(-(2**63), 2**63 - 1)
TEXT = "ab'\"\\\n\0é漢🎲"  # of all characters, Hypothesis would first make a table, which takes seconds
scalar_dtypes = st.sampled_from([dtype for dtype in DTYPES if dtype.kind not in "US" and dtype.isnative])
leaf_strategies: st.SearchStrategy[Leaves] = st.one_of(
    st.sampled_from(
        [integers, st.floats(), st.booleans(), st.text(TEXT, max_size=3), st.binary(max_size=3), st.none()]
    ),
    st.builds(arrays, st.sampled_from(DTYPES), shapes),
    st.builds(arrays, st.sampled_from([np.dtype("i8"), np.dtype("f4")]), shapes),
    scalar_dtypes.map(scalars),
    st.just(integers | scalars(np.dtype("i8")) | arrays(np.dtype("i8"), ())),
    st.just(st.text(TEXT, max_size=3) | st.text(TEXT, max_size=3).map(np.str_)),
)
keys = st.text(TEXT, max_size=2) | st.integers(0, 5)
templates: st.SearchStrategy[Element] = st.recursive(
    leaf_strategies,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Point, inner, inner),
        st.builds(Record, inner, inner),
    ),
    max_leaves=6,
)


@st.composite
def element_lists(draw: st.DrawFn, max_rows: int = 5) -> list[Element]:
    """Lists of elements of one structure whose leaves agree in dtype and shape."""
    template = draw(templates)
    return [map_leaves(draw, template) for _ in range(draw(st.integers(1, max_rows)))]


odd_leaves: Leaves = st.one_of(
    st.sampled_from([1, 1.0, True, "a", b"a", None, 2**63, -(2**63) - 1, {1}, object(), 1j, bytearray(2), [], {}]),
    st.sampled_from([np.int64(1), np.int32(1), np.float64(1), np.str_("a"), np.datetime64(1, "s"), np.array(1)]),
    st.just(np.array([None])) | st.just(np.ma.masked_array([1], [True])) | st.builds(Point, st.just(1), st.just(2)),
    leaf_strategies.flatmap(lambda leaves: leaves),
)


def _reordered(element: Element) -> Element:
    match type(element).__name__:
        case "dict":
            return {key: _reordered(element[key]) for key in reversed(list(element))}
        case "list":
            return [_reordered(part) for part in element]
        case _:
            return element


def _extended(element: Element) -> Element:
    match type(element).__name__:
        case "dict":
            return {**element, "another": 1}
        case "list" | "tuple":
            return [*element, 1]
        case _:
            return [element]


@st.composite
def odd_lists(draw: st.DrawFn) -> list[Element]:
    """Lists of elements; some may differ from row 0 in structure, order of keys, dtype, shape or type."""
    elements = draw(element_lists())
    for _ in range(draw(st.integers(1, 2))):
        row = draw(st.integers(0, len(elements) - 1))
        leaves = leaves_of(elements[row])
        change = draw(st.sampled_from(["leaf", "leaf", "leaf", "order", "shape"]))
        if change == "order":
            elements[row] = _reordered(elements[row])
        elif change == "shape" or not leaves:
            elements[row] = _extended(elements[row])
        else:
            elements[row] = with_leaf(elements[row], draw(st.integers(0, len(leaves) - 1)), draw(odd_leaves))
    return elements
