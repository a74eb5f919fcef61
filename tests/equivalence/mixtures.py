"""Random mixtures, whose weights may change during an epoch, and to which parts may be added."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.functions import add_one, copies, flat_sum, jitter, keeps_two_of_three, weight_of
from tests.equivalence.graphs import SEEDS, batched, indexable, sources
from tests.equivalence.joins import Weights, joined, schedules, uniform

Verb = Callable[[ps.Dataset], ps.Dataset]

JITTERED: Verb = lambda dataset: dataset.random_map(jitter)  # noqa: E731 - one of a list of verbs
NAMES: tuple[str, ...] = ("web", "code", "books", "wiki", "more")


def named(part: ps.Dataset, name: str) -> ps.Dataset:
    """Return the dataset's elements in one structure, each with the name of its part."""
    return part.map(uniform, name="uniform").map(lambda element: {"part": name, **element}, name="named")


@dataclass(frozen=True)
class Mixture:
    """A mixture as values: the arguments of `ps.mix`, and verbs above it that don't change a row's dependencies."""

    parts: dict[str, ps.Dataset]
    schedule: dict[int, Weights]
    stop: Literal["first", "all", "never"]
    above: tuple[Verb, ...] = ()
    measure: Callable[[Any], int] | None = None
    seed: int = 0

    @property
    def mixed(self) -> ps.Dataset:
        """The mixture itself."""
        return ps.mix(self.parts, self.schedule, stop=self.stop, measure=self.measure, seed=self.seed)

    @property
    def holds_rows(self) -> bool:
        """Whether a verb above it holds elements of the mixture open, which a resume computes again."""
        return any(verb in HOLDING for verb in self.above)

    @property
    def dataset(self) -> ps.Dataset:
        """The mixture, and the verbs above it."""
        return self.over(self.mixed)

    def over(self, dataset: ps.Dataset) -> ps.Dataset:
        """Return the verbs above the mixture over another dataset."""
        for verb in self.above:
            dataset = verb(dataset)
        return dataset

    def past(self, position: int) -> list[tuple[int, Weights]]:
        """Return the schedule before a position, its first entry always included."""
        starts = sorted(start for start in self.schedule if start < max(position, 1))
        return [(start, {name: each for name, each in self.schedule[start].items() if each}) for start in starts]

    def changed(self, position: int, weights: Weights, more: dict[str, ps.Dataset]) -> "Mixture":
        """Return the mixture with other weights from a position on, and with more parts."""
        schedule = {start: each for start, each in self.schedule.items() if start < position}
        return replace(
            self, parts={**more, **self.parts}, schedule={0: self.schedule[0], **schedule, position: weights}
        )

    def alone(self, name: str) -> ps.Dataset:
        """Return a part alone, as seen from above the mixture."""
        stop: Literal["first", "never"] = "never" if self.stop == "never" else "first"
        return ps.mix({name: self.parts[name]}, stop=stop, measure=self.measure)


@st.composite
def indexable_mixtures(draw: st.DrawFn) -> Mixture:
    """Draw a mixture of indexable parts, with at most maps above it."""
    names = draw(st.lists(st.sampled_from(NAMES[:3]), min_size=1, max_size=3, unique=True))
    parts = {name: named(draw(enough(indexable(), 1)), name) for name in names}
    above: list[Verb] = [JITTERED] if draw(st.booleans()) else []
    stop: Any = draw(st.sampled_from(["first", "all", "all", "never"]))
    return Mixture(parts, draw(schedules(names)), stop, tuple(above), seed=draw(SEEDS))


ONE_BY_ONE: list[Verb] = [lambda dataset: dataset.map(add_one), lambda dataset: dataset.filter(keeps_two_of_three)]
HOLDING: list[Verb] = [
    lambda dataset: dataset.flat_map(copies),
    lambda dataset: dataset.window_shuffle(3),
    lambda dataset: dataset.window_shuffle(8),
    lambda dataset: dataset.map(uniform).batch(3).unbatch(),
]


@st.composite
def ordered_mixtures(draw: st.DrawFn) -> Mixture:
    """Draw a mixture that is read in order, and of which no row depends on its neighbours."""
    names = draw(st.lists(st.sampled_from(NAMES[:3]), min_size=1, max_size=3, unique=True))
    parts: dict[str, ps.Dataset] = {}
    for name in names:
        part = named(draw(indexable() | enough(indexable(), 40)), name)
        parts[name] = part.filter(keeps_two_of_three) if draw(st.booleans()) else part
    above = draw(st.lists(st.sampled_from([*ONE_BY_ONE, *HOLDING]), max_size=3))
    if draw(st.booleans()):
        above = [JITTERED, *above]
    return Mixture(parts, draw(schedules(names)), "all", tuple(above), measure=weight_of, seed=draw(SEEDS))


@st.composite
def enough(draw: st.DrawFn, one: st.SearchStrategy[ps.Dataset], least: int) -> ps.Dataset:
    """Draw a dataset of a number of elements, repeated if it has fewer."""
    dataset = draw(one)
    count = len(dataset)
    if count == 0:
        return ps.range(least)
    return dataset if count >= least else dataset.repeat(-(-least // count))


@st.composite
def documents(draw: st.DrawFn) -> tuple[ps.Dataset, list[int]]:
    """Draw arrays of several lengths, each with numbers of its own, and return the lengths, too."""
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=40))
    return ps.read([np.arange(count) + 100 * number for number, count in enumerate(lengths)], seed=3), lengths


@st.composite
def tables(draw: st.DrawFn) -> ps.Dataset:
    """Draw a dataset over a table: windows, packed sequences or buckets, cached elements, or rows of batches."""
    dataset, lengths = draw(documents())
    match draw(st.integers(0, 4)):
        case 0:
            partial: Any = draw(st.sampled_from(["drop", "pad"]))
            length, stride = draw(st.integers(1, 5)), draw(st.integers(1, 4))
            return dataset.windows(length, stride, lengths=lengths, partial=partial).shuffle()
        case 1:
            return draw(sources()).map(uniform).cache().shuffle().random_map(jitter)
        case 2:
            return dataset.pack(draw(st.integers(1, 9)), lengths=lengths).shuffle()
        case 3:
            return dataset.bucket(len, [3, 12], rows=draw(st.integers(1, 4)), lengths=lengths).shuffle()
        case _:
            return draw(indexable()).map(uniform).batch(draw(st.integers(1, 5))).unbatch()


@st.composite
def grouped(draw: st.DrawFn) -> ps.Dataset:
    """Draw elements that are packed or put in buckets in the order in which they are read."""
    dataset, _ = draw(documents())
    dataset = dataset.filter(lambda document: flat_sum(document) % 3 != 0) if draw(st.booleans()) else dataset
    dataset = dataset.repeat(2) if draw(st.booleans()) else dataset
    if draw(st.booleans()):
        return dataset.pack(draw(st.integers(1, 9)), how=draw(st.sampled_from(["best_fit", "split"])))
    return dataset.bucket(len, [3, 12], rows=12, remainder=draw(st.sampled_from(["keep", "drop"])))


def any_indexable() -> st.SearchStrategy[ps.Dataset]:
    """Draw an indexable dataset with any of the nodes in it."""
    return joined() | tables() | batched()
