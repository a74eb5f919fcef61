"""Iterable datasets with a state resume exactly in the drop-in loader, whatever was done with them before."""

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from penstock.torch import DataLoader
from tests.loader.iterables import COUNT, Lazy, Streaming

if TYPE_CHECKING:
    from collections.abc import Iterator


class LazyDataset(Lazy, IterableDataset[int]):
    """One of torch's, with torchdata's convention."""


class StreamingDataset(Streaming, IterableDataset[int]):
    """One of torch's, with Streaming's convention."""


def hugging_face(*, shuffle_buffer: bool = False) -> Any:
    """Return a Hugging Face `IterableDataset`."""
    datasets: Any = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    dataset = datasets.Dataset.from_dict({"x": list(range(COUNT))}).to_iterable_dataset(num_shards=4)
    return dataset.shuffle(seed=1, buffer_size=8) if shuffle_buffer else dataset


def loaded(dataset: Any, workers: int, *, persistent: bool = False) -> DataLoader[Any]:
    """Return a loader of batches of 3."""
    return DataLoader(dataset, 3, num_workers=workers, persistent_workers=persistent)


def text(batches: Any) -> list[str]:
    """Return what can be compared."""
    return [str(batch) for batch in batches]


@pytest.mark.parametrize(
    ("make", "workers"),
    [
        *((LazyDataset, 0), (LazyDataset, 2), (hugging_face, 0)),
        pytest.param(hugging_face, 1, marks=pytest.mark.long),  # its workers import what takes seconds
    ],
)
def test_a_used_dataset_resumes_exactly(make: Any, workers: int) -> None:
    """A dataset that was peeked at, or read before, loses no records, in this epoch and in those that follow."""
    whole = text(loaded(make(), 0 if workers == 1 else workers))
    for used in (1, COUNT) if workers == 0 else (1,):
        dataset = make()
        elements: Iterator[Any] = iter(dataset)
        assert len(list(itertools.islice(elements, used))) == used
        loader = loaded(dataset, workers, persistent=workers == 1)  # which takes seconds to start
        assert text(loader) == whole
        batches: Iterator[Any] = iter(loader)
        for reached in (0, 1, 2) if workers == 0 else (1,):
            if reached:
                next(batches)
            state = json.loads(json.dumps(loader.state_dict()))
            resumed = loaded(make(), workers, persistent=bool(workers))
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            assert text(resumed) == whole[reached:]
            assert text(resumed) == whole  # an epoch after one that was resumed begins at its beginning


def test_a_state_after_the_last_batch_is_the_next_epochs() -> None:
    """Once an epoch has ended its state is that of the next one's start, in the iterable too."""
    loader = loaded(hugging_face(), 0)
    whole = text(loader)
    state = loader.state_dict()
    resumed = loaded(hugging_face(), 0)
    resumed.load_state_dict(state)
    assert text(resumed) == whole


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_needs_arguments(workers: int) -> None:
    """Streaming's `state_dict` takes arguments, which only its own loader knows: a state is the epoch's start."""
    loader = loaded(StreamingDataset(), workers)
    assert len(text(loader)) == 13
    batches: Iterator[Any] = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match="Resuming from this state restarts the epoch"):
        assert loader.state_dict()


def test_a_shuffle_buffer_is_not_lost() -> None:
    """A state that leaves out what a shuffle buffer holds isn't used."""
    loader = loaded(hugging_face(shuffle_buffer=True), 0)
    batches: Iterator[Any] = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match="leaves out the records in its shuffle buffer"):
        assert "lost" in loader.state_dict()


class ShuffledDataset(IterableDataset[int]):
    """The order of its numbers follows from the base seed of the workers; its state is a place in this order."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> "Iterator[int]":
        info: Any = get_worker_info()
        order = list(range(24))
        random.Random(info.seed - info.id).shuffle(order)
        mine = order[info.id :: info.num_workers]
        while self.next < len(mine):
            self.next += 1
            yield mine[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a place."""
        self.next = state["next"]


def test_a_dataset_that_shuffles_by_the_workers_seed_resumes_in_the_same_order() -> None:
    """The state of a later epoch has its base seed, for a fresh loader as for one whose workers have another."""
    loader = loaded(ShuffledDataset(), 2)
    assert sorted(int(number) for batch in loader for number in batch) == list(range(24))
    batches: Iterator[Any] = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = text(batches)
    used = loaded(ShuffledDataset(), 2, persistent=True)
    next(iter(used))
    for resumed in (loaded(ShuffledDataset(), 2), used):
        resumed.load_state_dict(state)
        assert text(resumed) == rest


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_between_epochs_has_the_base_seeds_of_the_epochs_that_follow(*, persistent: bool) -> None:
    """They are drawn from the loader's own generator, or kept by persistent workers."""

    def made(seed: int) -> DataLoader[Any]:
        return DataLoader(
            ShuffledDataset(),
            3,
            num_workers=1,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(seed),
        )

    loader = made(1)
    list(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = made(2)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert text(resumed) == text(loader)
    assert resumed.state_dict() == loader.state_dict()


def test_the_rest_of_an_epoch_without_workers_draws_nothing_from_torchs_generator() -> None:
    """The pass drew its base seed when it began."""
    loader = loaded(LazyDataset(), 0)
    next(iter(loader))
    state = loader.state_dict()
    drawn = torch.get_rng_state()
    resumed = loaded(LazyDataset(), 0)
    resumed.load_state_dict(state)
    assert len(text(resumed)) == -(-COUNT // 3) - 1
    assert torch.equal(torch.get_rng_state(), drawn)
