"""Parts of a dataset: an arithmetic sequence of positions, a list of them, or a bit for each; and the sizes of a split.

The samplers leave the epoch unchanged.
"""

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import (
    LARGEST_LENGTH,
    array_digest,
    check_position,
    check_positions,
    checked_integer,
    checked_length,
    int64_block,
)
from penstock.sampling._sampler import OrderFacts, OwnSampler

_WORD_BYTES: Final = 64  # of `Bits`: 512 bits, with one entry in the directory
_WORD_BITS: Final = _WORD_BYTES * 8
_COUNTED_WORDS: Final = 1 << 11  # counted at a time, with about nine bytes for each byte of bits: a megabyte
_BITS_OF_BYTE: Final = np.array([value.bit_count() for value in range(256)], np.uint8)
_SUM_TOLERANCE: Final = Fraction(1, 10**9)  # of the sum of a split's fractions


@frozen
class Slice(OwnSampler):
    """Every `step`-th element from `start` on: (e, p) to (e, start + step * p).

    Attributes:
        start: the key at position 0, from 0 to 2**62.
        step: the distance between two keys; negative for the reverse order, never 0.
        length: the number of keys, from 0 to 2**62.

    Raises:
        UsageError: if one of them, or the last key, is out of range.

    Example:
        >>> Slice(start=10, step=-3, length=4)(0, 3)
        (0, 1)
    """

    start: int
    step: int
    length: int

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(takes_once=True, maps_seeds=True, is_fixed=True)

    def __penstock_reach__(self) -> int | None:
        return max(self.start, self.start + self.step * (self.length - 1)) + 1 if self.length else 0

    def __post_init__(self) -> None:
        keys = range(LARGEST_LENGTH + 1)
        object.__setattr__(self, "start", checked_integer("start", self.start, keys, "[0, 2**62]. Count from 0"))
        steps = range(-LARGEST_LENGTH, LARGEST_LENGTH + 1)
        rule = "[-2**62, 2**62]. Use a small one"
        object.__setattr__(self, "step", checked_integer("step", self.step, steps, rule))
        object.__setattr__(self, "length", checked_length(self.length))
        if self.step == 0:
            raise UsageError("step must not be 0; got step=0. To take one element many times use Select or Repeat.")
        last = self.start + self.step * (self.length - 1)
        if self.length and last not in keys:
            raise UsageError(f"the last key must be in [0, 2**62]; got {last} from {self!r}. Make length smaller.")

    @classmethod
    def from_slice(cls, positions: slice, parent_length: int) -> Self:
        """Return the slice `positions` of a parent of `parent_length` elements, by the rules of Python's lists.

        Args:
            positions: as in `elements[start:stop:step]`: negative bounds count from the parent's end, bounds beyond the
                parent are clipped.
            parent_length: from 0 to 2**62.

        Raises:
            UsageError: if the step is 0 or `parent_length` is out of range.

        Example:
            >>> Slice.from_slice(slice(None, -2), parent_length=10)
            Slice(start=0, step=1, length=8)
            >>> Slice.from_slice(slice(None, None, -1), parent_length=10)
            Slice(start=9, step=-1, length=10)
        """
        parent_length = checked_length(parent_length)
        if positions.step == 0:
            raise UsageError(f"step must not be 0; got {positions!r}. Omit it to take every element.")
        keys = range(*positions.indices(parent_length))
        return cls(keys.start, keys.step, len(keys)) if keys else cls(0, 1, 0)

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self.length

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        check_position(position, self.length)
        return epoch, self.start + self.step * position

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        check_positions(positions, self.length)
        if self.step == 1:
            return epochs, positions if self.start == 0 else positions + self.start
        return epochs, positions * self.step + self.start


