"""The permutation of a shuffle: a keyed bijection of [0, length), computed per position rather than stored.

The problem: an exact shuffle of a billion elements, of which each worker, rank and resume needs any part, without the
eight gigabytes of a shuffled list and without the time to make it. The solution: a Feistel network, which is a
bijection for any round function, with cycle walking for lengths that are no power of two; and a table for short
permutations, where a network of few bits shows patterns. Rejected: a shuffled list (memory, and a start in proportion
to the length), and a window shuffle (no exact permutation). The docstring of `Permutation` specifies the order bit by
bit.

The samplers use one permutation per epoch. Its seed is hashed from the epoch, so that epochs are unrelated.
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock import _native
from penstock._frozen import frozen
from penstock._seeds import derive
from penstock.sampling._arguments import check_position, check_positions, checked_length, checked_seed, int64_block
from penstock.sampling._sampler import OrderFacts, OwnSampler

_LARGEST_TABLE = 65_536
_LARGEST_SMALL_TABLE = 1_024
_FEW: Final = 16  # up to this number of epochs, Python compares them faster than NumPy


@frozen
class Permutation:
    """The numbers [0, length) in the order of `seed`; the cost of any part is in proportion to its own length.

    It is a value: two are equal if their lengths and seeds are, and it is pickled as these two numbers. Over 65,536
    positions it takes no memory; below, a table of two bytes a position, and the last tables are cached. The order is a
    compatibility promise: it is the same on every machine, and never changes. All methods may be called from any
    thread; the block forms release the GIL.

    The order, bit by bit. All arithmetic is on unsigned 64-bit integers, modulo 2**64, unless 32 is named; `mix`,
    `derive` and `GOLDEN` are those of all seeds: `mix` is the finaliser of SplitMix64,

        mix(x):  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;  x ^ (x >> 31)

    `GOLDEN` is 0x9E3779B97F4A7C15, and `derive(seed, n)` is mix(mix(seed + GOLDEN) ^ mix(n + 0x243F6A8885A308D3)).
    The permutation of `length` positions draws numbers from r(j) = mix(derive(seed, length) + j * GOLDEN), j = 1, 2, …

    *Up to 65,536 positions* the key at a position is table[position]. The table starts as 0, 1, …, length - 1. For
    last = length - 1 down to 1, with the next number r, table[last] and table[floor(r * (last + 1) / 2**64)] are
    exchanged, where the product is exact (Fisher and Yates; Durstenfeld, 1964).

    *Beyond that* let bits be the smallest number with 2**bits >= length. The position is split into left, its upper
    floor(bits / 2) bits, and right, the others. The round keys k(0) to k(7) are the upper 32 bits of r(1) to r(8).
    Eight rounds of a Feistel network follow: in rounds 0, 2, 4 and 6 left becomes left ^ hash(right ^ k(round)), in
    rounds 1, 3, 5 and 7 right becomes right ^ hash(left ^ k(round)). Only as many low bits of the hash are used as the
    changed side has, and, modulo 2**32,

        hash(x):  x = x * 0x7FEB352D;  x = (x ^ (x >> 15)) * 0x846CA68B;  x ^ (x >> 16)

    with the multipliers of `lowbias32` (Wellons, 2018). If left * 2**(bits of right) + right is below `length`, it is
    the key; else the eight rounds are repeated until it is (cycle walking: Black and Rogaway, 2002), fewer than two
    times on average. With four rounds the statistics of short permutations show a pattern; therefore there are eight,
    and a table for short ones. It is no cipher: it keeps no secrets.

    Attributes:
        length: the number of positions, from 0 to 2**62.
        seed: from 0 to 2**64 - 1. Use `derive`, or any number: neighbouring seeds give unrelated orders.

    Raises:
        UsageError: if `length` or `seed` is out of range.

    Example:
        >>> permutation = Permutation(5, seed=7)
        >>> sorted(permutation(position) for position in range(5))
        [0, 1, 2, 3, 4]
        >>> huge = Permutation(2**40 + 1, seed=7)
        >>> huge.inverse(huge(123456789))
        123456789
    """

    length: int
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))
        object.__setattr__(self, "seed", checked_seed(self.seed))

    def __len__(self) -> int:
        """Return the number of positions."""
        return self.length

    def __call__(self, position: int) -> int:
        """Return the key at `position`.

        Raises:
            IndexError: if `position` is not in [0, length).
        """
        position = operator.index(position)
        check_position(position, self.length)
        return _native_permutation(self.length, self.seed).key_at(position)

    def block(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the keys at `positions`, computed at once.

        Args:
            positions: int64 of shape (n,), in any order, with or without repetitions.

        Returns:
            int64 of shape (n,): the key of each position.

        Raises:
            IndexError: if a position is not in [0, length).
            UsageError: if `positions` are not integers in an array of one axis.

        Example:
            >>> permutation = Permutation(1_000_000, seed=7)
            >>> permutation.block(np.arange(3)).tolist() == [permutation(position) for position in range(3)]
            True
        """
        array = int64_block("positions", positions)
        keys = np.empty_like(array)
        filled = _native_permutation(self.length, self.seed).keys_at(array, keys)
        if filled < array.size:
            check_position(int(array[filled]), self.length)
        return keys

    def inverse(self, key: int) -> int:
        """Return the position of `key`.

        Raises:
            IndexError: if `key` is not in [0, length).
        """
        key = operator.index(key)
        check_position(key, self.length, "key")
        return _native_permutation(self.length, self.seed).position_of(key)

    def inverse_block(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Return the positions of `keys`, computed at once.

        Args:
            keys: int64 of shape (n,), in any order, with or without repetitions.

        Returns:
            int64 of shape (n,): the position of each key.

        Raises:
            IndexError: if a key is not in [0, length).
            UsageError: if `keys` are not integers in an array of one axis.

        Example:
            >>> permutation = Permutation(1_000_000, seed=7)
            >>> permutation.inverse_block(permutation.block(np.arange(3))).tolist()
            [0, 1, 2]
        """
        array = int64_block("keys", keys)
        positions = np.empty_like(array)
        filled = _native_permutation(self.length, self.seed).positions_of(array, positions)
        if filled < array.size:
            check_position(int(array[filled]), self.length, "key")
        return positions


def _native_permutation(length: int, seed: int) -> _native.Permutation:
    """Return the table or the round keys of a permutation."""
    if length > _LARGEST_TABLE:
        return _keyed(length, seed)
    return _large_table(length, seed) if length > _LARGEST_SMALL_TABLE else _small_table(length, seed)


def _make(length: int, seed: int) -> _native.Permutation:
    return _native.Permutation(length, derive(seed, length))


# A mixture uses the permutations of hundreds of components, a row of each at a time, and making a table costs as much
# as thousands of rows, so many tables are cached. A table takes two bytes a position, and as much again once it is
# inverted. Before that, all small ones together take at most 8 MiB, all large ones 64 MiB.
_small_table = lru_cache(maxsize=4096)(_make)
_large_table = lru_cache(maxsize=512)(_make)
_keyed = lru_cache(maxsize=4096)(_make)


@frozen
class Shuffle(OwnSampler):
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

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(takes_once=True, keeps_all=True)

    def __penstock_reach__(self) -> int | None:
        return self.length

    def __penstock_reseeded__(self, change: Callable[[int], int]) -> Self:
        return replace(self, seed=change(self.seed))

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
        return epochs, by_epoch(self._keys_in, epochs, positions)

    def _keys_in(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return _permutation(self.length, self.seed, epoch).block(positions)


@frozen
class Reorder(OwnSampler):
    """The order of a slice of a shuffle: epoch 0 is unchanged, and every later epoch is shuffled.

    A slice of a shuffle has the same elements in all epochs: those that epoch 0 of the shuffle puts there. In epoch 0
    they keep the shuffle's order; every later epoch needs another order.

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

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(takes_once=True, keeps_all=True)

    def __penstock_reseeded__(self, change: Callable[[int], int]) -> Self:
        return replace(self, seed=change(self.seed))

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
        return epochs, by_epoch(self._keys_in, epochs, positions)

    def _keys_in(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if epoch == 0:
            check_positions(positions, self.length)
            return positions
        return _permutation(self.length, self.seed, epoch).block(positions)


@lru_cache(maxsize=4096)  # a few integers each; mixtures have hundreds of components
def _permutation(length: int, seed: int, epoch: int) -> Permutation:
    return Permutation(length, derive(seed, epoch))


def by_epoch(
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
