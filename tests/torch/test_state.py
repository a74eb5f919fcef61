"""Going on from a state, inside an epoch or at its start, as if nothing had happened, whichever object drew orders."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.errors import StateError
from penstock.torch import DataLoader
from tests.torch.conformance.datasets import Counting, Drawing, Made, Numbers
from tests.torch.conformance.outcome import described
from tests.torch.conformance.untyped import torch

BATCHES = 7
EPOCHS = 3


class Eager:
    """A sampler that draws its order when an iterator is made, as some samplers do."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(20, (20,)).tolist())

    def __len__(self) -> int:
        return 20


class Lazy:
    """A sampler that draws its order at the first index, from a generator named as by torch, and has no length."""

    def __init__(self, generator: Any = None) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        yield from torch.randint(20, (20,), generator=self.generator).tolist()


class OwnIterator:
    """A sampler that is its own iterator, which begins anew in `__iter__`; of batches, or of indices without a size."""

    def __init__(self, size: int | None = None, generator: Any = None) -> None:
        self.at = 0
        self.size = size
        self.generator = generator

    def __iter__(self) -> "OwnIterator":
        self.at = 0
        return self

    def __next__(self) -> Any:
        if self.at == BATCHES:
            raise StopIteration
        self.at += 1
        return self.at if self.size is None else [self.at + row for row in range(self.size)]

    def __len__(self) -> int:
        return BATCHES


class Dealt:
    """Every second batch of a sampler of batches, as frameworks deal them to ranks."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batch_sampler), 0, None, 2)

    def __len__(self) -> int:
        return -(-len(self.batch_sampler) // 2)


def own() -> Any:
    """Return a generator of one's own."""
    return torch.Generator().manual_seed(3)


def distributed() -> Any:
    """Return a sampler in its third epoch."""
    kind: Any = DistributedSampler
    sampler = kind(Numbers(20), 2, 1, seed=5)
    sampler.set_epoch(2)
    return sampler


def batched(sampler: Any) -> dict[str, Any]:
    """Return the arguments of a loader over a sampler of indices."""
    return {"batch_size": 3, "sampler": sampler}


def drawing(count: int = 18, **given: Any) -> Any:
    """Return a sampler with a generator of its own; 18 are full batches: it doesn't meet its end with the last."""
    return RandomSampler(range(count), generator=own(), **given)


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 3},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True},
    "shuffled, dropped": lambda: {"batch_size": 3, "shuffle": True, "drop_last": True},
    "loader's generator": lambda: {"batch_size": 3, "shuffle": True, "generator": own()},
    "loader's generator, in order": lambda: {"batch_size": 3, "generator": own()},
    "single": lambda: {"batch_size": None, "sampler": RandomSampler(range(BATCHES))},
    "in order, single": lambda: {"batch_size": None, "sampler": SequentialSampler(range(BATCHES))},
    "replacement": lambda: batched(RandomSampler(range(20), replacement=True)),
    "weighted": lambda: batched(WeightedRandomSampler([1.0, 2.0, 3.0], 20)),
    "distributed": lambda: batched(distributed()),
    "batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(20)), 3, drop_last=False)},
    "over others": lambda: {"batch_sampler": Dealt(BatchSampler(RandomSampler(range(20)), 3, drop_last=False))},
    "lists": lambda: {"batch_sampler": [[1, 2], [3], [4, 5], [6], [7], [8], [9]]},
    "eager": lambda: batched(Eager()),
    "its own iterator": lambda: {"batch_sampler": OwnIterator(2)},
    "its own iterator, with a generator": lambda: {"batch_sampler": OwnIterator(2, own())},
    "its own iterator, single": lambda: {"batch_size": None, "sampler": OwnIterator()},
    "lazy": lambda: batched(Lazy()),
    "own": lambda: batched(drawing()),
    "own, lazy": lambda: batched(Lazy(own())),
    "own, replacement": lambda: batched(drawing(replacement=True, num_samples=70)),
    "own, weighted": lambda: batched(WeightedRandomSampler([1.0, 2.0, 3.0], 18, generator=own())),
    "own, subset": lambda: batched(SubsetRandomSampler(range(4, 18), generator=own())),
    "own, dropped": lambda: {"batch_size": 4, "drop_last": True, "sampler": drawing()},
    "own, single": lambda: {"batch_size": None, "sampler": drawing()},
    "own, batch sampler": lambda: {"batch_sampler": BatchSampler(drawing(), 3, drop_last=False)},
    "own, over others": lambda: {"batch_sampler": Dealt(BatchSampler(drawing(), 3, drop_last=False))},
    "own, and the loader's": lambda: {**batched(drawing()), "generator": own()},
}


def made(name: str, dataset: Any = None, **given: Any) -> DataLoader[Any]:
    """Return a loader with a sampler of some kind, with fresh generators."""
    return DataLoader(dataset or Numbers(20), **SAMPLERS[name](), **given)


