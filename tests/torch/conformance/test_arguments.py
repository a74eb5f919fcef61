"""Small programs in the caller's thread: arguments, samplers, errors and generators are torch's."""

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
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tests.torch.conformance.datasets import AtOnce, Counting, Drawing, Failing, NotAtOnce, Numbers, Sized
from tests.torch.conformance.outcome import Loader, differences, going_on, tried
from tests.torch.conformance.untyped import torch


def generator(seed: int = 5) -> Any:
    """Return a generator of one's own."""
    return torch.Generator().manual_seed(seed)


def each(*arguments: dict[str, Any]) -> Callable[[Loader], object]:
    """Return the program that goes through integers with some arguments, one after the other, twice each."""

    def run(loader: Loader) -> list[object]:
        found: list[object] = []
        for given in arguments:
            dataset = given.get("dataset", Numbers())
            made = loader(dataset, **{name: value for name, value in given.items() if name != "dataset"})
            found.append((tried(partial(len, made)), list(made), list(made)))
        return found

    return run


def refused(**given: Any) -> Callable[[Loader], object]:
    """Return the program that only makes a loader."""
    dataset = given.pop("dataset", Numbers())
    return lambda loader: type(loader(dataset, **given)).__mro__[-3]


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


def of_failing(loader: Loader, **given: Any) -> list[object]:
    """Return the results of a program that continues after exceptions."""
    return going_on(iter(loader(Failing(), **given)))


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


def set_later(name: str, value: object) -> Callable[[Loader], object]:
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


def length_warning(loader: Loader) -> object:
    """Ask for a length that is too small."""
    made = loader(Sized(9, 3), batch_size=None)
    return len(made), list(made)


def pickled(loader: Loader) -> object:
    """Send a loader, and an iterator."""
    made = loader(Numbers(), batch_size=4)
    list(made)
    return list(pickle.loads(pickle.dumps(made))), list(copy.copy(made)), tried(lambda: pickle.dumps(iter(made)))


DATASETS: dict[str, Any] = {
    "tensors": TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6) / 2),
    "subset": Subset(Numbers(), [7, 3, 5]),
    "concatenated": ConcatDataset([Numbers(3), Numbers(4)]),
    "stacked": StackDataset(a=Numbers(4), b=AtOnce(4)),
    "subset at once": Subset(AtOnce(), [1, 2, 3]),
    "list": [3, 1, 2],
    "dict": {0: "a", 1: "b"},
    "range": range(5),
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
    "batches": {"batch_size": 3},
    "batches dropped": {"batch_size": 3, "drop_last": True},
    "one large batch": {"batch_size": 100},
    "no batches": {"batch_size": None},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "collated": {"batch_size": 4, "collate_fn": list},
    "converted": {"batch_size": None, "collate_fn": str},
}

