"""The median of a few rounds and its confidence interval, from order statistics alone.

No distribution is assumed. Each round is below or above the true median with probability one half, so the number of
rounds below it is binomial. So the probability that the interval between the k-th smallest and the k-th largest round
covers the median can be counted (David and Nagaraja, *Order Statistics*, 2003, section 7.1).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with the interval that covers the true one with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], coverage: float = 0.95) -> Interval:
    """Return the median of `values` and its narrowest symmetric order-statistic interval of at least `coverage`.

    Args:
        values: one number a round; at least one.
        coverage: the requested probability. Fewer than 6 values can't reach 0.95: then the whole range is returned, and
            `Interval.coverage` has its coverage.

    Raises:
        ValueError: if `values` is empty.
    """
    if not values:
        raise ValueError("values must not be empty; measure at least one round")
    ordered = sorted(values)
    count = len(ordered)
    rank = 1
    while 2 * (rank + 1) <= count and rank_coverage(count, rank + 1) >= coverage:
        rank += 1
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[count - rank], rank_coverage(count, rank))


def rank_coverage(count: int, rank: int) -> float:
    """Return the probability that the median is between the `rank`-th smallest and largest of `count` values."""
    enclosing = sum(math.comb(count, below) for below in range(rank, count - rank + 1))
    return enclosing / float(2**count)
