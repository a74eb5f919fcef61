"""Packed values: containers of numbers and text that are sent as one leaf, whatever their structure.

A list of tokens or a dict by ids has another structure in each element, and a layout for each would cost more than its
data. So dicts, lists and tuples that have nothing else inside than None, bools, numbers and text, and enough of them,
are packed into bytes. A list of only integers, floats or texts always is: that takes less time than a leaf for each.

The bytes:

    counts │ codes, a byte each │ integers │ floats │ sizes │ text

There is a code for each value and each container, in the order of the element; a dict's keys come before its values.
Each code takes its number from the integers or floats, or its size: of a text in characters, of a container in parts.

The receiver trusts nothing: it compares all counts with the bytes, and makes at most one object for each code.
"""

import struct
from collections.abc import Collection, Iterator
from itertools import accumulate, islice, pairwise
from typing import Any, Final, cast

from penstock.transport._encoding._layout import MAX_DEPTH

_FEWEST: Final = 16  # values and containers; others stay leaves and containers of the layout
_COUNTS: Final = struct.Struct("<4Q")
_NONE, _FALSE, _TRUE, _INT, _FLOAT, _STR, _LIST, _TUPLE, _DICT = range(9)
_COLUMN_CODES: Final[dict[type, int]] = {int: _INT, float: _FLOAT, str: _STR}
_SCALARS: Final[frozenset[type]] = frozenset({type(None), bool, *_COLUMN_CODES})
_CONTAINERS: Final[dict[type, int]] = {list: _LIST, tuple: _TUPLE, dict: _DICT}
_PLAIN: Final = _SCALARS | frozenset(_CONTAINERS)


class PackedValues:
    """Takes the place of a container of plain values among an element's leaves.

    Attributes:
        packed: the bytes.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed


def can_pack_values(leaves: Collection[object]) -> bool:
    """Return whether there may be enough plain values among an element's leaves to pack some of them."""
    return len(leaves) >= _FEWEST and sum(map(_SCALARS.__contains__, map(type, leaves))) >= _FEWEST


def pack_values(part: object, depth: int, *, mixed: bool) -> PackedValues | None:
    """Return a part of an element as a packed leaf, if it is a container of enough plain values, else None.

    An integer of more than 64 bits isn't packed.

    Args:
        part: the part.
        depth: the number of containers around it.
        mixed: whether the values may be of several types, and in dicts and inner containers. If not, packing is faster
            than the layout of the same values.
    """
    if type(part) not in _CONTAINERS or depth >= MAX_DEPTH:
        return None
    container = cast("Collection[object]", part)
    if (_count(container, depth) if mixed else _count_column(container)) < _FEWEST:
        return None
    packer = _Packer()
    packer.add(part)
    try:
        return PackedValues(packer.packed())
    except struct.error:
        return None


def unpack_values(chunk: memoryview) -> object:
    """Return the container that `pack_values` packed.

    Raises:
        ValueError: the bytes are damaged.
        TypeError: a dict's key is a container.
    """
    unpacker = _Unpacker(bytes(chunk))
    part = unpacker.part(0)
    unpacker.check_end()
    return part


def _count_column(part: Collection[object]) -> int:
    """Return the number of integers, floats or texts in a list or tuple that has nothing else; 0 for others."""
    if isinstance(part, dict) or len(part) < _FEWEST:
        return 0
    kinds = set(map(type, part))
    return len(part) if len(kinds) == 1 and kinds <= _COLUMN_CODES.keys() else 0


def _count(part: Collection[object], depth: int) -> int:
    """Return the number of values and containers; 0 if anything inside isn't plain, or is nested too deeply."""
    if depth >= MAX_DEPTH:
        return 0
    children: Collection[object] = part
    if isinstance(part, dict):
        children = cast("dict[object, object]", part).values()
        if not _SCALARS.issuperset(map(type, cast("dict[object, object]", part))):
            return 0
    kinds = set(map(type, children))
    if kinds <= _SCALARS:
        return 1 + len(children)
    if not kinds <= _PLAIN:
        return 0
    total = 1
    for child in children:
        count = _count(cast("Collection[object]", child), depth + 1) if type(child) in _CONTAINERS else 1
        if not count:
            return 0
        total += count
    return total


