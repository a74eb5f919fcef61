"""The measuring loop, on contestants with made-up times."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.measure import Result, compare, measure, median_reaches, progress_line, reached
from benchmarks.scenario import NANOSECONDS, Contestant, Goal, Measurement, Output, Scenario, per_second
from benchmarks.streams import OutputDiffersError, check_outputs


def silent(_: str) -> None:
    """Show no progress."""


def result(name: str, seconds: list[float], *, against: tuple[str, ...] = (), goal: Goal | None = None) -> Result:
    """Return the measurements of a contestant that does one item in each of `seconds`."""
    rounds = {number: Measurement(1, value) for number, value in enumerate(seconds)}
    contestant = Contestant(name, "ours", lambda _: rounds[0], per_second("items"), against=against, goal=goal)
    return Result(contestant, 1, rounds, {}, None)


def test_contestants_take_turns_in_rotating_order() -> None:
    """After a warm-up, each round measures every contestant once, and the first turn rotates.

    A try has no warm-up, nor has a scenario that needs none.
    """
    turns: list[str] = []

    def taking_turns(name: str) -> Callable[[int], Measurement]:
        def run(_: int) -> Measurement:
            turns.append(name)
            return Measurement(1, 1.0)

        return run

    contestants = tuple(Contestant(name, "ours", taking_turns(name), NANOSECONDS, repeats=1) for name in "abc")
    for smoke, warms_up, warm_up in ((False, True, "abc"), (True, True, ""), (False, False, "")):
        turns.clear()
        scenario = Scenario("turns", "", contestants, warms_up=warms_up)
        measure(scenario, rounds=3, smoke=smoke, progress=silent)
        assert "".join(turns) == warm_up + "abc" + "bca" + "cab"


def test_a_share_is_the_median_of_the_ratios_of_each_round_to_the_fastest_limit() -> None:
    """A slow moment that affects all contestants of a round doesn't change the share."""
    slow, fast = result("slow", [4.0, 40.0, 8.0]), result("fast", [1.0, 10.0, 2.0])
    ours = result("ours", [2.0, 20.0, 4.0], against=("slow", "fast"))
    comparison = compare(ours, (slow, fast, ours))
    assert comparison is not None
    assert comparison.limit == "fast"
    assert (comparison.share.low, comparison.share.median, comparison.share.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("goal", "against", "seconds", "expected"),
    [
        (Goal("share", 0.9), ("limit",), [1.5, 1.0, 1.5], True),
        (Goal("share", 0.9), ("limit",), [1.5, 1.2, 1.5], False),
        (Goal("value", 2), (), [1.0, 0.5, 1.0], True),  # more of a rate is better
        (Goal("value", 2), (), [1.0, 1.0, 1.0], False),
    ],
)
def test_a_goal_is_reached_when_the_interval_covers_it(
    goal: Goal, against: tuple[str, ...], seconds: list[float], *, expected: bool
) -> None:
    """The best round reaches the goal or misses it; with three rounds the interval is their range."""
    limit = result("limit", [1.0, 1.0, 1.0])
    ours = result("ours", seconds, against=against, goal=goal)
    comparison = compare(ours, (limit, ours))
    assert (comparison is None) == (not against)
    assert reached(ours, comparison) is expected
    assert not median_reaches(ours, comparison)


def test_a_goal_beyond_the_limit_is_a_difference() -> None:
    """A goal beyond the limit bounds the difference of each round, in the contestant's unit."""
    limit = result("limit", [1.0, 0.5])
    ours = result("ours", [0.5, 0.25], against=("limit",), goal=Goal("difference", 2))
    comparison = compare(ours, (limit, ours))
    assert comparison is not None
    assert (comparison.difference.low, comparison.difference.high) == (1.0, 2.0)
    assert reached(ours, comparison) is True


def producing(name: str, *batches: list[int], ordered: bool = True) -> Contestant:
    """Return a contestant that claims the same output as others, and yields these batches."""

    def arrays() -> Iterator[NDArray[np.int64]]:
        return (np.array(batch, np.int64) for batch in batches)

    return Contestant(name, "ours", lambda _: Measurement(1, 1.0), NANOSECONDS, output=Output("same", arrays, ordered))


def test_outputs_that_agree_have_one_digest() -> None:
    """Equal batches have equal digests; a slow contestant may yield only the first, in any order of contestants."""
    a, b = producing("a", [1, 2], [3]), producing("b", [1, 2], [3])
    digests = check_outputs(Scenario("", "", (a, b)))
    assert digests["a"] == digests["b"]
    check_outputs(Scenario("", "", (producing("c", [1, 2]), a, b)))


@pytest.mark.parametrize("other", [([1, 2], [4]), ([2, 1], [3]), ([1, 2, 3],)])
def test_outputs_that_differ_are_an_error(other: tuple[list[int], ...]) -> None:
    """Another value, another order, or other batches are an error, also behind a prefix that agrees."""
    a, b = producing("a", [1, 2], [3]), producing("b", *other)
    with pytest.raises(OutputDiffersError, match="b and a"):
        check_outputs(Scenario("", "", (a, b)))
    with pytest.raises(OutputDiffersError):
        check_outputs(Scenario("", "", (producing("c", [1, 2]), a, b)))


def test_an_unordered_output_is_a_set_of_rows() -> None:
    """Another order is the same set; a missing or repeated row is an error."""
    whole = producing("a", [1, 2], [3])
    check_outputs(Scenario("", "", (whole, producing("b", [3, 1], [2], ordered=False))))
    for rows in ([1, 2], [1, 2, 3, 3], [1, 1, 3]):
        with pytest.raises(OutputDiffersError, match="b and a"):
            check_outputs(Scenario("", "", (whole, producing("b", rows, ordered=False))))


def test_progress_in_a_file_is_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log of a long measurement shows that it goes on, and isn't filled with lines."""
    now = [100.0]
    monkeypatch.setattr("benchmarks.measure.time", SimpleNamespace(monotonic=lambda: now[0]))
    show = progress_line("tiny")
    for seconds in (3, 6, 2, 9, 9):
        now[0] += seconds
        show(f"after {seconds}")
    assert capsys.readouterr().err == "tiny, 11 s: after 2\ntiny, 29 s: after 9\n"
