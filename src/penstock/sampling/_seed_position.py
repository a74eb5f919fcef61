"""The seed position of an element, which determines its randomness; samplers for parts and passes change it.

The rng of a random map is derived from the step's name and the element's seed position. The parts of a dataset, such
as its slices or fixed shards, all count their positions from 0. If these were the seed positions, the first elements
of all parts would be augmented with the same random numbers, and so would the second ones: training on eight parts
would use each number eight times. Likewise, each pass of a repeated dataset would repeat the numbers of the first.
So `Slice`, `Bits`, `Repeat` and `FixedEpoch` map the seed position to the element's position in the parent
(`OrderFacts.maps_seeds`).

A shuffle or a selection only chooses the element of a position. Each position has its own randomness already, and an
element that is taken twice should be augmented in two ways. So shuffles, selections and the user's own samplers leave
the seed position unchanged. `FixedOrder` repeats an order but not the randomness: it maps the seed position as its
inner sampler does in the current epoch, not in the epoch whose order it repeats. `CheckedSampler` maps it as its inner
sampler does.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.sampling._epochs import FixedOrder
from penstock.sampling._sampler import CheckedSampler, ScalarSampler, apply_block, facts_of


def seed_position(sampler: ScalarSampler, epoch: int, position: int) -> tuple[int, int]:
    """Return the seed position, below `sampler`, of the element at (epoch, position) above it.

    Example:
        >>> from penstock.sampling import Shuffle, Slice
        >>> seed_position(Slice(start=100, step=1, length=10), 0, 3)
        (0, 103)
        >>> seed_position(Shuffle(10, seed=7), 0, 3)
        (0, 3)
    """
    while isinstance(sampler, FixedOrder | CheckedSampler):
        sampler = sampler.sampler
    return sampler(epoch, position) if facts_of(sampler).maps_seeds else (epoch, position)


def seed_positions(
    sampler: ScalarSampler, epochs: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the seed positions, below `sampler`, of the elements at (epochs, positions) above it.

    Args:
        sampler: any sampler.
        epochs: int64 of shape (n,).
        positions: int64 of shape (n,).

    Returns:
        Epochs and positions, both int64 of shape (n,); they may be the arguments, so don't write to them.

    Example:
        >>> from penstock.sampling import Repeat
        >>> epochs, positions = seed_positions(Repeat(10, times=2), np.zeros(2, np.int64), np.array([3, 13]))
        >>> epochs.tolist(), positions.tolist()
        ([0, 1], [3, 3])
    """
    while isinstance(sampler, FixedOrder | CheckedSampler):
        sampler = sampler.sampler
    return apply_block(sampler, epochs, positions) if facts_of(sampler).maps_seeds else (epochs, positions)
