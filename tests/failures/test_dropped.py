"""A loader that nobody holds is gone at once, also after an error: no traceback of its own keeps it."""

import gc
import os
import weakref
from typing import Any

import pytest

import penstock as ps
from penstock.errors import WorkerError

POSITION = 7
PROCESSES = {"num_workers": 1, "workers": "processes"}
HAS_PROCESSES = hasattr(os, "memfd_create")


def fails(number: int) -> int:
    """Raise for one number."""
    if number == POSITION:
        raise KeyError(number)
    return number


def leaves(number: int) -> int:
    """End the process for one number."""
    if number == POSITION:
        os._exit(3)
    return number


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (fails, {}),
        (fails, {"num_workers": 1}),
        pytest.param(fails, PROCESSES, marks=pytest.mark.skipif(not HAS_PROCESSES, reason="they are Linux's")),
        pytest.param(leaves, PROCESSES, marks=pytest.mark.skipif(not HAS_PROCESSES, reason="they are Linux's")),
        pytest.param(fails, {"isolated": True}, marks=pytest.mark.skipif(not HAS_PROCESSES, reason="it is Linux's")),
        pytest.param(leaves, {"isolated": True}, marks=pytest.mark.skipif(not HAS_PROCESSES, reason="it is Linux's")),
    ],
)
def test_gone_after_an_error(function: Any, options: dict[str, Any]) -> None:
    """Its workers end with it, and not with the garbage collector's next run."""
    gc.disable()
    try:
        loader = ps.Loader(ps.range(32).map(function).batch(4), **options)
        batches = iter(loader)
        with pytest.raises((KeyError, WorkerError)) as raised:
            list(batches)
        held = weakref.ref(loader)
        del raised, batches, loader
        assert held() is None
    finally:
        gc.enable()


def refuses_most(number: int) -> int:
    """Raise for seven numbers of eight."""
    if number % 8:
        raise KeyError(number)
    return number


@pytest.mark.parametrize("budget", [None, 3])
def test_gone_after_errors_that_were_replaced(budget: int | None) -> None:
    """Substitutes that fail too keep nothing either, whether one is found or the budget is used up."""
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
