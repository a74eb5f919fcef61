"""Types of users, and functions that return instances of them; other processes import this module."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Attributes(dict[str, Any]):
    """A dict whose items are attributes, as in many libraries."""

    def __getattr__(self, key: str) -> Any:
        return self[key]


class Frozen(dict[str, Any]):
    """A dict that takes no new values, so that none can be copied item by item."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")

    def __reduce__(self) -> Any:
        return (Frozen, (dict(self),))


class Shape(tuple[int, ...]):
    """A tuple of its own type, as torch.Size."""

    __slots__ = ()


class Named(NamedTuple):
    """A named tuple."""

    x: Any
    dtype: Any


@dataclass
class Data:
    """A dataclass."""

    x: Any
    dtype: Any


def padded(number: int) -> dict[str, Any]:
    """Return structured arrays, also one with gaps, with bytes between the fields that are not zero."""
    rows = np.frombuffer(bytearray([number + 1] * 640), np.dtype([("a", "i1"), ("b", "f8")], align=True))
    return {"rows": rows, "gaps": rows[::2], "wide gaps": rows[::20]}


KINDS: list[Callable[[dict[str, Any]], Any]] = [
    *(Attributes, OrderedDict, Frozen),
    lambda items: defaultdict(list, items),
    lambda items: Named(**items),
    lambda items: Data(**items),
]


@dataclass(frozen=True)
class Packed:
    """A function that makes a batch of one of the types, with a key that is also an array's attribute."""

    number: int

    def __call__(self, batch: Any) -> Any:
        """Return the batch."""
        return KINDS[self.number]({"x": batch, "dtype": [Shape((1, 2)), batch * 2]})


def in_another_byte_order(number: int) -> list[Any]:
    """Return arrays whose byte order isn't the machine's, as in files of telescopes and scanners; a key is no text."""
    table = np.arange(24).reshape(4, 6) + number
    strided = [table.astype(dtype)[::2, ::-1] for dtype in (">i2", ">f4", ">c16", ">U3", ">M8[s]", ">m8[D]")]
    return [*strided, {None: table.astype(">M8[Y]"), 1: table[0, 0, ...].astype(">M8[s]"), 2: table[:0].astype(">f4")}]


class Blob:
    """An object that is no array, and has a method of the name of an array's attribute."""

    def __init__(self, number: int) -> None:
        self.number = number

    def nbytes(self) -> int:
        """Return the number."""
        return self.number


class Numbers:
    """A function that makes an element of a number."""

    def __call__(self, number: int) -> Attributes:
        """Return the element."""
        return Attributes(x=number, y=2.0)


@dataclass
class Brightened:
    """A dataclass whose constructor changes its values."""

    image: Any
    label: Any

    def __post_init__(self) -> None:
        self.image = np.asarray(self.image) + 1
        self.shown = str(self.label)


def brightened(number: int) -> Brightened:
    """Return a small image."""
    return Brightened(np.full(3, number), number)


def large(number: int) -> Brightened:
    """Return an image of a megabyte."""
    return Brightened(np.full((1024, 1024), number, np.uint8), number)


@dataclass
class Widened:
    """A dataclass with a constructor of its own, which changes what it gets."""

    low: Any
    high: Any

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = np.asarray(low) - 1, np.asarray(high) + 1


@dataclass
class Slotted:
    """A dataclass with a slot beside its fields."""

    __slots__ = ("extra", "x")
    x: int


@dataclass
class Doubled:
    """A dataclass of which setting a field computes."""

    x: int

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 2)


class Image(NamedTuple):
    """A named tuple."""

    image: Any


class Sourced(Image):
    """A named tuple that has attributes."""


def widened(number: int) -> Widened:
    """Return a range around a number."""
    return Widened(number, number)


def with_more(number: int) -> list[Any]:
    """Return instances that hold more than their constructors would make of their fields."""
    image: Any = np.full((1024, 1024), number, np.uint8)
    parts: list[Any] = [widened(number), Slotted(number), Doubled(number), Sourced(image), Data(1, "a")]
    for part, name in zip(parts[1:], ("extra", "x", "source", "source"), strict=True):
        setattr(part, name, number)
    return parts
