"""A decoded leaf is a view of the memory, a private copy, or memory that the sender shared before."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from penstock.errors import MessageError
from penstock.transport import Bytes
from tests.transport.encoding.samples import (
    ELEMENTS,
    LARGEST_COPIED_BYTES,
    Element,
    Ends,
    assert_same,
    message_of,
    written,
)

LARGE = LARGEST_COPIED_BYTES + 1


def _sent(element: Element) -> tuple[bytes, Ends, np.ndarray[Any, np.dtype[np.uint8]]]:
    ends = Ends()
    message = ends.sent(element)
    return message.head, ends, written(message)


class _Owned(bytearray):
    """Memory whose release can be observed."""


@given(ELEMENTS)
def test_small_leaves_are_private(element: Element) -> None:
    """A small leaf doesn't keep the memory alive, and doesn't change with it."""
    head, ends, memory = _sent(element)
    received = ends.decode(head, memory, ())
    memory[:] = 0xFF
    assert_same(element, received)


def test_large_leaves_are_views_that_keep_the_memory_alive() -> None:
    """An array or `Bytes` beyond the copied size is in the memory, aligned; its last part drops the memory.

    A `Bytes` is read-only, and so is an array over bytes.
    """
    element = {"name": "x", "body": Bytes(bytes(LARGE)), "last": Bytes(b"y" * LARGE), "array": np.ones(LARGE, "u1")}
    head, ends, memory = _sent(element)
    owner = _Owned(memory)
    ended = weakref.ref(owner)
    start = np.frombuffer(owner, np.uint8).ctypes.data
    received: Any = ends.decode(head, owner, ())
    offsets = [np.frombuffer(received[name], np.uint8).ctypes.data - start for name in ("body", "last", "array")]
    assert [offset % 64 for offset in offsets] == [0, 0, 0]
    assert all(0 <= offset < len(owner) for offset in offsets)
    assert (received["last"].readonly, hash(received["last"])) == (True, hash(b"y" * LARGE))
    over_bytes: Any = ends.decode(head, bytes(memory), ())
    assert (over_bytes["array"].flags.writeable, received["array"].flags.writeable) == (False, True)
    parts: list[Any] = [received["last"][5:], received["array"][5:]]
    del owner, received
    while parts:
        gc.collect()
        assert ended() is not None
        assert parts.pop()[0] in (1, ord("y"))
    gc.collect()
    assert ended() is None


def test_the_largest_leaf_that_is_copied() -> None:
    """A leaf of exactly the named size is copied; one byte more, and it is a view, but with `copy=True`."""
    sizes = [LARGEST_COPIED_BYTES, LARGE]
    head, ends, memory = _sent([kind(bytes(size)) for size in sizes for kind in (bytearray_array, Bytes)])
    received: Any = ends.decode(head, memory, ())
    copies: Any = ends.decode(head, memory, (), copy=True)
    memory[:] = 0xFF
    assert [leaf[0] for leaf in received] == [0, 0, 0xFF, 0xFF]
    assert [leaf[0] for leaf in copies] == [0] * 4
    assert copies[1].readonly
    assert received[1].readonly


def bytearray_array(content: bytes) -> Any:
    """Return an array with this content."""
    return np.frombuffer(bytearray(content), np.uint8)


def test_everything_is_private_on_demand() -> None:
    """With `copy=True` all is writable, and has the order that it had."""
    head, ends, memory = _sent([np.ones((300, 300), order="F")])
    received: Any = ends.decode(head, bytes(memory), (), copy=True)
    assert received[0].flags.fnc
    assert received[0].flags.writeable


class _Shared:
    """Memory that both sides have, as `locate` sees it."""

    def __init__(self, size_bytes: int) -> None:
        self.memory: Any = np.zeros(size_bytes, np.uint8)
        self.asked: list[tuple[int, int]] = []

    def locate(self, address: int, nbytes: int) -> object | None:
        """Return where in the memory these bytes start."""
        self.asked.append((address, nbytes))
        start = address - self.memory.ctypes.data
        return ("start", start) if 0 <= start <= self.memory.nbytes - nbytes else None

    def opened(self, places: tuple[Any, ...]) -> list[object]:
        """Return the places as a receiver sees them."""
        return [memoryview(self.memory)[start:] for _, start in places]


def test_located_arrays_are_sent_by_reference() -> None:
    """Leaves in shared memory are not copied: the receiver sees the same memory, with later writes."""
    shared = _Shared(3 * LARGE)
    first = shared.memory[:LARGE]
    second = np.ndarray((256, 300), "u1", shared.memory.data, LARGE, order="F")
    element = {"first": first, "own": np.arange(5), "second": second, "none": first[:0], "strided": first[:9:2]}
    ends = Ends(locate=shared.locate)
    message = ends.sent(element)
    assert message.places == (("start", 0), ("start", LARGE), ("start", 0))
    assert message.size_bytes < 1000
    received: Any = ends.received(message, shared.opened(message.places))
    assert_same(element, received)
    first[7] = 77
    assert received["first"][7] == 77
    copied: Any = ends.received(message, shared.opened(message.places), copy=True)
    assert_same(element, copied)
    assert not np.shares_memory(copied["second"], shared.memory)


def test_located_handles_are_sent_by_reference() -> None:
    """A `Bytes` over shared memory, however small or where it starts, is that memory at the receiver, of any size."""
    shared = _Shared(3 * LARGE)
    shared.memory[:] = 1
    ends = Ends(locate=shared.locate)
    for start, size in [(0, LARGE), (7, 5), (LARGE, 2 * LARGE)]:
        handle = Bytes(shared.memory[start : start + size])
        message = ends.sent([handle, Bytes(b"elsewhere"), Bytes(shared.memory[:0])])
        assert (message.places, message.size_bytes) == ((("start", start),), 64)
        places = shared.opened(message.places)
        received: Any = ends.received(message, places)
        copied: Any = ends.received(message, places, copy=True)
        shared.memory[start + 2] = 2
        assert list(received[0][:4]) == [1, 1, 2, 1]
        assert list(copied[0][:4]) == [1, 1, 1, 1]
        assert [len(each) for each in received] == [size, 9, 0]
        assert all(each.readonly for each in received + copied)
        shared.memory[start + 2] = 1
    assert ends.layouts == 1


def test_by_reference_or_not_is_part_of_the_layout() -> None:
    """The same structure, copied and located, has two layouts."""
    shared = _Shared(1000)
    ends = Ends(locate=shared.locate)
    elsewhere = np.arange(1000, dtype="u1")[:]
    for array in (shared.memory[:40], elsewhere[:40], shared.memory[40:80], elsewhere[40:80]):
        message = ends.sent([array])
        assert_same([array], ends.received(message, shared.opened(message.places)))
    assert ends.layouts == 2


def test_arrays_that_own_their_memory_are_not_asked_about() -> None:
    """NumPy's own memory is never shared, so that elements of fresh arrays cost no question."""
    shared = _Shared(10)
    Ends(locate=shared.locate).sent([np.ones(5), np.ones((2, 2))])
    assert shared.asked == []


def test_places_must_be_those_of_the_message() -> None:
    """Too few, too many or too small places are a message that can't be read."""
    shared = _Shared(100)
    ends = Ends(locate=shared.locate)
    for leaf in (shared.memory[:50], Bytes(shared.memory[:50])):
        message = ends.sent(leaf)
        assert message.places == (("start", 0),)
        for places in ((), (b"",), (bytes(49),), (bytes(100), bytes(100))):
            with pytest.raises(MessageError, match="50" if len(places) == 1 else None):
                ends.decode(message.head, places=places)


def test_an_encoded_element_keeps_its_leaves() -> None:
    """The leaves live until the message is dropped, so that it can still be written."""
    array = np.arange(10)
    ended = weakref.ref(array)
    message = message_of({"a": array})
    del array
    gc.collect()
    assert ended() is not None
    del message
    gc.collect()
    assert ended() is None
