"""The global generators in a worker: at its start as torch seeds them, and then anew for each item.

So what an item draws depends on the base seed, the epoch, the batch and the row, and not on which worker computes it,
after what, or how often.
"""

import random
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch

_WORD: int = 0xFFFFFFFF
_SIGNED: int = 0x7FFFFFFFFFFFFFFF


def seed_worker(seed: int, numpy_words: Sequence[int]) -> None:
    """Seed all generators, as torch seeds those of a worker.

    Args:
        seed: for `random` and torch, those of devices included.
        numpy_words: for NumPy.
    """
    random.seed(seed)
    manual_seed: Callable[[int], object] = vars(torch)["manual_seed"]
    manual_seed(seed)
    np.random.seed(numpy_words)


def seed_item(seed: int) -> None:
    """Seed the generators that the code of an item may draw from.

    Args:
        seed: 64 bits.
    """
    random.seed(seed)
    torch.default_generator.manual_seed(seed & _SIGNED)  # only this one: workers compute on the host
    if "numpy.random" in sys.modules:
        np.random.seed((seed & _WORD, seed >> 32))
