"""Elements that yield several each, in known numbers: a search finds the parent's element of a position."""

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
    """The elements that the parent yields, counts[i] for its element i, one after another.

    Two are equal if their counts are. The repr has a digest of the counts. They take sixteen bytes an element of the
    parent, of which eight are left out of a pickle.

    Attributes:
        counts: int64 of shape (n,) for a parent of n elements, none negative, in the sum at most 2**62. It is copied,
            and the copy is read-only.

    Raises:
        UsageError: if it is invalid.

    Example:
        >>> ragged = Ragged(np.array([2, 0, 3]))
        >>> [ragged.locate_one(position) for position in range(len(ragged))]
        [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", checked_counts("counts", self.counts))

    def __len__(self) -> int:
        """Return the number of all elements."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate_one(self, position: int) -> tuple[int, int]:
        """Return (parent, ordinal): the position of the parent's element, and the number, from 0, among its elements.

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
            The positions of the parent's elements, and the numbers, both int64 of shape (n,).

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
        """For each of the parent's elements, the number of elements up to its last one."""
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
        # Through the constructor, since an unpickled array is writable.
        return type(self), (self.counts,)


def checked_counts(name: str, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a read-only copy of numbers that aren't negative and add up to at most 2**62.

    Raises:
        UsageError: if they are invalid.
    """
    checked = int64_block(name, counts).copy()
    if checked.size and checked.min() < 0:
        raise UsageError(
            f"{name} must not be negative; got {checked.min()} for element {checked.argmin()}. Use 0 for none."
        )
    sums = checked.cumsum()
    # The first sum over 63 bits is negative, since both summands are below 2**63.
    outside = (sums < 0) | (sums > LARGEST_LENGTH)
    if outside.any():
        raise UsageError(
            f"{name} must add up to at most 2**62; got more up to element {outside.argmax()}. Use a smaller part."
        )
    checked.flags.writeable = False
    return checked
