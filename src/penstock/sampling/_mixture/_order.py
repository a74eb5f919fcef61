"""The order of members within a mixture's periods: exact in each period, and even in every batch and on every rank.

The problem: each period must hold exactly its share of each member; a batch, and the rows of one rank in every batch,
should hold nearly their shares; and the element at any position, and the number of elements of each member before it,
must be computed in constant time, so that a resume is arithmetic.

The solution: a period is P places, of which member c has exactly w_c. The *base order* is a lattice: the value of place
i is (i * g + s) mod P, with g prime to P and near P / golden ratio, and each member owns a run of w_c values. So any
run of places, and any arithmetic progression of them, holds nearly its share of each member.

Every period is the base order *rotated*. The rotation of period j follows a Kronecker sequence, the fraction of
j / golden ratio + shift, scaled to the number of rotations. All rotations occur equally often, also among every second,
third or eighth period, since the golden ratio is as far from ratios of small numbers as a number can be. So no rank and
no batch size gets one member more often than another.

Rejected: a hash for the rotation. It is even on average, but with the deviations of dice: with ratios 3:1 on eight
ranks, over 100,000 elements, of more than 1 % of the smaller share. Rejected: a random draw for each position, whose
shares are not exact, and whose counts need a scan.

The number of elements of a member before a place is its weight times the full periods, plus its places in the base
order between the rotation's start and the place. The latter is the difference of two tabulated counts: up to each place
(P entries), and up to the start of each rotation, for each member. To bound the second table there are at most
2**15 / members rotations (but at least 16), their starts again prime to the period.

The idea of both sequences: H. Niederreiter, Random Number Generation and Quasi-Monte Carlo Methods, 1992, chapters 3
and 5.
"""

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._seeds import GOLDEN, MASK, derive

_MAX_COUNTS = 2**15
_MIN_ROTATIONS = 16
_RANK_BITS = 16
_RANK_MASK = 2**_RANK_BITS - 1


