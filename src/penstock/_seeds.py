"""Seeds, derived by hashing a path, so that no two uses share a stream and the order of calls doesn't matter.

`derive(seed, *path)` folds the path into the seed, one part at a time:

    state = mix(seed + GOLDEN)
    state = mix(state ^ mix(part + tag))        for every part

`mix` is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), a bijection of 64-bit integers; all arithmetic is
modulo 2**64. An integer part counts as its two's complement with tag 1, a string as the first 8 bytes, little-endian,
of its BLAKE2b digest with tag 2. For a fixed prefix the last integer part is mapped one to one, so two positions
never get the same seed. The values are frozen by a test: they are part of the compatibility promise.
"""

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
_INTEGER: Final = 0x243F6A8885A308D3
_STRING: Final = 0x13198A2E03707344


def mix(value: int) -> int:
    """Return the SplitMix64 finaliser of a 64-bit integer: a bijection whose output bits depend on all input bits."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def derive(seed: int, *path: int | str) -> int:
    """Return the 64-bit seed that `seed` and a path determine.

    Args:
        seed: any integer; it counts modulo 2**64.
        *path: names and numbers, from the outside in, such as a step's name, the epoch and the position.

    Example:
        >>> derive(7, "shuffle", 0) == derive(7, "shuffle", 1)
        False
    """
    state = mix(seed + GOLDEN)
    for part in path:
        if isinstance(part, str):
            digest = hashlib.blake2b(part.encode(), digest_size=8).digest()
            part_hash = mix(int.from_bytes(digest, "little") + _STRING)
        else:
            part_hash = mix(part + _INTEGER)
        state = mix(state ^ part_hash)
    return state


def derive_block(seed: int, *path: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return `derive(seed, *(part[i] for part in path))` for every i, computed at once.

    Args:
        seed: as in `derive`.
        *path: int64 arrays of one length, one for each integer part of the path.
    """
    state: NDArray[np.uint64] | np.uint64 = np.uint64(mix(seed + GOLDEN))
    for part in path:
        state = _mix_block(state ^ _mix_block(part.view(np.uint64) + np.uint64(_INTEGER)))
    return np.atleast_1d(np.asarray(state, np.uint64))


def _mix_block(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
