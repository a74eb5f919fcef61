"""Steps that are delivered in any order: those that were, as few spans, and those that remain."""

from hypothesis import given
from hypothesis import strategies as st

from penstock._loader._progress import Reached
from penstock._runtime._batches import Remaining, StepRange, Unit

FIRST = 7


def delivered_in(reached: Reached) -> set[int]:
    """Return the delivered steps."""
    return {*range(reached.step), *(step for start, stop in reached.ahead for step in range(start, stop))}


def check(reached: Reached, expected: set[int]) -> None:
    """Check that these are the steps, in the fewest spans."""
    assert delivered_in(reached) == expected
    assert reached.total == len(expected)
    assert reached.end == max(expected, default=-1) + 1
    assert reached.step not in expected
    ends = [reached.step, *(stop for _, stop in reached.ahead)]
    assert all(end < start < stop for end, (start, stop) in zip(ends, reached.ahead, strict=False))
    for end in (reached.end, reached.end + 3):
        gaps = reached.gaps(end)
        assert [step for gap in gaps for step in range(*gap)] == sorted(set(range(end)) - expected)
        assert gaps[0][0] == reached.step
        assert len(gaps) == 1 or all(start < stop for start, stop in gaps)


@given(st.integers(0, 12).flatmap(lambda count: st.permutations(range(count))), st.data())
def test_delivered_and_withdrawn_steps_equal_a_set(order: list[int], data: st.DataObject) -> None:
    """After each delivered step, and after any set of steps is withdrawn, the spans equal a set."""
    reached, expected = Reached(0), set[int]()
    for step in order:
        reached = reached.after(step)
        expected.add(step)
        check(reached, expected)
        taken = data.draw(st.sets(st.sampled_from(sorted(expected))))
        check(reached.without(taken), expected - taken)
    assert reached == Reached(len(order))


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
