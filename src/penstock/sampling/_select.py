"""Parts of a dataset: an arithmetic sequence of positions, or a list of them. The epoch is unchanged."""

import hashlib
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import (
    LARGEST_LENGTH,
    check_position,
    check_positions,
    checked_integer,
    checked_length,
    int64_block,
)


@frozen
class Slice:
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
class Select:
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
