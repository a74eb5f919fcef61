"""`globals=True` seeds the generators that existing augmentations draw from, around each call, and restores them."""

import random  # noqa: TID251 - what is seeded
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import UsageError
from tests.seeds import derive
from tests.workers.processes.functions import Unpicklable


def augment(number: int) -> tuple[int, float, float, int]:
    """Draw from the global generators, as older augmentations do."""
    return number, random.random(), float(np.random.random()), random.getrandbits(70)  # noqa: NPY002 - what is seeded


def fail(number: int) -> int:
    """Draw, then raise."""
    random.random()
    np.random.random()  # noqa: NPY002 - what is seeded
    raise ValueError(f"corrupt {number}")


def global_states() -> tuple[Any, Any]:
    """Return the states of both global generators, in a comparable form."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - what is seeded
    return random.getstate(), (name, np.asarray(keys).tolist(), rest)


def test_draws_follow_from_the_element() -> None:
    """An element's numbers are the same after any draws, alone, in order or in batches.

    Both generators are seeded with the seed that `rng="seed"` passes; NumPy's takes the lower 32 bits.
    """
    dataset = ps.range(6, seed=3).random_map(augment, globals=True, name="mine")
    elements = list(dataset)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - what is seeded
    assert [dataset[position] for position in reversed(range(6))] == elements[::-1]
    with ps.Loader(dataset.batch(4, merge=list)) as loader:
        assert [row for batch in loader for row in batch] == elements
    assert list(dataset.epoch(1)) != elements
    seed = derive(derive(3, "mine"), 0, 4, 0)
    expected = random.Random(seed)
    first, numpy = expected.random(), np.random.RandomState(seed % 2**32)  # noqa: TID251 - what is seeded
    assert elements[4] == (4, first, numpy.random_sample(), expected.getrandbits(70))


def test_states_are_restored() -> None:
    """The training script's next draws are the same as without the loader, also after an exception."""
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - what is seeded
    np.random.standard_normal()  # keeps a second number, which is part of the state  # noqa: NPY002 - what is seeded
    before = global_states()
    list(ps.range(6).random_map(augment, globals=True))
    assert global_states() == before
    with pytest.raises(ValueError, match="corrupt 2"):
        ps.range(6).random_map(fail, globals=True)[2]
    assert global_states() == before


def test_workers_are_processes() -> None:
    """Each process has generators of its own; an error names a function that can't be pickled."""
    dataset = ps.range(6).random_map(augment, globals=True)
    with ps.Loader(dataset, num_workers=2) as loader:
        assert "2 processes (globals=True" in repr(loader)
        assert list(loader) == list(dataset)
    with pytest.raises(UsageError, match="globals=True"):
        ps.Loader(ps.range(6).map(Unpicklable()).random_map(augment, globals=True), num_workers=2)


def test_torchs_generator_is_seeded_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream is the one that `torch.manual_seed` starts with the element's seed, without its sign bit.

    The trainer's generators on its GPUs aren't seeded, since they aren't restored.
    """
    torch: Any = pytest.importorskip("torch")

    def augment_with_torch(number: int) -> Any:
        drawn = torch.rand(3).tolist()
        if number == 3:
            raise ValueError(f"corrupt {number}")
        return drawn

    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    torch.manual_seed(5)
    expected = torch.rand(2).tolist()
    torch.manual_seed(5)
    seeded.clear()
    dataset = ps.range(4, seed=3).random_map(augment_with_torch, globals=True, name="mine")
    elements = [dataset[position] for position in range(3)]
    with pytest.raises(ValueError, match="corrupt"):
        dataset[3]
    assert seeded == []
    assert torch.rand(2).tolist() == expected
    for position, element in enumerate(elements):
        torch.manual_seed(derive(derive(3, "mine"), 0, position, 0) % 2**63)
        assert torch.rand(3).tolist() == element
    assert len(seeded) == 3
