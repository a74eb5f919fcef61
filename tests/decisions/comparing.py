"""A comparison of loaders' batches with the definition, batch for batch, while decisions are random."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple

import penstock as ps
from tests import places
from tests.decisions.datasets import DATASETS
from tests.equivalence.decisions import random_decisions
from tests.equivalence.definition import digest, epoch_of

PLACES: Final = {
    name: places.PLACES[name]
    for name in ("inline", "threads", "processes", "isolated", "isolated threads", "isolated processes")
}
EPOCHS: Final = 2
_MISSING: Final = "no batch"


class Wrong(NamedTuple):
    """A batch that is not what the definition says.

    Attributes:
        dataset: the dataset's name.
        place: the place's name.
        seed: the seed of the decisions; None where time made them.
        epoch: the loader's epoch.
        number: the batch's number in its epoch.
        found: the batch in its place, shortened.
    """

    dataset: str
    place: str
    seed: int | None
    epoch: int
    number: int
    found: str


class Comparison:
    """Compares epochs with the definition, and counts batches.

    Args:
        count: the number of elements in each dataset's source.

    Attributes:
        counts: the numbers of compared batches, by dataset and place.
        runs: the number of runs that have ended.
        wrong: the batches that differ.
    """

    def __init__(self, count: int = 600) -> None:
        self._count = count
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.runs: int = 0
        self.wrong: list[Wrong] = []
        self._expected: dict[str, list[list[Any]]] = {}

    @property
    def total(self) -> int:
        """The number of compared batches."""
        return self.counts.total()

    def expected(self, name: str) -> list[list[Any]]:
        """Return the digests of a dataset's first epochs by the definition."""
        if name not in self._expected:
            dataset = DATASETS[name](self._count)
            self._expected[name] = [[digest(batch) for batch in epoch_of(dataset, each)] for each in range(EPOCHS)]
        return self._expected[name]

    def run(self, name: str, place: str, seed: int | None) -> None:
        """Read a dataset's first epochs in a place, and compare each batch."""
        expected = self.expected(name)
        with random_decisions(seed), ps.Loader(DATASETS[name](self._count), **PLACES[place]) as loader:
            for epoch in range(EPOCHS):
                found = _with_error(loader)
                for number, (batch, right) in enumerate(zip_longest(found, expected[epoch], fillvalue=_MISSING)):
                    self.counts[name, place] += 1
                    if digest(batch) != right:
                        self.wrong.append(Wrong(name, place, seed, epoch, number, repr(batch)[:200]))
        self.runs += 1


def _with_error(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, and then the error if one fails."""
    try:
        yield from batches
    except Exception as error:  # noqa: BLE001 - any error differs from the definition
        yield error


def seeds(first: int) -> Iterator[int | None]:
    """Yield seeds of decisions without end; in one run of six, None leaves the decisions to time."""
    number = first
    while True:
        yield None if number % 6 == 0 else number
        number += 1


def compare_until(
    comparison: Comparison, batches: int, names: list[str], places: list[str], seed: int
) -> Iterator[None]:
    """Run all datasets in all places, with one seed after the other, up to so many batches, behind runs that ended."""
    runs = ((name, place, each) for each in seeds(seed) for place in places for name in names)
    for run in islice(runs, comparison.runs, None):
        if comparison.total >= batches:
            return
        comparison.run(*run)
        yield
