"""The step `mix`: elements of several parts by weights.

If all parts have positions, and elements count alike, `WeightedMixture` gives exact shares in every period. Otherwise
the parts take turns in order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, Self

from penstock._frozen import frozen
from penstock._graph import listed
from penstock._streaming._turns import Measure, Schedule, Shares, TakingTurns
from penstock.sampling import WeightedMixture

_NO_END: Final = 1 << 61
_ENDINGS: Final = {
    "first": "until the first part ends",
    "all": "until the last part ends",
    "never": "without end",
}


@frozen
class Mix(TakingTurns):
    """Elements of several parts by weights.

    With stop "first" the mixture ends with the first part that ends, with "all" with the last; "never" repeats parts
    with positions. In order, parts that repeat are endless themselves, and `stop` is not "never".
    """

    by_position: WeightedMixture | None
    schedule: Schedule
    stop: Literal["first", "all", "never"]
    measure: Measure | None = None

    @property
    def rule(self) -> WeightedMixture | None:
        return self.by_position

    @property
    def verb(self) -> str:
        return "mix"

    def is_endless(self, parts: Iterable[bool]) -> bool:
        """Return whether all parts with a weight are; if the last end counts, whether one of the last weights' is."""
        endless = list(parts)
        used = [[each for each, weight in zip(endless, weights, strict=True) if weight] for _, weights in self.schedule]
        return self.stop == "never" or (any(used[-1]) if self.stop == "all" else all(map(all, used)))

    def order_text(self, seed: int, seen: int | None) -> str:
        if self.by_position is None:
            return f"ordered mix {seed} {self.stop}"  # it resumes from any counts with any weights
        return f"mix {seed} {self.by_position.seed} {self.stop} {_past(self.by_position, seen)}"

    def counted(self, names: tuple[str, ...], seen: int | None) -> Sequence[int]:
        if self.by_position is None:
            return range(len(names))
        past = {name for _, weights in _past(self.by_position, seen) for name, _ in weights}
        numbers = (number for number, name in enumerate(names) if seen is None or name in past)
        return sorted(numbers, key=names.__getitem__)

    @property
    def functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        return () if self.measure is None else (("measure", self.measure),)

    @property
    def repeat_remedy(self) -> str:
        return 'Pass stop="never" to mix, which repeats each part by itself'

    def lines(self, names: tuple[str, ...], lengths: Sequence[str]) -> list[str]:
        del lengths
        rule = self.by_position
        shares = _weight_lines(names, self.schedule if rule is None else rule.schedule)
        if rule is None:
            return [_ENDINGS[self.stop], *shares, "which part ends first is unknown until it is read"]
        if not rule.endless and len(rule) < _NO_END:
            counts = zip(names, rule.counts(len(rule)).tolist(), rule.lengths, strict=True)
            shares.append(f"an epoch takes {listed([f'{name} {n:,} of {total:,}' for name, n, total in counts])}")
        return [_ENDINGS[self.stop], *shares, _first_end(rule)]

    def shares(self, parts: int) -> Shares:
        del parts
        return Shares(self.schedule, "all" if self.stop == "all" else "first", self.measure)

    @property
    def depends_on_count(self) -> bool:
        return len(self.schedule) > 1

    def of_rank(self, ranks: int) -> Self:
        return replace(self, schedule=tuple((-(-start // ranks), weights) for start, weights in self.schedule))

    def keeping_all(self) -> Self:
        return replace(self, stop="all")


def _past(rule: WeightedMixture, seen: int | None) -> tuple[tuple[int, tuple[tuple[str, int], ...]], ...]:
    """Return the part of the schedule that determines the elements that were seen; None is all."""
    return rule.past(len(rule) if seen is None else min(seen, len(rule)))


def _weight_lines(names: tuple[str, ...], schedule: Schedule) -> list[str]:
    lines: list[str] = []
    for start, weights in schedule:
        when = f"from element {start:,} on" if len(schedule) > 1 else "weights"
        total = sum(weights)
        pairs = zip(names, weights, strict=True)
        lines.append(
            f"{when}: {listed([f'{name} {weight} of {total} ({weight / total:.1%})' for name, weight in pairs])}"
        )
    return lines


def _first_end(rule: WeightedMixture) -> str:
    """Return the part that ends first, and the number of elements before its end."""
    first = replace(rule, stop="first")
    end = len(first)
    if end >= _NO_END:
        return "no part ends"
    taken = [any(weights[number] for _, weights in rule.schedule) for number in range(len(rule.names))]
    counts = zip(rule.names, first.counts(end).tolist(), rule.lengths, taken, strict=True)
    ended = [name for name, count, total, is_taken in counts if is_taken and count == total]
    return f"the first part to end is {' or '.join(map(repr, ended))}, after {end:,} elements"
