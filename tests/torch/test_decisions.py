"""Whatever is decided by time or scheduling: torch's loaders give what torch's own gives without workers."""

import os
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader as TorchLoader

from penstock.torch import DataLoader, Loader
from tests.decisions.comparing import PLACES
from tests.decisions.datasets import DATASETS
from tests.equivalence.decisions import random_decisions
from tests.equivalence.definition import digest, epoch_of
from tests.equivalence.kinds import is_dict, is_list_or_tuple
from tests.torch.conformance.datasets import Counting, Made, Numbers
from tests.torch.conformance.untyped import torch

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
COUNT = 203


class Rows:
    """A map-style dataset, of tensors, arrays or texts."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self._kind == "tensors":
            return torch.full((3,), index), index
        if self._kind == "arrays":
            return {"x": np.full(3, index, np.float32), "label": index}
        return {"text": str(index), "number": index}


class RowsAtOnce(Rows):
    """The same, of which a batch is read at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def described(batch: Any) -> Any:
    """Return a value that is equal only for equal batches."""
    if isinstance(batch, torch.Tensor):
        return (str(batch.dtype), batch.tolist())
    if is_dict(batch):
        return {key: described(value) for key, value in batch.items()}
    return [described(value) for value in batch] if is_list_or_tuple(batch) else batch


def shuffled(kind: Any, dataset: Any, **arguments: Any) -> Any:
    """Return a loader of two shuffled epochs."""
    return kind(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5), **arguments)


@pytest.mark.parametrize(
    ("dataset", "seed"), [(Rows("tensors"), 3), (Rows("arrays"), 8), (Rows("texts"), 3), (RowsAtOnce("arrays"), 8)]
)
def test_the_drop_in_delivers_the_batches_of_torch(dataset: Any, seed: int) -> None:
    """Batches of workers, in order, over two epochs."""
    alone = shuffled(TorchLoader, dataset)
    expected = [[described(batch) for batch in alone] for _ in range(2)]
    with random_decisions(seed):
        loader = shuffled(DataLoader, dataset, num_workers=2)
        found = [[described(batch) for batch in loader] for _ in range(2)]
        del loader
    assert found == expected


@pytest.mark.parametrize("seed", [3, 8])
def test_kept_batches_come_in_order(seed: int) -> None:
    """A loop that keeps its large batches gets all of them, however many batches its jobs have."""
    dataset = Made(COUNT, lambda index: torch.full((10_000,), index))
    with random_decisions(seed):
        kept = list(DataLoader(dataset, batch_size=1, num_workers=1))
    assert [int(row[0, 0]) for row in kept] == list(range(COUNT))


@pytest.mark.parametrize(
    ("dataset", "seed", "given"), [(Numbers(COUNT), 3, {"in_order": False}), (Counting(COUNT), 8, {})]
)
def test_the_drop_in_loses_nothing(dataset: Any, seed: int, given: dict[str, Any]) -> None:
    """Batches as they become ready, and those of an iterable dataset, hold each row once."""
    with random_decisions(seed):
        loader: Any = DataLoader(dataset, batch_size=4, num_workers=2, **given)
        found = [number for batch in loader for number in batch.tolist()]
        del loader
    assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize(
    ("name", "place", "seed"), [("functions, batch", "processes", 3), ("pack, a function, batch", "threads", 8)]
)
def test_tensors_are_those_of_the_definition(name: str, place: str, seed: int) -> None:
    """Batches that are placed ahead come in order, each once."""
    dataset = DATASETS[name](240)
    with random_decisions(seed), Loader(dataset, ahead=2, **PLACES[place]) as loader:
        for epoch in range(2):
            found: Any = [{key: value.numpy() for key, value in batch.items()} for batch in loader]
            assert list(map(digest, found)) == list(map(digest, epoch_of(dataset, epoch)))
