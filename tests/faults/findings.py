"""What was injected, compared and found, and the table of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from tests.faults.places import FAULTS

BATCHES: Final = "batches"
LOST: Final = "lost"
CHANGED: Final = "changed"
REPEATED: Final = "repeated"
RAISED: Final = "raised"
POISONED: Final = "poisoned"
SECONDS: Final = "seconds"
WRONG: Final = (LOST, CHANGED, REPEATED)


@dataclass
class Findings:
    """Counts, by dataset, place and what is counted; and what must not be, in words."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    milliseconds: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    bad: list[str] = field(default_factory=list[str])
    rounds: int = 0

    def total(self, *columns: str) -> int:
        """Return how many of these were counted."""
        return sum(count for (_, _, column), count in self.counts.items() if column in columns)

    def took(self, dataset: str, place: str, seconds: float) -> None:
        """Add to how long reading took."""
        self.milliseconds[dataset, place] += round(1000 * seconds)

    @property
    def injected(self) -> int:
        """How many faults were injected."""
        return self.total(*FAULTS)

    @property
    def are_fine(self) -> bool:
        """Whether nothing was found."""
        return not self.bad and not self.total(*WRONG)

    def table(self) -> str:
        """Return a line for each dataset and place, and the totals."""
        columns = (*FAULTS, BATCHES, *WRONG, RAISED, POISONED)
        lines = [["dataset", "place", *columns, SECONDS]]
        for dataset, place in sorted({(dataset, place) for dataset, place, _ in self.counts}):
            counted = [self.counts[dataset, place, column] for column in columns]
            lines.append([dataset, place, *map(_number, counted), f"{self.milliseconds[dataset, place] / 1000:.1f}"])
        sums = [_number(self.total(column)) for column in columns]
        lines.append(["all", "", *sums, f"{self.milliseconds.total() / 1000:.1f}"])
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        return "\n".join(_line(line, widths) for line in lines)


def _number(count: int) -> str:
    return str(count) if count else "."


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = (cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True))
    numbers = (cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))
    return "  ".join((*words, *numbers))


def compare(expected: Sequence[Any], found: Sequence[Any], *, in_order: bool) -> Counter[str]:
    """Return how many batches are lost, changed and repeated.

    Args:
        expected: the digests of an epoch's batches.
        found: of those that were handed out.
        in_order: whether their order counts.
    """
    if in_order and list(expected) == list(found):
        return Counter()
    wanted, got = Counter(map(repr, expected)), Counter(map(repr, found))
    lost, beyond = wanted - got, got - wanted
    repeated = sum(count for batch, count in beyond.items() if batch in wanted)
    changed = beyond.total() - repeated
    if in_order and not lost and not beyond:  # all are there, some elsewhere
        changed = sum(one != other for one, other in zip_longest(expected, found))
    return +Counter({LOST: max(lost.total() - changed, 0), CHANGED: changed, REPEATED: repeated})
