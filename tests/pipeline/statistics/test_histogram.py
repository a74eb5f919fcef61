"""A histogram of durations returns quantiles within its stated relative error."""

from math import ceil, inf, ldexp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from tests.pipeline.statistics.pipelines import (
    LONGEST_SECONDS,
    RELATIVE_ERROR,
    SHORTEST_SECONDS,
    DurationRecorder,
    Durations,
)

SHARES = st.floats(0, 1)
# Spread over all orders of magnitude; plain floats would gather at the long end.
SECONDS = st.builds(ldexp, st.floats(1, 2, exclude_max=True), st.integers(-24, 14))
COUNTED = st.lists(st.tuples(SECONDS, st.integers(1, 5)), max_size=40)


def recorded(counted: list[tuple[float, int]]) -> Durations:
    """Return the histogram of pairs of a duration and its number of occurrences."""
    recorder = DurationRecorder()
    for seconds, count in counted:
        recorder.record(seconds, count)
    return recorder.snapshot()


@given(counted=COUNTED.filter(bool), shares=st.lists(SHARES, min_size=1, max_size=5))
def test_a_quantile_is_the_ranked_duration_within_its_error(
    counted: list[tuple[float, int]], shares: list[float]
) -> None:
    """A quantile is the duration at that rank of the sorted list, within the stated relative error, and never falls."""
    ranked = sorted(seconds for seconds, count in counted for _ in range(count))
    durations = recorded(counted)
    found: list[float] = []
    for share in sorted(shares):
        truth = ranked[max(ceil(share * len(ranked)) - 1, 0)]
        found.append(durations.quantile(share) or 0)
        assert abs(found[-1] - truth) <= truth * RELATIVE_ERROR
    assert found == sorted(found)


@given(first=COUNTED, second=COUNTED)
def test_merging_equals_recording_everything_in_one(
    first: list[tuple[float, int]], second: list[tuple[float, int]]
) -> None:
    """Two merged histograms equal one of all durations, in either order."""
    merged = recorded(first).merged(recorded(second))
    assert merged == recorded(first + second) == recorded(second).merged(recorded(first))
    assert merged.count == sum(count for _, count in first + second)


def test_the_edges_of_the_range_and_of_buckets() -> None:
    """A duration outside the range counts as the shortest or longest one; one on the edge of a bucket as any other."""
    outside = [(0.0, SHORTEST_SECONDS), (1e-9, SHORTEST_SECONDS), (-1.0, SHORTEST_SECONDS), (1e9, LONGEST_SECONDS)]
    edges = (SHORTEST_SECONDS, LONGEST_SECONDS * (1 - 2**-53), 0.5, 1.0, 1 - 2**-53)
    for seconds, expected in (*outside, (inf, LONGEST_SECONDS), *((edge, edge) for edge in edges)):
        assert recorded([(seconds, 1)]).quantile(0.5) == pytest.approx(expected, rel=RELATIVE_ERROR)


def test_a_snapshot_does_not_change() -> None:
    """Durations recorded later are not in an earlier snapshot."""
    recorder = DurationRecorder()
    recorder.record(1.0)
    snapshot = recorder.snapshot()
    recorder.record(2.0)
    assert (snapshot.count, recorder.snapshot().count) == (1, 2)


def test_an_empty_histogram_and_wrong_shares() -> None:
    """Without durations, a quantile is None, and the sum is a float; a share outside [0, 1] is refused."""
    assert (Durations().quantile(0.5), Durations().count) == (None, 0)
    assert type(Durations().total_seconds) is float
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(UsageError, match=r"between 0 and 1.*quantile\(0\.5\)"):
            Durations().quantile(share)
