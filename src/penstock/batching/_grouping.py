"""A grouping says, for every element of a planned dataset, which of the parent's elements it is made of, and how.

Groups are planned from lengths that are known beforehand, so that any group can be made on its own: a packed sequence
from some documents, a batch from elements of about one size.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Grouping(Protocol):
    """Which of the parent's elements make each group, and what is made of them. Frozen, comparable, picklable."""

    def __len__(self) -> int:
        """Return the number of groups."""
        ...

    def members(self, groups: NDArray[np.int64], /) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many members each of the groups has, and the parent's positions of all of them, in turn.

        Args:
            groups: int64 of shape (n,), numbers of groups.

        Returns:
            Counts, int64 of shape (n,), each at least 1; and positions, int64 of shape (sum of counts,).
        """
        ...

    def merge(self, groups: NDArray[np.int64], elements: list[Any], /) -> list[Any]:
        """Return what is made of each group.

        Args:
            groups: as in `members`.
            elements: the parent's elements at the positions that `members` gives.
        """
        ...

    def fingerprint(self) -> str:
        """Return what tells this grouping from others: a short text, the same in every process."""
        ...
