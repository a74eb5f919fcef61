"""Elements that yield several each, in numbers known beforehand: which of them stands at a position, by a search."""

from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import LARGEST_LENGTH, check_position, check_positions, int64_block
from penstock.sampling._digest import array_digest


@frozen(cached=True)
class Ragged:
    """The parent's element i yields counts[i] elements, all of them one after the other.

    Two are equal if their counts are. The repr holds a digest of the counts. They take sixteen bytes an element of the
    parent, of which eight are left out of a pickle.

    Attributes:
        counts: int64 of shape (n,) for a parent of n elements, none negative, in the sum at most 2**62. It is copied,
            and the copy cannot be written to.

    Raises:
        UsageError: if it is not so.

    Example:
        >>> ragged = Ragged(np.array([2, 0, 3]))
        >>> [ragged.locate_one(position) for position in range(len(ragged))]
        [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", checked_counts("counts", self.counts))

    def __len__(self) -> int:
        """Return the number of elements that are yielded in all."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate_one(self, position: int) -> tuple[int, int]:
        """Return (parent, ordinal): which of the parent's elements yields this one, and as what number, from 0.

        Args:
            position: in [0, len(self)).

        Raises:
            IndexError: if `position` is outside.

        Example:
            >>> Ragged(np.array([2, 0, 3])).locate_one(4)
            (2, 2)
        """
        check_position(position, len(self))
        parent = int(self._ends.searchsorted(position, side="right"))
        return parent, position - (int(self._ends[parent]) - int(self.counts[parent]))

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (parents, ordinals) of many positions.

        Args:
            positions: int64 of shape (n,), each in [0, len(self)), in any order.

        Returns:
            The parent's positions, and what numbers, both int64 of shape (n,).

        Raises:
            IndexError: if a position is outside.

        Example:
            >>> parents, ordinals = Ragged(np.array([2, 0, 3])).locate(np.array([4, 0]))
            >>> parents.tolist(), ordinals.tolist()
            ([2, 0], [2, 0])
        """
        check_positions(positions, len(self))
        parents = self._ends.searchsorted(positions, side="right").astype(np.int64, copy=False)
        return parents, positions - (self._ends[parents] - self.counts[parents])

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """For each of the parent's elements, how many it and those before it yield."""
        return self.counts.cumsum()

    @cached_property
    def _digest(self) -> str:
        return array_digest(self.counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"Ragged(<{len(self.counts)} counts {self._digest}>)"

    def __reduce__(self) -> tuple[type[Self], tuple[NDArray[np.int64]]]:
        # By way of the constructor, since a pickled array comes back writable.
        return type(self), (self.counts,)


def checked_counts(name: str, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a copy, not to be written to, of numbers that aren't negative and add up to at most 2**62.

    Raises:
        UsageError: if they are not so.
    """
    checked = int64_block(name, counts).copy()
    if checked.size and checked.min() < 0:
        raise UsageError(
            f"{name} must not be negative; got {checked.min()} for element {checked.argmin()}. Use 0 for none."
        )
    sums = checked.cumsum()
    # Where a sum first exceeds 63 bits it is negative, since neither of the two that were added is larger than that.
    outside = (sums < 0) | (sums > LARGEST_LENGTH)
    if outside.any():
        raise UsageError(
            f"{name} must add up to at most 2**62; got more up to element {outside.argmax()}. Use a smaller part."
        )
    checked.flags.writeable = False
    return checked
