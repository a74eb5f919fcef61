"""The steps that were delivered out of order are a set, stored as few spans."""

from hypothesis import given
from hypothesis import strategies as st

from penstock._loader._progress import Reached


def steps_of(reached: Reached) -> set[int]:
    """Return the delivered steps."""
    return {*range(reached.step), *(step for start, stop in reached.ahead for step in range(start, stop))}


def check(reached: Reached, expected: set[int]) -> None:
    """Check that these are the steps, in the fewest spans."""
    assert steps_of(reached) == expected
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