Moment = Callable[[DataLoader[Any]], Any]
"""Brings a loader to a moment, and returns the iterator of the epoch that has begun, if any."""


def inside(reached: int) -> Moment:
    """Return the moment after some batches."""

    def leave(loader: DataLoader[Any]) -> Any:
        batches: Iterator[Any] = iter(loader)
        torch.rand(1)  # the training draws too
        assert len(list(islice(batches, reached))) == reached
        return batches

    return leave


def before_the_first(loader: DataLoader[Any]) -> Any:
    """Leave a loader with an iterator that has given nothing."""
    assert list(loader)
    return iter(loader)


def after_the_last(loader: DataLoader[Any]) -> Any:
    """Leave a loader with an iterator that has given its last batch, and not met its end."""
    return inside(len(list(loader)))(loader)


def after_two_epochs(loader: DataLoader[Any]) -> None:
    """Leave a loader after its second epoch."""
    assert list(loader)
    assert list(loader)


MOMENTS: dict[str, Moment] = {
    "before all": lambda loader: None,
    "before the first": before_the_first,
    "after the first": inside(1),
    "inside": inside(3),
    "after the last": after_the_last,
    "between": after_two_epochs,
}


def check_resumed(name: str, moment: str, epochs: int = EPOCHS, **given: Any) -> None:
    """Compare the epochs of a loader from a moment on with those of one that resumes there, seeded alike."""
    torch.manual_seed(8)
    loader = made(name, **given)
    batches = MOMENTS[moment](loader)
    state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
    rest = [] if batches is None else list(batches)
    is_left = bool(rest) or (batches is not None and "lazy" in name)  # an end without a length has to be met
    expected = ([described(rest)] if is_left else []) + [described(list(loader)) for _ in range(epochs)]
    torch.manual_seed(99)
    resumed = made(name, **given)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    torch.set_rng_state(generator)
    for epoch in expected:
        again: Iterator[Any] = iter(resumed)
        assert described(list(islice(again, 50))) == epoch


@pytest.mark.parametrize("name", SAMPLERS)
def test_resuming(name: str) -> None:
    """From any batch, and between epochs, a new loader delivers what would have come; to save changes no batch."""
    for moment in MOMENTS:
        check_resumed(name, moment)
    assert epochs_of(name, saves=True) == epochs_of(name, saves=False)


def epochs_of(name: str, *, saves: bool) -> list[object]:
    """Return some epochs, of which each batch is followed by a state, or none is."""
    torch.manual_seed(8)
    loader = made(name)
    found: list[object] = []
    for _ in range(EPOCHS):
        for batch in loader:
            found.append(described(batch))
            assert not saves or loader.state_dict()
        assert not saves or loader.state_dict()
    return found


@pytest.mark.parametrize(
    ("name", "moment", "persistent"),
    [
        ("loader's generator", "before the first", True),
        # Another case has this moment, and `test_stream_states.py` base seeds that are drawn for each epoch.
        pytest.param("loader's generator", "between", False, marks=pytest.mark.long),
        ("own, and the loader's", "between", True),
        pytest.param("own", "after the last", True, marks=pytest.mark.long),  # `test_resuming` has it without workers
        ("shuffled", "before all", False),
        ("shuffled", "inside", True),
        ("single", "after the first", False),
    ],
)
def test_resuming_with_workers(name: str, moment: str, *, persistent: bool) -> None:
    """With workers the items draw, too, and draw the same."""
    check_resumed(name, moment, 2, dataset=Drawing(20), num_workers=2, persistent_workers=persistent)


def lists(batches: Any) -> list[list[int]]:
    """Return batches as lists."""
    return [batch.tolist() for batch in batches]


class Estimated:
    """A sampler of batches whose length is an estimate."""

    def __init__(self, claimed: int) -> None:
        self.claimed = claimed

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1], [2], [3, 4, 5], [6])

    def __len__(self) -> int:
        return self.claimed


@pytest.mark.parametrize(("claimed", "workers"), [(2, 0), (4, 0), (6, 0), (2, 1)])
def test_a_length_that_is_an_estimate(claimed: int, workers: int) -> None:
    """A sampler may have more or fewer batches than its length says; only a new epoch follows its end."""
    loader = DataLoader(Numbers(), batch_sampler=Estimated(claimed), num_workers=workers)
    whole = [[0, 1], [2], [3, 4, 5], [6]]
    assert lists(loader) == whole
    batches: Iterator[Any] = iter(loader)
    for reached in range(1, 5):
        next(batches)
        if workers and reached not in {claimed, 4}:  # to start them takes longer than all cases without them
            continue
        resumed = DataLoader(Numbers(), batch_sampler=Estimated(claimed), num_workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        if reached < 4 or claimed == 6:
            assert lists(resumed) == whole[reached:]
        assert lists(resumed) == whole
    assert list(batches) == []


def test_an_exception_behind_the_length_is_raised_in_its_place() -> None:
    """A state at the length of a sampler loses no exception of it."""

    class Breaking(Estimated):
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([0, 1], [2])
            raise LookupError("no more")

    loader = DataLoader(Numbers(), batch_sampler=Breaking(2))
    batches: Iterator[Any] = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2]]
    assert [loader.state_dict()["reached"] for _ in range(2)] == [2, 2]
    with pytest.raises(LookupError, match="no more"):
        next(batches)
    assert list(batches) == []


