"""A signal's handler that raises, at any moment of `next`: `next` raises its exception, and no batch is lost."""

from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
from torch.utils.data import RandomSampler

from penstock.torch import DataLoader
from tests.profiles import IS_LONG
from tests.ticks import KINDS, Tick, Ticks, chained
from tests.ticks import ticking as ticking
from tests.torch.conformance.datasets import Made, Streamed
from tests.torch.conformance.untyped import torch
from tests.torch.test_state import own

SIGNALS = 30 if IS_LONG else 12
ROWS = 120
FAILING = 31

Ticking = Callable[[type[BaseException], int], Ticks]


def row(index: int) -> Any:
    """Return an element that takes a moment."""
    return torch.arange(index, index + 2000).double().sin().round(decimals=3), index


def failing(index: int) -> Any:
    """Return an element, of which one fails."""
    if index == FAILING:
        raise LookupError(f"no element {index}")
    return row(index)


class AtOnce(Made):
    """A dataset that returns a batch's elements in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def loader_of(kind: Any = Made, make: Any = row, batch_size: int | None = 4, **given: Any) -> DataLoader[Any]:
    """Return a loader of rows with workers, whose sampler draws the same in each."""
    sampler = RandomSampler(range(ROWS), generator=own())
    given = {"persistent_workers": True, **given}
    return DataLoader(kind(ROWS, make), batch_size, sampler=sampler, num_workers=2, **given)


def streams_of(make: Callable[[int], Any]) -> DataLoader[Any]:
    """Return a loader of a stream in each of two workers."""
    streams = Streamed(lambda worker, workers: map(make, range(worker, ROWS, workers)))
    return DataLoader(streams, 4, num_workers=2, persistent_workers=True)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "failing": lambda: loader_of(make=failing),
    "failing streams": lambda: streams_of(failing),
    "single, new workers": lambda: loader_of(batch_size=None, persistent_workers=False),
    "at once, with a timeout": lambda: loader_of(AtOnce, timeout=60),
    "out of order": lambda: loader_of(in_order=False),
}


def code_of_next(batches: object) -> CodeType:
    """Return the code that an iterator's `next` runs."""
    kind: Any = type(batches)
    code: CodeType = kind.__next__.__code__
    return code


def read(loader: DataLoader[Any], ticks: Ticks | None) -> tuple[list[Any], int]:
    """Return what an epoch gives, errors in their places, and how many exceptions of handlers were caught."""
    found: list[Any] = []
    caught = 0
    batches: Any = iter(loader)
    if ticks is not None:
        ticks.start(code_of_next(batches))
    while True:
        try:
            found.extend(torch.as_tensor(numbers).flatten().tolist() for _, numbers in batches)
            break
        except KINDS as error:
            caught += chained(error)
        except LookupError:
            found.append("an error")
    if ticks is not None:
        ticks.stop()
    return found, caught


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.each_value
def test_no_batch_is_lost(name: str, kind: type[BaseException], ticking: Ticking) -> None:
    """All batches and errors of all epochs come, each once, and what a handler raises comes once."""
    ticks = ticking(kind, 5)
    loader, reference = LOADERS[name](), LOADERS[name]()
    caught = 0
    while caught < SIGNALS:
        found, more = read(loader, ticks)
        caught += more
        wanted, _ = read(reference, None)
        if name == "out of order":
            found, wanted = sorted(found), sorted(wanted)
        assert found == wanted
    assert caught == ticks.raised


@pytest.mark.longer
@pytest.mark.parametrize("make", [loader_of, lambda: streams_of(row)], ids=["rows", "streams"])
def test_a_state_counts_delivered_batches(make: Callable[[], DataLoader[Any]], ticking: Ticking) -> None:
    """After a handler's exception the state is that after the batches before it."""
    ticks = ticking(Tick, 6)
    loader = make()
    caught = 0
    while caught < SIGNALS // 2:
        batches: Any = iter(loader)
        states = [position(loader, batches)]
        ticks.start(code_of_next(batches))
        while True:
            try:
                states.extend(position(loader, batches) for _ in batches)
                break
            except Tick as error:
                caught += chained(error)
                assert position(loader, batches) == states[-1]
        ticks.stop()


def position(loader: DataLoader[Any], batches: Any) -> Any:
    """Return how many batches a loader's state counts; of streams without one, how many the iterator counts."""
    if hasattr(batches, "progress"):
        return sum(each.number - each.is_over for each in batches.progress.streams)
    return loader.state_dict().get("reached")
