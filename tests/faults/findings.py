"""The findings of a run, the counts of faults and batches, and their table."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from tests.equivalence.definition import digest
from tests.equivalence.kinds import is_dict, is_list_or_tuple
from tests.faults.places import FAULTS

BATCHES: Final = "batches"
LOST: Final = "lost"
CHANGED: Final = "changed"
REPEATED: Final = "repeated"
RAISED: Final = "raised"
POISONED: Final = "poisoned"
SECONDS: Final = "seconds"
MILLISECONDS: Final = "milliseconds"
_MIN_HASHED: Final = 64
_ERROR: Final = "error"
_SHOWN: Final = 300  # characters of a batch
WRONG: Final = (LOST, CHANGED, REPEATED)


@dataclass
class Findings:
    """Counts by dataset, place and column, and descriptions of what is wrong."""

    counts: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    bad: list[str] = field(default_factory=list[str])
    rounds: int = 0

    def total(self, *columns: str) -> int:
        """Return the sum of these columns."""
        return sum(count for (_, _, column), count in self.counts.items() if column in columns)

    def took(self, dataset: str, place: str, seconds: float) -> None:
        """Add the time of a read."""
        self.counts[dataset, place, MILLISECONDS] += round(1000 * seconds)

    @property
    def injected(self) -> int:
        """The number of injected faults."""
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
            lines.append([dataset, place, *map(_number, counted), _seconds(self.counts[dataset, place, MILLISECONDS])])
        sums = [_number(self.total(column)) for column in columns]
        lines.append(["all", "", *sums, _seconds(self.total(MILLISECONDS))])
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        return "\n".join(_line(line, widths) for line in lines)


def _number(count: int) -> str:
    return str(count) if count else "."


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = (cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True))
    numbers = (cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))
    return "  ".join((*words, *numbers))


def compare(expected: Sequence[Any], found: Sequence[Any], *, in_order: bool) -> Counter[str]:
    """Return the numbers of lost, changed and repeated batches, by digests; their order may count."""
    if in_order and list(expected) == list(found):
        return Counter()
    wanted, got = Counter(map(repr, expected)), Counter(map(repr, found))
    lost, beyond = wanted - got, got - wanted
    repeated = sum(count for batch, count in beyond.items() if batch in wanted)
    changed = beyond.total() - repeated
    if in_order and not lost and not beyond:  # all are there, some out of order
        changed = sum(one != other for one, other in zip_longest(expected, found))
    return +Counter({LOST: max(lost.total() - changed, 0), CHANGED: changed, REPEATED: repeated})


def brief(batch: Any) -> Any:
    """Return a small value that is equal only for equal batches, as `digest` is."""
    return _shortened(digest(batch))


def briefs(batches: Iterable[Any]) -> list[Any]:
    """Return the brief of each batch, and the error, if one ends the iteration."""
    found: list[Any] = []
    try:
        found.extend(map(brief, batches))
    except ValueError as error:
        found.append(ended_by(error))
    return found


def ended_by(error: ValueError) -> tuple[str, str, str]:
    """Return the brief of an error."""
    return _ERROR, type(error).__name__, str(error)


def is_raised(outcomes: Sequence[Any]) -> bool:
    """Return whether an error ended the batches."""
    return bool(outcomes) and is_list_or_tuple(outcomes[-1]) and outcomes[-1][0] == _ERROR


def first_difference(expected: Sequence[Any], found: Sequence[Any]) -> str:
    """Describe the first difference between two lists of batches."""
    for number, (one, other) in enumerate(zip_longest(expected, found, fillvalue="nothing")):
        if one != other:
            return f"batch {number} should be {_excerpt(one, other)}, and is {_excerpt(other, one)}"
    return "none differs"


def _excerpt(value: Any, beside: Any) -> str:
    text, other = repr(value), repr(beside)
    start = next((place for place, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]), 0)
    start = max(start - _SHOWN // 2, 0)
    return f"{'…' if start else ''}{text[start : start + _SHOWN]}{'…' if len(text) > start + _SHOWN else ''}"


def _shortened(value: Any) -> Any:
    if is_dict(value):
        return {key: _shortened(each) for key, each in value.items()}
    if is_list_or_tuple(value):
        return type(value)(map(_shortened, value))
    if isinstance(value, bytes | str) and len(value) > _MIN_HASHED:
        content = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
        return f"{len(value)} {hashlib.blake2b(content, digest_size=16).hexdigest()}"
    return value
