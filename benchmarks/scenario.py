"""Scenarios, their contestants, units and goals, as values.

A *limit* does the same work to the same output without a framework. Contestants take turns within a round, and each is
compared with the limit of the same round, so that a slow moment of the machine affects both.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["limit", "ours", "rival", "reference"]
Batch = Any  # an array, or another library's tensor: has a length, and NumPy can read it


@dataclass(frozen=True, slots=True)
class Measurement:
    """The work of one round: `amount` items (or bytes) in `seconds`."""

    amount: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Unit:
    """The conversion of a measurement to the displayed number, and whether more of it is better."""

    name: str
    value: Callable[[Measurement], float]
    more_is_better: bool


def per_second(noun: str) -> Unit:
    """Return the unit of a rate, such as `windows/s`."""
    return Unit(f"{noun}/s", lambda measurement: measurement.amount / measurement.seconds, more_is_better=True)


NANOSECONDS = Unit("ns", lambda measurement: 1e9 * measurement.seconds / measurement.amount, more_is_better=False)
MICROSECONDS = Unit("us", lambda measurement: 1e6 * measurement.seconds / measurement.amount, more_is_better=False)
MILLISECONDS = Unit("ms", lambda measurement: 1e3 * measurement.seconds / measurement.amount, more_is_better=False)
MEGABYTES = Unit("MB", lambda measurement: measurement.amount / 1e6, more_is_better=False)
BYTES = Unit("bytes", lambda measurement: float(measurement.amount), more_is_better=False)


@dataclass(frozen=True, slots=True)
class Goal:
    """A contestant's goal: a bound on its value, on its share of the limit, or on its time beyond the limit.

    `share` is at least `bound` (1 is the limit's speed). `value` and `difference` are at most `bound`, in the unit; a
    `value` of which more is better, such as a rate, is at least `bound`.
    """

    kind: Literal["share", "value", "difference"]
    bound: float

    def is_at_least(self, unit: Unit) -> bool:
        """Return whether the judged number must be at least the bound; otherwise it must be at most the bound."""
        return self.kind == "share" or (self.kind == "value" and unit.more_is_better)


@dataclass(frozen=True, slots=True)
class Output:
    """The batches of one pass, made by the timed code, for comparison between contestants.

    Contestants with the same `claim` must give the same rows. Ordered outputs must have the same order, where one may
    be a prefix of another; unordered outputs must have the same complete set.
    """

    claim: str
    batches: Callable[[], Iterable[Batch]]
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way of doing the scenario's work.

    Attributes:
        name: unique in the scenario.
        role: shares refer to limits; references are shown for comparison.
        run: does the work `repeats` times, and returns its amount and time.
        unit: the unit of the displayed numbers.
        against: names of the limits that it is compared with; the fastest of them in this run counts.
        goal: its goal, if it has one.
        output: its output, for the check that contestants do the same work.
        facts: additional numbers that are read once, such as bytes held.
        max_rounds: a lower number of rounds, for slow work.
        repeats: a fixed number of repeats a round, if they need not fill a round.
    """

    name: str
    role: Role
    run: Callable[[int], Measurement]
    unit: Unit
    against: tuple[str, ...] = ()
    goal: Goal | None = None
    output: Output | None = None
    facts: Callable[[], Mapping[str, float]] | None = None
    max_rounds: int | None = None
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question that contestants answer with numbers.

    Attributes:
        name: its name on the command line.
        question: the question.
        contestants: the contestants.
        rounds: the number of turns of each contestant.
        summary: makes text below the table from the contestants' medians.
        warms_up: whether each contestant runs once before the rounds, and not only for the check of its output.
    """

    name: str
    question: str
    contestants: tuple[Contestant, ...]
    rounds: int = 7
    summary: Callable[[Mapping[str, float]], str] | None = None
    warms_up: bool = True


class MissingError(Exception):
    """A package that a scenario is about is not installed; the message names the remedy."""
