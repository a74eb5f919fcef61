"""States at an epoch's start: a fresh loader makes the orders that would have come, whichever object drew them."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from penstock.errors import StateError
from penstock.torch import DataLoader
from tests.torch.conformance.datasets import Drawing, Numbers
from tests.torch.conformance.outcome import described
from tests.torch.conformance.untyped import torch
from tests.torch.test_state import Dealt, own

EPOCHS = 3
ROWS = 18  # full batches, so that the sampler doesn't meet its end with the last


class Shuffled:
    """A user's sampler that draws lazily from a generator that it names as torch's samplers do."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(ROWS, generator=self.generator).tolist()

    def __len__(self) -> int:
        return ROWS


def batched(sampler: Any) -> dict[str, Any]:
    """Return the arguments of a loader over a sampler of indices."""
    return {"batch_size": 3, "sampler": sampler}


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: batched(RandomSampler(range(ROWS), generator=own())),
    "replacement": lambda: batched(RandomSampler(range(ROWS), replacement=True, num_samples=70, generator=own())),
    "weighted": lambda: batched(WeightedRandomSampler([1.0, 2.0, 3.0], ROWS, generator=own())),
    "subset": lambda: batched(SubsetRandomSampler(range(4, ROWS), generator=own())),
    "dropped": lambda: {"batch_size": 4, "drop_last": True, "sampler": RandomSampler(range(ROWS), generator=own())},
    "single": lambda: {"batch_size": None, "sampler": RandomSampler(range(ROWS), generator=own())},
    "batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(ROWS), generator=own()), 3, drop_last=False)
    },
    "over others": lambda: {
        "batch_sampler": Dealt(BatchSampler(RandomSampler(range(ROWS), generator=own()), 3, drop_last=False))
    },
    "user's": lambda: batched(Shuffled(own())),
    "loader's": lambda: {"batch_size": 3, "shuffle": True, "generator": own()},
    "both": lambda: {**batched(RandomSampler(range(ROWS), generator=own())), "generator": own()},
    "global": lambda: {"batch_size": 3, "shuffle": True},
}

WORKERS: dict[str, dict[str, Any]] = {
    "none": {},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


def made(name: str, workers: str) -> DataLoader[Any]:
    """Return a loader with fresh generators."""
    dataset: Any = Drawing(ROWS) if workers != "none" else Numbers(ROWS)
    return DataLoader(dataset, **SAMPLERS[name](), **WORKERS[workers])


def before_all(loader: DataLoader[Any]) -> object:
    """Leave a loader that has made no iterator."""
    del loader
    return None


def before_the_first(loader: DataLoader[Any]) -> object:
    """Leave a loader with an iterator that has given nothing."""
    list(loader)
    return iter(loader)


def after_the_last(loader: DataLoader[Any]) -> object:
    """Leave a loader with an iterator that has given its last batch, and not met its end."""
    list(loader)
    batches: Iterator[Any] = iter(loader)
    assert list(islice(batches, len(loader)))
    return batches


def between(loader: DataLoader[Any]) -> object:
    """Leave a loader after its second epoch."""
    list(loader)
    list(loader)
    return None


@pytest.mark.parametrize("moment", [before_all, before_the_first, after_the_last, between])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_orders_that_would_have_come(name: str, moment: Callable[[DataLoader[Any]], Any]) -> None:
    """A fresh loader, with generators seeded alike, gives the epochs of the loader that was not interrupted."""
    check_resumed(name, moment, "none")


@pytest.mark.parametrize("workers", ["persistent", "two"])  # the others start again in each epoch
@pytest.mark.parametrize("moment", [before_all, before_the_first, after_the_last, between])
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.each_value
def test_the_orders_and_items_that_would_have_come_from_workers(
    name: str, moment: Callable[[DataLoader[Any]], Any], workers: str
) -> None:
    """With workers the items draw, too, and draw the same."""
    check_resumed(name, moment, workers)


def check_resumed(name: str, moment: Callable[[DataLoader[Any]], Any], workers: str) -> None:
    """Compare the epochs of a loader from a moment on with those of one that resumes there."""
    torch.manual_seed(8)
    loader = made(name, workers)
    batches = moment(loader)
    state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
    rest = [] if batches is None else list(batches)
    epochs = EPOCHS if workers == "none" else 2
    expected = ([described(rest)] if rest else []) + [described(list(loader)) for _ in range(epochs)]
    torch.manual_seed(99)
    resumed = made(name, workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    torch.set_rng_state(generator)
    assert [described(list(resumed)) for _ in expected] == expected


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_state_moves_no_order(name: str) -> None:
    """Saving at each batch changes no batch that comes after it."""
    torch.manual_seed(8)
    loader = made(name, "none")
    expected = [described(list(loader)) for _ in range(EPOCHS)]
    torch.manual_seed(8)
    loader = made(name, "none")
    for epoch in expected:
        found: list[Any] = []
        for batch in loader:
            loader.state_dict()
            found.append(batch)
        loader.state_dict()
        assert described(found) == epoch


def test_a_generator_is_needed_at_the_start_too() -> None:
    """A sampler of the same kind without a generator would draw other orders."""
    state = made("random", "none").state_dict()
    with pytest.raises(StateError, match="a RandomSampler drew from a generator of its own; here it has none"):
        DataLoader(Numbers(ROWS), 3, shuffle=True).load_state_dict(state)


def test_other_samplers_take_a_state_of_the_start() -> None:
    """A sampler that draws nothing needs no generator."""
    loader: DataLoader[Any] = DataLoader(Numbers(ROWS), 3)
    loader.load_state_dict(made("random", "none").state_dict())
    assert [number for batch in loader for number in batch.tolist()] == list(range(ROWS))


@pytest.mark.parametrize("name", ["random", "loader's"])
def test_a_state_of_an_earlier_version(name: str) -> None:
    """A state without the samplers' generators begins the epoch with those of the loader."""
    state = made(name, "none").state_dict()
    state.pop("made_from", None)
    loader = made(name, "none")
    loader.load_state_dict(state)
    assert described(list(loader)) == described(list(made(name, "none")))
