"""Small programs in the caller's thread: arguments, samplers, errors and generators are torch's.

There torch's own iterator loads, so these are about what ours adds to it: counted indices, times, and a seed.
"""

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
)

from tests.torch.conformance.datasets import AtOnce, Counting, Drawing, Failing, NotAtOnce, Numbers, Sized
from tests.torch.conformance.outcome import Loader, differences, going_on, tried
from tests.torch.conformance.untyped import torch

Program = Callable[[Loader], object]


def each(dataset: Any = None, **given: Any) -> Program:
    """Return the program that goes twice through a dataset, or through integers."""

    def run(loader: Loader) -> object:
        made = loader(Numbers() if dataset is None else dataset, **given)
        return tried(partial(len, made)), list(made), list(made)

    return run


def refused(dataset: Any = None, **given: Any) -> Program:
    """Return the program that only makes a loader."""
    return lambda loader: type(loader(Numbers() if dataset is None else dataset, **given)).__mro__[-3]


def only_zero(index: object) -> int:
    """Return an index, which must be 0."""
    if index != 0:
        raise KeyError(repr(index))
    return 0


class Odd(Sampler[int]):
    """A sampler that draws from torch's generator when an iterator is made, and again for each index."""

    def __iter__(self) -> Iterator[int]:
        first = int(torch.randint(10, ()))
        return (int((torch.randint(10, ()) + first) % 10) for _ in range(5))


def of_failing(**given: Any) -> Program:
    """Return the program that continues after exceptions."""
    return lambda loader: going_on(iter(loader(Failing(), **given)))


def two_iterators(loader: Loader) -> object:
    """Go through two epochs at once."""
    made = loader(Numbers(), batch_size=2, shuffle=True)
    return list(zip(iter(made), iter(made), strict=True))


def zipped(loader: Loader) -> object:
    """Draw between batches."""
    return [(batch, torch.rand(1)) for batch in loader(Numbers(), shuffle=True, batch_size=3)]


def stopped(loader: Loader) -> object:
    """Leave an epoch early, then go through one, then past its end."""
    made, first = loader(Numbers(), shuffle=True, batch_size=3), None
    for batch in made:
        first = batch
        break
    batches = iter(made)
    return first, list(batches), tried(lambda: next(batches)), next(iter(made))


def set_later(name: str, value: object) -> Program:
    """Return the program that sets an attribute afterwards."""

    def run(loader: Loader) -> object:
        made = loader(Numbers(), batch_size=2)
        setattr(made, name, value)
        return list(made)

    return run


def attributes(loader: Loader) -> object:
    """Look at what a loader says of itself."""
    made = loader(Numbers(), batch_size=3, shuffle=True, drop_last=True)
    names = ["batch_size", "drop_last", "num_workers", "prefetch_factor", "pin_memory", "timeout", "persistent_workers"]
    return [getattr(made, name) for name in names], made.sampler.__class__, made.batch_sampler.__class__


def pickled(loader: Loader) -> object:
    """Send a loader, and an iterator."""
    made = loader(Numbers(), batch_size=4)
    list(made)
    return list(pickle.loads(pickle.dumps(made))), list(copy.copy(made)), tried(lambda: pickle.dumps(iter(made)))


DATASETS: dict[str, Any] = {
    "tensors": TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6) / 2),
    "concatenated": ConcatDataset([Numbers(3), Numbers(4)]),
    "stacked": StackDataset(a=Numbers(4), b=AtOnce(4)),
    "subset at once": Subset(AtOnce(), [1, 2, 3]),
    "list": [3, 1, 2],
    "dict": {0: "a", 1: "b"},
    "array": np.arange(6).reshape(3, 2),
    "at once": AtOnce(),
    "not at once": NotAtOnce(),
    "drawing": Drawing(),
    "iterable": Counting(),
    "empty iterable": Counting(0),
    "sized iterable": Sized(7, 7),
    "empty": Numbers(0),
}

ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "batches dropped": {"batch_size": 3, "drop_last": True},
    "no batches": {"batch_size": None},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "collated": {"batch_size": 4, "collate_fn": list},
}