@pytest.mark.parametrize(("name", "count", "reached"), [("shuffled", 1200, 301), ("loader's generator", 20, 3)])
def test_resuming_with_another_number_of_workers(name: str, count: int, reached: int) -> None:
    """Each item draws what it would have drawn, many batches in a job or one, and the rest nothing from torch's."""
    torch.manual_seed(8)
    dataset = Drawing(count)
    loader = made(name, dataset, num_workers=2)
    batches: Iterator[Any] = iter(loader)
    assert len(list(islice(batches, reached))) == reached
    state = loader.state_dict()
    rest = list(batches)
    resumed = made(name, dataset, num_workers=1)
    resumed.load_state_dict(state)
    before = torch.get_rng_state()
    assert described(list(resumed)) == described(rest)
    assert torch.equal(torch.get_rng_state(), before)


def test_resuming_reads_no_earlier_records() -> None:
    """Records of delivered batches are not read again, neither before nor after the state was saved; it is small."""
    read: list[int] = []

    def noted(index: int) -> int:
        read.append(index)
        return index

    dataset = Made(20, noted)
    loader = made("shuffled", dataset)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1000
    resumed = made("shuffled", dataset)
    resumed.load_state_dict(state)
    read.clear()
    rest = [number for batch in resumed for number in batch.tolist()]
    assert read == rest


# The loader whose state is saved at a moment, the loader that refuses it, and the reason.
REFUSED: list[tuple[str, str, Callable[[], DataLoader[Any]], str]] = [
    ("shuffled", "inside", lambda: DataLoader(Numbers(20), 4, shuffle=True), "whose batch_size is 3; here it is 4"),
    ("shuffled", "inside", lambda: made("in order"), "whose sampler is 'RandomSampler'"),
    ("in order", "inside", lambda: DataLoader(Numbers(20), 3, num_workers=1, in_order=False), "batches out of order"),
    ("loader's generator", "inside", lambda: made("shuffled"), "drew from a generator of its own; here it has none"),
    (
        "own",
        "before all",
        lambda: made("shuffled"),
        "a RandomSampler drew from a generator of its own; here it has none",
    ),
]


def test_other_orders_are_refused() -> None:
    """A state inside an epoch is of one order; what drew from a generator of its own needs one again."""
    for name, moment, making, reason in REFUSED:
        loader = made(name)
        batches = MOMENTS[moment](loader)
        with pytest.raises(StateError, match=reason):
            making().load_state_dict(loader.state_dict())
        del batches
    with pytest.raises(StateError, match=r"a state must come from state_dict\(\) of a penstock.torch.DataLoader"):
        made("in order").load_state_dict({"epoch": 3})


def shared(count: int = 20, *, shuffle: bool = True) -> Any:
    """Return a rank's sampler."""
    kind: Any = DistributedSampler
    return kind(Numbers(count), 2, 1, shuffle=shuffle)


OTHERS: dict[str, tuple[Any, Any]] = {
    "len(indices) is 20; here it is 18": (SubsetRandomSampler(range(20)), SubsetRandomSampler(range(18))),
    "digest of indices": (SubsetRandomSampler([*range(20)]), SubsetRandomSampler([*range(1, 21)])),
    "len(weights) is 3; here it is 2": (WeightedRandomSampler([1, 2, 3], 20), WeightedRandomSampler([1, 2], 20)),
    "digest of weights": (WeightedRandomSampler([1, 2, 3], 20), WeightedRandomSampler([1, 2, 4], 20)),
    "shuffle is True; here it is False": (shared(), shared(shuffle=False)),
    "len(dataset) is 20; here it is 19": (shared(), shared(19)),
    "len(data_source) is 20; here it is 18": (
        RandomSampler(range(20), replacement=True, num_samples=15),
        RandomSampler(range(18), replacement=True, num_samples=15),
    ),
    "digest of sampler": ([*range(20)], [*range(19, -1, -1)]),
}


