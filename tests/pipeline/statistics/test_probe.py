"""A stage's probe counts the reported calls and waits; a histogram has quantiles of durations within its error."""

from collections.abc import Sequence
from math import ceil, inf, ldexp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._durations import LONGEST_SECONDS, RELATIVE_ERROR, SHORTEST_SECONDS, DurationRecorder, Durations
from penstock.errors import UsageError
from penstock.pipeline._statistics import StageProbe
from tests.profiles import in_short

SECONDS = st.floats(1e-6, 10)
CALLS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), SECONDS), max_size=20)
LOOKS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)))


class _Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@in_short(10)
@given(calls=CALLS, waits=st.lists(st.tuples(SECONDS, SECONDS), max_size=10), looks=LOOKS)
def test_a_report_holds_the_reported_sums(
    calls: list[tuple[int, int, float]], waits: list[tuple[float, float]], looks: list[tuple[int, int]]
) -> None:
    """Items, failures and seconds are summed, and the queue's fill is averaged over the looks."""
    clock = _Clock()
    probe = StageProbe("decode", "sync", concurrency=3, on_threads=True, clock=clock)
    for items, failures, seconds in calls:
        probe.done(items, failures, seconds)
    for above, below in waits:
        probe.waited_for_input(above)
        probe.waited_for_output(below)
    for held, limit in looks:
        probe.looked(held, limit)
    clock.seconds += 50
    report = probe.snapshot()
    assert (report.name, report.kind, report.concurrency, report.on_threads) == ("decode", "sync", 3, True)
    assert report.elapsed_seconds == 50
    assert (report.items, report.failures) == (sum(call[0] for call in calls), sum(call[1] for call in calls))
    assert report.busy_seconds == pytest.approx(sum(call[2] for call in calls))
    assert report.wait_input_seconds == pytest.approx(sum(above for above, _ in waits))
    assert report.wait_output_seconds == pytest.approx(sum(below for _, below in waits))
    assert report.busy_share == pytest.approx(min(report.busy_seconds / 150, 1))
    assert report.wait_input_share == pytest.approx(min(report.wait_input_seconds / 50, 1))
    assert report.items_per_second == report.items / 50
    assert report.durations.count == report.items + report.failures
    assert report.queue_fill == pytest.approx(mean([min(held / limit, 1) for held, limit in looks]))
    assert report.queue_found_share == pytest.approx(mean([held > 0 for held, _ in looks]))


def mean(numbers: Sequence[float]) -> float | None:
    """Return the mean, or None for no numbers."""
    return sum(numbers) / len(numbers) if numbers else None


def test_the_durations_of_items() -> None:
    """A call's seconds are divided among the items that it put out or failed on; without any, they count for the next.

    A sink, which only passes items on, has items and no quantiles.
    """
    probe = StageProbe("decode", "sync")
    probe.done(98, 1, 0.099)
    probe.done(1, 0, 0.5)
    report = probe.snapshot()
    assert report.p50_seconds == pytest.approx(0.001, rel=RELATIVE_ERROR)
    assert report.p99_seconds == pytest.approx(0.001, rel=RELATIVE_ERROR)
    assert report.durations.quantile(1) == pytest.approx(0.5, rel=RELATIVE_ERROR)

    probe = StageProbe("aggregate", "aggregate")
    for _ in range(3):
        probe.done(0, 0, 0.25)
    assert probe.snapshot().p50_seconds is None
    probe.done(1, 0, 0.25)
    report = probe.snapshot()
    assert report.p90_seconds == pytest.approx(1.0, rel=RELATIVE_ERROR)
    assert report.busy_seconds == 1.0

    probe = StageProbe("sink", "sink")
    probe.done(5, 0, 0.0)
    report = probe.snapshot()
    assert (report.items, report.p50_seconds) == (5, None)


def test_the_clock_stops_between_passes() -> None:
    """Time between the end of a pass and the start of the next one does not count."""
    clock = _Clock()
    probe = StageProbe("decode", "sync", clock=clock)
    probe.started()
    clock.seconds += 3
    probe.ended()
    probe.ended()
    clock.seconds += 1000
    assert probe.snapshot().elapsed_seconds == 3
    probe.started()
    clock.seconds += 4
    assert probe.snapshot().elapsed_seconds == 7


def test_what_was_not_measured() -> None:
    """A stage that has not started has shares and rates of 0, and no quantiles; a queue without a limit is full."""
    probe = StageProbe("decode", "sync", clock=lambda: 0.0)
    report = probe.snapshot()
    assert (report.items_per_second, report.busy_share, report.wait_output_share, report.p50_seconds) == (0, 0, 0, None)
    assert (report.queue_fill, report.queue_found_share) == (None, None)
    probe.done(1, 0, 2.0)
    assert probe.snapshot().cpu_seconds is None
    probe.done(1, 0, 2.0, cpu_seconds=0.5)
    probe.done(1, 0, 2.0, cpu_seconds=0.25)
    assert probe.snapshot().cpu_seconds == 0.75
    probe.looked(1, 0)
    probe.looked(0, 0)
    assert probe.snapshot().queue_fill == 0.5


# Histograms.

SHARES = st.floats(0, 1)
# Spread over all orders of magnitude; plain floats would gather at the long end.
SPREAD = st.builds(ldexp, st.floats(1, 2, exclude_max=True), st.integers(-24, 14))
COUNTED = st.lists(st.tuples(SPREAD, st.integers(1, 5)), max_size=40)


def recorded(counted: list[tuple[float, int]]) -> Durations:
    """Return the histogram of pairs of a duration and its number of occurrences."""
    recorder = DurationRecorder()
    for seconds, count in counted:
        recorder.record(seconds, count)
    return recorder.snapshot()


@in_short(10)
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


@in_short(10)
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
