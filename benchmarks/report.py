"""Results as a table for readers, and as JSON for storage."""

import datetime
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.intervals import Interval, median_interval
from benchmarks.machine import commit, load_average, machine, usable_cores, versions
from benchmarks.measure import Comparison, Result, compare, median_reaches, reached
from benchmarks.scenario import Goal, Scenario, Unit

HEADER = ("contestant", "role", "median", "share of the limit", "beyond it", "goal", "", "facts")


def table(scenario: Scenario, results: tuple[Result, ...], missing: Sequence[str] = ()) -> str:
    """Return the results as lines of text: medians, and shares of the limit with the interval of their median.

    Args:
        scenario: the measured scenario.
        results: one for each contestant.
        missing: rivals that are not installed; the text names them.
    """
    rows = [HEADER, *(_row(result, results) for result in results)]
    used = [column for column in range(len(HEADER)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    lines = ["  ".join(row[column].ljust(widths[column]) for column in used).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    rounds = max(len(result.rounds) for result in results)
    coverage = median_interval([0.0] * rounds).coverage
    title = f"{scenario.name}: {scenario.question}"
    note = f"{rounds} rounds; intervals cover the true median with a probability of {100 * coverage:.0f} %"
    if rounds == 1:
        note = "one round: a test of the code, not a measurement"
    absent = [f"not installed: {', '.join(missing)}"] if missing else []
    summary = [scenario.summary(_medians(results))] if scenario.summary else []
    return "\n".join([title, note, *_busy(), *lines, *absent, *summary])


def _medians(results: tuple[Result, ...]) -> dict[str, float]:
    """Return every contestant's median, in its unit."""
    return {result.contestant.name: statistics.median(result.values().values()) for result in results}


def _busy() -> list[str]:
    """Return a warning if more threads are runnable than there are cores: times are then too long, shares noisy."""
    load, cores = load_average(), usable_cores()
    return [f"the machine is busy: load average {load:.1f} on {cores} cores"] if load > cores else []


def _row(result: Result, results: tuple[Result, ...]) -> tuple[str, ...]:
    contestant = result.contestant
    comparison = compare(result, results)
    return (
        contestant.name,
        contestant.role,
        _median(result),
        _share(comparison, results) if comparison else "",
        _beyond(contestant.goal, comparison, contestant.unit),
        _goal(contestant.goal, contestant.unit),
        _verdict(result, comparison),
        ", ".join(f"{name} {_number(value)}" for name, value in result.facts.items()),
    )


def _share(comparison: Comparison, results: tuple[Result, ...]) -> str:
    """Return the share of the limit, or of a rival with its name."""
    is_rival = any(other.contestant.role == "rival" for other in results if other.contestant.name == comparison.limit)
    return _interval(comparison.share) + (f" of {comparison.limit}" if is_rival else "")


def _verdict(result: Result, comparison: Comparison | None) -> str:
    """Return whether the goal is reached, and whether only the interval reaches it and the median doesn't."""
    match reached(result, comparison):
        case None:
            return ""
        case False:
            return "NOT reached"
        case True:
            return "reached" if median_reaches(result, comparison) else "reached, within the interval"


def _beyond(goal: Goal | None, comparison: Comparison | None, unit: Unit) -> str:
    if comparison is None or (goal is not None and goal.kind != "difference") or unit.more_is_better:
        return ""
    return f"{_interval(comparison.difference)} {unit.name}"


def _goal(goal: Goal | None, unit: Unit) -> str:
    if goal is None:
        return ""
    if goal.kind == "share":
        return f"≥ {goal.bound:g}"
    sign = "≥" if goal.is_at_least(unit) else "≤"
    return f"{sign} {_number(goal.bound)} {unit.name}" + (" beyond" if goal.kind == "difference" else "")


def _interval(interval: Interval) -> str:
    return f"{_number(interval.median)} [{_number(interval.low)}, {_number(interval.high)}]"


def _median(result: Result) -> str:
    """Return the median in its unit, with its interval if it has a goal."""
    interval = median_interval(list(result.values().values()))
    goal = result.contestant.goal
    judged = goal is not None and goal.kind == "value" and interval.low < interval.high
    return f"{_interval(interval) if judged else _number(interval.median)} {result.contestant.unit.name}"


def _number(value: float) -> str:
    """Return the value with three digits, with k, M or G if that is shorter."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            scale = 1e3 if suffix == "k" else factor
            return f"{value / scale:.3g}{suffix}" if value / scale < 100 else f"{value / scale:.0f}{suffix}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def as_json(scenario: Scenario, results: tuple[Result, ...], started: datetime.datetime) -> dict[str, object]:
    """Return all measurements, including raw rounds, as plain values."""
    return {
        "scenario": scenario.name,
        "question": scenario.question,
        "started": started.isoformat(),
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "contestants": [_contestant_json(result, results) for result in results],
    }


def _contestant_json(result: Result, results: tuple[Result, ...]) -> dict[str, object]:
    contestant = result.contestant
    comparison = compare(result, results)
    return {
        "name": contestant.name,
        "role": contestant.role,
        "unit": contestant.unit.name,
        "median": _interval_json(median_interval(list(result.values().values()))),
        "limit": comparison.limit if comparison else None,
        "share": _interval_json(comparison.share) if comparison else None,
        "difference": _interval_json(comparison.difference) if comparison else None,
        "goal": {"kind": contestant.goal.kind, "bound": contestant.goal.bound} if contestant.goal else None,
        "reached": reached(result, comparison),
        "facts": dict(result.facts),
        "digest": result.digest,
        "repeats": result.repeats,
        "rounds": [
            {"round": number, "amount": measured.amount, "seconds": measured.seconds}
            for number, measured in sorted(result.rounds.items())
        ],
    }


def _interval_json(interval: Interval) -> dict[str, float]:
    return {
        "median": interval.median,
        "low": interval.low,
        "high": interval.high,
        "coverage": interval.coverage,
    }


def write_json(path: Path, values: object) -> None:
    """Write `values` as indented JSON; make the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")
