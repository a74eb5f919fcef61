"""Random datasets of the whole algebra: joins, tables, windows, and steps above them that are read in order."""

from collections.abc import Iterator
from typing import Any, Literal

from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.combiners import Delayed
from tests.equivalence.definition import digest, element_of, positions_of
from tests.equivalence.functions import (
    add_one,
    copies,
    flat_sum,
    jitter,
    keeps_two_of_three,
    weight_of,
    with_origin,
    with_seed,
)
from tests.equivalence.graphs import indexable

NAMES = ("web", "code", "books")
WEIGHTS = st.sampled_from([0.5, 1, 2, 3])
STOPS: st.SearchStrategy[Literal["first", "all"]] = st.sampled_from(("first", "all"))


def uniform(element: Any) -> Any:
    """Return an element of one structure, made of an element of any kind and different for different ones."""
    return {"number": flat_sum(element), "content": repr(digest(element))}


class Counter:
    """A stream with a state: integers up to a stop, whose state is the next one."""

    def __init__(self, stop: int) -> None:
        self._stop = stop
        self._next = 0

    def __iter__(self) -> Iterator[int]:
        while self._next < self._stop:
            self._next += 1
            yield self._next - 1

    def get_state(self) -> dict[str, int]:
        """Return the next integer."""
        return {"next": self._next}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue from a state."""
        self._next = state["next"]


@st.composite
def parts(draw: st.DrawFn, one: st.SearchStrategy[ps.Dataset]) -> dict[str, ps.Dataset]:
    """Draw named datasets to be joined."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return {name: draw(one) for name in names}


Weights = dict[str, float]


@st.composite
def weights(draw: st.DrawFn, names: list[str]) -> Weights:
    """Draw a weight for each name."""
    return {name: draw(WEIGHTS) for name in names}


@st.composite
def schedules(draw: st.DrawFn, names: list[str]) -> dict[int, Weights]:
    """Draw a schedule of up to three segments."""
    starts = draw(st.lists(st.integers(1, 60), max_size=2, unique=True))
    return {start: draw(weights(names)) for start in [0, *starts]}


def count_of(dataset: ps.Dataset, position: int) -> int:
    """Return the number of an element's copies; 1 for an element that raises, so that the loader meets its error."""
    try:
        return flat_sum(element_of(dataset, 0, position)) % 4
    except ValueError:
        return 1


@st.composite
def joined(draw: st.DrawFn) -> ps.Dataset:
    """Draw an indexable dataset with at least one join or table in it."""
    dataset = draw(indexable())
    named = draw(parts(indexable()))
    size = len(dataset)
    match draw(st.integers(0, 7)):
        case 0:
            dataset = ps.mix(named, draw(weights([*named]) | schedules([*named])), stop=draw(STOPS))
        case 1:
            filled = {name: part for name, part in named.items() if len(part)} or {"only": ps.range(5)}
            dataset = ps.mix(filled, stop="never").take(draw(st.integers(0, 120)))
        case 2:
            dataset = ps.concatenate(named)
        case 3:
            dataset = ps.interleave(list(named.values()))
        case 4:
            dataset = ps.zip(named, unequal="shortest")
        case 5 if size:
            dataset = dataset.sample(draw(st.lists(WEIGHTS, min_size=size, max_size=size)), draw(st.integers(0, 100)))
        case 6 if size:
            dataset = dataset.balance(draw(st.lists(st.sampled_from("abc"), min_size=size, max_size=size)))
        case _:
            fixed = dataset.epoch(0)
            dataset = fixed.flat_map(copies, counts=[count_of(fixed, position) for position in range(size)])
    return draw(finished(dataset.take(400) if len(dataset) > 400 else dataset))


@st.composite
def finished(draw: st.DrawFn, dataset: ps.Dataset) -> ps.Dataset:
    """Draw a last step above a join."""
    match draw(st.integers(0, 4)):
        case 0:
            return dataset.random_map(jitter)
        case 1:
            return dataset.shuffle().random_map(with_seed, rng="seed")
        case 2:
            return dataset.map_with_origin(with_origin)
        case 3:
            return dataset[1::2].map(add_one, name="last")
        case _:
            return dataset


@st.composite
def in_order(draw: st.DrawFn, *, dealable: bool = False) -> ps.Dataset:
    """Draw a dataset that can only be read in order; if `dealable`, no element depends on its neighbours."""
    dataset = draw(started(dealable=dealable)).map(uniform)
    is_grouped = False  # then what is random depends on which rows were together
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.integers(0, 7)):
            case 0 if not (dealable and is_grouped):
                dataset = dataset.random_map(jitter)
            case 1:
                dataset = dataset.filter(keeps_two_of_three)
            case 2:
                dataset = dataset.flat_map(copies)
            case 3 | 4:
                dataset = dataset.window_shuffle(draw(st.integers(1, 9)))
            case 5 | 6:
                batched = dataset.batch(draw(st.integers(1, 5)))
                dataset = batched.unbatch() if draw(st.booleans()) else dataset.combine(Delayed)
                is_grouped = True
            case _ if not dealable:
                dataset = (
                    dataset.batch(draw(st.integers(1, 4)))
                    .rebatch(draw(st.integers(1, 5)))
                    .limit(draw(st.integers(0, 9)))
                )
            case _:
                dataset = dataset.map(add_one)
    return dataset


@st.composite
def started(draw: st.DrawFn, *, dealable: bool) -> ps.Dataset:
    """Draw the lowest part of a dataset that is read in order."""
    ordered = indexable().map(lambda dataset: dataset.filter(keeps_two_of_three))
    stateful = st.integers(0, 40).map(lambda stop: ps.stream(lambda: Counter(stop), seed=stop))
    match draw(st.integers(0, 5)):
        case 0:
            named = draw(parts(indexable() | ordered))
            indexed = all(positions_of(part) is not None for part in named.values())
            measure = weight_of if dealable and indexed else draw(st.sampled_from([None, weight_of]))
            stop: Literal["first", "all"] = "all" if dealable else draw(STOPS)
            one = weights([*named])
            return ps.mix(named, draw(one if dealable else one | schedules([*named])), measure=measure, stop=stop)
        case 1:
            return ps.concatenate(draw(parts(ordered)))
        case 2 if not dealable:
            # All parts have the same steps, since several ranks refuse others.
            return ps.zip(draw(parts(ordered) | parts(stateful)), unequal="shortest")
        case 3:
            return draw(stateful)
        case 4:
            return ps.interleave(draw(parts(ordered | stateful)))
        case _:
            return draw(ordered)
