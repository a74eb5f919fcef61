"""The stretches of a mixture: ranges of positions with constant weights and components, up to the mixture's end.

A stretch begins where the schedule changes the weights or, if finished components are left out, at the position that
would need an element of a finished one. Each stretch knows the number of elements of every component before it, so each
component continues at its next element: no element is lost or repeated at a change. Later changes don't affect earlier
positions: neither other weights from a position on, nor a longer component, before the position that would have needed
its next element.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.sampling._arguments import LARGEST_LENGTH
from penstock.sampling._mixture._order import PeriodOrder
from penstock.sampling._mixture._weights import reduced

Schedule = tuple[tuple[int, tuple[int, ...]], ...]


@frozen(eq=False, cached=True)
class Stretch:
    """A range of positions with constant weights.

    Attributes:
        start: its first position.
        change: the number of its entry in the schedule.
        members: the numbers of the components in it, in the order of the period order: int64 of shape (m,).
        counts: the number of elements of each component before it: int64 of shape (components,).
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
        ranking: the numbers of all components, in their order for the period orders.
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
    """Yield each stretch with positions, and the rows of `positions` in it; None for all rows.

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


# A shuffled mixture uses all its stretches in turn, which may be as many as its components. An order that is not cached
# costs about two milliseconds; a cached one takes at most 0.4 MB, usually a few kilobytes.
@lru_cache(maxsize=256)
def _order(stretch: Stretch) -> PeriodOrder:
    # Stretches hash by identity: a hash of the weights of many components would cost as much as a block.
    return PeriodOrder(*stretch.key)
