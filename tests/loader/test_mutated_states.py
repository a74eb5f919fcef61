"""Randomly mutated states are refused when they are loaded, or are states of another step."""

import contextlib
import itertools
import json
import warnings
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from tests.loader.mutations import DATASETS, SHAPES, Mutations, dealt, nested, states_of, states_of_ranks


@cache
def cases(name: str) -> list[tuple[dict[str, Any], list[Any]]]:
    """Return arguments of loaders, with states of each; a state is a list where ranks change."""
    found: list[tuple[dict[str, Any], list[Any]]] = []
    for shape in SHAPES.values():
        with contextlib.suppress(ps.errors.PenstockError):  # a shard without batches, or batches of 3 for 2 ranks
            found.append((shape, states_of(DATASETS[name](), shape)))
    one: dict[str, Any] = {"shard": ps.Shard(0, 1)}
    with contextlib.suppress(ps.errors.PenstockError):  # a state that can't be divided among other ranks
        found.append((one, dealt(name)))
        found.append((one, [states_of_ranks(name)]))
    return found


@pytest.mark.parametrize("name", DATASETS)
@settings(max_examples=max(settings().max_examples // 6, 1))  # of each dataset
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_a_mutated_state_is_refused_or_valid(name: str, data: st.DataObject, chance: Any) -> None:
    """Loading raises a StateError and changes nothing, or reading raises nothing but a StateError."""
    shape, states = data.draw(st.sampled_from(cases(name)))
    mutated = Mutations(chance).mutated(data.draw(st.sampled_from(states)))
    loader = ps.Loader(DATASETS[name](), **{key: value for key, value in shape.items() if "workers" not in key})
    before = loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of streams that are read again, and of functions that differ
        try:
            loader.load_state_dict(mutated)
        except (ps.errors.StateError, ps.errors.UsageError):
            assert loader.state_dict() == before
            return
        with contextlib.suppress(ps.errors.StateError):  # only reading shows that other elements are there
            assert json.dumps(loader.state_dict())
            assert len(list(itertools.islice(loader, 20))) <= 20
            assert json.dumps(loader.state_dict())


def test_deep_states_are_refused() -> None:
    """Very deep lists, as a value or as text, are a StateError."""
    loader = ps.Loader(DATASETS["filter"]())
    state = loader.state_dict()
    for depth in (300, 20_000):
        with pytest.raises(ps.errors.StateError, match="incomplete or damaged"):
            loader.load_state_dict({**state, "cursor": nested(depth)})
        deep = ', "cursor": ' + "[" * depth + "]" * depth + "}"
        for wrong in (nested(depth), json.dumps(state)[:-1] + deep, str(state)[:-1] + deep):
            with pytest.raises(ps.errors.StateError):
                loader.load_state_dict(wrong)


def test_large_numbers_allocate_nothing() -> None:
    """Huge numbers are refused without a loop up to them."""
    loader = ps.Loader(DATASETS["filter"]())
    state = loader.state_dict()
    for large in (1 << 40, 1 << 62, 10**30, 10**5000):
        changes: list[dict[str, Any]] = [
            *({"step": large, "epoch": large}, {"rank": large}, {"penstock": large}, {"cursor": [0, large]}),
            *({"shape": {**state["shape"], "ranks": ranks}} for ranks in (large, 1 << 20)),
            {"shape": {**state["shape"], "batch": 0}},
            {"legs": [[[[[[0, 1, large]], None]], None]]},
        ]
        for change in changes:
            with pytest.raises(ps.errors.StateError):
                loader.load_state_dict({**state, **change})


def test_a_token_of_other_elements_fails_when_it_is_read() -> None:
    """A well-formed token that doesn't fit the elements is a StateError at the next batch."""
    windows = ps.range(20).filter(bool).window_shuffle(8).batch(4)
    loader = ps.Loader(windows)
    next(iter(loader))
    state = loader.state_dict()
    token = state["cursor"][1]
    assert len(token) == 3
    loader.load_state_dict({**state, "cursor": [0, [token[0], token[1], token[2] + 1]]})
    with pytest.raises(ps.errors.StateError, match="within a window of 8"):
        next(iter(loader))
    buckets = ps.Loader(DATASETS["bucket"]())
    states = [buckets.state_dict() for _ in buckets]
    state = next(state for state in states if any(state["cursor"][1][1]))
    where, held = state["cursor"][1]
    buckets.load_state_dict({**state, "cursor": [0, [where, held[::-1]]]})
    with pytest.raises(ps.errors.StateError, match="the state has an element in bucket"):
        next(iter(buckets))
