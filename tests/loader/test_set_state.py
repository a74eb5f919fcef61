"""An iterator that loads a state becomes its loader's current one; one that refuses a state continues where it was."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ClosedError, StateError, UsageError
from tests.dataset.functions import keep, same
from tests.places import LINUX, PLACES, in_places, place_of

DATASETS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "indexed": lambda rows: rows.batch(4),
    "in order": lambda rows: rows.filter(keep).batch(4),
    "above a fold": lambda rows: rows.filter(keep).batch(4).map(same),
}
SHORT = ("inline", "threads", "processes", "isolated", "out of order")
KINDS = pytest.mark.parametrize("kind", DATASETS)


def dataset_of(kind: str) -> ps.Dataset:
    """Return batches of numbers."""
    return DATASETS[kind](ps.range(40).map(same))


def listed(batches: Iterator[Any]) -> list[Any]:
    """Return the rest of the batches in the order of their rows."""
    return sorted(batch.tolist() for batch in batches)


def refused(loader: ps.Loader[Any]) -> list[Any]:
    """Return states that a loader refuses: of nothing, damaged ones, and one of another dataset."""
    state = loader.state_dict()
    return [
        {"not": "a state"},
        {**state, "segments": []},
        {**state, "step": 1 << 63},
        {**state, "position": 1 << 40, "cursor": [1 << 40]},
        ps.Loader(ps.range(39).batch(4)).state_dict(),
    ]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(place_of(place, "indexed") for place in SHORT),
        *(  # a refused state changes nothing of the iterator, which is the same class in each of these
            pytest.param("indexed", place, id=name, marks=[LINUX, pytest.mark.long])
            for name, place in PLACES.items()
            if name not in SHORT
        ),
        *(place_of(place, kind) for kind in ("in order", "above a fold") for place in ("threads", "isolated")),
    ],
)
def test_a_refused_state_changes_nothing(kind: str, place: dict[str, Any]) -> None:
    """The iterator delivers the rest of its epoch, once, and the loader counts it."""
    dataset = dataset_of(kind)
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        found = [next(batches).tolist(), next(batches).tolist()]
        for state in refused(loader):
            with pytest.raises(StateError):
                batches.set_state(state)
        assert loader.steps_done == 2
        assert sorted([*found, *listed(batches)]) == [batch.tolist() for batch in dataset]
        assert (loader.epoch, loader.steps_done) == (0, 10)
        with pytest.raises(StateError):
            batches.set_state({})
        assert list(batches) == []


@in_places("inline", "threads")
@KINDS
def test_a_refused_state_revives_no_iterator(kind: str, place: dict[str, Any]) -> None:
    """An iterator whose place a newer one has taken stays refused, and the newer one continues."""
    dataset = dataset_of(kind)
    with ps.Loader(dataset, **place) as loader:
        older, newer = iter(loader), iter(loader)
        next(newer)
        with pytest.raises(StateError):
            older.set_state({})
        with pytest.raises(ClosedError, match=r"a newer iter\(loader\) has taken"):
            next(older)
        assert listed(newer) == [batch.tolist() for batch in dataset][1:]


ENDS: list[tuple[Callable[[ps.Loader[Any]], object], str]] = [
    (iter, r"a newer iter\(loader\) has taken this iterator's place"),
    (lambda loader: loader.load_state_dict(loader.state_dict()), "a state was loaded after this iterator"),
    (lambda loader: loader.seek(position=8), "the loader moved to another step"),
    (ps.Loader.close, "the loader was closed"),
]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(place_of(place, kind) for kind in DATASETS for place in ("inline", "threads")),
        *(place_of(place, "indexed") for place in ("processes", "isolated", "out of order")),
    ],
)
def test_an_older_iterator_that_loads_a_state_is_the_current_one(kind: str, place: dict[str, Any]) -> None:
    """It delivers the rest of the state's epoch, the newer one nothing; what ends a current iterator ends it."""
    dataset = dataset_of(kind)
    with ps.Loader(dataset, **place) as loader:
        older = iter(loader)
        first = next(older).tolist()
        state = older.get_state()
        assert state == loader.state_dict()
        newer = iter(loader)
        older.set_state(state)
        with pytest.raises(ClosedError, match="a state was loaded after this iterator was made"):
            next(newer)
        assert sorted([first, *listed(older)]) == [batch.tolist() for batch in dataset]
        for act, message in ENDS:
            older.set_state(state)
            next(older)
            kept = act(loader)
            for _ in range(2):
                with pytest.raises(ClosedError, match=message):
                    next(older)
            del kept


@in_places("inline", "threads")
def test_an_iterator_of_a_closed_loader_loads_no_state(place: dict[str, Any]) -> None:
    """It says that the loader was closed, before and after."""
    with ps.Loader(dataset_of("indexed"), **place) as loader:
        batches = iter(loader)
        state = loader.state_dict()
    with pytest.raises(ClosedError, match="the loader was closed; make a new one"):
        batches.set_state(state)
    with pytest.raises(ClosedError, match="the loader was closed"):
        next(batches)


def test_a_function_of_the_dataset_loads_no_state() -> None:
    """Inside `next` the iterator can't move; the batch is delivered afterwards."""
    errors: list[UsageError] = []

    def set_state(number: int) -> int:
        with pytest.raises(UsageError, match=r"called set_state\(\) inside its own next\(\)") as caught:
            batches.set_state(state)
        errors.append(caught.value)
        return number

    loader = ps.Loader(ps.range(4).map(set_state).batch(2))
    state = loader.state_dict()
    batches = iter(loader)
    assert listed(batches) == [[0, 1], [2, 3]]
    assert len(errors) >= 4
