"""Where an element's randomness comes from: its seed position, which samplers that take a part or a pass move.

The rng of a random map is derived from the step's name and the element's seed position. Two parts of one dataset, a
slice or a fixed shard and its sibling, both count their positions from 0. Were these positions the seed positions,
then the first element of each part would be augmented by the same numbers, and so on: training on eight parts would
see each random number eight times. Likewise each pass of a repeated dataset would repeat the random numbers of the
first. So `Slice`, `Bits`, `Repeat` and `FixedEpoch` carry the seed position to where the element stands in the parent.

A shuffle or a selection only says which element comes at a position. Each position has randomness of its own already,
and an element that is taken twice is to be augmented in two ways. So these, and samplers that Penstock doesn't know,
leave the seed position as it is. `FixedOrder` repeats an order and not the randomness: it moves the seed position as
its inner sampler does in the real epoch, not in the one whose order is used. `CheckedSampler` is as its inner one.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.sampling._bits import Bits
from penstock.sampling._checked import CheckedSampler
from penstock.sampling._epochs import FixedEpoch, FixedOrder, Repeat
from penstock.sampling._sampler import ScalarSampler
from penstock.sampling._select import Slice


def seed_position(sampler: ScalarSampler, epoch: int, position: int) -> tuple[int, int]:
    """Return the seed position, below `sampler`, of the element at (epoch, position) above it.

    Example:
        >>> from penstock.sampling import Shuffle, Slice
        >>> seed_position(Slice(start=100, step=1, length=10), 0, 3)
        (0, 103)
        >>> seed_position(Shuffle(10, seed=7), 0, 3)
        (0, 3)
    """
    match sampler:
        case FixedOrder(inner) | CheckedSampler(inner):
            return seed_position(inner, epoch, position)
        case Slice() | Bits() | Repeat() | FixedEpoch():
            return sampler(epoch, position)
        case _:
            return epoch, position


def seed_positions(
    sampler: ScalarSampler, epochs: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the seed positions, below `sampler`, of the elements at (epochs, positions) above it.

    Args:
        sampler: any sampler.
        epochs: int64 of shape (n,).
        positions: int64 of shape (n,).

    Returns:
        Epochs and positions, both int64 of shape (n,); they may be those that were given, so are not to be written to.

    Example:
        >>> from penstock.sampling import Repeat
        >>> epochs, positions = seed_positions(Repeat(10, times=2), np.zeros(2, np.int64), np.array([3, 13]))
        >>> epochs.tolist(), positions.tolist()
        ([0, 1], [3, 3])
    """
    match sampler:
        case FixedOrder(inner) | CheckedSampler(inner):
            return seed_positions(inner, epochs, positions)
        case Slice() | Bits() | Repeat() | FixedEpoch():
            return sampler.block(epochs, positions)
        case _:
            return epochs, positions
