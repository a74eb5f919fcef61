"""The interval of a median."""

import itertools

import pytest

from benchmarks.intervals import median_interval, rank_coverage


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([3.0, 1.0, 7.0, 2.0, 6.0, 4.0, 5.0], (4.0, 1.0, 7.0, 1 - 2 / 128)),  # two in 128 patterns miss the median
        ([float(value) for value in range(1, 16)], (8.0, 4.0, 12.0, rank_coverage(15, 4))),  # as in statistical tables
        ([2.0, 1.0, 3.0], (2.0, 1.0, 3.0, 0.75)),  # too few for 95 %
        ([1.0, 2.0, 4.0, 10.0], (3.0, 1.0, 10.0, 0.875)),  # the mean of the middle two
    ],
)
def test_the_interval_of_some_rounds(rounds: list[float], expected: tuple[float, ...]) -> None:
    """It is the narrowest that reaches 95 %, else the whole range, and has its coverage."""
    found = median_interval(rounds)
    assert (found.median, found.low, found.high, found.coverage) == expected


def test_coverage_is_the_share_of_patterns_that_enclose_the_median() -> None:
    """The coverage equals a count over all ways in which rounds can fall below or above the true median."""
    for count in range(1, 11):
        patterns = [sorted(pattern) for pattern in itertools.product((-1, 1), repeat=count)]
        for rank in range(1, (count + 1) // 2 + 1):
            enclosing = sum(pattern[rank - 1] < 0 < pattern[count - rank] for pattern in patterns)
            assert rank_coverage(count, rank) == enclosing / len(patterns)


def test_no_rounds_are_an_error() -> None:
    """An empty list is an error whose message has the remedy."""
    with pytest.raises(ValueError, match="measure at least one round"):
        median_interval([])
