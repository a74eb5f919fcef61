"""The interval of a median."""

import itertools

import pytest

from benchmarks.intervals import median_interval, rank_coverage


def test_seven_rounds_give_the_whole_range() -> None:
    """Seven rounds reach 95 % only from the smallest to the largest: two in 128 patterns miss the median."""
    interval = median_interval([3.0, 1.0, 7.0, 2.0, 6.0, 4.0, 5.0])
    assert (interval.median, interval.low, interval.high) == (4.0, 1.0, 7.0)
    assert interval.coverage == 1 - 2 / 128


def test_fifteen_rounds_exclude_three_on_each_side() -> None:
    """Of fifteen rounds the 4th smallest and the 4th largest bound the median, as in statistical tables."""
    interval = median_interval([float(value) for value in range(1, 16)])
    assert (interval.low, interval.high) == (4.0, 12.0)


def test_too_few_rounds_have_a_lower_coverage() -> None:
    """Three rounds cannot reach 95 %; the interval is their range, and includes its coverage."""
    interval = median_interval([2.0, 1.0, 3.0])
    assert (interval.low, interval.high, interval.coverage) == (1.0, 3.0, 0.75)


@pytest.mark.parametrize("count", range(1, 11))
def test_coverage_is_the_share_of_patterns_that_enclose_the_median(count: int) -> None:
    """The coverage equals a count over all ways in which rounds can fall below or above the true median."""
    for rank in range(1, (count + 1) // 2 + 1):
        patterns = list(itertools.product((-1, 1), repeat=count))
        ordered = (sorted(pattern) for pattern in patterns)
        enclosing = sum(pattern[rank - 1] < 0 < pattern[count - rank] for pattern in ordered)
        assert rank_coverage(count, rank) == enclosing / len(patterns)


def test_the_median_of_an_even_number_is_the_mean_of_two() -> None:
    """The median of an even number of rounds is the mean of the middle two."""
    assert median_interval([1.0, 2.0, 4.0, 10.0]).median == 3.0


def test_no_rounds_are_an_error() -> None:
    """An empty list is an error whose message has the remedy."""
    with pytest.raises(ValueError, match="measure at least one round"):
        median_interval([])
