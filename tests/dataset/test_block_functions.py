"""A function object with `apply_block` computes blocks in one call, and the function itself decides about errors."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import penstock as ps


class Doubled:
    """Doubles numbers but 13, and records the sizes of its blocks."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, number: int) -> int:
        """Compute one element."""
        if number == 13:
            raise KeyError(number)
        return number * 2

    def apply_block(self, numbers: Sequence[int]) -> Iterable[int]:
        """Double a block."""
        self.sizes.append(len(numbers))
        return map(self, numbers)


class Noisy:
    """Adds a random number."""

    def __call__(self, number: int, rng: np.random.Generator) -> float:
        """Compute one element."""
        return number + rng.random()

    def apply_block(self, numbers: Sequence[int], rngs: Iterable[np.random.Generator]) -> list[float]:
        """Add a random number to each of a block."""
        return [number + rng.random() for number, rng in zip(numbers, rngs, strict=True)]


class Short:
    """Loses a result of each block."""

    def __call__(self, number: int) -> int:
        """Compute one element."""
        return number

    def apply_block(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return all but one."""
        return numbers[1:]


def loaded(dataset: ps.Dataset[Any]) -> list[Any]:
    """Return the elements that a loader delivers in batches."""
    with ps.Loader(dataset.batch(5)) as loader:
        return [element for batch in loader for element in batch.tolist()]


@pytest.mark.parametrize("filtered", [False, True])
def test_blocks_equal_elements(filtered: bool) -> None:  # noqa: FBT001 - a case
    """A loader calls apply_block for several elements, and gets what each call alone returns, draws included."""
    doubled = Doubled()
    dataset = ps.range(12, seed=4).shuffle().map(doubled).random_map(Noisy())
    if filtered:
        dataset = dataset.filter(lambda number: number > 6)
    assert loaded(dataset) == [*dataset]
    assert max(doubled.sizes) > 1
    assert loaded(ps.range(12, seed=4).random_map(Noisy())) == [
        ps.range(12, seed=4).random_map(Noisy())[position] for position in range(12)
    ]


def test_an_error_in_a_block_is_the_functions() -> None:
    """If apply_block raises, the function is called for each element, and `on_error` applies to the one that fails."""
    with pytest.raises(KeyError, match="13") as caught:
        loaded(ps.range(20).map(Doubled()))
    assert "position 13" in "".join(caught.value.__notes__)
    kept = loaded(ps.range(20).map(Doubled(), on_error="skip"))
    assert kept == [number * 2 for number in range(20) if number != 13]


def test_a_block_with_too_few_results_is_an_error() -> None:
    """A result that is missing is never filled or passed over."""
    with pytest.raises(ps.errors.UsageError, match=r"step 'Short'.* one result for each element; got 4 .* for 5"):
        loaded(ps.range(20).map(Short()))
