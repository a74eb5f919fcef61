"""A user's own sampler, held to the parent's range: a key outside it is an error that names the sampler."""

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import checked_length
from penstock.sampling._sampler import ScalarSampler, apply_block, check_sampler, checked_answer


@frozen
class CheckedSampler:
    """The same order as `sampler`'s, whose answers are looked at: (e, p) to sampler(e, p).

    Penstock's own samplers answer with keys in range. A user's may not, and a key that the parent doesn't have would be
    read as something else, or fail far from its cause.

    Attributes:
        sampler: any sampler, most likely a user's.
        parent_length: the length of what its keys belong to, from 0 to 2**62.

    Raises:
        UsageError: if `sampler` is none or `parent_length` is out of range; and when it is asked, if `sampler` answers
            with something else than an epoch, not negative, and a key in [0, parent_length).

    Example:
        >>> from penstock.sampling import Slice
        >>> checked = CheckedSampler(Slice(start=2, step=1, length=2), parent_length=3)
        >>> checked(0, 0)
        (0, 2)
        >>> checked(0, 1)
        Traceback (most recent call last):
            ...
        penstock.errors.UsageError: a sampler must answer with an epoch from 0 and a key in [0, 3), ...
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
        answer = checked_answer(self.sampler, self.sampler(epoch, position))
        result_epoch, key = answer
        if result_epoch < 0 or not 0 <= key < self.parent_length:
            self._refuse((epoch, position), answer)
        return answer

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        result_epochs, keys = apply_block(self.sampler, epochs, positions)
        wrong = (result_epochs < 0) | (keys < 0) | (keys >= self.parent_length)
        if wrong.any():
            row = int(wrong.argmax())
            asked = int(epochs[row]), int(positions[row])
            self._refuse(asked, (int(result_epochs[row]), int(keys[row])))
        return result_epochs, keys

    def _refuse(self, asked: tuple[int, int], answer: tuple[int, int]) -> None:
        epoch, position = asked
        raise UsageError(
            f"a sampler must answer with an epoch from 0 and a key in [0, {self.parent_length}), since the parent has "
            f"{self.parent_length} elements; {self.sampler!r} answered (epoch, key) = {answer} at position {position} "
            f"of epoch {epoch}. Correct it, or make it for a parent of this length."
        )
