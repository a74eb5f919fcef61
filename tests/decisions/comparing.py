"""Comparing what loaders give with the definition, batch for batch, while decisions are random."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import penstock as ps
from penstock._decisions import random_decisions
from tests.decisions.datasets import DATASETS
from tests.equivalence.definition import digest, epoch_of

PLACES: Final[dict[str, dict[str, Any]]] = {
    "inline": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "isolated": {"num_workers": 0, "isolated": True},
    "isolated threads": {"num_workers": 2, "workers": "threads", "isolated": True},
    "isolated processes": {"num_workers": 1, "workers": "processes", "isolated": True},
}
EPOCHS: Final = 2
_MISSING: Final = "no batch"


class Wrong(NamedTuple):
    """A batch that is not what the definition says.

    Attributes:
        dataset: by its name.
        place: by its name.
        seed: of the decisions; None where they were left to time.
        epoch: of the loader.
        number: of the batch in its epoch.
        found: in its place, shortened.
    """

    dataset: str
    place: str
    seed: int | None
    epoch: int
    number: int
    found: str


class Comparison:
    """Compares, and counts.

    Args:
        count: how many elements the source of each dataset has.

    Attributes:
        counts: how many batches were compared, by dataset and place.
        wrong: those that differ.
    """

    def __init__(self, count: int = 600) -> None:
        self._count = count
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong: list[Wrong] = []
        self._expected: dict[str, list[list[Any]]] = {}

    @property
    def total(self) -> int:
        """How many batches were compared."""
        return self.counts.total()

    def expected(self, name: str) -> list[list[Any]]:
        """Return the digests of a dataset's first epochs, by the definition."""
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


def _with_error(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, and in the place of one that fails its error, which is the last."""
    try:
        yield from batches
    except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
        yield error


def seeds(first: int) -> Iterator[int | None]:
    """Yield seeds of decisions without end; one run in six leaves them to time."""
    number = first
    while True:
        yield None if number % 6 == 0 else number
        number += 1


def compare_until(
    comparison: Comparison, batches: int, names: list[str], places: list[str], seed: int
) -> Iterator[None]:
    """Run all datasets in all places, with one seed after the other, until so many batches were compared."""
    for each in seeds(seed):
        for place in places:
            for name in names:
                if comparison.total >= batches:
                    return
                comparison.run(name, place, each)
                yield
