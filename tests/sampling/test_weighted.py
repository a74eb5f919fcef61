"""Keys are drawn by their weights, and every position always has the same draw."""

import math
import pickle
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sampling import WeightedDraws

COUNT = 100_000


def keys_of(draws: WeightedDraws, epoch: int = 0) -> NDArray[np.int64]:
    """Return the first keys of one epoch."""
    count = min(len(draws), COUNT)
    return draws.block(np.full(count, epoch), np.arange(count))[1]


def z_of_fit(keys: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Return the chi-square of the keys, less its mean, in standard deviations; rare keys count as one key."""
    expected = weights / math.fsum(weights.tolist()) * len(keys)
    counts = np.bincount(keys, minlength=len(weights)).astype(np.float64)
    common = expected >= 10
    groups = np.append(expected[common], expected[~common].sum())
    found = np.append(counts[common], counts[~common].sum())
    used = groups >= 10
    freedom = int(used.sum()) - 1
    if freedom < 1:
        return 0.0
    statistic = float(((found[used] - groups[used]) ** 2 / groups[used]).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


SHAPES: dict[str, NDArray[np.float64]] = {
    "all alike": np.ones(1000),
    "two": np.array([1.0, 3.0]),
    "one in a thousand heavy": np.append(np.ones(999), 999.0),
    "half are zero": (np.arange(1000) % 2).astype(np.float64),
    "by rank": np.reciprocal(np.arange(1, 5001).astype(np.float64)),
    "huge": np.array([1e308, 1.5e308, 0.5e308]),
    "tiny": np.array([5e-324, 1e-323, 1.5e-323]),
}


def test_keys_are_drawn_by_weight() -> None:
    """How often each key is drawn agrees with its weight by a chi-square test, in every epoch.

    In a table far larger than the number of draws, classes of alike weights are drawn by their sums.
    """
    for name, weights in SHAPES.items():
        keys = keys_of(WeightedDraws(weights, COUNT, seed=11), epoch=5)
        assert abs(z_of_fit(keys, weights / weights.max())) < 5, name
    weights = (np.arange(1_000_000) % 7 + 1).astype(np.float64)
    keys = keys_of(WeightedDraws(weights, COUNT, seed=3))
    numbers = np.arange(len(weights))
    assert abs(z_of_fit(keys % 7, np.bincount(numbers % 7, weights).astype(np.float64))) < 5
    assert abs(z_of_fit(keys // 10_000, np.bincount(numbers // 10_000, weights).astype(np.float64))) < 5


@given(
    st.one_of(
        st.lists(st.integers(0, 6).map(float), min_size=1, max_size=12),
        st.lists(st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 1e300)), min_size=1, max_size=12),
    ).filter(any),
    st.integers(0, 2**64 - 1),
)
def test_any_weights_fit(weights: list[float], seed: int) -> None:
    """Any weights determine the shares of their keys, and a key of weight 0 is never drawn."""
    array = np.array(weights)
    keys = keys_of(WeightedDraws(array, 5000, seed))
    assert (array[keys] > 0).all()
    assert z_of_fit(keys, array / array.max()) < 25  # six deviations where only two keys are common


def test_the_unit_of_the_weights_does_not_matter() -> None:
    """Weights twice as large, and of another type, give the same draws."""
    weights = np.arange(1.0, 100.0)
    expected = keys_of(WeightedDraws(weights, 1000, seed=2)).tolist()
    assert expected == keys_of(WeightedDraws(weights * 4, 1000, seed=2)).tolist()
    assert expected == keys_of(WeightedDraws(cast("Any", np.arange(1, 100)), 1000, seed=2)).tolist()


def test_an_epoch_may_be_huge() -> None:
    """The last of 2**62 positions is drawn at once, one by one and in a block."""
    draws = WeightedDraws(np.array([0.0, 1.0, 0.0]), 2**62, seed=2)
    assert draws(2**40, 2**62 - 1) == (2**40, 1)
    assert draws.block(np.array([2**40]), np.array([2**62 - 1]))[1].tolist() == [1]


def test_a_pickle_leaves_the_table_out() -> None:
    """A pickle holds the weights and not the table, and draws the same."""
    draws = WeightedDraws(np.arange(10_000.0), 1000, seed=2)
    expected = keys_of(draws).tolist()
    pickled = pickle.dumps(draws)
    assert len(pickled) < 10_000 * 8 + 1000
    twin: WeightedDraws = pickle.loads(pickled)
    assert keys_of(twin).tolist() == expected
    assert not twin.weights.flags.writeable


def test_it_is_its_weights() -> None:
    """Two are equal if weights, length and seed are; others have another repr, which is short."""
    weights = np.ones(10_000)
    draws = WeightedDraws(weights, 10, seed=2)
    assert draws == WeightedDraws(np.ones(10_000, np.float32).astype(np.float64), 10, seed=2)
    others = [WeightedDraws(np.ones(9_999), 10, 2), WeightedDraws(weights, 11, 2), WeightedDraws(weights, 10, 3)]
    weights[5000] = 2.0
    others.append(WeightedDraws(weights, 10, 2))
    assert len({repr(one) for one in [draws, *others]}) == len({draws, *others}) == 5
    assert draws != "draws"
    assert len(repr(draws)) < 100


def test_wrong_weights_are_named() -> None:
    """Invalid weights are a UsageError."""
    for weights, message in (
        (np.array([1.0, np.nan]), "weights must be finite and not negative; got nan for element 1"),
        (np.array([np.inf]), "got inf for element 0"),
        (np.array([1.0, 2.0, -1.0]), "got -1.0 for element 2. Use 0 for elements that should never be drawn"),
        (np.zeros(3), "weights must not all be 0; got 3 of them and none over 0"),
        (np.array([]), "weights must not all be 0; got 0 of them"),
        (np.ones((2, 2)), r"weights must be a float64 array of one axis; got dtype float64 and shape \(2, 2\)"),
        (np.array(["a"]), "weights must be a float64 array of one axis; got dtype <U1"),
    ):
        with pytest.raises(UsageError, match=message):
            WeightedDraws(cast("Any", weights), 10, seed=1)
