"""Measuring a scenario: contestants take turns within each round, in an order that rotates from round to round."""

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.intervals import Interval, median_interval
from benchmarks.scenario import Contestant, Measurement, Scenario
from benchmarks.streams import check_outputs

ROUND_SECONDS = 0.35
PROGRESS_SECONDS = 10.0  # between two lines of progress in a file


@dataclass(frozen=True, slots=True)
class Result:
    """The measurements of a contestant; `rounds` maps a round's number to its measurement."""

    contestant: Contestant
    repeats: int
    rounds: Mapping[int, Measurement]
    facts: Mapping[str, float]
    digest: str | None

    def values(self) -> dict[int, float]:
        """Return the number of each round, in the contestant's unit."""
        return {number: self.contestant.unit.value(measured) for number, measured in self.rounds.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A contestant compared with its limit: shares of the limit's speed, and differences in the unit, by round."""

    limit: str
    share: Interval
    difference: Interval


def measure(scenario: Scenario, *, rounds: int, smoke: bool, progress: Callable[[str], None]) -> tuple[Result, ...]:
    """Check that contestants do the same work, warm each up if it should be, then measure `rounds` rounds.

    Args:
        scenario: the scenario to measure.
        rounds: the number of turns of each contestant.
        smoke: measure one repeat a round, whatever its length.
        progress: called with a short line at the start of each action.
    """
    digests = check_outputs(scenario, progress)
    cold = smoke or not scenario.warms_up
    repeats = {contestant.name: _warm_up(contestant, cold, progress) for contestant in scenario.contestants}
    measured: dict[str, dict[int, Measurement]] = {contestant.name: {} for contestant in scenario.contestants}
    for number in range(rounds):
        turn = number % len(scenario.contestants)
        for contestant in scenario.contestants[turn:] + scenario.contestants[:turn]:
            if contestant.max_rounds is not None and number >= contestant.max_rounds:
                continue
            progress(f"round {number + 1}/{rounds}: {contestant.name}")
            gc.collect()
            measured[contestant.name][number] = contestant.run(repeats[contestant.name])
    return tuple(
        Result(
            contestant,
            repeats[contestant.name],
            measured[contestant.name],
            dict(contestant.facts()) if contestant.facts else {},
            digests.get(contestant.name),
        )
        for contestant in scenario.contestants
    )


def _warm_up(contestant: Contestant, cold: bool, progress: Callable[[str], None]) -> int:  # noqa: FBT001 - internal
    """Run a contestant once, and return the number of repeats that make a round long enough to time."""
    if cold:
        return contestant.repeats or 1
    progress(f"warming up: {contestant.name}")
    if contestant.repeats is not None:
        contestant.run(contestant.repeats)
        return contestant.repeats
    repeats = 1
    while True:
        started = time.perf_counter()
        contestant.run(repeats)
        elapsed = time.perf_counter() - started
        if elapsed >= ROUND_SECONDS / 2:
            return max(1, math.ceil(repeats * ROUND_SECONDS / elapsed))
        repeats = math.ceil(repeats * min(16.0, ROUND_SECONDS / max(elapsed, 1e-9)))


def compare(result: Result, results: tuple[Result, ...]) -> Comparison | None:
    """Return the comparison of a contestant with the fastest of its limits, or None if it names none."""
    limits = [other for other in results if other.contestant.name in result.contestant.against]
    if not limits:
        return None
    unit = result.contestant.unit
    best = max if unit.more_is_better else min
    limit = best(limits, key=lambda other: statistics.median(other.values().values()))
    ours, theirs = result.values(), limit.values()
    pairs = [(ours[number], theirs[number]) for number in ours if number in theirs]
    shares = [a / b if unit.more_is_better else b / a for a, b in pairs]
    return Comparison(limit.contestant.name, median_interval(shares), median_interval([a - b for a, b in pairs]))


def reached(result: Result, comparison: Comparison | None) -> bool | None:
    """Return whether the interval of the median covers the goal, or None if there is none."""
    goal, judged = result.contestant.goal, _judged(result, comparison)
    if goal is None:
        return None
    if judged is None:
        return False
    return judged.high >= goal.bound if goal.is_at_least(result.contestant.unit) else judged.low <= goal.bound


def median_reaches(result: Result, comparison: Comparison | None) -> bool:
    """Return whether the median itself is as good as the goal."""
    goal, judged = result.contestant.goal, _judged(result, comparison)
    if goal is None or judged is None:
        return False
    return judged.median >= goal.bound if goal.is_at_least(result.contestant.unit) else judged.median <= goal.bound


def _judged(result: Result, comparison: Comparison | None) -> Interval | None:
    """Return the interval that the goal bounds: the share of the limit, the time beyond it, or the value."""
    goal = result.contestant.goal
    if goal is not None and goal.kind == "value":
        return median_interval(list(result.values().values()))
    if goal is None or comparison is None:
        return None
    return comparison.share if goal.kind == "share" else comparison.difference


def progress_line(name: str) -> Callable[[str], None]:
    """Return a function that shows the current action in standard error.

    On a terminal it is one line, which each action replaces; elsewhere a line every `PROGRESS_SECONDS`.
    """
    shown = began = time.monotonic()

    def show(text: str) -> None:
        nonlocal shown
        now = time.monotonic()
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[2K{name}: {text}")
        elif now - shown >= PROGRESS_SECONDS:
            sys.stderr.write(f"{name}, {now - began:.0f} s: {text}\n")
            shown = now
        sys.stderr.flush()

    return show


def clear_progress() -> None:
    """Remove the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
