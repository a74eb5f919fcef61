"""Mixtures of several datasets: a rule maps a position to a component and a position in it.

The rules are `Concatenation`, `RoundRobin` and `WeightedMixture`; a user's own rule has the methods of `MixtureRule`.
Each computes any position in closed form: by a search in sums of lengths, or by the exact shares of every period.
"""

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import KW_ONLY
from functools import cached_property, lru_cache
from typing import Final, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._seeds import derive
from penstock.errors import UsageError
from penstock.sampling._arguments import (
    LARGEST_LENGTH,
    check_position,
    check_positions,
    checked_integer,
    checked_length,
    checked_seed,
)
from penstock.sampling._epochs import Repeat, epoch_of_passes, epochs_of_passes
from penstock.sampling._mixture_order import LARGEST_PERIOD, Schedule, Stretches, reduced, stretch_spans, stretches_of

Stop = Literal["first", "all", "never"]
_CACHED_ROUNDS: Final = 64  # lists of remaining components


@runtime_checkable
class MixtureRule(Protocol):
    """A pure function from (epoch, position) of a mixture to a component, its epoch, and the position in it.

    Components are numbered from 0 in the order of the mixture's list. Like a sampler, a rule is called in any order,
    from any thread and process, and always returns the same result.

    Example:
        >>> from penstock.sampling import Concatenation
        >>> isinstance(Concatenation((3, 5)), MixtureRule)
        True
    """

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        ...

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int, int]:
        """Return (component, epoch, position): the component at `position` of `epoch`, and its epoch and position.

        Args:
            epoch: from 0.
            position: in [0, len(self)).
        """
        ...

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the results of the scalar form for every pair of epoch and position.

        Args:
            epochs: int64 of shape (n,). They may differ, but usually don't.
            positions: int64 of shape (n,).

        Returns:
            Components, epochs and positions, all int64 of shape (n,). They may be the arrays of the arguments, so don't
            write to them.
        """
        ...


@frozen(cached=True)
class Concatenation:
    """All elements of the first component, then all of the second, and so on; the epoch is unchanged.

    Attributes:
        lengths: the number of elements of each component, from 0 to 2**62; so must be their sum.

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


