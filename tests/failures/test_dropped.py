"""A loader without references is collected at once, also after an error: no traceback of its own refers to it."""

import gc
import os
import weakref
from typing import Any

import pytest

import penstock as ps
from penstock.errors import WorkerError
from tests.places import place_of

POSITION = 7


def fails(number: int) -> int:
    """Raise at one number."""
    if number == POSITION:
        raise KeyError(number)
    return number


def leaves(number: int) -> int:
    """End the process at one number."""
    if number == POSITION:
        os._exit(3)
    return number


@pytest.mark.parametrize(
    ("function", "place"),
    [
        *(place_of(name, fails) for name in ("inline", "thread", "processes", "isolated")),
        *(place_of(name, leaves) for name in ("processes", "isolated")),
    ],
)
def test_a_loader_is_collected_after_an_error(function: Any, place: dict[str, Any]) -> None:
    """The workers end with the last reference, and don't wait for the collector's next run."""
    gc.disable()
    try:
        loader = ps.Loader(ps.range(32).map(function).batch(4), **place)
        batches = iter(loader)
        with pytest.raises((KeyError, WorkerError)) as raised:
            list(batches)
        held = weakref.ref(loader)
        del raised, batches, loader
        assert held() is None
    finally:
        gc.enable()


def refuses_most(number: int) -> int:
    """Raise at seven numbers of eight."""
    if number % 8:
        raise KeyError(number)
    return number


@pytest.mark.parametrize("budget", [None, 3])
def test_a_loader_is_collected_after_replaced_errors(budget: int | None) -> None:
    """Failing substitutes keep no reference either, whether one succeeds or the budget is used up."""
    replacing = ps.Substitute(attempts=1000, budget=budget)
    gc.disable()
    try:
        loader = ps.Loader(ps.range(32).map(refuses_most, on_error=replacing).batch(4))
        batches = iter(loader)
        if budget is None:
            assert all(number % 8 == 0 for batch in batches for number in batch)
        else:
            with pytest.raises(KeyError) as raised:
                list(batches)
            del raised
        held = weakref.ref(loader)
        del batches, loader
        assert held() is None
    finally:
        gc.enable()
