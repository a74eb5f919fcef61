"""The protocol of a grouping, which maps every element of a planned dataset to the parent's elements in it.

Groups are planned from known lengths, so that any group can be computed alone: a packed sequence of some documents, or
a batch of elements of similar size.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Grouping(Protocol):
    """The parent's elements of each group, and their merge. Frozen, comparable, picklable."""

    def __len__(self) -> int:
        """Return the number of groups."""
        ...

    def members(self, groups: NDArray[np.int64], /) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of members of each group, and the parent's positions of all of them, in order.

        Args:
            groups: int64 of shape (n,), numbers of groups.

        Returns:
            Counts, int64 of shape (n,), each at least 1; and positions, int64 of shape (sum of counts,).
        """
        ...

    def merge(self, groups: NDArray[np.int64], elements: list[Any], /) -> list[Any]:
        """Return the merged element of each group.

        Args:
            groups: as in `members`.
            elements: the parent's elements at the positions from `members`.
        """
        ...

    def fingerprint(self) -> str:
        """Return a short text that identifies this grouping, the same in every process."""
        ...
