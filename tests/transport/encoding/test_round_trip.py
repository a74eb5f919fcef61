"""Elements arrive as they were sent, whatever they are made of."""

import pathlib
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import in_short
from tests.transport.encoding.samples import (
    DTYPES,
    ELEMENTS,
    LARGEST_COPIED_BYTES,
    PACKED,
    PLAIN_DTYPES,
    Bag,
    Box,
    Element,
    Ends,
    Sample,
    assert_same,
    crossed,
    written,
)
from tests.trees import leaves_of


@in_short(10)
@given(ELEMENTS, st.booleans())
def test_elements_arrive_as_they_were_sent(element: Element, copy: object) -> None:
    """An element of any leaves and containers arrives the same in values, types, dtypes, shapes and orders.

    Its arrays are the receiver's own, and may be written.
    """
    received = crossed(element, copy=bool(copy))
    assert_same(element, received)
    assert all(leaf.flags.writeable for leaf in leaves_of(received) if isinstance(leaf, np.ndarray))
    if not any(isinstance(leaf, Bag) for leaf in leaves_of(element)):  # a leaf here is one everywhere in Penstock
        assert len(leaves_of(element)) == len(leaves_of(received))


@in_short(10)
@given(PACKED)
def test_packed_values_arrive_as_they_were_sent(element: Element) -> None:
    """Plain values arrive the same packed, as leaves of a layout, and with an integer that can't be packed."""
    ends = Ends()
    assert_same(element, ends.cross(element))
    assert_same(element, ends.cross(element))
    assert ends.layouts == 2
    assert_same([*element, 1 << 63], ends.cross([*element, 1 << 63]))


@in_short(10)
@given(DTYPES)
def test_dtypes_arrive_exactly_or_are_refused(dtype: np.dtype[Any]) -> None:
    """A dtype arrives with its names, offsets, padding, units and alignment; one without a size needs pickle."""
    array = np.zeros(2, dtype)
    received = crossed(array, allow_pickle=dtype.itemsize == 0)
    assert_same(array, received)


@pytest.mark.parametrize("count", [3, LARGEST_COPIED_BYTES // 8])
def test_bytes_between_fields_arrive(count: int) -> None:
    """The padding of structured arrays and scalars is that of the sender, and none of the memory's old content."""
    rows = np.frombuffer(bytes(range(16)) * count, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    for sent in (rows, rows[::2], np.lib.stride_tricks.as_strided(rows, (2, count), (0, 16)).T, rows[0]):
        for copy in (False, True):
            received: Any = crossed(sent, copy=copy)
            assert_same(sent, received)
            assert received.view("V16").tobytes() == sent.view("V16").tobytes()


def test_what_compares_equal_stays_different() -> None:
    """`long` and `long long` are equal dtypes, and `{1: …}` and `{True: …}` are equal dicts; each arrives as itself.

    This holds after the others, too.
    """
    ends = Ends()
    for dtype in PLAIN_DTYPES * 2:
        received: Any = ends.cross([np.zeros(3, dtype), dtype.type(1)])
        assert (received[0].dtype.char, type(received[1])) == (dtype.char, dtype.type)
    keys: list[Any] = [1, True, 1.0, 0.0, -0.0, (1,), (True,), "a", b"a", float("nan")]
    for key in keys * 2:
        assert repr(ends.cross({key: 5})) == repr({key: 5})


def test_subclasses_of_containers_arrive_as_their_base_class_or_by_pickle() -> None:
    """A `defaultdict` is sent as a dict, as in every other part; named tuples and dataclasses keep their types.

    Where pickle is allowed nothing becomes a plain dict, and large arrays are still views of the memory.
    """
    plain: list[Any] = [OrderedDict(b=1, a=2), defaultdict(int, {"x": 3}), Box(1, Sample(2, 3))]
    assert_same([{"b": 1, "a": 2}, {"x": 3}, Box(1, Sample(2, 3))], crossed(plain))
    element = defaultdict(int, {"x": np.arange(100_000), "dtype": 1})
    received = crossed({"inside": [element]}, allow_pickle=True)["inside"][0]
    assert (type(received), received["dtype"], received["missing"]) == (defaultdict, 1, 0)
    assert received["x"].base is not None
    assert received["x"].tolist() == list(range(100_000))


@dataclass
class Rectangle:
    """A dataclass whose constructor sets an attribute beside the fields."""

    width: int
    height: int

    def __post_init__(self) -> None:
        self.area = self.width * self.height


def test_an_attribute_beside_the_fields_arrives_by_pickle_or_by_the_constructor() -> None:
    """A sender that may not pickle leaves it to the constructor, also if the reader may unpickle."""
    changed = Rectangle(2, 3)
    changed.area = 7
    assert crossed(changed, allow_pickle=True).area == 7
    assert Ends(receiver_allows=True).cross(changed).area == 6


def test_mapped_files_arrive_as_arrays(tmp_path: pathlib.Path) -> None:
    """A `np.memmap` is sent as an array."""
    mapped = np.memmap(tmp_path / "array", np.int16, "w+", shape=(3, 4))
    mapped[:] = np.arange(12).reshape(3, 4)
    received = crossed({"mapped": mapped})["mapped"]
    assert type(received) is np.ndarray
    assert received.tolist() == np.arange(12).reshape(3, 4).tolist()


def test_large_arrays_are_aligned_views() -> None:
    """Arrays beyond the copied size lie in the memory, at multiples of 64 bytes, in the order they had."""
    orders: list[Any] = ["C", "F", "C", "F"]
    arrays = {str(number): np.full((300, 301), number, "u1", order) for number, order in enumerate(orders)}
    ends = Ends()
    message = ends.sent(arrays)
    memory = written(message)
    received: Any = ends.decode(message.head, memory)
    for name, array in received.items():
        assert array.nbytes > LARGEST_COPIED_BYTES
        assert np.shares_memory(array, memory)
        assert (array.ctypes.data - memory.ctypes.data) % 64 == 0
        assert array.flags.fnc == arrays[name].flags.fnc
        assert np.array_equal(array, arrays[name])


def test_extensions_dtypes_go_by_their_names() -> None:
    """A dtype that an extension registered under a name is that name."""
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    array = np.arange(5).astype(ml_dtypes.bfloat16)
    assert crossed(array).dtype == array.dtype
