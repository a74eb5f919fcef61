"""The elements whose bit is set, as after a filter with known results, in little more than a bit for each."""

from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import check_position, check_positions, checked_length
from penstock.sampling._digest import array_digest

_WORD_BYTES: Final = 64  # 512 bits, with one entry in the directory
_WORD_BITS: Final = _WORD_BYTES * 8
_COUNTED_WORDS: Final = 1 << 11  # counted at a time; a count needs nine bytes for each eight bits: a megabyte
_BITS_OF_BYTE: Final = np.array([value.bit_count() for value in range(256)], np.uint8)


@frozen(cached=True)
class Bits:
    """The elements whose bit is set, in their order: (e, p) to (e, position of set bit number p).

    A directory holds the number of set bits before every 512th (a rank directory, after Jacobson, 1989). A lookup
    searches there, and unpacks 512 bits. The bits are never unpacked as a whole: a billion elements take 125 MB, and 16
    MB for the directory, which a pickle leaves out.

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
