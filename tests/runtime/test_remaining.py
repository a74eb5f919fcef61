"""The remaining steps, while batches are delivered in any order."""

from hypothesis import given
from hypothesis import strategies as st

from penstock._runtime._batches import Remaining, StepRange, Unit

FIRST = 7


def steps_of(step_ranges: list[StepRange]) -> list[int]:
    """Return the steps of step_ranges, one after the other."""
    return [step_range.unit(index).step for step_range in step_ranges for index in range(step_range.steps)]


@given(st.integers(1, 30), st.integers(0, 10), st.lists(st.integers(0, 29)), st.sets(st.integers(0, 40)))
def test_undelivered_steps_remain(count: int, in_order: int, picks: list[int], looks: set[int]) -> None:
    """A batch is removed by its step, or as the first one; the call returns whether it was the first."""
    left = Remaining([StepRange(Unit(FIRST, 3, 40, 4), count, 4)])
    expected = list(range(FIRST, FIRST + count))
    picked = [None] * min(in_order, count) + picks
    for number, pick in enumerate(picked[:count]):
        step = expected[0 if pick is None else pick % len(expected)]
        token = None if pick is None else step
        assert left.unit_of(token) == (None if pick is None else Unit(step, 3, 40 + 4 * (step - FIRST), 4))
        assert left.remove_delivered(token) == (step == expected[0])
        expected.remove(step)
        if number in looks:
            assert steps_of(left.step_ranges()) == expected
    step_ranges = left.step_ranges()
    assert steps_of(step_ranges) == expected
    assert len(step_ranges) == 1 or all(step_range.steps for step_range in step_ranges)


def test_the_remaining_steps_may_have_gaps() -> None:
    """The first of several ranges can be delivered in order to its end."""
    left = Remaining([StepRange(Unit(start, 0, start, 1), 3, 1) for start in (0, 10)])
    for _ in range(3):
        assert left.remove_delivered(None)
    assert steps_of(left.step_ranges()) == [10, 11, 12]
    assert not left.remove_delivered(11)
    assert left.remove_delivered(10)
    assert left.remove_delivered(12)
    assert steps_of(left.step_ranges()) == []
