"""An indexable dataset of ours is a map-style dataset of torch's."""

import pickle
from typing import Any

import numpy as np
import pytest

import penstock as ps

torch = pytest.importorskip("torch")


def twice(number: int) -> Any:
    """Return a dict with an array."""
    return {"x": np.full(2, 2 * number)}


def add_noise(element: Any, rng: Any) -> Any:
    """Return the element with a random leaf."""
    return {**element, "noise": rng.random()}


def dataset() -> ps.Dataset:
    """Return ten shuffled elements that can be pickled."""
    return ps.range(10, seed=1).shuffle().map(twice).random_map(add_noise)


def test_it_is_indexed_as_python_has_it() -> None:
    """Negative positions count from the end, and beyond either end is an IndexError."""
    data = dataset()
    assert len(data) == 10
    assert data[-1]["noise"] == data[9]["noise"] == data[torch.tensor(9)]["noise"]
    assert data[-10]["noise"] == data[0]["noise"]
    for outside in (10, -11):
        with pytest.raises(IndexError, match=r"\[-10, 10\)"):
            data[outside]


def test_torch_loads_it() -> None:
    """Torch's own loader gives the dataset's elements in epoch 0's order, also of a pickle, as a worker gets it."""
    data = dataset()
    sent: Any = pickle.loads(pickle.dumps(data))
    assert sent == data
    batches = list(torch.utils.data.DataLoader(sent, batch_size=4))
    assert [len(batch["x"]) for batch in batches] == [4, 4, 2]
    assert torch.cat([batch["x"] for batch in batches]).tolist() == [each["x"].tolist() for each in data]
    assert torch.cat([batch["noise"] for batch in batches]).tolist() == [each["noise"] for each in data]
    subset = torch.utils.data.Subset(data, [3, -1])
    assert [subset[0]["noise"], subset[1]["noise"]] == [data[3]["noise"], data[9]["noise"]]
    joined = torch.utils.data.ConcatDataset([data, data])
    assert joined[13]["noise"] == data[3]["noise"]
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    assert list(sampler) == [1, 3, 5, 7, 9]