class _Packer:
    """The columns of the values so far."""

    __slots__ = ("_codes", "_columns", "_sizes")

    def __init__(self) -> None:
        self._codes = bytearray()
        self._columns: dict[type, list[Any]] = {int: [], float: [], str: []}
        self._sizes: list[int] = []

    def add(self, part: object) -> None:
        """Add a value or container."""
        kind = type(part)
        if kind in _CONTAINERS:
            children = cast("Collection[object]", part)
            self._codes.append(_CONTAINERS[kind])
            self._sizes.append(len(children))
            self._add_all(children)
            if isinstance(part, dict):
                self._add_all(cast("dict[object, object]", part).values())
        elif kind in _COLUMN_CODES:
            self._add_all((part,))
        else:
            self._codes.append(_NONE if part is None else _TRUE if part else _FALSE)

    def _add_all(self, children: Collection[object]) -> None:
        """Add children; those of one type, as most are, without a step for each."""
        kinds = set(map(type, children))
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind not in _COLUMN_CODES:
            for child in children:
                self.add(child)
            return
        self._codes += bytes((_COLUMN_CODES[kind],)) * len(children)
        self._columns[kind].extend(children)
        if kind is str:
            self._sizes.extend(map(len, cast("Collection[str]", children)))

    def packed(self) -> bytes:
        """Return the columns as bytes."""
        ints, floats, texts = self._columns.values()
        return b"".join(
            (
                _COUNTS.pack(len(self._codes), len(ints), len(floats), len(self._sizes)),
                self._codes,
                struct.pack(f"<{len(ints)}q{len(floats)}d{len(self._sizes)}Q", *ints, *floats, *self._sizes),
                "".join(texts).encode("utf-8", "surrogatepass"),
            )
        )


class _Unpacker:
    """The columns that are left."""

    __slots__ = ("_codes", "_floats", "_ints", "_place", "_sizes", "_text", "_text_place")

    def __init__(self, packed: bytes) -> None:
        """Read the columns.

        Raises:
            ValueError: their sizes don't fit.
        """
        if len(packed) < _COUNTS.size:
            raise ValueError("packed values must begin with four counts")
        num_codes, num_ints, num_floats, num_sizes = _COUNTS.unpack_from(packed)
        start = _COUNTS.size + num_codes
        end = start + 8 * (num_ints + num_floats + num_sizes)
        if end > len(packed):
            raise ValueError(f"packed values must have at least {end} bytes; got {len(packed)}")
        self._codes = codes = packed[_COUNTS.size : start]
        takers = codes.count(_INT), codes.count(_FLOAT), sum(map(codes.count, (_STR, _LIST, _TUPLE, _DICT)))
        if takers != (num_ints, num_floats, num_sizes) or max(codes, default=_NONE) > _DICT:
            raise ValueError("packed values must have known codes, and a number or size for each that takes one")
        self._ints: Iterator[int] = iter(struct.unpack_from(f"<{num_ints}q", packed, start))
        self._floats: Iterator[float] = iter(struct.unpack_from(f"<{num_floats}d", packed, start + 8 * num_ints))
        self._sizes: Iterator[int] = iter(struct.unpack_from(f"<{num_sizes}Q", packed, end - 8 * num_sizes))
        self._text = str(memoryview(packed)[end:], "utf-8", "surrogatepass")
        self._place = self._text_place = 0

    def part(self, depth: int) -> object:
        """Return the next value or container.

        Raises:
            ValueError: there is no code for it, or it is nested too deeply.
        """
        if self._place >= len(self._codes):
            raise ValueError("packed values must have a code for each part")
        code = self._codes[self._place]
        self._place += 1
        if code < _LIST:
            return self._column(code, 1)[0]
        size = next(self._sizes)
        parts = self._parts(size, depth)
        if code != _DICT:
            return parts if code == _LIST else tuple(parts)
        made = dict(zip(parts, self._parts(size, depth), strict=True))
        if len(made) != size:
            raise ValueError("a dict must have each key once")
        return made

    def check_end(self) -> None:
        """Check that nothing is left.

        Raises:
            ValueError: there is.
        """
        if self._place != len(self._codes) or self._text_place != len(self._text):
            raise ValueError("packed values must be one container, with all of the text")

    def _parts(self, size: int, depth: int) -> list[Any]:
        codes = self._codes[self._place : self._place + size]
        if len(codes) < size or depth >= MAX_DEPTH:
            raise ValueError(f"packed values must have a code for each part, and be nested at most {MAX_DEPTH} deep")
        code = codes[0] if codes else _NONE
        if code >= _LIST or codes.count(code) != size:
            return [self.part(depth + 1) for _ in codes]
        self._place += size  # all are of one type, as most are
        return self._column(code, size)

    def _column(self, code: int, count: int) -> list[Any]:
        """Return the next values of one code."""
        if code == _INT:
            return list(islice(self._ints, count))
        if code == _FLOAT:
            return list(islice(self._floats, count))
        if code != _STR:
            return [None if code == _NONE else code == _TRUE] * count
        places = [*accumulate(islice(self._sizes, count), initial=self._text_place)]
        self._text_place = places[-1]
        return [self._text[start:end] for start, end in pairwise(places)]