@frozen(eq=False, cached=True)
class PeriodOrder:
    """The member at an offset from the start of the first period, and the number of its elements before that offset.

    Its tables take 4 bytes a place, and 4 bytes for each member and rotation: at most 0.4 MB, except for more than
    2,048 members, where the second takes 64 bytes a member. They are computed at the first use.

    Attributes:
        weights: the number of places of each member in a period, at least 1, in the sum at most 2**16.
        seed: any 64 bits.

    Example:
        >>> order = PeriodOrder((3, 1), seed=7)
        >>> sorted(order(offset) for offset in range(8))
        [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1)]
        >>> order.counts(4).tolist()
        [3, 1]
    """

    weights: tuple[int, ...]
    seed: int

    @cached_property
    def period(self) -> int:
        """The number of places in a period."""
        return sum(self.weights)

    @cached_property
    def _weights_block(self) -> NDArray[np.int64]:
        return np.array(self.weights, np.int64)

    @cached_property
    def _rotations(self) -> int:
        return min(self.period, max(_MIN_ROTATIONS, _MAX_COUNTS // len(self.weights)))

    @cached_property
    def _rotation_step(self) -> int:
        """The number of places between the starts of two neighbouring rotations."""
        largest = self.period // self._rotations
        return next(step for step in range(largest, 0, -1) if math.gcd(step, self.period) == 1)

    @cached_property
    def _rotation_shift(self) -> int:
        return derive(self.seed, "mixture rotation")

    def _members(self) -> NDArray[np.uint16]:
        """Return the base order: the member at each place."""
        step = _prime_near(self.period, 0.618034)
        shift = derive(self.seed, "mixture order") % self.period
        owners = np.repeat(np.arange(len(self.weights), dtype=np.uint16), self._weights_block)
        return owners[(np.arange(self.period) * step + shift) % self.period]

    @cached_property
    def _places(self) -> NDArray[np.uint32]:
        """For each place of the base order, in one number: its member, and the count of its earlier places."""
        members = self._members()
        by_member = np.argsort(members, kind="stable")
        firsts = np.cumsum(self._weights_block) - self._weights_block
        ranks = np.arange(self.period) - np.repeat(firsts, self._weights_block)
        places = np.empty(self.period, np.uint32)
        places[by_member] = ranks
        return places | (members.astype(np.uint32) << np.uint32(_RANK_BITS))

    @cached_property
    def _before_rotation(self) -> NDArray[np.int32]:
        """The number of places of each member before the start of each rotation: by rotation, then by member."""
        members, rotations = len(self.weights), self._rotations
        # The first rotation that starts after each place; the last places have none.
        counted_from = np.arange(self.period) // self._rotation_step + 1
        last = int(np.searchsorted(counted_from, rotations))
        cells = counted_from[:last] * members + self._members()[:last]
        counts = np.bincount(cells, minlength=rotations * members).reshape(rotations, members)
        return np.cumsum(counts, axis=0, dtype=np.int32).reshape(-1)

    def __call__(self, offset: int) -> tuple[int, int]:
        """Return the member at one offset, from 0 to 2**62, and the number of its elements before that offset."""
        number, place = divmod(offset, self.period)
        rotation = self._rotation(number)
        wraps, place = divmod(place + rotation * self._rotation_step, self.period)
        member, rank = divmod(self._places.item(place), 2**_RANK_BITS)
        skipped = self._before_rotation.item(rotation * len(self.weights) + member)
        return member, (number + wraps) * self.weights[member] + rank - skipped

    def block(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the results of the scalar form for many offsets: int64, all of shape (n,)."""
        numbers = offsets // self.period
        mixed = numbers.view(np.uint64) * np.uint64(GOLDEN) + np.uint64(self._rotation_shift)
        rotations = (((mixed >> np.uint64(32)) * np.uint64(self._rotations)) >> np.uint64(32)).view(np.int64)
        places = offsets - numbers * self.period + rotations * self._rotation_step
        wraps = places >= self.period
        places -= wraps * self.period
        found = self._places.take(places).astype(np.int64)
        members = found >> _RANK_BITS
        found &= _RANK_MASK
        found -= self._before_rotation.take(rotations * len(self.weights) + members)
        numbers += wraps
        found += numbers * self._weights_block.take(members)
        return members, found

    def counts(self, offset: int) -> NDArray[np.int64]:
        """Return the number of elements of each member before an offset: int64 of shape (members,)."""
        number, place = divmod(offset, self.period)
        partial = np.bincount(self._members_of_period(number)[:place], minlength=len(self.weights))
        return number * self._weights_block + partial

    def first_beyond(self, limits: NDArray[np.int64]) -> int:
        """Return the first offset whose member has had as many elements as its limit; it may be over 2**62.

        Args:
            limits: int64 of shape (members,), from 0 to 2**62.
        """
        full_periods = limits // self._weights_block
        number = int(full_periods.min())
        candidates = np.flatnonzero(full_periods == number)
        left = limits[candidates] - number * self._weights_block[candidates]
        by_member = np.argsort(self._members_of_period(number), kind="stable")
        firsts = np.cumsum(self._weights_block) - self._weights_block
        return number * self.period + int(by_member[firsts[candidates] + left].min())

    def _rotation(self, number: int) -> int:
        fraction = (number * GOLDEN + self._rotation_shift & MASK) >> 32
        return (fraction * self._rotations) >> 32

    def _members_of_period(self, number: int) -> NDArray[np.uint16]:
        return np.roll(self._members(), -self._rotation(number) * self._rotation_step)


def _prime_near(period: int, ratio: float) -> int:
    """Return the number nearest to `period * ratio` that has no common divisor with `period`."""
    middle = round(period * ratio)
    distances = (sign * distance for distance in range(period + 1) for sign in (1, -1))
    return next(middle + distance for distance in distances if math.gcd(middle + distance, period) == 1)
