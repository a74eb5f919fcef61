"""A shuffle is as good as chance: by statistics over seeds, over epochs and within one order.

The order itself is frozen, so the long profile is enough. The seeds are consecutive numbers, the worst of users. A
statistic is turned into z, a number that is normal with variance 1 if the orders are random; the tests demand
|z| < 5, which chance alone would miss once in 1.7 million. What is too even fails as what is too uneven does.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.sampling import Permutation, Shuffle

pytestmark = pytest.mark.long


def chi_square_z(cells: NDArray[np.int64], cell_count: int) -> float:
    """Return z of the chi-square test that the observed `cells` are drawn evenly from [0, cell_count).

    By the cube root of Wilson and Hilferty (1931), which is near to normal for few cells and for many.
    """
    counts = np.bincount(cells, minlength=cell_count)
    expected = len(cells) / cell_count
    degrees = cell_count - 1
    statistic = float(((counts - expected) ** 2).sum() / expected)
    spread = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def correlation_z(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return z of the test that the two are uncorrelated."""
    return float(np.corrcoef(first, second)[0, 1]) * math.sqrt(len(first) - 1)


def test_the_statistic_itself_finds_a_bias() -> None:
    """The test would see cells that are a tenth more frequent than others."""
    even = np.arange(100_000) % 100
    biased = np.concatenate([even, np.arange(10_000) % 50])
    assert chi_square_z(biased, 100) > 5
    assert chi_square_z(even, 100) < -5


@pytest.mark.parametrize(
    ("length", "seed_count"), [(2, 20_000), (3, 20_000), (13, 30_000), (100, 30_000), (1000, 30_000)]
)
def test_the_first_two_keys_are_even_over_seeds(length: int, seed_count: int) -> None:
    """Over seeds, positions 0 and 1 get every pair of different keys equally often."""
    pairs = np.array([Permutation(length, seed).block([0, 1]) for seed in range(seed_count)])
    first, second = pairs.T
    # Number the length * (length - 1) pairs from 0, leaving out those of equal keys, which cannot be.
    cells = first * (length - 1) + second - (second > first)
    assert abs(chi_square_z(cells, length * (length - 1))) < 5


@pytest.mark.parametrize("length", [65537, 100_003, 131_072, 1_281_167, 10**12])
@pytest.mark.parametrize("distance", [1, 256, 512])
def test_long_pairs_are_even_over_seeds(length: int, distance: int) -> None:
    """Beyond the tables, two keys are even over seeds by their upper parts, and by their lowest bits, jointly."""
    pairs = np.array([Permutation(length, seed).block([0, distance]) for seed in range(10_000)])
    first, second = (pairs * 16 // length).T
    assert abs(chi_square_z(first * 16 + second, 256)) < 5
    first, second = (pairs % 16).T
    assert abs(chi_square_z(first * 16 + second, 256)) < 5


@pytest.mark.parametrize("length", [1000, 65_536, 100_003, 1_000_000])
def test_orders_are_uncorrelated(length: int) -> None:
    """An order is uncorrelated with positions, with itself one place on, and with other epochs' and seeds' orders."""
    positions = np.arange(length)

    def order(seed: int, epoch: int) -> NDArray[np.int64]:
        return Shuffle(length, seed).block(np.full(length, epoch), positions)[1]

    keys = order(seed=1, epoch=1)
    others = [order(seed=1, epoch=0), order(seed=1, epoch=2), order(seed=2, epoch=0), order(seed=0, epoch=1)]
    assert abs(correlation_z(keys, positions)) < 5
    assert abs(correlation_z(keys[:-1], keys[1:])) < 5
    for other in others:
        assert abs(correlation_z(keys, other)) < 5


@pytest.mark.parametrize("length", [100, 70_001])
def test_epochs_keep_as_many_places_as_chance_does(length: int) -> None:
    """On average one element keeps its place from epoch to epoch: over 400 epochs 400 elements, plus or minus 100."""
    shuffle = Shuffle(length, seed=4)
    positions = np.arange(length)
    keys = [shuffle.block(np.full(length, epoch), positions)[1] for epoch in range(401)]
    kept = sum(int((one == next_one).sum()) for one, next_one in pairwise(keys))
    assert abs(kept - 400) < 5 * math.sqrt(400)
