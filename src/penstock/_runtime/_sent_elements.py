"""Elements without a batch on their way from a worker process to the consumer: large arrays are made in place.

An element of a hundred megabytes takes as long to copy as to make. So its large arrays aren't pickled: they are in the
job's memory, and their places are sent. And the copy into that memory is rarely needed. Before an element is computed,
memory of the size of the last one's largest array is *offered* (`_room.Offers`): NumPy gives it to the first array that
needs as much, which is the result of most functions. If another array took it, or none, the result is copied there.

A function may keep its result, as a cache does. The end of the offer shows that, and the array gets memory of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from mmap import PAGESIZE
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._graph import Element
from penstock._memory import Lease, Region
from penstock._pickles import Apart
from penstock._runtime._room import Room
from penstock._runtime._sent_batches import is_plain, sent_strides
from penstock._runtime._shared_values import apart
from penstock._strides import copied_with_strides
from penstock._tree import map_leaves
from penstock.errors import UsageError

_LARGE_BYTES: Final = 1 << 20  # below that, a copy takes less time than the rest of the element's way


class _Hole:
    """Takes the place of a large array in an element that is pickled. It is a leaf, so it is no tuple."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _Place(NamedTuple):
    """A large array in the job's memory."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    start_bytes: int


ArrivedElements: TypeAlias = list[Element] | tuple[Element, list[_Place]]
"""Elements; or one without its large arrays, and their places."""
SentElements: TypeAlias = ArrivedElements | Apart
"""The same before it is pickled."""


def send_elements(compute: Callable[[], list[Element]], room: Room) -> list[SentElements]:
    """Compute elements, and write their large arrays into the room; return what is sent."""
    offers, size_bytes = room.offers, room.offers.size_bytes
    if not size_bytes:
        return _sent(compute(), room, None)
    # Pages of its own, since those of an array that the function keeps become private.
    start_bytes = _in_pages(room.take(_in_pages(size_bytes) + PAGESIZE))
    offers.begin(room.memory, start_bytes)
    try:
        return _sent(compute(), room, start_bytes)
    finally:  # the elements were dropped
        offers.end(room.memory)


def _in_pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGESIZE) * PAGESIZE


def _sent(elements: list[Element], room: Room, offered: int | None) -> list[SentElements]:
    if len(elements) != 1:
        room.offers.note(0)
        return [apart(elements)]
    writer = _Writer(room, offered)
    with suppress(UsageError):  # its type can't be built of other leaves
        rest = map_leaves(writer.place_of, elements[0])
        room.offers.note(writer.largest_bytes)
        return [(rest, writer.places)] if writer.places else [elements]
    return [elements]


class _Writer:
    """Writes the large arrays of one element.

    Args:
        room: memory for them.
        offered: the start of memory in which one of them may be already; None for no such memory.
    """

    def __init__(self, room: Room, offered: int | None) -> None:
        self.places: list[_Place] = []
        self._room = room
        self._offered = offered
        self._address = None if offered is None else room.memory.address + offered
        self._offered_bytes = room.offers.size_bytes
        self.largest_bytes = 0
        self._holes: dict[int, _Hole] = {}  # by the identity of an array

    def place_of(self, leaf: object) -> object:
        """Write a leaf if it is a large array, and return what takes its place; return any other leaf itself."""
        if type(leaf) is not np.ndarray:
            return leaf
        array: NDArray[Any] = leaf
        if array.nbytes < _LARGE_BYTES or not is_plain(array):
            return leaf
        if id(array) not in self._holes:
            self._holes[id(array)] = _Hole(len(self.places))
            self.places.append(self._written(array))
            self.largest_bytes = max(self.largest_bytes, array.nbytes)
        return self._holes[id(array)]

    def _written(self, array: NDArray[Any]) -> _Place:
        offered, array_bytes = self._offered, array.nbytes
        strides = sent_strides(array)
        is_there = offered is not None and array.strides == strides and _address(array) == self._address
        if offered is not None and (is_there or (array_bytes == self._offered_bytes and self._room.offers.is_free)):
            start_bytes, self._offered = offered, None
        else:
            start_bytes = self._room.take(array_bytes)
        place = _Place(array.shape, array.dtype.str, strides, start_bytes)
        if not is_there:
            _array(self._room.memory, place)[...] = array
        return place


def received_elements(sent: Iterable[ArrivedElements], memory: Lease, copied_bytes: int) -> Iterator[Element]:
    """Yield the elements that were sent.

    Args:
        sent: what was sent.
        memory: that of the job.
        copied_bytes: arrays of at most this size are copied out of it.
    """
    for each in sent:
        if isinstance(each, list):
            yield from each
            continue
        rest, places = each
        arrays = [_array(memory, place) for place in places]
        arrays = [copied_with_strides(array) if array.nbytes <= copied_bytes else array for array in arrays]
        yield map_leaves(partial(_filled, arrays), rest)


def _filled(arrays: list[NDArray[Any]], leaf: object) -> object:
    return arrays[leaf.number] if isinstance(leaf, _Hole) else leaf


def _array(memory: Region | Lease, place: _Place) -> NDArray[Any]:
    return np.ndarray(place.shape, place.dtype, cast("memoryview", memory), place.start_bytes, place.strides)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
