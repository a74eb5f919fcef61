"""Elements of every kind become the same batch as in torch, in the caller's thread and in workers."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch.utils.data

from penstock.torch import DataLoader
from tests.torch.conformance.datasets import SAMPLES, Counting, Kinds, Numbers
from tests.torch.conformance.outcome import Loader, described, differences, going_on

ROWS = 3
KEYS = [[(kind, row) for row in range(ROWS)] for kind in SAMPLES]


def number_of(elements: list[object]) -> tuple[int, object]:
    """Collate as a user might."""
    return len(elements), elements


def through(kind: str, batch_size: int | None) -> Callable[[Loader], object]:
    """Return the program that goes through elements of a kind."""
    keys = [(kind, row) for row in range(ROWS)]
    return lambda loader: list(loader(Kinds(), batch_size=batch_size, sampler=keys))


@pytest.mark.parametrize("batch_size", [ROWS, None])
def test_kinds(batch_size: int | None) -> None:
    """Elements of each kind are collated, converted or refused as by torch."""
    assert not differences({kind: through(kind, batch_size) for kind in SAMPLES})


DIFFERENT_IN_WORKERS = {
    "conjugate": "torch's queue loses that a tensor is a conjugate, so it arrives as another; ours arrives as it is",
    "backwards": "torch refuses arrays that go backwards; to ours they come from another worker, copied in order",
    "big-endian": "torch's queue swaps the bytes of arrays; ours keep their dtype, and the numbers are the same",
}


def in_workers(loader: Loader, **arguments: object) -> list[object]:
    """Return what all kinds come to in workers, a batch of each, or its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = iter(loader(Kinds(), num_workers=2, **arguments))
        return [described(each) for each in going_on(batches)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_sampler": KEYS},
        {"batch_sampler": KEYS, "collate_fn": number_of},
        {"sampler": [key for keys in KEYS for key in keys], "batch_size": None},
    ],
    ids=["default", "own", "single"],
)
def test_kinds_in_workers(arguments: dict[str, object]) -> None:
    """In workers, too, with errors in their places."""
    theirs, ours = in_workers(torch.utils.data.DataLoader, **arguments), in_workers(DataLoader, **arguments)
    kinds = list(SAMPLES) if "batch_sampler" in arguments else [kind for kind in SAMPLES for _ in range(ROWS)]
    different = {kind for kind, our, their in zip(kinds, ours, theirs, strict=True) if our != their}
    assert different <= DIFFERENT_IN_WORKERS.keys()


REGULAR = ("int", "tensor", "dict", "namedtuple", "array", "float32", "list", "columns")


class Regular(Numbers):
    """Elements of several kinds, all of which have one layout."""

    def __getitem__(self, index: int) -> Any:
        return {kind: SAMPLES[kind](index) for kind in REGULAR}


def test_rows_of_one_layout() -> None:
    """Rows that are written straight into their batch make the batch that torch makes."""
    theirs = torch.utils.data.DataLoader(Regular(20), batch_size=3)
    assert described(list(in_a_worker(Regular(20), batch_size=3))) == described(list(theirs))


def in_a_worker(dataset: Any, **given: Any) -> DataLoader[Any]:
    """Return a loader of ours with a worker."""
    return DataLoader[Any](dataset, num_workers=1, **given)


class Named:
    """A name, which torch can't collate."""

    def __init__(self, name: str) -> None:
        self.name = name


class Names(Numbers):
    """Names."""

    def __getitem__(self, index: int) -> Any:
        return Named(f"name {index}")


def joined(names: list[Named], **functions: object) -> str:
    """Collate names."""
    assert functions
    return ", ".join(each.name for each in names)


def test_functions_for_other_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that the program registers for a type collates it in workers, too."""
    known: Any = vars(importlib.import_module("torch.utils.data._utils.collate"))["default_collate_fn_map"]
    monkeypatch.setitem(known, Named, joined)
    assert list(in_a_worker(Names(4), batch_size=2)) == ["name 0, name 1", "name 2, name 3"]


class Deep(Numbers):
    """Lists within each other, with a number in the innermost one."""

    def __getitem__(self, index: int) -> Any:
        element: object = index
        for _ in range(300):
            element = [element]
        return element


def test_deep_elements() -> None:
    """Elements whose layout is too deep for pickle are collated by workers all the same."""
    found: list[Any] = list(in_a_worker(Deep(4), batch_size=2))
    for _ in range(300):
        found = [inner for batch in found for inner in batch]
    assert [batch.tolist() for batch in found] == [[0, 1], [2, 3]]


def frozen(numbers: list[int]) -> object:
    """Return an array that is read-only beside what is no array."""
    return {"x": np.frombuffer(np.array(numbers).tobytes(), np.int64), "name": "numbers"}


@pytest.mark.parametrize("dataset", [Numbers(3), Counting(3)], ids=["rows", "stream"])
def test_arrays_of_workers_are_writable(dataset: Any) -> None:
    """An array that a function returns read-only is writable where it arrives, as from torch's workers."""
    (batch,) = in_a_worker(dataset, batch_size=3, collate_fn=frozen)
    batch["x"] += 1
    assert batch["x"].tolist() == [1, 2, 3]


def test_writing_to_a_batch() -> None:
    """A batch's tensors may be written to, and no later batch is changed by it."""
    found: list[list[int]] = []
    for batch in in_a_worker(Numbers(40), batch_size=4):
        found.append(batch.tolist())
        batch.fill_(-1)
    assert [number for batch in found for number in batch] == list(range(40))
