"""A loader's descriptors are closed when its last reference is dropped, without the collector's help."""

import contextlib
import gc
import os
import resource
import select
import threading
import weakref
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._loader import _publisher
from tests.dataset.functions import is_even
from tests.loader.sent_functions import (
    crashes_at_nine,
    fails_at_nine,
    fails_at_nine_in_a_group,
    refuse_worker,
    refuses_most,
)
from tests.places import PLACES, place_of

NUMBERS = ps.range(16)
FILTERED = NUMBERS.filter(lambda number: number <= 9 or number % 2 == 0)
DATASETS: dict[str, tuple[int, ps.Dataset[Any], dict[str, Any]]] = {
    "left early": (2, NUMBERS.batch(4), {}),
    "ends": (4, NUMBERS.batch(4), {}),
    "ends, read in order": (2, NUMBERS.filter(is_even).batch(4), {}),
    "ends, merged by workers": (2, NUMBERS.filter(is_even).batch(4).map(np.negative), {}),
    "a row fails": (2, NUMBERS.map(fails_at_nine).batch(4), {}),
    "a row fails, read in order": (1, NUMBERS.map(fails_at_nine).filter(is_even).batch(4), {}),
    "a batch fails": (2, NUMBERS.batch(4).map(fails_at_nine), {}),
    "a batch of a filter fails": (2, FILTERED.batch(4).map(fails_at_nine), {}),
    "a row fails with a group": (2, NUMBERS.map(fails_at_nine_in_a_group).batch(4), {}),
    "a document fails": (
        2,
        NUMBERS.map(fails_at_nine).map(lambda number: {"x": np.array([number])}).pack(1).batch(4),
        {},
    ),
    "rows are replaced": (4, NUMBERS.map(refuses_most, on_error=ps.Substitute(attempts=1000)).batch(4), {}),
    "a budget is used up": (0, NUMBERS.map(refuses_most, on_error=ps.Substitute(attempts=1000, budget=2)).batch(4), {}),
    "worker_init fails": (0, NUMBERS.batch(4), {"limits": ps.Limits(worker_init=refuse_worker)}),
    "a row crashes": (2, NUMBERS.map(crashes_at_nine).batch(4), {}),
    "a batch of a filter crashes": (2, FILTERED.batch(4).map(crashes_at_nine), {}),
}
"""Datasets, with the number of batches before the end or the error, and further arguments of the loader."""
CRASHES, REPLACED = {"a row crashes", "a batch of a filter crashes"}, {"rows are replaced", "a budget is used up"}
IN_PLACES = {
    "inline": [*DATASETS.keys() - CRASHES - {"worker_init fails"}],
    "threads": [*DATASETS.keys() - CRASHES - REPLACED],
    "processes": ["left early", "a row fails", "a batch of a filter fails", "worker_init fails", *CRASHES],
    "isolated": ["left early", "ends", "a row crashes", "a batch fails"],
}
CASES = [
    pytest.param(
        *(name, requested, PLACES[place]),
        id=f"{name}, {place}, {'requested' if requested else 'asked'}",
        marks=place_of(place).marks,
    )
    for place, names in IN_PLACES.items()
    for number, name in enumerate(sorted(names))
    for requested in ([False, True] if place in {"inline", "threads"} else [number % 2 == 0])
]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what Linux shows")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "requested", "place"), CASES)
def test_loaders_dropped_early_at_an_error_or_the_end_leave_no_descriptors(
    name: str,
    requested: bool,  # noqa: FBT001 - parametrized
    place: dict[str, Any],
) -> None:
    """They are collected, whether the program got the end or the error, or only asked whether a batch is ready."""
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
        if requested and name != "left early":
            with pytest.raises((StopIteration, KeyError, RuntimeError, ExceptionGroup)):
                next(batches)

    def use() -> int:
        with contextlib.suppress(RuntimeError):  # the first request starts the workers
            read()
        assert [loader() for loader in loaders] == [None] * len(loaders)
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    gc.disable()
    try:
        first, second = use(), use()
        assert second == first or use() == second  # the first may have opened what stays open, such as a server
    finally:
        gc.enable()


@contextlib.contextmanager
def few_descriptors(more: int) -> Generator[None]:
    """Let this process open only so many files more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd"))) + more + 1
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(more):
            os.close(opened.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in opened:
            os.close(descriptor)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what Linux shows")
@pytest.mark.parametrize("place", ["threads", "isolated"])
def test_a_loader_that_may_open_too_few_files_fails_and_leaves_nothing(place: str) -> None:
    """However many it may open, it says so at once, and ends the threads and processes that it has started."""

    def use() -> list[int]:
        with ps.Loader(NUMBERS.batch(4), **PLACES[place]) as loader:
            return [len(batch) for batch in loader]

    everything = use()  # starts what stays, such as a server
    for more in range(24):
        with few_descriptors(more), contextlib.suppress(OSError, ps.errors.MessageError):
            assert use() == everything


@pytest.mark.parametrize(("place", "most"), [("threads", 1), ("processes", 1), ("isolated", 0)])
def test_a_loader_that_may_start_too_few_threads_fails_and_leaves_nothing(
    place: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is Python's, and what has been started until then ends."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_few(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) > most:
            raise RuntimeError("can't start new thread")
        start(thread)

    with ps.Loader(NUMBERS.batch(4), **PLACES[place]) as loader:
        monkeypatch.setattr(threading.Thread, "start", start_few)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            next(iter(loader))
        monkeypatch.undo()


def full() -> None:
    """Fail, as a page that needs memory of a full disk."""
    raise OSError("full")


@pytest.mark.parametrize("place", ["threads", "isolated"])
def test_a_loader_without_a_page_is_freed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that `penstock watch` can't show a loader doesn't keep it."""
    monkeypatch.setattr(_publisher, "LivePage", full)
    gc.collect()
    gc.disable()
    try:
        loader = ps.Loader(FILTERED.batch(4), **PLACES[place])
        freed = weakref.ref(loader)
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        del loader
        assert freed() is None
    finally:
        gc.enable()
