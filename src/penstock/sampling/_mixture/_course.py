"""The course of a mixture: its schedule cut into stretches in which nothing changes, up to where it ends.

A stretch begins where the schedule changes the weights or, if finished components are left out, where one would be
needed that has no element left. Each knows how many elements of every component came before it, so each component goes
on from where it was: nothing is lost or repeated at a change. What changes later alters nothing before: neither other
weights from a position on, nor a longer component before the position that would have needed its next element.
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
    """Positions in which the weights don't change.

    Attributes:
        start: its first position.
        change: the number of the schedule's entry that it belongs to.
        members: numbers of the components that are taken here, in the order in which the period order knows them:
            int64 of shape (m,).
        counts: how many elements of each component came before: int64 of shape (components,).
        key: weights of the members and the seed, from which the order follows.
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
        """How many elements of each member came before: int64 of shape (m,)."""
        return self.counts[self.members]

    def counts_at(self, position: int) -> NDArray[np.int64]:
        """Return how many elements of each component come before a position of the stretch, or its end."""
        counts = self.counts.copy()
        counts[self.members] += self.order.counts(position - self.start)
        return counts


@frozen(eq=False, cached=True)
class Course:
    """All stretches of an epoch, in order.

    Attributes:
        stretches: none of them empty; none at all if there is no position.
        length: the number of positions, at most 2**62.
        counts: how many elements of each component an epoch holds: int64 of shape (components,).
    """

    stretches: tuple[Stretch, ...]
    length: int
    counts: NDArray[np.int64]

    @cached_property
    def starts(self) -> list[int]:
        """The first position of each stretch."""
        return [stretch.start for stretch in self.stretches]

    @cached_property
    def starts_block(self) -> NDArray[np.int64]:
        """The first position of each stretch, as an array."""
        return np.array(self.starts, np.int64)


def course_of(schedule: Schedule, limits: Sequence[int], ranking: Sequence[int], seed: int, *, drop: bool) -> Course:
    """Return the course of a mixture.

    Args:
        schedule: first positions, rising from 0, and weights, one for each component and at least one over 0.
        limits: how many elements of each component there are in an epoch, from 0 to 2**62.
        ranking: the numbers of all components, in the order in which the period orders are to know them.
        seed: of 64 bits.
        drop: whether a component that is finished is left out, rather than ending the course.
    """
    ranks = np.array(ranking, np.int64)
    limits_block = np.array(limits, np.int64)
    counts = np.zeros(len(limits), np.int64)
    left = np.ones(len(limits), np.bool_)
    stretches: list[Stretch] = []
    position = 0
    for change, (_, weights) in enumerate(schedule):
        stop = schedule[change + 1][0] if change + 1 < len(schedule) else LARGEST_LENGTH
        weights_block = np.array(weights, np.int64)
        while position < stop:
            members = ranks[((weights_block > 0) & left)[ranks]]
            if not len(members):
                break  # all are finished, and give way to the next change at once
            stretch = Stretch(position, change, members, counts, (reduced(weights_block[members].tolist()), seed))
            need = position + stretch.order.first_beyond((limits_block - counts)[members])
            end = min(need, stop)
            counts = stretch.counts_at(end)
            if end > position:
                stretches.append(stretch)
            if need < stop:
                if not drop:
                    return Course(tuple(stretches), end, counts)
                member, _ = stretch.order(need - position)
                left[members[member]] = False
            position = end
    return Course(tuple(stretches), position, counts)


def stretch_spans(course: Course, positions: NDArray[np.int64]) -> Iterator[tuple[Stretch, NDArray[np.int64] | None]]:
    """Yield each stretch that occurs and the rows of `positions` in it; None for all rows.

    Args:
        course: of which all positions are.
        positions: int64 of shape (n,), at least one.
    """
    first, last = np.searchsorted(course.starts_block, [positions.min(), positions.max()], side="right").tolist()
    if first == last:  # mostly all of a block lies in one stretch
        yield course.stretches[first - 1], None
        return
    numbers = np.searchsorted(course.starts_block, positions, side="right") - 1
    by_number = np.argsort(numbers, kind="stable")
    for rows in np.split(by_number, np.flatnonzero(np.diff(numbers[by_number])) + 1):
        yield course.stretches[numbers[rows[0]]], rows


# Who shuffles a mixture asks for all its stretches in turn, and that may be as many as it has components. An order that
# is not kept costs about two milliseconds; one that is kept, 0.4 MB at most, mostly a few kilobytes.
@lru_cache(maxsize=256)
def _order(stretch: Stretch) -> PeriodOrder:
    # Stretches are told apart by identity: hashing the weights of many components would cost as much as a block.
    return PeriodOrder(*stretch.key)
