"""Weights become whole numbers in exactly the given ratios, or in the nearest ratios of the longest period."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling import integer_weights


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=20).filter(any), st.sampled_from([1, 10, 100, 1000]))
def test_decimals_count_as_they_are_written(numerators: list[int], denominator: int) -> None:
    """A float is the decimal that it prints as, and equals the fraction and the integers in the same ratios."""
    expected = integer_weights(numerators)
    assert expected == tuple(number // math.gcd(*numerators) for number in numerators)
    assert integer_weights([numerator / denominator for numerator in numerators]) == expected
    assert integer_weights([Fraction(numerator, denominator) for numerator in numerators]) == expected
    assert integer_weights(list(np.array(numerators) / denominator)) == expected
    assert integer_weights(list(np.array(numerators))) == expected


positive = st.one_of(st.floats(1e-9, 1.0), st.floats(0, 1e300), st.fractions(0, 10, max_denominator=10**6))


@given(st.lists(positive, min_size=1, max_size=40).filter(any))
def test_long_periods_are_rounded_to_the_nearest(weights: list[float | Fraction]) -> None:
    """The period is at most 2**16, weights over 0 get at least 1, and larger ones never less than smaller ones."""
    result = integer_weights(weights)
    assert 1 <= sum(result) <= 2**16
    assert math.gcd(*result) == 1
    assert [number > 0 for number in result] == [weight > 0 for weight in weights]
    exact = [Fraction(str(weight)) if isinstance(weight, float) else Fraction(weight) for weight in weights]
    for left, right in itertools.pairwise(exact):
        if left > right:
            assert result[exact.index(left)] >= result[exact.index(right)]


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=40))
def test_none_is_off_by_a_whole_place(weights: list[float]) -> None:
    """If no share is below one place, each weight differs from its share of the period by less than one."""
    result = integer_weights(weights)
    exact = [Fraction(str(weight)) for weight in weights]
    # The greatest common divisor has been taken out, which scales the error with the period.
    for number, weight in zip(result, exact, strict=True):
        assert abs(number - weight * sum(result) / sum(exact)) < 1


def test_weights_that_one_can_check_by_hand() -> None:
    """The weights are those computed by hand."""
    cases: list[tuple[list[Any], tuple[int, ...]]] = [
        ([0.7, 0.3], (7, 3)),
        ([3, 0.5], (6, 1)),
        ([5], (1,)),
        ([1e-12, 1.0], (1, 2**16 - 1)),
        ([1e-12, 1e-12, 1e6, 0], (1, 1, 2**16 - 2, 0)),
        ([np.float32(0.1), np.float32(0.9)], (1, 9)),
    ]
    for weights, expected in cases:
        assert integer_weights(weights) == expected
