"""The protocol of a mixture rule: a pure function of (epoch, position) to a component and a position in it."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class MixtureRule(Protocol):
    """From (epoch, position) of the mixture to (component, epoch of the component, position in the component).

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
