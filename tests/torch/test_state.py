"""Going on inside an epoch, from a state, as if nothing had happened."""

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
from tests.torch.conformance.datasets import Counting, Drawing, Numbers
from tests.torch.conformance.outcome import described
from tests.torch.conformance.untyped import torch

BATCHES = 7


class Eager:
    """A sampler that draws its order when an iterator is made, as some samplers do."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(20, (20,)).tolist())

    def __len__(self) -> int:
        return 20


class Lazy:
    """A sampler that draws its order at the first index, and has no length."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randint(20, (20,)).tolist()


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


def own() -> Any:
    """Return a generator of one's own."""
    return torch.Generator().manual_seed(3)


def distributed() -> Any:
    """Return a sampler in its third epoch."""
    kind: Any = DistributedSampler
    sampler = kind(Numbers(20), 2, 1, seed=5)
    sampler.set_epoch(2)
    return sampler


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 3},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True},
    "shuffled, dropped": lambda: {"batch_size": 3, "shuffle": True, "drop_last": True},
    "own generator": lambda: {"batch_size": 3, "shuffle": True, "generator": own()},
    "own generator, in order": lambda: {"batch_size": 3, "generator": own()},
    "single": lambda: {"batch_size": None, "sampler": RandomSampler(range(BATCHES))},
    "in order, single": lambda: {"batch_size": None, "sampler": SequentialSampler(range(BATCHES))},
    "replacement": lambda: {"batch_size": 3, "sampler": RandomSampler(range(20), replacement=True)},
    "weighted": lambda: {"batch_size": 3, "sampler": WeightedRandomSampler([1.0, 2.0, 3.0], 20)},
    "distributed": lambda: {"batch_size": 3, "sampler": distributed()},
    "batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(20)), 3, drop_last=False)},
    "lists": lambda: {"batch_sampler": [[1, 2], [3], [4, 5], [6], [7], [8], [9]]},
    "eager": lambda: {"batch_size": 3, "sampler": Eager()},
    "its own iterator": lambda: {"batch_sampler": OwnIterator(2)},
    "its own iterator, with a generator": lambda: {"batch_sampler": OwnIterator(2, own())},
    "its own iterator, single": lambda: {"batch_size": None, "sampler": OwnIterator()},
    "lazy": lambda: {"batch_size": 3, "sampler": Lazy()},
}


def made(name: str, workers: int = 0, dataset: Any = None) -> DataLoader[Any]:
    """Return a loader with a sampler of some kind."""
    return DataLoader(dataset or Numbers(20), num_workers=workers, **SAMPLERS[name]())


@pytest.mark.parametrize("name", SAMPLERS)
def test_resuming(name: str) -> None:
    """From any batch, a new loader delivers the rest of the epoch, and then the next epoch."""
    for reached in (1, 3, None):
        torch.manual_seed(8)
        loader = made(name)
        batches: Iterator[Any] = iter(loader)
        torch.rand(1)  # the training draws too
        seen = list(islice(batches, reached))
        state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
        rest, following = list(batches), list(loader)
        assert seen
        assert bool(rest) == (reached is not None)
        torch.manual_seed(99)
        resumed = made(name)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        torch.set_rng_state(generator)
        if rest:
            again: Iterator[Any] = iter(resumed)
            assert described(list(islice(again, 50))) == described(rest)
        assert described(list(resumed)) == described(following)


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


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("claimed", [2, 4, 6])
def test_a_length_that_is_an_estimate(claimed: int, workers: int) -> None:
    """A sampler may have more or fewer batches than its length says; only a new epoch follows its end."""
    loader = DataLoader(Numbers(), batch_sampler=Estimated(claimed), num_workers=workers)
    whole = [[0, 1], [2], [3, 4, 5], [6]]
    assert lists(loader) == whole
    batches: Iterator[Any] = iter(loader)
    for reached in range(1, 5):
        next(batches)
        resumed = DataLoader(Numbers(), batch_sampler=Estimated(claimed), num_workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        if reached < 4 or claimed == 6:
            assert lists(resumed) == whole[reached:]
        assert lists(resumed) == whole
    assert list(batches) == []


class Breaking(Estimated):
    """Raises behind its length."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1], [2])
        raise LookupError("no more")


def test_an_exception_behind_the_length_is_raised_in_its_place() -> None:
    """A state at the length of a sampler loses no exception of it."""
    loader = DataLoader(Numbers(), batch_sampler=Breaking(2))
    batches: Iterator[Any] = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2]]
    assert [loader.state_dict()["reached"] for _ in range(2)] == [2, 2]
    with pytest.raises(LookupError, match="no more"):
        next(batches)
    assert list(batches) == []


@pytest.mark.parametrize(
    ("name", "count", "reached"),
    [("shuffled", 20, 3), ("shuffled", 2000, 301), ("own generator", 20, 3), ("single", 20, 3), ("eager", 20, 3)],
)
def test_resuming_with_workers(name: str, count: int, reached: int) -> None:
    """With workers too, of any number, and each item draws what it would have drawn, many batches in a job or one."""
    torch.manual_seed(8)
    dataset = Drawing(count)
    loader = made(name, 2, dataset)
    batches = iter(loader)
    for _ in range(reached):
        next(batches)
    state = loader.state_dict()
    rest = list(batches)
    resumed = made(name, 1, dataset)
    resumed.load_state_dict(state)
    before = torch.get_rng_state()
    assert described(list(resumed)) == described(rest)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_is_small() -> None:
    """A state takes less than a kilobyte, for torch's samplers."""
    loader = made("shuffled")
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 1000


def test_resuming_reads_no_earlier_records() -> None:
    """Records of delivered batches are not read again, neither before nor after the state was saved."""
    read: list[int] = []

    class Reading(Numbers):
        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    loader = made("shuffled", dataset=Reading(20))
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    resumed = made("shuffled", dataset=Reading(20))
    resumed.load_state_dict(state)
    read.clear()
    rest = [number for batch in resumed for number in batch.tolist()]
    assert read == rest


def test_other_orders_are_refused() -> None:
    """A state inside an epoch is of one order."""
    loader = made("shuffled")
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateError, match="whose batch_size is 3; here it is 4"):
        DataLoader(Numbers(20), batch_size=4, shuffle=True).load_state_dict(state)
    with pytest.raises(StateError, match="whose sampler is 'RandomSampler'"):
        made("in order").load_state_dict(state)
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