@frozen
class Select(OwnSampler):
    """Listed elements, in the order of the list: (e, p) to (e, keys[p]).

    Two are equal if their lists are. The list takes eight bytes an element, here and in every worker process; an
    equivalent `Slice` is cheaper.

    Attributes:
        keys: int64 of shape (n,), none negative, repetitions allowed; it is copied, and the copy is read-only.

    Raises:
        UsageError: if `keys` are not integers in an array of one axis, or one is negative.

    Example:
        >>> select = Select(np.array([4, 4, 1]))
        >>> [select(0, position)[1] for position in range(len(select))]
        [4, 4, 1]
    """

    keys: NDArray[np.int64]

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(is_fixed=True)

    def __penstock_reach__(self) -> int | None:
        return int(self.keys.max(initial=-1)) + 1

    def __post_init__(self) -> None:
        keys = int64_block("keys", self.keys).copy()
        if keys.size and keys.min() < 0:
            raise UsageError(
                f"keys must not be negative; got {keys.min()} at position {keys.argmin()}. "
                "Use Select.from_positions to count from the parent's end."
            )
        keys.flags.writeable = False
        object.__setattr__(self, "keys", keys)

    @classmethod
    def from_positions(
        cls, positions: Sequence[int] | Sequence[bool] | NDArray[np.integer | np.bool_], parent_length: int
    ) -> Self:
        """Return the selection `positions` of a parent of `parent_length` elements, by the rules of NumPy's indexing.

        Args:
            positions: integers in [-parent_length, parent_length), negative ones counting from the end; or
                `parent_length` bools, which are True for the elements to take.
            parent_length: the parent's length, from 0 to 2**62.

        Raises:
            UsageError: if they have another type, or are out of range.

        Example:
            >>> Select.from_positions([0, -1], parent_length=10).keys.tolist()
            [0, 9]
            >>> Select.from_positions([True, False, True], parent_length=3).keys.tolist()
            [0, 2]
        """
        parent_length = checked_length(parent_length)
        array = np.asarray(positions)
        if array.dtype == np.bool_:
            if array.shape != (parent_length,):
                raise UsageError(
                    f"a mask must have one bool for each of the {parent_length} elements; got shape {array.shape}. "
                    "Compute it over the whole parent."
                )
            return cls(np.flatnonzero(array))
        keys = int64_block("positions", array)
        outside = (keys < -parent_length) | (keys >= parent_length)
        if outside.any():
            raise UsageError(
                f"positions must be in [-{parent_length}, {parent_length}); got {array[outside.argmax()]} as number "
                f"{outside.argmax()} of them. Take only positions that the parent has."
            )
        return cls(np.where(keys < 0, keys + parent_length, keys))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return len(self.keys)

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        check_position(position, len(self.keys))
        return epoch, int(self.keys[position])

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        check_positions(positions, len(self.keys))
        return epochs, self.keys[positions]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Select):
            return NotImplemented
        return np.array_equal(self.keys, other.keys)

    def __hash__(self) -> int:
        return int.from_bytes(hashlib.blake2b(self.keys.data, digest_size=8).digest(), "little")

    def __reduce__(self) -> tuple[type[Self], tuple[NDArray[np.int64]]]:
        # Through the constructor, since an unpickled array is writable.
        return type(self), (self.keys,)


