"""Weighted draws with replacement: a hash of epoch and position chooses the key of each position by its weight.

The problem: any position of any epoch must be computed alone and in constant time, with the same result on every
machine. The solution: an alias table in integers. Rejected: a binary search in the sums of the weights, whose time
grows with their number; and a generator with a state, whose n-th number needs all numbers before it.
"""

import math
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._seeds import derive, derive_block
from penstock.errors import UsageError
from penstock.sampling._arguments import array_digest, check_position, check_positions, checked_length, checked_seed

_LARGEST_MASS: Final = 2**62
_HASH_SHIFT: Final = 2  # of the hash's 64 bits, the upper 62 count


@frozen(cached=True)
class WeightedDraws:
    """Keys drawn by weight, with replacement: (e, p) to (e, key), with probability weights[key] / sum(weights).

    Every position is an independent draw, a function of only (seed, e, p): any position of any epoch is computed in
    constant time, and epochs are unrelated. A key of weight 0 is never drawn.

    The algorithm: an alias table (Walker, 1977; Vose, 1991) in integers. With n weights, each of n columns has the mass
    c = 2**62 // n. The upper 62 bits of derive(seed, e, p), modulo n * c, are split into a column and a rest below c;
    the key is the column's number if the rest is below the column's threshold, else the column's alias. The weights
    are rounded to units of a total mass of n * c: a key's probability is off by at most 2**-50 of itself plus n *
    2**-60. The sum of the weights is rounded once (`math.fsum`), so that all machines draw the same keys.

    Two are equal if their weights, lengths and seeds are. The repr has a digest of the weights. Each weight
    takes eight bytes, and sixteen more from the first draw on, which a pickle leaves out.

    Attributes:
        weights: float64 of shape (n,) for a parent of n elements, finite, none negative and not all 0; in any unit.
            It is copied, and the copy is read-only.
        length: the number of draws in an epoch, from 0 to 2**62.
        seed: from 0 to 2**64 - 1.

    Raises:
        UsageError: if one of them is invalid.

    Example:
        >>> draws = WeightedDraws(np.array([1.0, 0.0, 3.0]), length=4000, seed=7)
        >>> _, keys = draws.block(np.zeros(4000, np.int64), np.arange(4000))
        >>> (np.bincount(keys) / 1000).round(1).tolist()
        [1.0, 0.0, 3.0]
    """

    weights: NDArray[np.float64]
    length: int
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _checked_weights(self.weights))
        object.__setattr__(self, "length", checked_length(self.length))
        object.__setattr__(self, "seed", checked_seed(self.seed))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self.length

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        check_position(position, self.length)
        thresholds, aliases = self._table
        capacity = _LARGEST_MASS // len(thresholds)
        value = (derive(self.seed, epoch, position) >> _HASH_SHIFT) % (capacity * len(thresholds))
        column, rest = divmod(value, capacity)
        return epoch, column if rest < thresholds[column] else int(aliases[column])

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        check_positions(positions, self.length)
        if not len(positions):
            return epochs, positions
        thresholds, aliases = self._table
        capacity = _LARGEST_MASS // len(thresholds)
        values = (derive_block(self.seed, epochs, positions) >> np.uint64(_HASH_SHIFT)).view(np.int64)
        values %= capacity * len(thresholds)
        columns = values // capacity
        values -= columns * capacity
        return epochs, np.where(values < thresholds[columns], columns, aliases[columns])

    @cached_property
    def _table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return _alias_table(_masses(self.weights))

    @cached_property
    def _digest(self) -> str:
        return array_digest(self.weights)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightedDraws):
            return NotImplemented
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash((self._digest, self.length, self.seed))

    def __repr__(self) -> str:
        count = len(self.weights)
        return f"WeightedDraws(<{count} weights {self._digest}>, length={self.length}, seed={self.seed})"

    def __reduce__(self) -> tuple[type[Self], tuple[NDArray[np.float64], int, int]]:
        # Through the constructor: it leaves the table out, and makes the array read-only, which pickle doesn't.
        return type(self), (self.weights, self.length, self.seed)


def _checked_weights(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    given = np.asarray(weights)
    if given.ndim != 1 or given.dtype.kind not in "fiu":
        raise UsageError(
            f"weights must be a float64 array of one axis; got dtype {given.dtype} and shape {given.shape}. "
            "Pass one number for each of the parent's elements."
        )
    checked = np.array(given, np.float64)
    checked += 0.0  # -0.0 becomes 0.0, so that equal weights have one digest
    wrong = ~(np.isfinite(checked) & (checked >= 0))
    if wrong.any():
        number = int(wrong.argmax())
        raise UsageError(
            f"weights must be finite and not negative; got {checked[number]} for element {number}. "
            "Use 0 for elements that should never be drawn."
        )
    if not checked.any():
        raise UsageError(
            f"weights must not all be 0; got {len(checked)} of them and none over 0. Pass one weight over 0."
        )
    checked.flags.writeable = False
    return checked


def _masses(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return n integers in proportion to the weights, whose sum is n * (2**62 // n) exactly."""
    total = _LARGEST_MASS // len(weights) * len(weights)
    shares = weights / weights.max()
    # Rounded down twice, so that the sum doesn't exceed the total.
    masses: NDArray[np.int64] = (shares * (total / math.fsum(shares.tolist()) * (1 - 2.0**-50))).astype(np.int64)
    masses += (masses * ((total - int(masses.sum())) / total)).astype(np.int64)
    drawn = np.flatnonzero(masses)
    masses[drawn[: total - int(masses.sum())]] += 1  # fewer than one for each is left by the rounding
    return masses


def _alias_table(masses: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the thresholds and aliases of n columns of one capacity, into which the n masses fit exactly.

    Heavy masses, those above the capacity, give their excess to light ones, both in order: each light mass takes all
    that it lacks from the current heavy one. If a heavy mass has then given more than its excess, it takes the
    difference from the next heavy one. Cumulative sums of the lacking and of the excess masses determine the pairs, so
    there is no loop (after Hübschle-Schneider and Sanders, "Parallel Weighted Random Sampling", 2019).
    """
    capacity = _LARGEST_MASS // len(masses)
    thresholds = np.minimum(masses, capacity)
    aliases = np.arange(len(masses))
    light = np.flatnonzero(masses < capacity)
    if len(light):
        heavy = np.flatnonzero(masses >= capacity)
        lacking = np.concatenate(([0], np.cumsum(capacity - masses[light])))
        over = np.cumsum(masses[heavy] - capacity)
        aliases[light] = heavy[np.searchsorted(over, lacking[:-1], side="right")]
        given = lacking[np.searchsorted(lacking, over, side="left")] - over
        thresholds[heavy] = capacity - given
        aliases[heavy[:-1]] = heavy[1:]  # the last heavy mass lacks nothing
    return thresholds, aliases
