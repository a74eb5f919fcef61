"""Durations are counted in buckets, and quantiles read from them, within a stated share of the truth."""

from math import ceil, inf, ldexp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.pipeline._statistics._histogram import (
    LONGEST_SECONDS,
    RELATIVE_ERROR,
    SHORTEST_SECONDS,
    DurationRecorder,
    Durations,
)

SHARES = st.floats(0, 1)
# Spread over all orders of magnitude, where plain floats would crowd at the long end.
SECONDS = st.builds(ldexp, st.floats(1, 2, exclude_max=True), st.integers(-24, 14))
COUNTED = st.lists(st.tuples(SECONDS, st.integers(1, 5)), max_size=40)


def recorded(counted: list[tuple[float, int]]) -> Durations:
    """Return what a recorder makes of durations and how often each came."""
    recorder = DurationRecorder()
    for seconds, count in counted:
        recorder.record(seconds, count)
    return recorder.snapshot()


@given(counted=COUNTED.filter(bool), share=SHARES)
def test_a_quantile_is_the_ranked_duration_within_its_error(counted: list[tuple[float, int]], share: float) -> None:
    """A quantile is the duration at that rank of the sorted list, within the stated relative error."""
    ranked = sorted(seconds for seconds, count in counted for _ in range(count))
    truth = ranked[max(ceil(share * len(ranked)) - 1, 0)]
    told = recorded(counted).quantile(share)
    assert told is not None
    assert abs(told - truth) <= truth * RELATIVE_ERROR


@given(counted=COUNTED.filter(bool), shares=st.lists(SHARES, min_size=2, max_size=5))
def test_quantiles_never_fall(counted: list[tuple[float, int]], shares: list[float]) -> None:
    """The quantile of a larger share is not shorter."""
    durations = recorded(counted)
    told = [durations.quantile(share) or 0 for share in sorted(shares)]
    assert told == sorted(told)


@given(first=COUNTED, second=COUNTED)
def test_merging_is_recording_everything_in_one(
    first: list[tuple[float, int]], second: list[tuple[float, int]]
) -> None:
    """Two merged are what one recorder makes of all durations, whichever of them comes first."""
    merged = recorded(first).merged(recorded(second))
    assert merged == recorded(first + second) == recorded(second).merged(recorded(first))
    assert merged.count == sum(count for _, count in first + second)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, SHORTEST_SECONDS), (1e-9, SHORTEST_SECONDS), (-1.0, SHORTEST_SECONDS), (1e9, LONGEST_SECONDS)],
)
def test_what_no_bucket_fits_counts_at_the_end(seconds: float, told: float) -> None:
    """A duration beyond the buckets' range counts as the shortest or longest of it."""
    assert recorded([(seconds, 1)]).quantile(0.5) == pytest.approx(told, rel=RELATIVE_ERROR)
    assert recorded([(inf, 1)]).quantile(0.5) == pytest.approx(LONGEST_SECONDS, rel=RELATIVE_ERROR)


@pytest.mark.parametrize("seconds", [SHORTEST_SECONDS, LONGEST_SECONDS * (1 - 2**-53), 0.5, 1.0, 1 - 2**-53])
def test_the_edges_of_buckets_are_counted_right(seconds: float) -> None:
    """A duration on the edge of a bucket is told within the error like any other."""
    assert recorded([(seconds, 1)]).quantile(1) == pytest.approx(seconds, rel=RELATIVE_ERROR)


def test_a_snapshot_stays() -> None:
    """What is recorded later is not in a snapshot taken before."""
    recorder = DurationRecorder()
    recorder.record(1.0)
    snapshot = recorder.snapshot()
    recorder.record(2.0)
    assert (snapshot.count, recorder.snapshot().count) == (1, 2)


def test_nothing_recorded_has_no_quantile() -> None:
    """Where there are no durations there is no quantile."""
    assert (Durations().quantile(0.5), Durations().count) == (None, 0)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_between_0_and_1(share: float) -> None:
    """Percent, or anything else that is no share, is refused with the remedy."""
    with pytest.raises(UsageError, match=r"between 0 and 1.*quantile\(0\.5\)"):
        Durations().quantile(share)