def test_other_contents_of_samplers_are_refused() -> None:
    """A state inside an epoch is of one length, and of the same indices and weights; older states lack them."""
    for name, (before, now) in OTHERS.items():
        loader = DataLoader(Numbers(20), 3, sampler=before)
        next(iter(loader))
        state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
        DataLoader(Numbers(20), 3, sampler=before).load_state_dict(state)
        with pytest.raises(StateError, match=f"whose {re.escape(name)}"):
            DataLoader(Numbers(20), 3, sampler=now).load_state_dict(state)
        older = {
            key: each for key, each in state.items() if key != "shuffle" and "len(" not in key and "of " not in key
        }
        DataLoader(Numbers(20), 3, sampler=now).load_state_dict(older)


def test_a_rank_resumes_in_a_list_of_its_own() -> None:
    """From the state of another rank, whose list differs."""
    loader = DataLoader(Numbers(20), 3, sampler=[*range(10)])
    next(iter(loader))
    resumed = DataLoader(Numbers(20), 3, sampler=[*range(10, 20)])
    resumed.load_state_dict({**loader.state_dict(), "rank": 1})
    assert lists(resumed) == [[13, 14, 15], [16, 17, 18], [19]]


def test_a_sampler_with_epochs_is_needed_again() -> None:
    """A state has the epochs of samplers; one that has none here is named, and no other is set."""
    sampler = distributed()
    loader = DataLoader(Numbers(20), 3, sampler=sampler)
    next(iter(loader))
    state: dict[str, Any] = {**loader.state_dict(), "made_from": {"epochs": [7, 7]}}  # the batch sampler has none
    with pytest.raises(StateError, match="epoch 7 of a sampler that is a BatchSampler here, which has no set_epoch"):
        loader.load_state_dict(state)
    assert sampler.epoch != 7


def test_states_of_the_start_that_lack_or_need_no_generator() -> None:
    """A sampler that draws nothing takes any state; one of an earlier version begins with the loader's generators."""
    state = made("own").state_dict()
    loader = made("in order")
    loader.load_state_dict(state)
    assert [number for batch in loader for number in batch.tolist()] == list(range(20))
    for name in ("own", "loader's generator"):
        state = made(name).state_dict()
        state.pop("made_from", None)
        loader = made(name)
        loader.load_state_dict(state)
        assert described(list(loader)) == described(list(made(name)))


LOST: dict[str, tuple[Callable[[], DataLoader[Any]], str]] = {
    "no state": (lambda: DataLoader(Counting(), num_workers=1), "Counting has no state_dict and load_state_dict"),
    "no state, inline": (lambda: DataLoader(Counting()), "Counting has no state_dict and load_state_dict"),
    "no order": (
        lambda: DataLoader(Numbers(), num_workers=1, in_order=False),
        "in_order=False delivers batches out of order",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_orders_without_a_state_restart_the_epoch(name: str) -> None:
    """A state is saved and loaded with a warning, and the epoch restarts: a checkpoint doesn't fail a training.

    Before and after an epoch a state is complete.
    """
    making, reason = LOST[name]
    loader = making()
    before = loader.state_dict()
    whole = sorted(batch.tolist() for batch in loader)
    assert loader.state_dict() == before
    making().load_state_dict(before)
    batches: Iterator[Any] = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match=f"{reason}.* restarts the epoch") as caught:
        state = json.loads(json.dumps(loader.state_dict()))
    assert caught[0].filename == __file__
    resumed = making()
    with pytest.warns(UserWarning, match=f"{reason}.* in which this was saved restarts"):
        resumed.load_state_dict(state)
    assert sorted(batch.tolist() for batch in resumed) == whole


def test_a_rank_resumes_from_the_state_of_another() -> None:
    """Frameworks save the state of one rank; each rank resumes in its own part, with its own random numbers."""

    def part(rank: int) -> DataLoader[Any]:
        kind: Any = DistributedSampler
        return DataLoader(Drawing(24), 3, sampler=kind(Drawing(24), 2, rank, seed=5), num_workers=1)

    states: list[Any] = []
    rests: list[Any] = []
    for rank in range(2):
        torch.manual_seed(8)
        loader = part(rank)
        batches = iter(loader)
        next(batches)
        states.append(loader.state_dict())
        rests.append(list(batches))
    resumed = part(1)
    resumed.load_state_dict(states[0])
    assert described(list(resumed)) == described(rests[1])
    drawn = [{float(number) for batch in rest for number in batch[1]} for rest in rests]
    assert not drawn[0] & drawn[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_may_be_set_late(workers: int) -> None:
    """After a load between epochs, nothing is drawn before the first batch is requested."""
    sampler = distributed()
    loader = DataLoader(Numbers(20), 3, sampler=sampler, num_workers=workers)
    sampler.set_epoch(4)
    expected = described(list(loader))
    sampler.set_epoch(0)
    loader.load_state_dict(loader.state_dict())
    batches = iter(loader)
    sampler.set_epoch(4)
    assert described(list(batches)) == expected
