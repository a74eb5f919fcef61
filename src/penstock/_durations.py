"""A histogram of durations, whose buckets grow with the duration, so that quantiles have a bounded relative error.

Each factor of two is divided into 16 buckets of equal width, so a bucket is at most 1/16 of its value wide, and its
middle is within 1/32 of every duration in it. The exponent and the leading bits of the number give the bucket, as in
Tene's HdrHistogram, without a logarithm or a search. The native core computes it, since it counts durations, too.
"""

from math import ceil
from typing import Final

from penstock._frozen import frozen
from penstock._native import bucket_of
from penstock.errors import UsageError

RELATIVE_ERROR: Final = 1 / 32
"""The largest relative error of a quantile, within the range of the buckets."""

SHORTEST_SECONDS: Final = 2.0**-24
"""About 60 ns; shorter durations count as this long."""

LONGEST_SECONDS: Final = 2.0**15
"""About 9 hours; longer durations count as this long."""

_EACH_DOUBLING: Final = 16
_LOWEST_EXPONENT: Final = -23  # frexp returns SHORTEST_SECONDS as 0.5 * 2 ** -23
BUCKETS: Final = (15 - _LOWEST_EXPONENT + 1) * _EACH_DOUBLING
"""The number of buckets."""


@frozen
class Durations:
    """A histogram as a value: how many durations fell into each bucket.

    Attributes:
        counts: pairs of a bucket's number and its number of durations, in ascending order, without empty buckets.
            Default none.

    Example:
        >>> recorder = DurationRecorder()
        >>> for milliseconds in range(1, 101):
        ...     recorder.record(milliseconds / 1000)
        >>> durations = recorder.snapshot()
        >>> durations.count, f"{durations.quantile(0.5):.2f}", f"{durations.quantile(0.9):.2f}"
        (100, '0.05', '0.09')
    """

    counts: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(count for _, count in self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the shortest recorded duration that at least this share of all durations do not exceed.

        It is one of the recorded durations, never interpolated, with an error of at most `RELATIVE_ERROR`.

        Args:
            share: between 0 (the shortest of all) and 1 (the longest).

        Returns:
            Seconds, or None if nothing was recorded.

        Raises:
            UsageError: the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise UsageError(
                f"a quantile needs a share between 0 and 1; got {share}. For the median, write quantile(0.5)"
            )
        rank = max(ceil(share * self.count), 1)
        for bucket, count in self.counts:
            rank -= count
            if rank <= 0:
                return _middle(bucket)
        return None

    def above(self, seconds: float) -> "Durations":
        """Return the histogram of the durations that are in a higher bucket than a given one."""
        lowest = bucket_of(seconds)
        return Durations(tuple((bucket, count) for bucket, count in self.counts if bucket > lowest))

    @property
    def total_seconds(self) -> float:
        """The sum of the durations, with the error of a bucket."""
        return sum((_middle(bucket) * count for bucket, count in self.counts), 0.0)

    def merged(self, other: "Durations") -> "Durations":
        """Return the histogram of both, as if one recorder had recorded all durations."""
        counts = dict(self.counts)
        for bucket, count in other.counts:
            counts[bucket] = counts.get(bucket, 0) + count
        return Durations(tuple(sorted(counts.items())))


class DurationRecorder:
    """A histogram that is being filled; it takes about 5 kB, and a fraction of a microsecond per duration.

    One thread records; any thread may take a snapshot meanwhile.

    Example:
        >>> recorder = DurationRecorder()
        >>> recorder.record(0.002, count=5)
        >>> recorder.snapshot().count
        5
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS

    def record(self, seconds: float, count: int = 1) -> None:
        """Record `count` durations of `seconds` each."""
        self._counts[bucket_of(seconds)] += count

    def snapshot(self) -> Durations:
        """Return the durations recorded so far as a value."""
        return Durations(tuple((bucket, count) for bucket, count in enumerate(self._counts.copy()) if count))


def _middle(bucket: int) -> float:
    doublings, part = divmod(bucket, _EACH_DOUBLING)
    return SHORTEST_SECONDS * 2.0**doublings * (1 + (part + 0.5) / _EACH_DOUBLING)