@pytest.mark.parametrize("name", OTHERS)
def test_other_contents_of_samplers_are_refused(name: str) -> None:
    """A state inside an epoch is of one length, and of the same indices and weights; older states lack them."""
    before, now = OTHERS[name]
    loader = DataLoader(Numbers(20), 3, sampler=before)
    next(iter(loader))
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    DataLoader(Numbers(20), 3, sampler=before).load_state_dict(state)
    with pytest.raises(StateError, match=f"whose {re.escape(name)}"):
        DataLoader(Numbers(20), 3, sampler=now).load_state_dict(state)
    older = {key: value for key, value in state.items() if key != "shuffle" and "len(" not in key and "of " not in key}
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


def test_a_generator_is_needed_again() -> None:
    """An order that a generator of the sampler's own gave can be made again by one that has its own."""
    loader = made("own generator")
    next(iter(loader))
    with pytest.raises(StateError, match="a RandomSampler drew from a generator of its own; here it has none"):
        made("shuffled").load_state_dict(loader.state_dict())


LOST: dict[str, tuple[Callable[[], DataLoader[Any]], str]] = {
    "no state": (lambda: DataLoader(Counting(), num_workers=1), "Counting has no state_dict and load_state_dict"),
    "no state, no workers": (lambda: DataLoader(Counting()), "Counting has no state_dict and load_state_dict"),
    "no order": (
        lambda: DataLoader(Numbers(), num_workers=1, in_order=False),
        "in_order=False delivers batches out of order",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_orders_without_a_state_restart_the_epoch(name: str) -> None:
    """A state is saved and loaded with a warning, and the epoch restarts: a checkpoint doesn't fail a training."""
    making, reason = LOST[name]
    loader = making()
    whole = sorted(batch.tolist() for batch in loader)
    batches: Iterator[Any] = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match=f"{reason}.* restarts the epoch") as caught:
        state = json.loads(json.dumps(loader.state_dict()))
    assert caught[0].filename == __file__
    resumed = making()
    with pytest.warns(UserWarning, match=f"{reason}.* in which this was saved restarts"):
        resumed.load_state_dict(state)
    assert sorted(batch.tolist() for batch in resumed) == whole


def test_nothing_is_lost_between_epochs() -> None:
    """Before and after an epoch a state is complete, whatever the loader."""
    for making in (LOST["no state"][0], LOST["no order"][0]):
        loader = making()
        before = loader.state_dict()
        assert list(loader)
        assert loader.state_dict() == before
        making().load_state_dict(before)


def test_a_state_inside_an_epoch_needs_an_order() -> None:
    """A loader without an order can't resume inside an epoch."""
    loader = made("in order")
    next(iter(loader))
    with pytest.raises(StateError, match="in_order=False delivers batches out of order"):
        DataLoader(Numbers(20), 3, num_workers=1, in_order=False).load_state_dict(loader.state_dict())


class Dealt:
    """Every second batch of a sampler of batches, as frameworks deal them to ranks."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batch_sampler), 0, None, 2)

    def __len__(self) -> int:
        return -(-len(self.batch_sampler) // 2)


@pytest.mark.parametrize("generator", [None, own], ids=["global", "own"])
def test_resuming_with_a_sampler_over_others(generator: Callable[[], Any] | None) -> None:
    """The order is made again from what the samplers below it drew from."""

    def dealt() -> DataLoader[Any]:
        below = RandomSampler(range(40), generator=None if generator is None else generator())
        return DataLoader(Numbers(40), batch_sampler=Dealt(BatchSampler(below, 3, drop_last=False)))

    torch.manual_seed(8)
    loader = dealt()
    list(loader)
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = described(list(batches))
    torch.manual_seed(99)
    resumed = dealt()
    resumed.load_state_dict(state)
    assert described(list(resumed)) == rest


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
