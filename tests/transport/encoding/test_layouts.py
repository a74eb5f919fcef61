"""A layout is computed once, and is exact: elements that differ in more than values have different layouts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from penstock.errors import MessageError, UsageError
from penstock.transport import Bytes
from tests.profiles import in_short
from tests.transport.encoding.samples import ELEMENTS, LARGEST_COPIED_BYTES, Element, Ends, assert_same, message_of

MAX_LAYOUTS = 256


@in_short(10)
@given(ELEMENTS)
def test_an_element_like_the_last_needs_no_description(element: Element) -> None:
    """The same element again has the same layout, which was computed once and is described once."""
    ends = Ends()
    _, second = ends.sent(element), ends.sent(element)
    assert ends.layouts == 1
    assert second.description is None
    assert_same(element, ends.received(second))


def test_values_and_sizes_of_text_are_no_part_of_a_layout() -> None:
    """Numbers, text, bytes and the data of arrays vary without a new layout."""
    ends = Ends()
    for number in range(10):
        element = {
            "text": "ä" * number,
            "raw": b"x" * (7 * number),
            "handle": Bytes(b"z" * (11 * number)),
            "numpy": np.str_("y" * number),
            "number": number,
            "real": number / 3,
            "array": np.full(3, number),
            "large": 1 << (64 + number),
        }
        message = ends.sent(element)
        assert (message.description is None) == (number > 0)
        assert_same(element, ends.received(message))
    assert ends.layouts == 1


def test_lengths_and_keys_of_plain_values_are_no_part_of_a_layout() -> None:
    """Token lists of any length, dicts by ids and lists of annotations have one layout together."""
    ends = Ends()
    for size in range(16, 64):
        element = {
            "tokens": [*range(size)],
            "by_id": {f"id{size}-{each}": each / 3 for each in range(size)},
            "boxes": [{"box": (each, 0.5), "crowd": each % 2 == 0, "name": None} for each in range(size // 3)],
            "image": np.full(4, size),
        }
        assert_same(element, ends.cross(element))
    assert ends.layouts == 1


def test_a_structure_that_is_met_again_has_a_layout_of_its_own() -> None:
    """That takes less time than packing its values; many structures between are too many to keep."""
    ends = Ends()
    rows = [{f"column {each}": each if each % 2 else "text" for each in range(size)} for size in range(16, 100)]
    described: list[bool] = []
    for row in [rows[0], rows[0], rows[0], *rows[1:], *rows[1:]]:
        message = ends.sent(row)
        described.append(message.description is not None)
        assert_same(row, ends.received(message))
    assert described == [True, True, *[False] * (1 + 2 * len(rows[1:]))]


OTHERS: list[list[Element]] = [
    [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3), order="F"), np.zeros((2, 3), ">f8"), np.zeros(6)],
    [np.zeros(1, [("a", "i1"), ("b", "i4")]), np.zeros(1, np.dtype([("a", "i1"), ("b", "i4")], align=True))],
    [
        *(1, True, 1.0, 1 + 0j, None, np.int64(1), np.array(1), "1", b"1", bytearray(b"1"), Bytes(b"1")),
        *(np.str_("1"), 1 << 70),
    ],
    [{"a": 1, "b": 2}, {"b": 1, "a": 2}, [1, 2], (1, 2), {"a": [1, 2]}, [[1], 2], [1, [2]], [1, 2, []]],
]


def test_different_elements_have_different_layouts() -> None:
    """Shape, order, byte order, alignment, a leaf's kind, containers and the order of keys make a layout."""
    for others in OTHERS:
        ends = Ends()
        for element in others * 2:
            assert_same(element, ends.cross(element))
        assert ends.layouts == len(others)


def test_a_forgotten_layout_is_described_again() -> None:
    """Only the last used layouts are kept; a dropped one is described again, and decodes."""
    ends = Ends()
    sizes = [*range(MAX_LAYOUTS + 1), MAX_LAYOUTS, 0]
    described: list[bool] = []
    for size in sizes:
        message = ends.sent(np.ones(size))
        described.append(message.description is not None)
        assert_same(np.ones(size), ends.received(message))
    assert described == [True] * (MAX_LAYOUTS + 1) + [False, True]
    assert ends.layouts == MAX_LAYOUTS + 2


def test_large_layouts_are_forgotten_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both ends keep is bounded by its leaves, too; the last layout is kept, however large it is."""
    monkeypatch.setattr("penstock.transport._encoding._encoder.MAX_LEAVES", 1 << 8)
    monkeypatch.setattr("penstock.transport._encoding._decoder._MAX_LEAVES", 1 << 9)
    ends = Ends()
    described: list[bool] = []
    for size in (100, 101, 102, 100, 600, 600):
        message = ends.sent([b""] * size)
        described.append(message.description is not None)
        assert ends.received(message) == [b""] * size
    assert described == [True, True, True, True, True, False]


def test_layouts_are_learned_from_any_writer() -> None:
    """A receiver of several writers learns alike elements once; a head without its description is an error."""
    ends = Ends()
    ends.sent({"a": np.ones(3)})
    assert_same({"a": np.zeros(3)}, ends.received(message_of({"a": np.zeros(3)})))
    with pytest.raises(MessageError, match="description must be learned first"):
        ends.received(message_of(5))


def test_memory_must_be_large_enough() -> None:
    """Nothing is written into memory that is too small; a slot that is larger than the element is as good."""
    ends = Ends()
    message = ends.sent(["abc", np.arange(4)])
    with pytest.raises(UsageError, match=f"needs {message.size_bytes} bytes of memory; got 23"):
        message.write_into(np.zeros(23, np.uint8))
    memory: Any = np.zeros(message.size_bytes + LARGEST_COPIED_BYTES, np.uint8)
    message.write_into(memory)
    assert_same(["abc", np.arange(4)], ends.decode(message.head, memory))
