"""The protocol of a sampler: a pure, random-access map from (epoch, position) to the parent's (epoch, key).

`OrderFacts` are the facts about a sampler on which the graph and the seed positions depend. A sampler states
them itself, so a new one is one file, and no other file lists samplers. A sampler of the user's has the defaults.

`CheckedSampler` wraps a user's own sampler, so that a key outside the parent's range, or a block form that returns
something else than the scalar form, raises an error that names it.
"""

import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import checked_length, int64_block

_BlockForm: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]


@runtime_checkable
class ScalarSampler(Protocol):
    """The methods of a user's own order: a length, and a pure function of epoch and position.

    It is called in any order, any number of times, from any thread and process, and must always return the same result.
    Worker processes require that it can be pickled; a frozen dataclass is the usual form. When a run is resumed, the
    order counts by the result of its method `fingerprint()`, a str; or, if it has none, by the sampler's results at up
    to 64 positions of two epochs.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Reversed:
        ...     length: int
        ...
        ...     def __len__(self) -> int:
        ...         return self.length
        ...
        ...     def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        ...         return epoch, self.length - 1 - position
        >>> isinstance(Reversed(10), ScalarSampler)
        True
    """

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        ...

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key): the key of the parent's element at `position` of `epoch`, and the parent's epoch.

        Args:
            epoch: from 0.
            position: in [0, len(self)).
        """
        ...


@runtime_checkable
class Sampler(ScalarSampler, Protocol):
    """A sampler that also maps many positions in one call, which is much faster. All of Penstock's samplers do.

    Example:
        >>> from penstock.sampling import Shuffle
        >>> isinstance(Shuffle(10, seed=7), Sampler)
        True
    """

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the results of the scalar form for every pair of epoch and position.

        Args:
            epochs: int64 of shape (n,). They may differ, but usually don't.
            positions: int64 of shape (n,).

        Returns:
            Epochs and keys, both int64 of shape (n,). They may be the arrays of the arguments, so don't write to them.
        """
        ...


class OrderFacts(NamedTuple):
    """The facts about a sampler that decide the seed positions, and how a graph with it is rewritten."""

    takes_once: bool = False
    """Whether it takes each of the parent's elements at most once an epoch, or again with the same random stream.

    Elements then have the seed positions that they have below it. Otherwise the positions above count, since an element
    that is taken twice needs two random streams.
    """
    maps_seeds: bool = False
    """Whether it maps seed positions as it maps positions. Otherwise they pass it unchanged (`seed_position`)."""
    is_fixed: bool = False
    """Whether the order is the same in every epoch."""
    keeps_all: bool = False
    """Whether it takes all of the parent's elements, so that which ones are taken doesn't depend on the order below."""


class OwnSampler:
    """The base of a sampler that states facts about itself."""

    __slots__ = ()

    def __penstock_order__(self) -> OrderFacts:
        """Return the facts about the sampler."""
        return OrderFacts()

    def __penstock_reach__(self) -> int | None:
        """Return the least length of a parent that has all keys; None if only the calls show these."""
        return None

    def __penstock_reseeded__(self, change: Callable[[int], int]) -> Self:
        """Return a shuffle with a changed seed; other samplers, which choose elements, return themselves."""
        del change
        return self


def facts_of(sampler: ScalarSampler) -> OrderFacts:
    """Return the facts about any sampler.

    Example:
        >>> from penstock.sampling import Slice
        >>> facts_of(Slice(start=0, step=1, length=2)).is_fixed
        True
    """
    return sampler.__penstock_order__() if isinstance(sampler, OwnSampler) else OrderFacts()


def reach_of(sampler: ScalarSampler) -> int | None:
    """Return the least length of a parent that has all keys of a sampler; None if only its calls show these.

    Example:
        >>> from penstock.sampling import Slice
        >>> reach_of(Slice(start=0, step=2, length=3))
        5
    """
    return sampler.__penstock_reach__() if isinstance(sampler, OwnSampler) else None


