"""States of the drop-in loader that were changed by chance are refused, or give batches."""

import contextlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from penstock.errors import StateError, UsageError
from penstock.torch import DataLoader
from tests.loader.iterables import Lazy
from tests.loader.mutations import Mutations
from tests.torch.conformance.datasets import Numbers
from tests.torch.conformance.untyped import torch
from tests.torch.test_state import Eager, distributed, own


class Stream(Lazy, IterableDataset[int]):
    """A stateful iterable dataset."""

    def load_state_dict(self, state: Any) -> None:
        """Have the next pass begin there, if that is a place."""
        at = state["at"]
        if not isinstance(at, int) or not 0 <= at < 1000:
            raise ValueError(f"no place: {type(at).__name__}")
        super().load_state_dict(state)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(Numbers(20), 3),
    "shuffled": lambda: DataLoader(Numbers(20), 3, shuffle=True),
    "own generator": lambda: DataLoader(Numbers(20), 3, shuffle=True, generator=own()),
    "single": lambda: DataLoader(Numbers(20), None, sampler=RandomSampler(range(20))),
    "in order, single": lambda: DataLoader(Numbers(20), None, sampler=SequentialSampler(range(20))),
    "distributed": lambda: DataLoader(Numbers(20), 3, sampler=distributed()),
    "eager": lambda: DataLoader(Numbers(20), 3, sampler=Eager()),
    "stream": lambda: DataLoader(Stream(), 3),
}


@cache
def states(name: str) -> list[Any]:
    """Return states inside and outside of an epoch."""
    loader = LOADERS[name]()
    found: list[Any] = [loader.state_dict()]
    for number, _ in enumerate(loader):
        if number in (0, 2):
            found.append(loader.state_dict())
    plain: list[Any] = json.loads(json.dumps(found))
    return plain


@pytest.mark.parametrize("name", LOADERS)
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_a_mutated_state(name: str, data: st.DataObject, chance: Any) -> None:
    """Loading raises a StateError and moves nothing, or the batches come."""
    mutated = Mutations(chance).mutated(data.draw(st.sampled_from(states(name))))
    loader = LOADERS[name]()
    before, drawn = loader.state_dict(), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loader.load_state_dict(mutated)
        except (StateError, UsageError):
            assert loader.state_dict() == before
            assert torch.equal(torch.get_rng_state(), drawn)
            return
        with contextlib.suppress(StateError):  # of the stream's own state
            batches: Iterator[Any] = iter(loader)
            assert len(list(itertools.islice(batches, 30))) <= 30


@given(st.randoms(use_true_random=False))
def test_mutated_places(chance: Any) -> None:
    """So are states of streams in workers, which are only loaded here."""
    streams = {"streams": [[2, {"at": 6}, False], [1, {"at": 3}, True]], "turn": 1}
    state = {"of": "penstock.torch.DataLoader", "version": 1, **streams}
    loader = DataLoader(Stream(), 3, num_workers=2)
    mutated = Mutations(chance).mutated(state)
    with warnings.catch_warnings(), contextlib.suppress(StateError):
        warnings.simplefilter("ignore")
        loader.load_state_dict(mutated)
        assert loader.state_dict()
