"""Each process draws other numbers: its global random generators are seeded once, by entropy and its own number.

A forked process continues the generators of the one that it was forked from, and torch starts every process with one
and the same seed. So workers that augment by `random`, NumPy's or torch's global functions would all do the same.
"""

import os
import random
import sys
from typing import Any, Final

import numpy as np

from penstock._seeds import derive

_TORCH_DEFAULT: Final = 67280421310721  # the seed of a torch generator that nobody has seeded
_WORDS: Final = 4  # of NumPy's seed, 32 bits each

_seeds: Final[dict[int, int]] = {}  # by process: what is forked has another number


def seed_process() -> None:
    """Seed the global generators of `random` and NumPy, once in a process, and torch's where nobody has.

    It is called again before each piece of work, since torch may be loaded at any time; then it takes a microsecond.
    """
    pid = os.getpid()
    if pid not in _seeds:
        _seeds.clear()
        _seeds[pid] = seed = derive(int.from_bytes(os.urandom(8), "little"), "process", pid)
        random.seed(derive(seed, "random"))
        np.random.seed([derive(seed, "numpy", word) & 0xFFFFFFFF for word in range(_WORDS)])
    torch: Any = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)  # missing while torch is being imported
    if generator is not None and generator.initial_seed() == _TORCH_DEFAULT:
        torch.manual_seed(derive(_seeds[pid], "torch") & 0x7FFFFFFFFFFFFFFF)