PROGRAMS: dict[str, Program] = {
    "shuffled by a generator": lambda loader: each(shuffle=True, generator=torch.Generator().manual_seed(5))(loader),
    "a generator as sampler": lambda loader: list(loader(Numbers(), sampler=(n * 2 for n in range(4)), batch_size=3)),
    "a set as sampler": each(sampler={1}),
    "an empty sampler": each(sampler=[]),
    "tensors as indices": each(sampler=torch.tensor([1, 3])),
    "with replacement": each(sampler=RandomSampler(range(8), replacement=True, num_samples=40), batch_size=7),
    "distributed": each(sampler=DistributedSampler(Numbers(), 3, 1, seed=4), batch_size=2),
    "a sampler that draws": each(sampler=Odd(), batch_size=2),
    "a batch sampler": each(batch_sampler=BatchSampler(RandomSampler(range(9)), 4, drop_last=True)),
    "lists as batch sampler": each(batch_sampler=[[1, 2], [3], [4, 5, 6]]),
    "an empty batch": each(batch_sampler=[[1], []]),
    "an empty batch, collated": each(batch_sampler=[[1], []], collate_fn=list),
    "no lists as batch sampler": each(batch_sampler=[1, 2]),
    "arrays as batch sampler": each(batch_sampler=np.arange(6).reshape(3, 2)),
    "batches at once": each(AtOnce(), batch_sampler=[(1, 2), (3, 4)]),
    "indices past the end": each(sampler=[1, 10]),
    "indices of strings": each({"a": 1, "b": 2}, sampler=["b", "a"], batch_size=2),
    "in_order has no effect": each(in_order=False, batch_size=4),
    "errors": of_failing(),
    "errors in batches": of_failing(batch_size=2),
    "errors, converted": of_failing(batch_size=None),
    "a sampler that raises": lambda loader: list(loader(Numbers(), sampler=map(only_zero, [0, 1]))),
    "a collate_fn that raises": lambda loader: list(loader(Numbers(), collate_fn=only_zero)),
    "two iterators": two_iterators,
    "draws in between": zipped,
    "left early": stopped,
    "attributes": attributes,
    "a wrong length": lambda loader: [(len(made), list(made)) for made in [loader(Sized(9, 3), batch_size=None)]],
    "pickled": pickled,
    "pinned on a device": each(pin_memory=True, pin_memory_device="cuda", batch_size=4),
    **{
        f"set {name}": set_later(name, value)
        for name, value in {
            "batch_size": 3,
            "batch_sampler": [[1]],
            "dataset": Numbers(3),
            "persistent_workers": True,
            "collate_fn": list,
            "multiprocessing_context": "spawn",
        }.items()
    },
    **{
        f"refused: {given}": refused(**given)
        for given in (
            {"num_workers": -1},
            {"num_workers": "2"},
            {"num_workers": 10_000},
            {"prefetch_factor": 2},
            {"persistent_workers": True},
            {"batch_size": 1.5},
            {"drop_last": "yes"},
            {"sampler": [1], "shuffle": True},
            {"batch_sampler": [[1]], "batch_size": 2},
            {"dataset": Counting(), "shuffle": True},
            {"dataset": Numbers(0), "shuffle": True},
            {"dataset": 5, "shuffle": True},
            {"multiprocessing_context": "spawn"},
            {"multiprocessing_context": "none", "num_workers": 1},
            {"multiprocessing_context": multiprocessing.get_context("spawn"), "num_workers": 1},
            {"workers": 2},
        )
    },
    "a timeout in the caller's thread": lambda loader: list(loader(Numbers(), timeout=3)),
    "only __iter__": lambda loader: list(loader(iter([1, 2]))),
}


def test_datasets() -> None:
    """Datasets of each kind are gone through as torch's loader does it, whatever the arguments."""
    programs = {
        f"{name}, {arguments}": each(dataset, **given)
        for name, dataset in DATASETS.items()
        for arguments, given in ARGUMENTS.items()
    }
    assert not differences(programs)


def test_programs() -> None:
    """The programs come to what they come to with torch's loader."""
    assert not differences(PROGRAMS)
