"""Random draws that depend on a seed and a path alone, so that a round can be repeated."""

from collections.abc import Sequence
from typing import TypeVar

from tests.seeds import derive

T = TypeVar("T")


class Chance:
    """Draws, one after the other, for a seed and a path, which is their purpose."""

    def __init__(self, seed: int, *path: int | str) -> None:
        self._seed = derive(seed, *path)
        self._drawn = 0

    def between(self, first: int, last: int) -> int:
        """Return a whole number from `first` to `last`."""
        self._drawn += 1
        return first + derive(self._seed, self._drawn) % (last - first + 1)

    def is_one_in(self, count: int) -> bool:
        """Return True once in so many draws, on average."""
        return self.between(1, count) == 1

    def one_of(self, values: Sequence[T]) -> T:
        """Return one of the values."""
        return values[self.between(0, len(values) - 1)]
