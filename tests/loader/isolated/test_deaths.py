"""Helper processes may crash at any moment; the consumer sees only a log message."""

import asyncio
import os
from typing import Any

import pytest

import penstock as ps
from tests.loader.isolated.loaders import isolated
from tests.workers.processes import functions
from tests.workers.processes.killing import kill_a_worker

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's"),
    pytest.mark.each_value,
]


def test_crashes_far_apart_are_not_added_up() -> None:
    """Any number of helpers may crash, as long as each delivered a batch that its predecessor didn't."""
    dataset = ps.range(720).map(functions.large_row).batch(12)  # each batch is a message of its own
    kills: dict[int, bool] = dict.fromkeys((10, 20, 30, 40, 50), True)
    with isolated(dataset, 0) as loader:
        found = [int(batch[0, 0]) for batch in _killing(iter(loader), kills)]
    assert found == [number % 251 for number in range(0, 720, 12)]


def _killing(batches: Any, kills: dict[int, bool]) -> Any:
    """Yield batches; kill the helper or its newest worker before the batches of these numbers."""
    for number, batch in enumerate(batches):
        if number in kills:
            kill_a_worker(oldest=kills[number])
        yield batch


def test_a_helper_killed_between_epochs_is_replaced() -> None:
    """A helper that crashes between epochs is replaced, and the next epoch is whole."""
    with isolated(ps.range(40).batch(4)) as loader:
        for epoch in range(3):
            assert [batch[0] for batch in loader] == [*range(0, 40, 4)]
            kill_a_worker()
            assert loader.epoch == epoch


def test_async_for_continues_after_a_crash() -> None:
    """`async for` delivers every batch when helpers are killed."""

    async def read(loader: ps.Loader) -> list[int]:
        found: list[int] = []
        async for batch in loader:
            found.append(int(batch[0]))
            if len(found) in {1, 50}:
                kill_a_worker()
        return found

    with isolated(ps.range(400).map(functions.slow).batch(4)) as loader:
        assert asyncio.run(read(loader)) == [*range(0, 400, 4)]


def test_events_are_counted_once() -> None:
    """A substitution before a crash is not counted again after it."""
    dataset = ps.range(100).map(functions.broken, on_error=ps.Substitute()).batch(4)
    with isolated(dataset) as loader:
        for number, _ in enumerate(loader):
            if number in {9, 10}:
                kill_a_worker()
        assert loader.stats()["substituted"] == 1
        assert len(loader.replaced()) == 1