@frozen
class CheckedSampler(OwnSampler):
    """The order of `sampler`, with checked results: (e, p) to sampler(e, p).

    Penstock's own samplers return keys in range. A user's sampler may not; a key that the parent doesn't have could
    read a wrong element, or fail far from its cause.

    Attributes:
        sampler: any sampler, usually a user's.
        parent_length: the length of the parent, from 0 to 2**62.

    Raises:
        UsageError: if `sampler` is no sampler or `parent_length` is out of range; and at a call, if `sampler` doesn't
            return an epoch, not negative, and a key in [0, parent_length), or returns another result in a block. One
            position of each block is compared.

    Example:
        >>> from penstock.sampling import Slice
        >>> checked = CheckedSampler(Slice(start=2, step=1, length=2), parent_length=3)
        >>> checked(0, 0)
        (0, 2)
        >>> checked(0, 1)
        Traceback (most recent call last):
            ...
        penstock.errors.UsageError: a sampler must return an epoch from 0 and a key in [0, 3), ...
    """

    sampler: ScalarSampler
    parent_length: int

    def __penstock_order__(self) -> OrderFacts:
        return facts_of(self.sampler)._replace(keeps_all=False)

    def __post_init__(self) -> None:
        check_sampler(self.sampler)
        object.__setattr__(self, "parent_length", checked_length(self.parent_length))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return len(self.sampler)

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        result = checked_result(self.sampler, self.sampler(epoch, position))
        result_epoch, key = result
        if result_epoch < 0 or not 0 <= key < self.parent_length:
            self._refuse((epoch, position), result)
        return result

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        middle = len(positions) // 2  # a wrong block form is often right at its first or last position
        compared = (int(epochs[middle]), int(positions[middle])) if len(positions) else None
        result_epochs, keys = apply_block(self.sampler, epochs, positions)
        wrong = (result_epochs < 0) | (keys < 0) | (keys >= self.parent_length)
        if wrong.any():
            row = int(wrong.argmax())
            arguments = int(epochs[row]), int(positions[row])
            self._refuse(arguments, (int(result_epochs[row]), int(keys[row])))
        if compared is not None and hasattr(self.sampler, "block"):
            self._compare(compared, (int(result_epochs[middle]), int(keys[middle])))
        return result_epochs, keys

    def _compare(self, arguments: tuple[int, int], in_block: tuple[int, int]) -> None:
        """Check one position of a block: `dataset[i]` has the scalar form's element, and a loader that of the block.

        Raises:
            UsageError: the scalar form returns something else.
        """
        epoch, position = arguments
        alone = checked_result(self.sampler, self.sampler(epoch, position))
        if alone != in_block:
            raise UsageError(
                f"the block form of a sampler must return what its scalar form returns; {self.sampler!r} returned "
                f"(epoch, key) = {in_block} in a block, and {alone} alone, at position {position} of epoch {epoch}. "
                "Correct one of them, or leave out the method block."
            )

    def _refuse(self, arguments: tuple[int, int], result: tuple[int, int]) -> None:
        epoch, position = arguments
        raise UsageError(
            f"a sampler must return an epoch from 0 and a key in [0, {self.parent_length}), since the parent has "
            f"{self.parent_length} elements; {self.sampler!r} returned (epoch, key) = {result} at position {position} "
            f"of epoch {epoch}. Fix it, or create it for a parent of this length."
        )


def apply_block(
    sampler: ScalarSampler, epochs: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (epochs, keys) of many positions: by the sampler's block form, or by its scalar form one at a time.

    Args:
        sampler: any sampler.
        epochs: int64 of shape (n,).
        positions: int64 of shape (n,).

    Returns:
        Epochs and keys, both int64 of shape (n,); don't write to them.

    Raises:
        UsageError: if the sampler returns something else.

    Example:
        >>> from penstock.sampling import Slice
        >>> _, keys = apply_block(Slice(start=10, step=5, length=3), np.zeros(3, np.int64), np.arange(3))
        >>> keys.tolist()
        [10, 15, 20]
    """
    count = len(positions)
    # `isinstance(sampler, Sampler)` would take several times as long.
    block: _BlockForm | None = getattr(sampler, "block", None)
    if block is not None:
        result = block(epochs, positions)
        try:
            result_epochs, keys = result
        except (TypeError, ValueError):
            raise UsageError(
                f"the block form of a sampler must return a pair of arrays, (epochs, keys); {sampler!r} returned "
                f"{result!r}. Return both. A rule for mixtures, such as Concatenation, is no sampler."
            ) from None
        result_epochs = int64_block("the epochs of a sampler's block", result_epochs)
        keys = int64_block("the keys of a sampler's block", keys)
        if not len(result_epochs) == len(keys) == count:
            raise UsageError(
                f"block must return as many epochs and keys as it takes positions; {sampler!r} took {count} "
                f"and returned {len(result_epochs)} epochs and {len(keys)} keys. Return one of each per position."
            )
        return result_epochs, keys
    pairs = zip(epochs.tolist(), positions.tolist(), strict=True)
    return _collect(sampler, (sampler(epoch, position) for epoch, position in pairs), count)


def check_sampler(sampler: object) -> None:
    """Check that `sampler` has the methods of a sampler.

    Raises:
        UsageError: if it lacks one.
    """
    if isinstance(sampler, type) or not isinstance(sampler, ScalarSampler):
        raise UsageError(
            f"sampler must have a length and be callable as sampler(epoch, position); got {sampler!r}. "
            "Pass one such as penstock.sampling.Shuffle(length, seed)."
        )


def checked_result(sampler: ScalarSampler, result: tuple[int, int]) -> tuple[int, int]:
    """Return the result of a sampler's scalar form as two ints that int64 can hold.

    Raises:
        UsageError: if it is something else.
    """
    try:
        epoch, key = result
        checked = operator.index(epoch), operator.index(key)
    except (TypeError, ValueError):
        checked = None
    if checked is None or not all(-(2**63) <= number < 2**63 for number in checked):
        raise UsageError(
            f"a sampler must return two integers, (epoch, key); {sampler!r} returned {result!r}. Return both."
        )
    return checked


def _collect(
    sampler: ScalarSampler, results: Iterable[tuple[int, int]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    epochs = np.empty(count, np.int64)
    keys = np.empty(count, np.int64)
    for row, result in enumerate(results):
        epochs[row], keys[row] = checked_result(sampler, result)
    return epochs, keys
