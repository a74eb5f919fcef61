"""The rule by which seeds derive from a path, written down a second time, so that tests don't ask the code for it."""

import hashlib


def mixed(value: int) -> int:
    """Return the finaliser of SplitMix64, as its authors print it."""
    z = value % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def derive(seed: int, *path: int | str) -> int:
    """Return the 64-bit seed that a seed and a path determine: each part is folded in, names and numbers apart."""
    state = mixed(seed + 0x9E3779B97F4A7C15)
    for part in path:
        if isinstance(part, int):
            number = part + 0x243F6A8885A308D3
        else:
            eight = hashlib.blake2b(part.encode("utf-8"), digest_size=8).digest()
            number = sum(byte << 8 * place for place, byte in enumerate(eight)) + 0x13198A2E03707344
        state = mixed(state ^ mixed(number))
    return state
