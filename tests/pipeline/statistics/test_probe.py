"""A stage's probe counts the reported calls and waits, and returns the counts as a value."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.statistics.pipelines import RELATIVE_ERROR, StageProbe

SECONDS = st.floats(1e-6, 10)
CALLS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), SECONDS), max_size=20)
LOOKS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)))


class _Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


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
