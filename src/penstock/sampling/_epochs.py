"""Samplers that choose the epoch of the parent: several passes in one epoch, one fixed epoch, or one fixed order."""

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._seeds import derive, derive_block
from penstock.errors import UsageError
from penstock.sampling._arguments import (
    LARGEST_LENGTH,
    check_position,
    check_positions,
    checked_integer,
    checked_length,
)
from penstock.sampling._sampler import (
    OrderFacts,
    OwnSampler,
    ScalarSampler,
    apply_block,
    check_sampler,
    facts_of,
    reach_of,
)

_ENDLESS_TIMES = 2**31
_LARGEST_EPOCH = 2**63 - 1


@frozen
class Repeat(OwnSampler):
    """The parent several times in one epoch: (e, p) to (e * passes + p // length, p % length).

    So every pass is an epoch of the parent, with its own order and random maps, and no two epochs of the repeated
    dataset share a pass. Only repetitions without end in one another reach the largest epoch, 2**63 - 1; from there on,
    an epoch begins at a pass that is drawn. With `reshuffle=False` it is (e, p % length), and all passes of an epoch
    are the same, also in random maps above.

    Attributes:
        length: the parent's length, from 0 to 2**62.
        times: the number of passes, at least 1; length * times must not exceed 2**62. None means without end: then
            it is min(2**31, 2**62 // length), more than can be read unless the length is small.
        reshuffle: whether every pass is another epoch of the parent. Default True.

    Raises:
        UsageError: if one of them is out of range.

    Example:
        >>> repeat = Repeat(10, times=3)
        >>> len(repeat), repeat(0, 25), repeat(1, 0)
        (30, (2, 5), (3, 0))
        >>> Repeat(10, times=None).endless
        True
    """

    length: int
    times: int | None
    reshuffle: bool = field(default=True, kw_only=True)

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(takes_once=True, maps_seeds=True, keeps_all=True)

    def __penstock_reach__(self) -> int | None:
        return self.length

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))
        if self.times is None:
            return
        rule = "[1, 2**62]. Pass None to repeat without end"
        times = checked_integer("times", self.times, range(1, LARGEST_LENGTH + 1), rule)
        object.__setattr__(self, "times", times)
        if self.length * times > LARGEST_LENGTH:
            raise UsageError(
                f"length * times must be at most 2**62; got length={self.length}, times={times}. "
                "Pass times=None to repeat without end."
            )

    @property
    def endless(self) -> bool:
        """Whether it repeats without end."""
        return self.times is None

    @property
    def passes(self) -> int:
        """The number of passes over the parent in an epoch."""
        if self.times is None:
            return min(_ENDLESS_TIMES, LARGEST_LENGTH // max(self.length, 1))
        return self.times

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self.length * self.passes

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        check_position(position, len(self))
        number, key = divmod(position, self.length)
        if not self.reshuffle:
            return epoch, key
        return epoch_of_passes(epoch, self.passes) * self.passes + number, key

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        if not len(positions):
            return epochs, positions
        check_positions(positions, len(self))
        first = int(positions.min()) // self.length
        if int(positions.max()) // self.length == first:  # usually the whole block is in one pass
            numbers: NDArray[np.int64] | int = first
            keys = positions if first == 0 else positions - first * self.length
        else:
            numbers, keys = np.divmod(positions, self.length)
        if not self.reshuffle:
            return epochs, keys
        return epochs_of_passes(epochs, self.passes) * self.passes + numbers, keys


def epoch_of_passes(epoch: int, passes: int) -> int:
    """Return an epoch whose passes have numbers up to the largest epoch: the epoch itself, or else one drawn from it.

    Args:
        epoch: an epoch, such as the pass of another repetition.
        passes: the number of passes in an epoch.

    Raises:
        UsageError: the epoch is negative.
    """
    if epoch < 0:
        raise UsageError(f"epoch must be at least 0; got epoch={epoch}. Count from 0.")
    count = _LARGEST_EPOCH // passes
    return epoch if epoch < count else derive(passes, epoch) % count


def epochs_of_passes(epochs: NDArray[np.int64], passes: int) -> NDArray[np.int64]:
    """Return the result of `epoch_of_passes` for many epochs: int64 of shape (n,)."""
    count = _LARGEST_EPOCH // passes
    first, last = int(epochs.min()), int(epochs.max())
    if first >= 0 and last < count:  # nearly always
        return epochs
    epoch_of_passes(first, passes)
    drawn: NDArray[np.int64] = (derive_block(passes, epochs) % np.uint64(count)).astype(np.int64)
    return np.where(epochs < count, epochs, drawn)


@frozen
class FixedEpoch(OwnSampler):
    """One epoch of the parent for all epochs: (e, p) to (epoch, p).

    Order and random maps, also maps above this step, are then the same in every pass, as a validation set needs.
    `FixedOrder` fixes the order alone.

    Attributes:
        length: the parent's length, from 0 to 2**62.
        epoch: the parent's epoch, from 0 to 2**62.

    Raises:
        UsageError: if one of them is out of range.

    Example:
        >>> FixedEpoch(10, epoch=0)(5, 3)
        (0, 3)
    """

    length: int
    epoch: int

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(takes_once=True, maps_seeds=True)

    def __penstock_reach__(self) -> int | None:
        return self.length

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))
        epochs = range(LARGEST_LENGTH + 1)
        object.__setattr__(self, "epoch", checked_integer("epoch", self.epoch, epochs, "[0, 2**62]. Count from 0"))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self.length

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        del epoch
        check_position(position, self.length)
        return self.epoch, position

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        check_positions(positions, self.length)
        return np.full_like(epochs, self.epoch), positions


@frozen
class FixedOrder(OwnSampler):
    """An order that repeats every `cycle` epochs; random maps, below and above, still depend on the epoch.

    With s the inner sampler and c = e % cycle: (e, p) to (s(c, p).epoch + e - c, s(c, p).key).

    Attributes:
        sampler: the sampler whose epochs 0 to cycle - 1 are the orders.
        cycle: the number of epochs after which the orders repeat, at least 1. Default 1: always the same order.

    Raises:
        UsageError: if `sampler` is no sampler, or `cycle` is out of range.

    Example:
        >>> from penstock.sampling import Shuffle
        >>> fixed = FixedOrder(Shuffle(100, seed=7))
        >>> fixed(0, 5)[1] == fixed(3, 5)[1], fixed(3, 5)[0]
        (True, 3)
    """

    sampler: ScalarSampler
    cycle: int = 1

    def __penstock_order__(self) -> OrderFacts:
        return facts_of(self.sampler)._replace(is_fixed=self.cycle == 1, keeps_all=False)

    def __penstock_reach__(self) -> int | None:
        return reach_of(self.sampler)

    def __post_init__(self) -> None:
        check_sampler(self.sampler)
        cycles = range(1, LARGEST_LENGTH + 1)
        rule = "[1, 2**62]. Pass 1 for the same order always"
        object.__setattr__(self, "cycle", checked_integer("cycle", self.cycle, cycles, rule))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return len(self.sampler)

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        inner = epoch % self.cycle
        result, key = self.sampler(inner, position)
        return result + epoch - inner, key

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        inner = epochs % self.cycle
        results, keys = apply_block(self.sampler, inner, positions)
        return results + (epochs - inner), keys
