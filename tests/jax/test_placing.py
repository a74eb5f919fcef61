"""Batches are placed by a thread of the loader if it has workers, and else by the caller's thread."""

import threading
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import GraphError
from tests.places import in_places

jax = pytest.importorskip("jax")
door: Any = pytest.importorskip("penstock.jax")

NAME = "penstock-placing"


class Watched(door.Loader):  # type: ignore[misc] # of a module that may not be there
    """A loader that records when its thread has placed a batch."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.placed = threading.Event()
        own: Any = super()
        own.__init__(*arguments, **named)

    def _place_in_thread(self, batch: Any) -> Any:
        assert threading.current_thread().name == NAME
        try:
            return super()._place_in_thread(batch)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType] # as above
        finally:
            self.placed.set()


def watched(*arguments: Any, **named: Any) -> Any:
    """Return such a loader."""
    return Watched(*arguments, **named)


def placed_ahead(loader: Any, batches: Any) -> Any:
    """Return the batch that the thread placed ahead, when it has done so."""
    while not loader.placed.wait(0.01):
        next(batches)
    return next(batches)


def large(number: int) -> Any:
    """Return a row that is large enough to be leased, not copied."""
    return np.full(1 << 16, number, np.float32)


@in_places("threads", "processes", "isolated")
def test_a_thread_places_for_workers(place: dict[str, Any]) -> None:
    """The thread runs from the first batch to the end of the loader; on the CPU it copies nothing."""
    dataset = ps.range(8).map(large).repeat().batch(4)
    with watched(dataset, **place) as loader:
        batches = iter(loader)
        batch = placed_ahead(loader, batches)
        assert batch[:, -1].tolist() in ([0, 1, 2, 3], [4, 5, 6, 7])
        assert NAME in {thread.name for thread in threading.enumerate()}
        assert loader.state_dict()["step"] == loader.step + 1
    assert NAME not in {thread.name for thread in threading.enumerate()}


def test_no_thread_without_workers() -> None:
    """Without workers, or if nothing is placed ahead, the caller's thread places batches."""
    dataset = ps.range(8).map(large).batch(4)
    threads: dict[str, Any] = {"num_workers": 1, "workers": "threads"}
    for arguments in ({}, {**threads, "ahead": 0}, {**threads, "memory": "1GiB"}):
        with watched(dataset, **arguments) as loader:
            assert len(list(loader)) == 2
            assert NAME not in {thread.name for thread in threading.enumerate()}
            assert not loader.placed.is_set()


def test_what_a_thread_may_set_for_itself(devices: Any) -> None:
    """JAX settings of the training thread alone apply to batches that another thread places."""
    dataset = ps.read([np.int64(1 << 40)]).repeat().batch(2)
    with watched(dataset, num_workers=1, workers="threads") as loader, jax.default_device(devices[1]):
        batches = iter(loader)
        with pytest.raises(GraphError, match="jax_enable_x64"):
            next(batches)
        with jax.enable_x64(True):  # noqa: FBT003 - JAX's way to say it
            batch = next(batches)
            assert (batch.dtype, batch.tolist()) == (np.int64, [1 << 40] * 2)
    numbers = ps.range(8).repeat().batch(2)
    with watched(numbers, num_workers=1, workers="threads") as loader, jax.default_device(devices[1]):
        assert placed_ahead(loader, iter(loader)).devices() == {devices[1]}
