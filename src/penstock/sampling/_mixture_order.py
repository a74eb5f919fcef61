"""The order of a weighted mixture: whole weights, an even order within each period, and stretches of constant weights.

The problem: each period must hold exactly its share of each member; a batch, and the rows of one rank in every batch,
should hold nearly their shares; and the element at any position, and the number of elements of each member before it,
must be computed in constant time, so that a resume is arithmetic.

The solution: a period is P places, of which member c has exactly w_c. The *base order* is a lattice: the value of place
i is (i * g + s) mod P, with g prime to P and near P / golden ratio, and each member owns a run of w_c values. So any
run of places, and any arithmetic progression of them, holds nearly its share of each member.

Every period is the base order *rotated*. The rotation of period j follows a Kronecker sequence, the fraction of
j / golden ratio + shift, scaled to the number of rotations. All rotations occur equally often, also among every second,
third or eighth period, since ratios of small numbers approximate the golden ratio worse than any other number. So no
rank and no batch size gets one member more often than another.

Rejected: a rotation by a hash of j. It is even on average, but deviates like dice: with ratios 3:1 on eight ranks, a
rank's share of the rarer member is off by more than 1 % after 100,000 elements. Rejected: a random draw for each
position. Its shares are not exact, and a scan would have to count the elements before a position.

The number of elements of a member before a place is its weight times the full periods, plus its places in the base
order between the rotation's start and the place. The latter is the difference of two tabulated counts: up to each place
(P entries), and up to the start of each rotation, for each member. To bound the second table there are at most
2**15 / members rotations (but at least 16); the distance between their starts is again prime to the period.

A *stretch* is a range of positions with constant weights and components. It begins where the schedule changes the
weights, or, if finished components are left out, at the position that would need an element of a finished one. Each
stretch knows the number of elements of every component before it, so each component continues at its next element: a
change loses and repeats no element. Elements before a position depend neither on later weights nor on how far a
component extends beyond them.

The idea of both sequences: H. Niederreiter, Random Number Generation and Quasi-Monte Carlo Methods, 1992, chapters 3
and 5.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from numbers import Integral, Rational, Real
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._seeds import GOLDEN, MASK, derive
from penstock.errors import UsageError
from penstock.sampling._arguments import LARGEST_LENGTH

LARGEST_PERIOD: Final = 2**16
_MAX_COUNTS = 2**15
_MIN_ROTATIONS = 16
_RANK_BITS = 16  # of an entry of `_places`: the count; the bits above are the member
_RANK_MASK = 2**_RANK_BITS - 1
Schedule = tuple[tuple[int, tuple[int, ...]], ...]


def integer_weights(weights: Sequence[float | Fraction]) -> tuple[int, ...]:
    """Return whole numbers in the ratios of `weights`, without a common divisor.

    A float counts as the decimal number of its repr: 0.1 is a tenth. The sum of the result is the mixture's period, at
    most 2**16 positions, in which each component has its exact share. Integers are never rounded. Floats or fractions
    that would need a longer period are rounded to a sum of 2**16 by the largest remainder, with at least 1 for each
    weight over 0; then common divisors are removed.

    Args:
        weights: one for each component, none negative and at least one over 0. Their sum may be any number.

    Returns:
        One integer for each weight; 0 for a weight of 0.

    Raises:
        UsageError: if one is negative or not finite, none is over 0, more than 2**16 are, or integers would need a
            period of more than 2**16.

    Example:
        >>> integer_weights([0.7, 0.2, 0.1]), integer_weights([30, 10]), integer_weights([0.5, 0])
        ((7, 2, 1), (3, 1), (1, 0))
    """
    numbers = [_checked_weight(place, weight) for place, weight in enumerate(weights)]
    positive = sum(map(bool, numbers))
    if not positive:
        raise UsageError(
            f"at least one weight must be over 0; got {list(weights)!r}. Pass a weight over 0 for a component."
        )
    if positive > LARGEST_PERIOD:
        raise UsageError(
            f"at most {LARGEST_PERIOD} weights may be over 0; got {positive}. Concatenate some components."
        )
    scale = math.lcm(*(number.denominator for number in numbers))
    exact = reduced([int(number * scale) for number in numbers])
    if sum(exact) <= LARGEST_PERIOD:
        return exact
    if all(isinstance(weight, Integral) for weight in weights):
        raise UsageError(
            f"integer weights must add up to at most {LARGEST_PERIOD} without their common divisor; got "
            f"{_some(weights)}, which add up to {sum(exact)}. Pass them as floats for the nearest ratios."
        )
    return reduced(_nearest(exact, LARGEST_PERIOD))


def reduced(weights: Sequence[int]) -> tuple[int, ...]:
    """Return `weights` divided by their greatest common divisor; at least one must not be 0."""
    divisor = math.gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def _checked_weight(place: int, weight: object) -> Fraction:
    """Return the number that a weight prints as: 0.1 is a tenth.

    Raises:
        UsageError: if it is not a finite number from 0 on.
    """
    number = Fraction(-1)
    match weight:
        case bool():
            pass
        case Integral():
            number = Fraction(int(weight))
        case Rational():
            number = Fraction(weight)
        case Real() if math.isfinite(weight):
            number = Fraction(str(weight))
        case _:
            pass
    if number >= 0:
        return number
    raise UsageError(
        f"a weight must be a finite number from 0 on; got {weight!r} as number {place} of them. "
        "Pass 0 for a component to leave out."
    )


def _nearest(weights: Sequence[int], period: int) -> list[int]:
    """Return whole numbers with the sum `period` and nearly the ratios of `weights`, at least 1 for weights over 0."""
    result = [0] * len(weights)
    rest = {place: weight for place, weight in enumerate(weights) if weight}
    total = sum(rest.values())
    # A share below one becomes one; the others divide the rest, which can bring more of them below one.
    while small := [place for place, weight in rest.items() if weight * period < total]:
        for place in small:
            result[place] = 1
            total -= rest.pop(place)
        period -= len(small)
    for place, weight in rest.items():
        result[place] = weight * period // total
    by_loss = sorted(rest, key=lambda place: -(rest[place] * period % total))
    for place in by_loss[: period - sum(result[place] for place in rest)]:
        result[place] += 1
    return result


def _some(weights: Sequence[object]) -> str:
    shown = ", ".join(repr(weight) for weight in weights[:8])
    return f"({shown}, …)" if len(weights) > 8 else f"({shown})"


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
        """For each place of the base order, in one number: its member, and how many earlier places that has."""
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
        # For each place, the first rotation that starts after it; no rotation starts after the last places.
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
        """Return the first offset whose member has already reached its limit; it may be over 2**62.

        Args:
            limits: the number of elements of each member, int64 of shape (members,), from 0 to 2**62.
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


