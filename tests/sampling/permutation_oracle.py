"""The order of a permutation, computed slowly from its specification alone. The native core must give the same."""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _hash(value: int) -> int:
    value = (value * 0x7FEB352D) % 2**32
    value = ((value ^ (value >> 15)) * 0x846CA68B) % 2**32
    return value ^ (value >> 16)


class PermutationOracle:
    """The key at any position, computed step by step as specified."""

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.state = _mix(_mix(seed + _GOLDEN) ^ _mix(length + 0x243F6A8885A308D3))
        if length <= 65536:
            self.table = list(range(length))
            numbers = [_mix(self.state + j * _GOLDEN) for j in range(1, length)]
            for number, last in zip(numbers, range(length - 1, 0, -1), strict=True):
                other = number * (last + 1) // 2**64
                self.table[last], self.table[other] = self.table[other], self.table[last]

    def key_at(self, position: int) -> int:
        """Return the key at one position."""
        return self.table[position] if self.length <= 65536 else network_key(self.length, self.state, position)


def network_key(length: int, seed: int, position: int) -> int:
    """Return the key at one position of the network of a length, whose round keys are those of a seed."""
    round_keys = [_mix(seed + j * _GOLDEN) >> 32 for j in range(1, 9)]
    bits = next(bits for bits in range(63) if 2**bits >= length)
    left_bits, right_bits = bits // 2, bits - bits // 2
    value = position
    while True:
        left, right = divmod(value, 1 << right_bits)
        for number, round_key in enumerate(round_keys):
            if number % 2 == 0:
                left ^= _hash(right ^ round_key) % (1 << left_bits)
            else:
                right ^= _hash(left ^ round_key) % (1 << right_bits)
        value = (left << right_bits) + right
        if value < length:
            return value
