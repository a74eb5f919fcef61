"""A sampler is a pure, random-access map from a dataset's (epoch, position) to its parent's (epoch, key)."""

import operator
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sampling._arguments import int64_block

_BlockForm: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]


@runtime_checkable
class ScalarSampler(Protocol):
    """What one must write for an order of one's own: a length, and a pure function of epoch and position.

    It is asked in any order, any number of times, from any thread and process: it must give the same answer always.
    To travel to worker processes it must be picklable; a frozen dataclass is the usual form, and its fields are then
    what tells one order from another when a run is resumed.

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
        """Return (epoch, key): which element of the parent stands at `position` of `epoch`, and in which epoch of it.

        Args:
            epoch: from 0.
            position: in [0, len(self)).
        """
        ...


@runtime_checkable
class Sampler(ScalarSampler, Protocol):
    """A sampler that also answers for many positions at once, as all of Penstock's do. It is much faster so.

    Example:
        >>> from penstock.sampling import Shuffle
        >>> isinstance(Shuffle(10, seed=7), Sampler)
        True
    """

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the scalar form's answers for every pair of epoch and position.

        Args:
            epochs: int64 of shape (n,). They may differ, but mostly do not.
            positions: int64 of shape (n,).

        Returns:
            Epochs and keys, both int64 of shape (n,). They may be the very arrays that were given, so neither is to be
            written to.
        """
        ...


def apply_block(
    sampler: ScalarSampler, epochs: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (epochs, keys) of many positions: by the sampler's block form, or by its scalar form one at a time.

    Args:
        sampler: any sampler.
        epochs: int64 of shape (n,).
        positions: int64 of shape (n,).

    Returns:
        Epochs and keys, both int64 of shape (n,); not to be written to.

    Raises:
        UsageError: if the sampler answers with something else than that.

    Example:
        >>> from penstock.sampling import Slice
        >>> _, keys = apply_block(Slice(start=10, step=5, length=3), np.zeros(3, np.int64), np.arange(3))
        >>> keys.tolist()
        [10, 15, 20]
    """
    count = len(positions)
    block: _BlockForm | None = getattr(
        sampler, "block", None
    )  # asking whether it is a `Sampler` costs several times this
    if block is not None:
        result_epochs, keys = block(epochs, positions)
        result_epochs = int64_block("the epochs of a sampler's block", result_epochs)
        keys = int64_block("the keys of a sampler's block", keys)
        if not len(result_epochs) == len(keys) == count:
            raise UsageError(
                f"block must return as many epochs and keys as it was given positions; {sampler!r} was given {count} "
                f"and returned {len(result_epochs)} epochs and {len(keys)} keys. Return one of each per position."
            )
        return result_epochs, keys
    pairs = zip(epochs.tolist(), positions.tolist(), strict=True)
    return _collect(sampler, (sampler(epoch, position) for epoch, position in pairs), count)


def check_sampler(sampler: object) -> None:
    """Return if `sampler` has what a sampler must have.

    Raises:
        UsageError: if it has not.
    """
    if isinstance(sampler, type) or not isinstance(sampler, ScalarSampler):
        raise UsageError(
            f"sampler must have a length and be called as sampler(epoch, position); got {sampler!r}. "
            "Pass one such as penstock.sampling.Shuffle(length, seed)."
        )


def checked_answer(sampler: ScalarSampler, answer: tuple[int, int]) -> tuple[int, int]:
    """Return what a sampler's scalar form answered as two ints, which int64 can hold.

    Raises:
        UsageError: if it is something else.
    """
    try:
        epoch, key = answer
        checked = operator.index(epoch), operator.index(key)
    except (TypeError, ValueError):
        checked = None
    if checked is None or not all(-(2**63) <= number < 2**63 for number in checked):
        raise UsageError(
            f"a sampler must return two integers, (epoch, key); {sampler!r} returned {answer!r}. Return both."
        )
    return checked


def _collect(
    sampler: ScalarSampler, answers: Iterable[tuple[int, int]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    epochs = np.empty(count, np.int64)
    keys = np.empty(count, np.int64)
    for row, answer in enumerate(answers):
        epochs[row], keys[row] = checked_answer(sampler, answer)
    return epochs, keys
