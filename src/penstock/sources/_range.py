"""The source of integers at equal distances, for tests, and for datasets that compute their elements from a number."""

from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sources._source import Keys, as_key, as_keys, check_range

_INT64 = np.iinfo(np.int64)
_MAX_INTEGERS = 1 << 62


class Range:
    """The integers of Python's `range` with the same arguments; records are Python ints.

    Args:
        start: the first integer. A single argument is `stop`, and then the first integer is 0.
        stop: the end of the range; it is not included.
        step: the distance from one integer to the next; not 0.

    Raises:
        UsageError: the step is 0, an integer doesn't fit into int64, or there are more than 2**62.

    Example:
        >>> source = Range(3, 12, 4)
        >>> len(source), list(source), source.read(np.array([1, 0]))
        (3, [3, 7, 11], [7, 3])
    """

    __slots__ = ("_range",)

    def __init__(self, start: int, stop: int | None = None, step: int = 1) -> None:
        if step == 0:
            raise UsageError("step must not be 0; got step=0. Pass the distance from one integer to the next.")
        numbers = range(start) if stop is None else range(start, stop, step)
        if stop is None and step != 1:
            numbers = range(0, start, step)
        if numbers and not (_INT64.min <= min(numbers[0], numbers[-1]) and max(numbers[0], numbers[-1]) <= _INT64.max):
            raise UsageError(f"all integers must fit into int64; got {numbers!r}. Scale them in a map.")
        if numbers and (numbers[-1] - numbers[0]) // numbers.step >= _MAX_INTEGERS:
            raise UsageError(f"a range must have at most 2**62 integers; got {numbers!r}. Move stop, or raise step.")
        self._range = numbers

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[int]:
        return iter(self._range)

    def __getitem__(self, key: SupportsIndex) -> int:
        return self._range[as_key(key, len(self._range))]

    def read(self, keys: Sequence[int] | Keys) -> list[int]:
        """Return the integer of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            Python ints.
        """
        numbers: list[int] = self._at(keys).tolist()
        return numbers

    def read_into(self, keys: Sequence[int] | Keys, out: NDArray[Any]) -> None:
        """Write the integer of each key to `out`.

        Args:
            keys: in [0, length), one axis.
            out: int64, one axis, as long as `keys`.
        """
        out[...] = self._at(keys)

    def fingerprint(self) -> str:
        """Return a str that determines the integers."""
        return f"range-{self._range.start}-{self._range.stop}-{self._range.step}"

    def __eq__(self, other: object) -> bool:
        return self._range == other._range if isinstance(other, Range) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._range)

    def __repr__(self) -> str:
        return f"Range({self._range.start}, {self._range.stop}, {self._range.step})"

    def _at(self, keys: Sequence[int] | Keys) -> NDArray[np.int64]:
        checked = as_keys(keys)
        check_range(checked, len(self._range))
        if self._range.start == 0 and self._range.step == 1:
            return checked
        # In two's complement the sum is correct if it fits into int64, even if the product wraps around.
        return checked * np.int64(_wrap(self._range.step)) + np.int64(_wrap(self._range.start))


def _wrap(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
