"""A signal's handler that raises, at any moment of `next`: `next` raises its exception, and no batch is lost."""

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest
from torch.utils.data import IterableDataset, RandomSampler

from penstock.torch import DataLoader
from tests.ticks import KINDS, Tick, Ticks, chained
from tests.ticks import ticking as ticking
from tests.torch.conformance.datasets import Numbers
from tests.torch.conformance.untyped import torch
from tests.torch.test_state import own

SIGNALS = 60
ROWS = 120
FAILING = 31


class Rows(Numbers):
    """Elements that take a moment."""

    def __getitem__(self, index: int) -> Any:
        return torch.arange(index, index + 2000).double().sin().round(decimals=3), index


class ManyRows(Rows):
    """A dataset that returns a batch's elements in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class FailingRows(Rows):
    """Elements of which one fails."""

    def __getitem__(self, index: int) -> Any:
        if index == FAILING:
            raise LookupError(f"no element {index}")
        return super().__getitem__(index)


class Stream(IterableDataset[Any]):
    """A stream in each worker."""

    def __iter__(self) -> Iterator[Any]:
        worker: Any = torch.utils.data.get_worker_info()
        yield from map(Rows(ROWS).__getitem__, range(worker.id, ROWS, worker.num_workers))


class FailingStream(Stream):
    """A stream that fails at one element, which isn't its last."""

    def __iter__(self) -> Iterator[Any]:
        return map(self._checked, super().__iter__())

    def _checked(self, element: Any) -> Any:
        if element[1] == FAILING:
            raise LookupError(f"no element {FAILING}")
        return element


def shuffled() -> Any:
    """Return a sampler that draws the same in each loader."""
    return RandomSampler(range(ROWS), generator=own())


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "rows": lambda: DataLoader(Rows(ROWS), 4, sampler=shuffled(), num_workers=2),
    "persistent": lambda: DataLoader(Rows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "at once": lambda: DataLoader(ManyRows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "single": lambda: DataLoader(Rows(ROWS), None, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "timeout": lambda: DataLoader(
        Rows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True, timeout=60
    ),
    "out of order": lambda: DataLoader(
        Rows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True, in_order=False
    ),
    "failing": lambda: DataLoader(FailingRows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "streams": lambda: DataLoader(Stream(), 4, num_workers=2, persistent_workers=True),
    "failing streams": lambda: DataLoader(FailingStream(), 4, num_workers=2, persistent_workers=True),
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
def test_no_batch_is_lost(
    name: str, kind: type[BaseException], ticking: Callable[[type[BaseException], int], Ticks]
) -> None:
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


@pytest.mark.parametrize("name", ["persistent", "streams"])
def test_a_state_counts_delivered_batches(name: str, ticking: Callable[[type[BaseException], int], Ticks]) -> None:
    """After a handler's exception the state is that after the batches before it."""
    ticks = ticking(Tick, 6)
    loader = LOADERS[name]()
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
