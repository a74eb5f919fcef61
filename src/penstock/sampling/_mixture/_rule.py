"""What a mixture rule is: a pure function of (epoch, position) that names a component and a place in it."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class MixtureRule(Protocol):
    """From (epoch, position) of the mixture to (component, epoch of the component, position in the component).

    Components are numbered from 0 in the order in which the mixture lists them. As a sampler, a rule is asked in any
    order, from any thread and process, and always gives the same answer.

    Example:
        >>> from penstock.sampling import Concatenation
        >>> isinstance(Concatenation((3, 5)), MixtureRule)
        True
    """

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        ...

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int, int]:
        """Return (component, epoch, position): whose element stands at `position` of `epoch`, and which one.

        Args:
            epoch: from 0.
            position: in [0, len(self)).
        """
        ...

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the scalar form's answers for every pair of epoch and position.

        Args:
            epochs: int64 of shape (n,). They may differ, but mostly do not.
            positions: int64 of shape (n,).

        Returns:
            Components, epochs and positions, all int64 of shape (n,). They may be the very arrays that were given, so
            none is to be written to.
        """
        ...
