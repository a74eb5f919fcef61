"""What is measured, as values: a scenario, its contestants, their units and goals.

A *limit* does the same work to the same output without any framework. Contestants take turns within a round, and each
is compared with the limit of the same round, so that a slow moment of the machine falls on both.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["limit", "ours", "rival", "reference"]
Batch = Any  # an array, or another library's tensor: anything with a length that NumPy can read


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one round did: `amount` items (or bytes) in `seconds`."""

    amount: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Unit:
    """How a measurement becomes the number that is shown, and whether more of it is better."""

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
    """What a contestant should reach: a bound on its value, on its share of the limit, or on its time beyond the limit.

    `share` is at least `bound` (1 is the limit's speed); `value` and `difference` are at most `bound`, in the unit, and
    a `value` of which more is better, a rate, is at least that.
    """

    kind: Literal["share", "value", "difference"]
    bound: float

    def is_at_least(self, unit: Unit) -> bool:
        """Return whether what is judged must be at least the bound; else it must be at most that."""
        return self.kind == "share" or (self.kind == "value" and unit.more_is_better)


@dataclass(frozen=True, slots=True)
class Output:
    """The batches of one pass, made by the same code that is timed, to be compared between contestants.

    Contestants with the same `claim` must give the same rows: the ordered ones in the same order, where one may be a
    prefix of another; the unordered ones the same complete set.
    """

    claim: str
    batches: Callable[[], Iterable[Batch]]
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way of doing the scenario's work.

    Attributes:
        name: unique in the scenario.
        role: limits are what shares refer to; references are shown for comparison.
        run: does the work `repeats` times and says how much that was, and how long it took.
        unit: how measurements are shown.
        against: names of the limits it is compared with; the fastest of them in this run counts.
        goal: what it should reach.
        output: what it produces, for the check that contestants do the same work.
        facts: numbers to show that need one look only, such as bytes held.
        max_rounds: for work too slow to be measured in every round.
        repeats: a fixed number of repeats a round, where they need not fill a round.
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
        name: what it is called by.
        question: what is asked.
        contestants: who answers.
        rounds: how often each takes its turn.
        summary: text to print below the table, from every contestant's median.
    """

    name: str
    question: str
    contestants: tuple[Contestant, ...]
    rounds: int = 7
    summary: Callable[[Mapping[str, float]], str] | None = None