@frozen(cached=True)
class RoundRobin:
    """The first element of each component, then the second of each that has one, and so on; the epoch is unchanged.

    Sorted by length, the components end one after another. Between two ends the number of remaining components is
    constant, and a position there is a round and a place in the round.

    Attributes:
        lengths: the number of elements of each component, from 0 to 2**62; so must be their sum.

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


@lru_cache(maxsize=_CACHED_ROUNDS)
def _remaining(lengths: tuple[int, ...], after: int) -> NDArray[np.int64]:
    """Return the components that have more than `after` elements."""
    return np.flatnonzero(np.array(lengths, np.int64) > after)


@frozen(cached=True)
class WeightedMixture:
    """Elements of several components in exact ratios, each component in its own order.

    The weights are whole numbers, and their sum is the length of a period. Every period has exactly as many elements of
    each component as its weight. The order within a period differs from period to period, and is so even that batches
    and ranks get nearly the same shares. The elements of a component keep their order. A schedule changes the weights
    at given positions; there each component continues at its next element. The epoch is unchanged, and all epochs have
    the same order.

    The order depends only on names, weights and seed: not on the components' lengths, on their order in the list, or on
    components of weight 0.

    Attributes:
        names: the names of the components, all different.
        lengths: the numbers of elements of the components, from 0 to 2**62.
        schedule: for each change its first position, rising from 0, and for each component a weight from
            `integer_weights`; a component of weight 0 is left out there. Common divisors are removed.
        stop: "first" ends the mixture right before the first position that would need an element of a finished
            component. "all" leaves a finished component out from that position on; the others keep their ratios, and
            the mixture ends with the last component. A change of the schedule whose components have all finished is
            skipped. "never" repeats each component: every pass is an epoch of it, as in `Repeat` without end, and no
            component may be empty.
        seed: from 0 to 2**64 - 1.

    Raises:
        UsageError: if one of them is out of range, or their counts differ.

    Example:
        >>> schedule = ((0, (3, 1)), (8, (1, 1)))
        >>> mixture = WeightedMixture(("web", "books"), (100, 5), schedule=schedule, stop="first", seed=7)
        >>> mixture.counts(8).tolist(), mixture.counts(12).tolist()
        ([6, 2], [8, 4])
        >>> sorted(mixture(0, position) for position in range(8, 12))
        [(0, 0, 6), (0, 0, 7), (1, 0, 2), (1, 0, 3)]
        >>> mixture.past(8), len(mixture) <= 8 + 2 * 4
        (((0, (('books', 1), ('web', 3))),), True)
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    _: KW_ONLY
    schedule: Schedule
    stop: Stop
    seed: int

    def __post_init__(self) -> None:
        names = tuple(self.names)
        if not names or len(set(names)) < len(names):
            raise UsageError(f"names must be at least one, all different; got {names!r}. Name each component once.")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "lengths", tuple(checked_length(length) for length in self.lengths))
        if len(self.lengths) != len(names):
            raise UsageError(
                f"each component must have a length; got {len(self.lengths)} lengths for {len(names)} names. "
                "Pass one for each."
            )
        object.__setattr__(self, "schedule", _checked_schedule(self.schedule, len(names)))
        if self.stop not in get_args(Stop):
            raise UsageError(f"stop must be 'first', 'all' or 'never'; got stop={self.stop!r}. Pass one of them.")
        if self.stop == "never" and not all(self.lengths):
            raise UsageError(
                f"only components with elements can repeat; got stop='never' and {names[self.lengths.index(0)]!r} of "
                "length 0. Leave it out, or pass stop='all'."
            )
        object.__setattr__(self, "seed", checked_seed(self.seed))

    @property
    def endless(self) -> bool:
        """Whether it repeats its components without end."""
        return self.stop == "never"

    @cached_property
    def _passes(self) -> tuple[int, ...]:
        """The number of passes over each component in an epoch."""
        return tuple(Repeat(length, None).passes if self.endless else 1 for length in self.lengths)

    @cached_property
    def _stretches(self) -> Stretches:
        # The components are sorted by the hash of their names, so that their order in the list doesn't matter.
        ranking = sorted(
            range(len(self.names)), key=lambda number: (derive(self.seed, self.names[number]), self.names[number])
        )
        limits = [length * passes for length, passes in zip(self.lengths, self._passes, strict=True)]
        return stretches_of(self.schedule, limits, ranking, self.seed, drop=self.stop == "all")

    @cached_property
    def _most_passes(self) -> int:
        return max(self._passes)

    @cached_property
    def _repeats(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lengths and passes of the components."""
        return np.array(self.lengths, np.int64), np.array(self._passes, np.int64)

    def __len__(self) -> int:
        """Return the number of positions per epoch; with stop="never" more than can be read, but at most 2**62."""
        return self._stretches.length

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int, int]:
        """Return (component, epoch, position) of one position."""
        check_position(position, len(self))
        stretch = self._stretches.items[bisect_right(self._stretches.starts, position) - 1]
        member, taken = stretch.order(position - stretch.start)
        component = stretch.members.item(member)
        place = stretch.member_counts.item(member) + taken
        if not self.endless:
            return component, epoch, place
        epoch = epoch_of_passes(epoch, self._most_passes)
        number, place = divmod(place, self.lengths[component])
        return component, epoch * self._passes[component] + number, place

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (components, epochs, positions) of many positions: int64, all of shape (n,)."""
        if not len(positions):
            return positions, epochs, positions
        check_positions(positions, len(self))
        components, places = self._components(positions)
        if not self.endless:
            return components, epochs, places
        epochs = epochs_of_passes(epochs, self._most_passes)
        lengths, passes = self._repeats
        lengths = lengths.take(components)
        numbers = places // lengths
        return components, epochs * passes.take(components) + numbers, places - numbers * lengths

    def counts(self, position: int) -> NDArray[np.int64]:
        """Return the number of elements of each component before `position` of an epoch.

        Args:
            position: from 0 to the mixture's length.

        Returns:
            int64 of shape (components,).

        Raises:
            IndexError: if `position` is out of range.

        Example:
            >>> even = WeightedMixture(("a", "b"), (9, 9), schedule=((0, (1, 1)),), stop="first", seed=7)
            >>> even.counts(10).tolist()
            [5, 5]
        """
        check_position(position, len(self) + 1)
        if position == len(self):
            return self._stretches.counts.copy()
        return self._stretches.items[bisect_right(self._stretches.starts, position) - 1].counts_at(position)

    def past(self, position: int) -> tuple[tuple[int, tuple[tuple[str, int], ...]], ...]:
        """Return the part of the schedule that determines the elements before `position`.

        Two mixtures with the same seed and the same past have the same elements before `position` if the components
        named in the past are the same, for any lengths and ways to stop. Only the epochs of components are counted
        differently with stop="never".

        Args:
            position: from 0 to the mixture's length.

        Returns:
            For each change of the schedule that begins before `position`, and always the first: its position, and
            (name, weight) of the components with a weight over 0, by name.

        Raises:
            IndexError: if `position` is out of range.

        Example:
            >>> changing = ((0, (1, 0)), (4, (1, 1)))
            >>> mixture = WeightedMixture(("b", "a"), (9, 9), schedule=changing, stop="first", seed=7)
            >>> mixture.past(4), mixture.past(5)
            (((0, (('b', 1),)),), ((0, (('b', 1),)), (4, (('a', 1), ('b', 1)))))
        """
        check_position(position, len(self) + 1)
        begun = bisect_left(self._stretches.starts, position)
        changes = self._stretches.items[begun - 1].change + 1 if begun else 1
        return tuple(
            (start, tuple(sorted((name, weight) for name, weight in zip(self.names, weights, strict=True) if weight)))
            for start, weights in self.schedule[:changes]
        )

    def _components(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the component of each position, and the number of its elements before, over all passes."""
        components = np.empty_like(positions)
        places = np.empty_like(positions)
        for stretch, rows in stretch_spans(self._stretches, positions):
            offsets = positions if rows is None else positions[rows]
            members, taken = stretch.order.block(offsets - stretch.start)
            taken += stretch.member_counts.take(members)
            if rows is None:
                return stretch.members.take(members), taken
            components[rows], places[rows] = stretch.members.take(members), taken
        return components, places


def _checked_schedule(schedule: Schedule, components: int) -> Schedule:
    """Return the schedule as plain integers, without common divisors.

    Raises:
        UsageError: if it is invalid.
    """
    result = tuple((_checked_start(start), _checked_weights(weights, components)) for start, weights in schedule)
    starts = [start for start, _ in result]
    if not starts or starts[0] != 0 or sorted(set(starts)) != starts:
        raise UsageError(
            f"a schedule must begin at position 0 and its positions must rise; got {starts!r}. "
            "Pass the first weights with position 0."
        )
    return result


def _checked_start(start: int) -> int:
    return checked_integer("position", start, range(LARGEST_LENGTH + 1), "[0, 2**62]. Pass where the weights change")


def _checked_weights(weights: tuple[int, ...], components: int) -> tuple[int, ...]:
    rule = "[0, 2**62]. Make them with penstock.sampling.integer_weights"
    result = [checked_integer("weight", weight, range(LARGEST_LENGTH + 1), rule) for weight in weights]
    if len(result) != components or not any(result):
        raise UsageError(
            f"each of the {components} components must have a weight, and one of them over 0; got {tuple(result)!r}. "
            "Pass 0 for components to leave out."
        )
    shares = reduced(result)
    if sum(shares) > LARGEST_PERIOD:
        raise UsageError(
            f"weights must add up to at most {LARGEST_PERIOD}; got weights that add up to {sum(shares)}. "
            "Make them with penstock.sampling.integer_weights."
        )
    return shares