PROGRAMS: dict[str, Callable[[Loader], object]] = {
    "shuffled by a generator": lambda loader: each({"shuffle": True, "generator": generator()})(loader),
    "a list as sampler": each({"sampler": [4, 2, 2], "batch_size": 2}),
    "a generator as sampler": lambda loader: list(loader(Numbers(), sampler=(n * 2 for n in range(4)), batch_size=3)),
    "a set as sampler": each({"sampler": {1}}),
    "an empty sampler": each({"sampler": []}),
    "tensors as indices": each({"sampler": torch.tensor([1, 3])}),
    "a sequential sampler": each({"sampler": SequentialSampler(range(4))}),
    "a random sampler": each({"sampler": RandomSampler(range(8)), "batch_size": 3}),
    "with replacement": each({"sampler": RandomSampler(range(8), replacement=True, num_samples=40), "batch_size": 7}),
    "more than once": each({"sampler": RandomSampler(range(8), num_samples=20), "batch_size": 7}),
    "its own generator": lambda loader: each({"sampler": RandomSampler(range(8), generator=generator())})(loader),
    "of a subset": each({"sampler": SubsetRandomSampler([3, 5, 7]), "batch_size": 2}),
    "weighted": each({"sampler": WeightedRandomSampler([0.1, 0.5, 2.0], 9), "batch_size": 2}),
    "distributed": each({"sampler": DistributedSampler(Numbers(), 3, 1, seed=4), "batch_size": 2}),
    "distributed, dropped": each({"sampler": DistributedSampler(Numbers(), 3, 2, drop_last=True), "batch_size": 2}),
    "distributed, in order": each({"sampler": DistributedSampler(Numbers(), 3, 0, shuffle=False)}),
    "a sampler that draws": each({"sampler": Odd(), "batch_size": 2}),
    "a batch sampler": each({"batch_sampler": BatchSampler(RandomSampler(range(9)), 4, drop_last=True)}),
    "lists as batch sampler": each({"batch_sampler": [[1, 2], [3], [4, 5, 6]]}),
    "an empty batch": each({"batch_sampler": [[1], []]}),
    "an empty batch, collated": each({"batch_sampler": [[1], []], "collate_fn": list}),
    "no lists as batch sampler": each({"batch_sampler": [1, 2]}),
    "arrays as batch sampler": each({"batch_sampler": np.arange(6).reshape(3, 2)}),
    "batches of tuples": each({"batch_sampler": [(1, 2), (3, 4)]}),
    "batches at once": each({"dataset": AtOnce(), "batch_sampler": [(1, 2), (3, 4)]}),
    "indices past the end": each({"sampler": [1, 10]}),
    "indices of strings": each({"dataset": {"a": 1, "b": 2}, "sampler": ["b", "a"], "batch_size": 2}),
    "sampler and no shuffle": each({"sampler": [1, 2], "shuffle": False}),
    "in_order has no effect": each({"in_order": False, "batch_size": 4}),
    "errors": of_failing,
    "errors in batches": lambda loader: of_failing(loader, batch_size=2),
    "errors, converted": lambda loader: of_failing(loader, batch_size=None),
    "a sampler that raises": lambda loader: list(loader(Numbers(), sampler=map(only_zero, [0, 1]))),
    "a collate_fn that raises": lambda loader: list(loader(Numbers(), collate_fn=only_zero)),
    "two iterators": two_iterators,
    "draws in between": zipped,
    "left early": stopped,
    "attributes": attributes,
    "a wrong length": length_warning,
    "pickled": pickled,
    "pinned": each({"pin_memory": True, "batch_size": 4}),
    "pinned on a device": each({"pin_memory": True, "pin_memory_device": "cuda", "batch_size": 4}),
    **{
        f"set {name}": set_later(name, value)
        for name, value in {
            "batch_size": 3,
            "sampler": [1],
            "batch_sampler": [[1]],
            "drop_last": True,
            "dataset": Numbers(3),
            "persistent_workers": True,
            "collate_fn": list,
            "timeout": 3,
            "multiprocessing_context": "spawn",
        }.items()
    },
    **{
        f"refused: {given}": refused(**given)
        for given in (
            {"num_workers": -1},
            {"timeout": -1},
            {"prefetch_factor": 2},
            {"prefetch_factor": -1, "num_workers": 1},
            {"persistent_workers": True},
            {"batch_size": 0},
            {"batch_size": -1},
            {"batch_size": True},
            {"batch_size": 1.5},
            {"batch_size": "2"},
            {"batch_size": None, "drop_last": True},
            {"drop_last": "yes"},
            {"sampler": [1], "shuffle": True},
            {"batch_sampler": [[1]], "batch_size": 2},
            {"batch_sampler": [[1]], "shuffle": True},
            {"batch_sampler": [[1]], "sampler": [1]},
            {"batch_sampler": [[1]], "drop_last": True},
            {"dataset": Counting(), "shuffle": True},
            {"dataset": Counting(), "sampler": [1]},
            {"dataset": Counting(), "batch_sampler": [[1]]},
            {"dataset": Numbers(0), "shuffle": True},
            {"dataset": 5, "shuffle": True},
            {"multiprocessing_context": "spawn"},
            {"multiprocessing_context": "none", "num_workers": 1},
            {"multiprocessing_context": 3, "num_workers": 1},
            {"multiprocessing_context": multiprocessing.get_context("spawn"), "num_workers": 1},
            {"generator": 3, "shuffle": True},
            {"num_workers": "2"},
            {"workers": 2},
            {"num_workers": 10_000},
        )
    },
    "a timeout in the caller's thread": lambda loader: list(loader(Numbers(), timeout=3)),
    "no length": each({"dataset": Counting(3)}),
    "only __iter__": lambda loader: list(loader(iter([1, 2]))),
}


def test_datasets() -> None:
    """Datasets of each kind are gone through as torch's loader does it, whatever the arguments."""
    programs = {
        f"{name}, {arguments}": each({"dataset": dataset, **given})
        for name, dataset in DATASETS.items()
        for arguments, given in ARGUMENTS.items()
    }
    assert not differences(programs)


def test_programs() -> None:
    """The programs come to what they come to with torch's loader."""
    assert not differences(PROGRAMS)
