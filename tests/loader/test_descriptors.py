"""A loader's descriptors are closed when its last reference is dropped, without the collector's help."""

import contextlib
import gc
import os
import select
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.places import PLACES, in_places, place_of

pytestmark = pytest.mark.each_value


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what Linux shows")
@pytest.mark.parametrize("steps", [3, 1_000], ids=["left early", "whole"])
@in_places("inline", "threads", "processes", "isolated")
def test_dropped_loaders_leave_no_descriptors(place: dict[str, Any], steps: int) -> None:
    """Loaders that are made, read and dropped without `close`, one after the other, leave no descriptor open."""

    def use() -> int:
        loader = ps.Loader(ps.range(64, seed=1).batch(4), **place)
        for _ in zip(range(steps), loader, strict=False):
            pass
        del loader
        return len(os.listdir("/proc/self/fd"))

    assert_closes_without_collector(use)


def assert_closes_without_collector(use: Callable[[], int]) -> None:
    """`use` returns the number of open descriptors; it must not grow."""
    use()  # for descriptors that are opened once
    gc.collect()
    gc.disable()
    try:
        first = use()
        assert use() == first
    finally:
        gc.enable()


def fails(value: Any) -> Any:
    """Raise an error for what contains the number 9."""
    if np.any(np.asarray(value) == 9):
        raise KeyError("nine")
    return value


def crashes(value: Any) -> Any:
    """End the worker process at what contains the number 9."""
    if np.any(np.asarray(value) == 9):
        os._exit(3)
    return value


def even(value: Any) -> bool:
    """Return whether a number is even."""
    return bool(value % 2 == 0)


def odd_or_less(value: Any) -> bool:
    """Return whether a number is at most 9 or even."""
    return bool(value <= 9 or value % 2 == 0)


def refuse(worker: int) -> None:
    """Fail as `worker_init`."""
    raise RuntimeError(f"worker {worker} can't be prepared")


def refuses_most(number: int) -> int:
    """Raise at seven numbers of eight."""
    if number % 8:
        raise KeyError(number)
    return number


def replaced(budget: int | None) -> ps.Dataset[Any]:
    """Return a dataset most of whose numbers are substituted, up to a budget."""
    return NUMBERS.map(refuses_most, on_error=ps.Substitute(attempts=1000, budget=budget)).batch(4)


NUMBERS = ps.range(16)
DATASETS: dict[str, tuple[int, ps.Dataset[Any], dict[str, Any]]] = {
    "ends": (4, NUMBERS.batch(4), {}),
    "ends, read in order": (2, NUMBERS.filter(even).batch(4), {}),
    "ends, merged by workers": (2, NUMBERS.filter(even).batch(4).map(np.negative), {}),
    "a row fails": (2, NUMBERS.map(fails).batch(4), {}),
    "a row fails, read in order": (1, NUMBERS.map(fails).filter(even).batch(4), {}),
    "a batch fails": (2, NUMBERS.batch(4).map(fails), {}),
    "a batch of a filter fails": (2, NUMBERS.filter(odd_or_less).batch(4).map(fails), {}),
    "rows are replaced": (4, replaced(None), {}),
    "a budget is used up": (0, replaced(2), {}),
    "worker_init fails": (0, NUMBERS.batch(4), {"limits": ps.Limits(worker_init=refuse)}),
    "a row crashes": (2, NUMBERS.map(crashes).batch(4), {}),
    "a batch of a filter crashes": (2, NUMBERS.filter(odd_or_less).batch(4).map(crashes), {}),
}
"""Datasets, with the number of batches before the end or the error, and further arguments of the loader."""
CASES = [
    pytest.param((name, place), id=f"{name}, {place}", marks=place_of(place).marks)
    for name in DATASETS
    for place in ("inline", "threads", "processes", "isolated")
    if not (name == "a row crashes" and place in {"inline", "threads"})
    and not (name == "a batch of a filter crashes" and place != "processes")
    and not (name == "worker_init fails" and place in {"inline", "isolated"})
    and not (name in {"rows are replaced", "a budget is used up"} and place != "inline")
]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what Linux shows")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("requested", [False, True], ids=["asked", "requested"])
@pytest.mark.parametrize("case", CASES)
def test_loaders_dropped_at_an_error_or_the_end_leave_no_descriptors(
    case: tuple[str, str],
    requested: bool,  # noqa: FBT001 - parametrized
) -> None:
    """They are collected, whether the program got it, or only asked whether the next batch is ready."""
    name, place = case[0], PLACES[case[1]]
    count, dataset, more = DATASETS[name]
    loaders: list[weakref.ref[Any]] = []

    def read() -> None:
        loader = ps.Loader(dataset, **place, **more)
        loaders.append(weakref.ref(loader))
        batches = iter(loader)
        del loader
        for _ in range(count):
            next(batches)
        while (descriptor := batches.may_wait) is not None:
            select.select([descriptor], [], [])
        if requested:
            with pytest.raises((StopIteration, KeyError, RuntimeError)):
                next(batches)

    def use() -> int:
        with contextlib.suppress(RuntimeError):  # the first request starts the workers
            read()
        assert [loader() for loader in loaders] == [None] * len(loaders)
        return len(os.listdir("/proc/self/fd"))

    assert_closes_without_collector(use)