@frozen(eq=False, cached=True)
class Stretch:
    """A range of positions with constant weights.

    Attributes:
        start: its first position.
        change: the index of its entry in the schedule.
        members: the numbers of its components, in the order that `PeriodOrder` counts them: int64 of shape (m,).
        counts: the number of elements of each component before the stretch: int64 of shape (components,).
        key: the weights of the members and the seed, which determine the order.
    """

    start: int
    change: int
    members: NDArray[np.int64]
    counts: NDArray[np.int64]
    key: tuple[tuple[int, ...], int]

    @property
    def order(self) -> PeriodOrder:
        """The order of the members, from a cache."""
        return _order(self)

    @cached_property
    def member_counts(self) -> NDArray[np.int64]:
        """The number of elements of each member before it: int64 of shape (m,)."""
        return self.counts[self.members]

    def counts_at(self, position: int) -> NDArray[np.int64]:
        """Return the number of elements of each component before a position of the stretch, or before its end."""
        counts = self.counts.copy()
        counts[self.members] += self.order.counts(position - self.start)
        return counts


@frozen(eq=False, cached=True)
class Stretches:
    """All stretches of an epoch, in order.

    Attributes:
        items: the stretches, none of them empty.
        length: the number of positions, at most 2**62.
        counts: the number of elements of each component in an epoch: int64 of shape (components,).
    """

    items: tuple[Stretch, ...]
    length: int
    counts: NDArray[np.int64]

    @cached_property
    def starts(self) -> list[int]:
        """The first position of each stretch."""
        return [stretch.start for stretch in self.items]

    @cached_property
    def starts_block(self) -> NDArray[np.int64]:
        """The first position of each stretch, as an array."""
        return np.array(self.starts, np.int64)


def stretches_of(
    schedule: Schedule, limits: Sequence[int], ranking: Sequence[int], seed: int, *, drop: bool
) -> Stretches:
    """Return the stretches of a mixture.

    Args:
        schedule: first positions, rising from 0, and weights, one for each component and at least one over 0.
        limits: the number of elements of each component in an epoch, from 0 to 2**62.
        ranking: the numbers of all components, in the order that a `PeriodOrder` counts those of a stretch.
        seed: 64 bits.
        drop: whether a finished component is left out; else it ends the mixture.
    """
    ranks = np.array(ranking, np.int64)
    limits_block = np.array(limits, np.int64)
    counts = np.zeros(len(limits), np.int64)
    left = np.ones(len(limits), np.bool_)
    found: list[Stretch] = []
    position = 0
    for change, (_, weights) in enumerate(schedule):
        stop = schedule[change + 1][0] if change + 1 < len(schedule) else LARGEST_LENGTH
        weights_block = np.array(weights, np.int64)
        while position < stop:
            members = ranks[((weights_block > 0) & left)[ranks]]
            if not len(members):
                break  # all are finished: the next change begins here
            stretch = Stretch(position, change, members, counts, (reduced(weights_block[members].tolist()), seed))
            need = position + stretch.order.first_beyond((limits_block - counts)[members])
            end = min(need, stop)
            counts = stretch.counts_at(end)
            if end > position:
                found.append(stretch)
            if need < stop:
                if not drop:
                    return Stretches(tuple(found), end, counts)
                member, _ = stretch.order(need - position)
                left[members[member]] = False
            position = end
    return Stretches(tuple(found), position, counts)


def stretch_spans(
    stretches: Stretches, positions: NDArray[np.int64]
) -> Iterator[tuple[Stretch, NDArray[np.int64] | None]]:
    """Yield each stretch that has some of the positions, and their rows in `positions`; None for all rows.

    Args:
        stretches: the stretches that contain all positions.
        positions: int64 of shape (n,), at least one.
    """
    first, last = np.searchsorted(stretches.starts_block, [positions.min(), positions.max()], side="right").tolist()
    if first == last:  # usually the whole block is in one stretch
        yield stretches.items[first - 1], None
        return
    numbers = np.searchsorted(stretches.starts_block, positions, side="right") - 1
    by_number = np.argsort(numbers, kind="stable")
    for rows in np.split(by_number, np.flatnonzero(np.diff(numbers[by_number])) + 1):
        yield stretches.items[numbers[rows[0]]], rows


# A shuffled mixture switches between all its stretches, which may be as many as its components. Making an order takes
# about two milliseconds; a cached one takes at most 0.4 MB, usually a few kilobytes.
@lru_cache(maxsize=256)
def _order(stretch: Stretch) -> PeriodOrder:
    # Stretches hash by identity: a hash of the weights of many components would cost as much as a block.
    return PeriodOrder(*stretch.key)
