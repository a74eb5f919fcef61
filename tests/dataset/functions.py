"""Functions and sources of the tests' datasets, at module level so that they can be pickled."""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


def double(number: Any) -> Any:
    """Return twice the number, or twice each of an array."""
    return number * 2


def same(element: Any) -> Any:
    """Return the element unchanged."""
    return element


def keep(element: object) -> bool:
    """Keep every element."""
    del element
    return True


def is_even(number: int) -> bool:
    """Keep even numbers."""
    return number % 2 == 0


def is_odd(number: int) -> bool:
    """Keep odd numbers."""
    return number % 2 == 1


def noisy(element: Any, rng: Generator) -> tuple[Any, float]:
    """Return the element with a random number."""
    return element, rng.random()


def draw(element: object, rng: Generator) -> float:
    """Return a random number."""
    del element
    return rng.random()


def row_sums(batch: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of each row of a batch of vectors."""
    return np.asarray(batch.sum(axis=1))


class Squares:
    """A source with only the methods that a source must have."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        if not 0 <= key < self.length:
            raise IndexError(key)
        return key * key


class Rotated:
    """A sampler with the scalar form alone."""

    def __init__(self, length: int, by: int = 1) -> None:
        self.length = length
        self.by = by

    def __len__(self) -> int:
        return self.length

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the position below, which differs in each epoch."""
        return epoch, (position + self.by * (epoch + 1)) % self.length


class Scale:
    """A callable object."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: Any) -> Any:
        """Return the number, scaled."""
        return number * self.factor
