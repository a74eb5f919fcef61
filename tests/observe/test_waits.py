"""The waits of a consumer: sums by cause, histograms and the last waits, as a plain loop over the times has them."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._durations import DurationRecorder
from penstock._readings import CAUSES, KEPT_LAPS, NOTED_SECONDS, Cause, Waits
from tests.profiles import in_short

SHORT = NOTED_SECONDS / 2
MOMENTS = st.tuples(
    st.sampled_from((SHORT, 0.001, 0.3, 20.0)), st.sampled_from((SHORT, 0.002, 0.5)), st.sampled_from((None, *CAUSES))
)


@in_short(10)
@given(st.lists(MOMENTS, max_size=30), st.integers(0, 1))
def test_waits_are_added_up_counted_and_kept(moments: list[tuple[float, float, Cause | None]], copied: int) -> None:
    """Only waits and times between two requests above `NOTED_SECONDS` count; a copy goes on after them."""
    waits, now = Waits(), 100.0
    waits.default = "delivery"
    waited, between = DurationRecorder(), DurationRecorder()
    seconds: dict[Cause, float] = {}
    latest: list[tuple[float, float, Cause]] = []
    for number, (training, wait, cause) in enumerate(moments):
        requested, received = now + training, now + training + wait
        waits.cause = cause
        waits.note(requested, received, now)
        if requested - now > NOTED_SECONDS:
            between.record(requested - now)
        if received - requested > NOTED_SECONDS:
            found: Cause = cause or "delivery"
            waited.record(received - requested)
            seconds[found] = seconds.get(found, 0.0) + (received - requested)
            latest.append((received, received - requested, found))
            assert waits.cause is None
        now = received
        if copied and number == len(moments) // 2:
            waits = copy.deepcopy(waits)
    assert waits.seconds == pytest.approx(seconds)
    assert (waits.waits, waits.between, waits.latest()) == (waited.snapshot(), between.snapshot(), latest)


def test_the_last_waits_are_kept() -> None:
    """Of more waits than are kept, the last ones are there, in order; all of them are counted."""
    waits, count = Waits(), KEPT_LAPS + 100
    for number in range(count):
        waits.note(number, number + 0.5, number)
    latest = waits.latest()
    assert [end for end, _, _ in latest] == [number + 0.5 for number in range(count)][-len(latest) :]
    assert KEPT_LAPS // 2 < len(latest) <= KEPT_LAPS
    assert waits.waits.count == count
    assert waits.seconds == {"inline": count / 2}
