"""Shuffles: one permutation per epoch, with a seed that is hashed from the epoch, so that epochs are unrelated."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._seeds import derive
from penstock.sampling._arguments import check_position, check_positions, checked_length, checked_seed
from penstock.sampling._permutation import Permutation

_FEW: Final = 16  # epochs, which Python compares faster than NumPy


@frozen
class Shuffle:
    """All elements in another order every epoch: (e, p) to (e, Permutation(length, derive(seed, e))(p)).

    Every epoch is an exact permutation, for every length, in O(1) memory. The epoch is hashed into the seed rather than
    added to it, so that seed 1 in epoch 1 is unrelated to seed 2 in epoch 0.

    Attributes:
        length: the parent's length, from 0 to 2**62.
        seed: from 0 to 2**64 - 1.

    Raises:
        UsageError: if `length` or `seed` is out of range.

    Example:
        >>> shuffle = Shuffle(5, seed=7)
        >>> sorted(key for _, key in (shuffle(0, position) for position in range(5)))
        [0, 1, 2, 3, 4]
        >>> shuffle(3, 0) == (3, Permutation(5, derive(7, 3))(0))
        True
    """

    length: int
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))
        object.__setattr__(self, "seed", checked_seed(self.seed))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self.length

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        return epoch, _permutation(self.length, self.seed, epoch)(position)

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        return epochs, _by_epoch(self._keys_in, epochs, positions)

    def _keys_in(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return _permutation(self.length, self.seed, epoch).block(positions)


@frozen
class Reorder:
    """The order of a slice of a shuffle: epoch 0 unchanged, every later epoch shuffled.

    Epoch 0 of the shuffle determines the set of elements of the slice, which must not change. In epoch 0 the order must
    be that of the shuffle, and in every later epoch another one.

    Attributes:
        length: the parent's length, from 0 to 2**62.
        seed: from 0 to 2**64 - 1.

    Raises:
        UsageError: if `length` or `seed` is out of range.

    Example:
        >>> reorder = Reorder(5, seed=7)
        >>> [reorder(0, position)[1] for position in range(5)]
        [0, 1, 2, 3, 4]
        >>> reorder(1, 0) == Shuffle(5, seed=7)(1, 0)
        True
    """

    length: int
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))
        object.__setattr__(self, "seed", checked_seed(self.seed))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self.length

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        if epoch == 0:
            check_position(position, self.length)
            return epoch, position
        return epoch, _permutation(self.length, self.seed, epoch)(position)

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        return epochs, _by_epoch(self._keys_in, epochs, positions)

    def _keys_in(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if epoch == 0:
            check_positions(positions, self.length)
            return positions
        return _permutation(self.length, self.seed, epoch).block(positions)


@lru_cache(maxsize=4096)  # a few integers each; mixtures have hundreds of components
def _permutation(length: int, seed: int, epoch: int) -> Permutation:
    return Permutation(length, derive(seed, epoch))


def _by_epoch(
    keys_in: Callable[[int, NDArray[np.int64]], NDArray[np.int64]],
    epochs: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the keys of all positions, by one call of `keys_in(epoch, positions)` for each epoch."""
    if not len(epochs):
        return positions
    first = epochs[0]
    few = len(epochs) <= _FEW
    if (epochs.tolist().count(int(first)) == len(epochs)) if few else (epochs == first).all():
        return keys_in(int(first), positions)
    order = np.argsort(epochs, kind="stable")
    keys = np.empty_like(positions)
    for rows in np.split(order, np.flatnonzero(np.diff(epochs[order])) + 1):
        keys[rows] = keys_in(int(epochs[rows[0]]), positions[rows])
    return keys
