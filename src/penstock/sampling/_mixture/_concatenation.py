"""Concatenation: one component after another. A search in the sums of the lengths finds the component."""

import itertools
from bisect import bisect_right
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import LARGEST_LENGTH, check_position, check_positions, checked_length


@frozen(cached=True)
class Concatenation:
    """All elements of the first component, then all of the second, and so on; the epoch is unchanged.

    Attributes:
        lengths: the number of elements of each component, from 0 to 2**62, as must be their sum.

    Raises:
        UsageError: if a length, or their sum, is out of range.

    Example:
        >>> concatenation = Concatenation((3, 0, 5))
        >>> len(concatenation), concatenation(1, 2), concatenation(1, 3)
        (8, (0, 1, 2), (2, 1, 0))
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(checked_length(length) for length in self.lengths))
        if sum(self.lengths) > LARGEST_LENGTH:
            raise UsageError(
                f"the lengths must add up to at most 2**62; got {sum(self.lengths)} from {len(self.lengths)} "
                "components. A component without end can't be concatenated; take a part of it."
            )

    @cached_property
    def _stops(self) -> list[int]:
        return list(itertools.accumulate(self.lengths))

    @cached_property
    def _bounds_block(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        stops = np.array(self._stops, np.int64)
        return stops - np.array(self.lengths, np.int64), stops

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self._stops[-1] if self._stops else 0

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int, int]:
        """Return (component, epoch, position) of one position."""
        check_position(position, len(self))
        component = bisect_right(self._stops, position)
        return component, epoch, position - (self._stops[component] - self.lengths[component])

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (components, epochs, positions) of many positions: int64, all of shape (n,)."""
        check_positions(positions, len(self))
        if not len(positions):
            return positions, epochs, positions
        first = bisect_right(self._stops, int(positions.min()))
        start = self._stops[first] - self.lengths[first]
        if int(positions.max()) < self._stops[first]:  # usually the whole block is in one component
            return np.full_like(positions, first), epochs, positions if start == 0 else positions - start
        starts, stops = self._bounds_block
        components = np.searchsorted(stops, positions, side="right").astype(np.int64, copy=False)
        return components, epochs, positions - starts.take(components)