@frozen(cached=True)
class Bits(OwnSampler):
    """The elements whose bit is set, in their order: (e, p) to (e, position of set bit number p).

    This is the order after a filter with known results. A directory holds the number of set bits before every 512th
    bit (a rank directory, after Jacobson, 1989). A lookup searches the directory and unpacks 512 bits. The bits are
    never unpacked as a whole: those of a billion elements take 125 MB, and their directory 16 MB. A pickle leaves the
    directory out.

    Two are equal if their bits and lengths are. The repr has a digest of the bits.

    Attributes:
        packed: uint8 of shape (ceil(parent_length / 8),). Bit i % 8 of byte i // 8, counted from the lowest, is set if
            element i is taken, as in `numpy.packbits(mask, bitorder="little")` and Arrow; the bits after the last
            element are 0. It is copied, unless it is read-only, such as a file mapped for reading.
        parent_length: from 0 to 2**62.

    Raises:
        UsageError: if one of them is invalid.

    Example:
        >>> bits = Bits(np.array([0b00010010], np.uint8), parent_length=5)
        >>> [bits(0, position)[1] for position in range(len(bits))]
        [1, 4]
    """

    packed: NDArray[np.uint8]
    parent_length: int

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(takes_once=True, maps_seeds=True, is_fixed=True)

    def __post_init__(self) -> None:
        parent_length = checked_length(self.parent_length)
        object.__setattr__(self, "parent_length", parent_length)
        object.__setattr__(self, "packed", _checked_bits(self.packed, parent_length))

    @classmethod
    def from_mask(cls, mask: ArrayLike) -> Self:
        """Return the elements of a mask.

        Args:
            mask: bools of shape (n,), one for each of the parent's n elements.

        Raises:
            UsageError: if they are not bools in one axis.

        Example:
            >>> bits = Bits.from_mask([False, True, True])
            >>> len(bits), bits(0, 1)
            (2, (0, 2))
        """
        array = np.asarray(mask)
        if array.dtype != np.bool_ or array.ndim != 1:
            raise UsageError(
                f"a mask must be a bool array of one axis; got dtype {array.dtype} and shape {array.shape}. "
                "Pass one bool for each of the parent's elements."
            )
        packed = np.packbits(array, bitorder="little")
        packed.flags.writeable = False
        return cls(packed, len(array))

    def __len__(self) -> int:
        """Return the number of positions per epoch: that of the set bits."""
        return int(self._set_before[-1])

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        check_position(position, len(self))
        word = int(self._set_before.searchsorted(position, side="right")) - 1
        octets = self.packed[word * _WORD_BYTES : (word + 1) * _WORD_BYTES]
        places = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
        return epoch, word * _WORD_BITS + int(places[position - int(self._set_before[word])])

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        check_positions(positions, len(self))
        if not len(positions):
            return epochs, positions
        words_of_positions = self._set_before.searchsorted(positions, side="right") - 1
        words, numbers = np.unique(words_of_positions, return_inverse=True)
        # Beyond the end the last byte is repeated. Its bits are after all set ones, so no position refers to them.
        octets = self.packed.take(words[:, np.newaxis] * _WORD_BYTES + np.arange(_WORD_BYTES), mode="clip")
        places = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
        starts = places.searchsorted(np.arange(len(words)) * _WORD_BITS)
        found = places[starts[numbers] + positions - self._set_before[words_of_positions]]
        return epochs, words[numbers] * _WORD_BITS + found % _WORD_BITS

    @cached_property
    def _set_before(self) -> NDArray[np.int64]:
        """The number of bits set before each word of 512, and, last, of all set bits."""
        count = -(-len(self.packed) // _WORD_BYTES)
        counts = np.zeros(count + 1, np.int64)
        for first in range(0, count, _COUNTED_WORDS):
            octets = self.packed[first * _WORD_BYTES : (first + _COUNTED_WORDS) * _WORD_BYTES]
            in_words = np.add.reduceat(_BITS_OF_BYTE[octets], np.arange(0, len(octets), _WORD_BYTES), dtype=np.int64)
            counts[first + 1 : first + 1 + len(in_words)] = in_words
        return counts.cumsum(out=counts)

    @cached_property
    def _digest(self) -> str:
        return array_digest(self.packed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bits):
            return NotImplemented
        return self.parent_length == other.parent_length and np.array_equal(self.packed, other.packed)

    def __hash__(self) -> int:
        return hash((self._digest, self.parent_length))

    def __repr__(self) -> str:
        return f"Bits(<{len(self)} of {self.parent_length} set, {self._digest}>, parent_length={self.parent_length})"

    def __reduce__(self) -> tuple[type[Self], tuple[NDArray[np.uint8], int]]:
        # Through the constructor, since an unpickled array is writable.
        return type(self), (self.packed, self.parent_length)


def _checked_bits(packed: NDArray[np.uint8], parent_length: int) -> NDArray[np.uint8]:
    array = np.asarray(packed)
    size = -(-parent_length // 8)
    if array.dtype != np.uint8 or array.shape != (size,):
        raise UsageError(
            f"packed must be a uint8 array of shape ({size},), eight elements a byte, for {parent_length} elements; "
            f"got dtype {array.dtype} and shape {array.shape}. Bits.from_mask converts bools."
        )
    if parent_length % 8 and array[-1] >> (parent_length % 8):
        raise UsageError(
            f"the bits after the last of {parent_length} elements must be 0; got {array[-1]:#010b} as the last byte. "
            'Pack with numpy.packbits(mask, bitorder="little").'
        )
    if array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()
        array.flags.writeable = False
    return array


def split_counts(length: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """Return the number of elements of each named part, by the largest remainder (Hamilton's method).

    Every part gets its share rounded down. The remaining elements go, one each, to the parts that lost most by
    rounding; among equal losses the earlier part comes first. So no part differs from its share by a whole element,
    and a small part of a short dataset can be empty.

    Args:
        length: from 0 to 2**62.
        fractions: for each name a number over 0, in the sum at most 1. If the sum is within 1e-9 of 1, the counts add
            up to `length`; if it is less, the remaining elements belong to no part.

    Returns:
        The counts by name, in the order of `fractions`.

    Raises:
        UsageError: if there is no part, a fraction is not over 0, or they add up to more than 1.

    Example:
        >>> split_counts(1797, {"train": 0.9, "val": 0.1})
        {'train': 1617, 'val': 180}
    """
    length = checked_length(length)
    shares = {name: _checked_share(name, fraction) for name, fraction in fractions.items()}
    if not shares:
        raise UsageError("a split must have at least one part; got none. Pass such as {'train': 0.9, 'val': 0.1}.")
    total = sum(shares.values(), Fraction(0))
    if total > 1 + _SUM_TOLERANCE:
        remedy = "Make one smaller." if max(shares.values()) < 1 else "Divide numbers of elements by the length."
        raise UsageError(
            f"fractions must add up to at most 1; got {dict(fractions)!r}, that is {float(total)!r}. {remedy}"
        )
    parts = list(shares.values())
    if total >= 1 - _SUM_TOLERANCE:
        parts = [share / total for share in parts]
    else:
        parts.append(1 - total)  # the remaining elements are one more part, which is dropped below
    return dict(zip(shares, _largest_remainder(length, parts), strict=False))


def _checked_share(name: str, fraction: object) -> Fraction:
    """Return the number that a fraction prints as: 0.1 is a tenth, not the double next to it.

    Raises:
        UsageError: if it is no number over 0.
    """
    number = 0.0 if isinstance(fraction, bool) or not isinstance(fraction, Real) else float(fraction)
    if not 0 < number < float("inf"):
        raise UsageError(
            f"a fraction must be a number over 0; got {name}={fraction!r}. Omit parts that you don't want."
        )
    return Fraction(repr(number))


def _largest_remainder(length: int, parts: list[Fraction]) -> list[int]:
    """Return whole numbers near to `length * part` that add up to `length`; the parts must add up to 1."""
    quotas = [part * length for part in parts]
    counts = [int(quota) for quota in quotas]
    by_loss = sorted(range(len(parts)), key=lambda part: counts[part] - quotas[part])
    for part in by_loss[: length - sum(counts)]:
        counts[part] += 1
    return counts
