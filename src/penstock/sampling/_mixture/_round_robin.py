"""Round robin: one element of each component in turn; components that have ended are left out.

Sorted by length, the components end one after another. Between two ends the number of remaining components is constant,
and a position there is a round and a place in the round.
"""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import LARGEST_LENGTH, check_position, check_positions, checked_length

_ROUNDS_KEPT = 64  # stretches whose lists of components are cached


@frozen(cached=True)
class RoundRobin:
    """The first element of each component, then the second of each that has one, and so on; the epoch is unchanged.

    Attributes:
        lengths: the number of elements of each component, from 0 to 2**62, as must be their sum.

    Raises:
        UsageError: if a length, or their sum, is out of range.

    Example:
        >>> turns = RoundRobin((1, 3))
        >>> [turns(0, position)[::2] for position in range(len(turns))]
        [(0, 0), (1, 0), (1, 1), (1, 2)]
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(checked_length(length) for length in self.lengths))
        if sum(self.lengths) > LARGEST_LENGTH:
            raise UsageError(
                f"the lengths must add up to at most 2**62; got {sum(self.lengths)} from {len(self.lengths)} "
                "components. Take a part of each component without end."
            )

    @cached_property
    def _stretches(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first round and the first position of each stretch, and of an empty one at the end."""
        lengths = np.sort(np.array(self.lengths, np.int64))
        rounds = np.unique(np.concatenate([np.zeros(1, np.int64), lengths]))
        remaining = len(lengths) - np.searchsorted(lengths, rounds, side="right")
        positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(rounds) * remaining[:-1])])
        return rounds, positions

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return sum(self.lengths)

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int, int]:
        """Return (component, epoch, position) of one position."""
        check_position(position, len(self))
        components, epochs, positions = self.block(np.array([epoch], np.int64), np.array([position], np.int64))
        return int(components[0]), int(epochs[0]), int(positions[0])

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (components, epochs, positions) of many positions: int64, all of shape (n,)."""
        check_positions(positions, len(self))
        rounds, starts = self._stretches
        stretches = np.searchsorted(starts, positions, side="right") - 1
        components, keys = np.empty_like(positions), np.empty_like(positions)
        for stretch in np.unique(stretches).tolist():
            remaining = _remaining(self.lengths, int(rounds[stretch]))
            chosen = stretches == stretch
            turn, place = np.divmod(positions[chosen] - starts[stretch], len(remaining))
            components[chosen], keys[chosen] = remaining[place], turn + rounds[stretch]
        return components, epochs, keys


@lru_cache(maxsize=_ROUNDS_KEPT)
def _remaining(lengths: tuple[int, ...], after: int) -> NDArray[np.int64]:
    """Return the components that have more than `after` elements."""
    return np.flatnonzero(np.array(lengths, np.int64) > after)
