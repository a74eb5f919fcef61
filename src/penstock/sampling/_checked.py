"""The check of a user's own sampler: a key outside the parent's range raises an error that names the sampler."""

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import checked_length
from penstock.sampling._sampler import ScalarSampler, apply_block, check_sampler, checked_result


@frozen
class CheckedSampler:
    """The order of `sampler`, with checked results: (e, p) to sampler(e, p).

    Penstock's own samplers return keys in range. A user's sampler may not, and a key that the parent doesn't have could
    read another element, or fail far from its cause.

    Attributes:
        sampler: any sampler, usually a user's.
        parent_length: the length of the parent, from 0 to 2**62.

    Raises:
        UsageError: if `sampler` is no sampler or `parent_length` is out of range; and at a call, if `sampler` doesn't
            return an epoch, not negative, and a key in [0, parent_length).

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
        result_epochs, keys = apply_block(self.sampler, epochs, positions)
        wrong = (result_epochs < 0) | (keys < 0) | (keys >= self.parent_length)
        if wrong.any():
            row = int(wrong.argmax())
            arguments = int(epochs[row]), int(positions[row])
            self._refuse(arguments, (int(result_epochs[row]), int(keys[row])))
        return result_epochs, keys

    def _refuse(self, arguments: tuple[int, int], result: tuple[int, int]) -> None:
        epoch, position = arguments
        raise UsageError(
            f"a sampler must return an epoch from 0 and a key in [0, {self.parent_length}), since the parent has "
            f"{self.parent_length} elements; {self.sampler!r} returned (epoch, key) = {result} at position {position} "
            f"of epoch {epoch}. Fix it, or create it for a parent of this length."
        )
