"""A layout is computed once, and is exact: elements that differ in more than values have different layouts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from penstock.errors import MessageError, UsageError
from penstock.transport import Bytes
from penstock.transport._encoding import LARGEST_COPIED_BYTES, Decoder, Encoder
from penstock.transport._encoding._encoder import MAX_LAYOUTS
from tests.transport.encoding.samples import ELEMENTS, Element, assert_same, written


@given(ELEMENTS)
def test_an_element_like_the_last_needs_no_description(element: Element) -> None:
    """The same element again has the same layout, which was computed once and is described once."""
    encoder, decoder = Encoder(), Decoder()
    first, second = encoder.encode(element), encoder.encode(element)
    assert encoder.layouts == 1
    assert second.description is None
    decoder.learn(first.description or b"")
    assert_same(element, decoder.decode(second.head, written(second), ()))


def test_values_and_sizes_of_text_are_no_part_of_a_layout() -> None:
    """Numbers, text, bytes and the data of arrays vary without a new layout."""
    encoder, decoder = Encoder(), Decoder()
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
        encoded = encoder.encode(element)
        assert (encoded.description is None) == (number > 0)
        if encoded.description is not None:
            decoder.learn(encoded.description)
        assert_same(element, decoder.decode(encoded.head, written(encoded), ()))
    assert encoder.layouts == 1


OTHERS: list[list[Element]] = [
    [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3), order="F"), np.zeros((2, 3), ">f8"), np.zeros(6)],
    [np.zeros(1, [("a", "i1"), ("b", "i4")]), np.zeros(1, np.dtype([("a", "i1"), ("b", "i4")], align=True))],
    [
        1,
        True,
        1.0,
        1 + 0j,
        None,
        np.int64(1),
        np.array(1),
        "1",
        b"1",
        bytearray(b"1"),
        Bytes(b"1"),
        np.str_("1"),
        1 << 70,
    ],
    [{"a": 1, "b": 2}, {"b": 1, "a": 2}, [1, 2], (1, 2), {"a": [1, 2]}, [[1], 2], [1, [2]], [1, 2, []]],
]


@pytest.mark.parametrize("others", OTHERS, ids=["arrays", "structured arrays", "leaves", "containers"])
def test_different_elements_have_different_layouts(others: list[Element]) -> None:
    """Shape, order, byte order, alignment, a leaf's kind, containers and the order of keys make a layout."""
    encoder, decoder = Encoder(), Decoder()
    for element in others * 2:
        encoded = encoder.encode(element)
        if encoded.description is not None:
            decoder.learn(encoded.description)
        assert_same(element, decoder.decode(encoded.head, written(encoded), ()))
    assert encoder.layouts == len(others)


def test_a_forgotten_layout_is_described_again() -> None:
    """Only the last used layouts are kept; a dropped one is described again, and decodes."""
    encoder, decoder = Encoder(), Decoder()
    sizes = [*range(MAX_LAYOUTS + 1), MAX_LAYOUTS, 0]
    described: list[bool] = []
    for size in sizes:
        encoded = encoder.encode(np.ones(size))
        described.append(encoded.description is not None)
        if encoded.description is not None:
            decoder.learn(encoded.description)
        assert_same(np.ones(size), decoder.decode(encoded.head, written(encoded), ()))
    assert described == [True] * (MAX_LAYOUTS + 1) + [False, True]
    assert encoder.layouts == MAX_LAYOUTS + 2


def test_layouts_of_many_writers_are_one() -> None:
    """A receiver of several writers learns alike elements once: a layout's id follows from its description."""
    decoder = Decoder()
    first, second = Encoder().encode({"a": np.ones(3)}), Encoder().encode({"a": np.zeros(3)})
    decoder.learn(first.description or b"")
    assert_same({"a": np.zeros(3)}, decoder.decode(second.head, written(second), ()))


def test_a_layout_must_be_learned_first() -> None:
    """A head without its description is an error that says so."""
    encoded = Encoder().encode(5)
    with pytest.raises(MessageError, match="description must be learned first"):
        Decoder().decode(encoded.head, b"", ())


def test_memory_must_be_large_enough() -> None:
    """Nothing is written into memory that is too small."""
    with pytest.raises(UsageError, match="needs 64 bytes of memory; got 23"):
        Encoder().encode(np.zeros(3)).write_into(np.zeros(23, np.uint8))


def test_memory_may_be_longer_than_the_message() -> None:
    """A slot that is larger than the element is as good."""
    encoder, decoder = Encoder(), Decoder()
    encoded = encoder.encode(["abc", np.arange(4)])
    memory: Any = np.zeros(encoded.size_bytes + LARGEST_COPIED_BYTES, np.uint8)
    encoded.write_into(memory)
    decoder.learn(encoded.description or b"")
    assert_same(["abc", np.arange(4)], decoder.decode(encoded.head, memory, ()))
