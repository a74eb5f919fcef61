"""Helper processes may crash at any moment; the consumer sees only a log message."""

import asyncio
import logging
import os
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import WorkerError
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.loader.isolated import parts
from tests.loader.isolated.parts import assert_same, isolated
from tests.workers.processes import functions
from tests.workers.processes.killing import kill_a_worker

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's"),
    pytest.mark.each_value,
]
EXAMPLES = max(settings().max_examples // 8, 1)  # starting processes takes a second


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    batched() | indexable() | ordered(),
    st.sampled_from(["threads", "processes"]),
    st.integers(0, 2),
    st.dictionaries(st.integers(0, 12), st.booleans(), max_size=2),
    st.data(),
)
def test_epochs_equal_the_definition(
    dataset: ps.Dataset, kind: Any, workers: int, kills: dict[int, bool], data: st.DataObject
) -> None:
    """Every epoch has the definition's bytes and error, and so has a resume from its state."""
    whole: list[Any] = [outcomes(epoch_of(dataset, epoch)) for epoch in range(2)]
    stop = data.draw(st.integers(0, max(len(whole[0]) - 1, 0)))
    with isolated(dataset, workers, workers=kind) as loader:
        for expected in whole:
            assert outcomes(_killing(iter(loader), kills)) == expected
            if raised(expected) or not expected:
                return
    with isolated(dataset, workers, workers=kind) as loader:
        batches = iter(loader)
        found = [digest(next(batches)) for _ in range(stop)]
        state = loader.state_dict()
    with ps.Loader(dataset, num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert found + outcomes(resumed) == whole[0]


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


@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_repeated_kills_change_no_batch(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """No batch is lost, repeated or changed, kept batches stay valid, and each crash is logged."""
    rows = ps.range(600, seed=1).shuffle().map(functions.large_row)
    dataset = rows.batch(12) if kind == "indexed" else rows.filter(_is_any).batch(12)
    with ps.Loader(dataset) as inline, isolated(dataset, copy=kind == "in order") as loader:
        with caplog.at_level(logging.WARNING, "penstock"):
            found = list(_keeping(_killing(loader, dict.fromkeys((10, 11, 30), False))))
        assert_same(found, list(inline))
        assert 2 <= loader.stats()["worker_restarts"] <= 3  # the last kill may come when all batches have arrived
    crashes = [record.message for record in caplog.records if "another one takes its place" in record.message]
    assert 2 <= len(crashes) <= 3
    assert all("SIGKILL" in crash for crash in crashes)


def _is_any(row: Any) -> bool:
    return row is not None


def _keeping(batches: Any) -> Any:
    """Yield copies of all batches, but views of the last few before a kill."""
    for number, batch in enumerate(batches):
        yield batch if number in {9, 10, 29} else batch.copy()


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


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "kind"), [(0, "in order"), (2, "indexed")])
def test_a_crashing_row_is_an_error_of_its_step(num_workers: int, kind: str) -> None:
    """A step at which every helper crashes is a WorkerError that names it, after the batches before it."""
    rows = ps.range(100).map(parts.kills_itself)
    dataset = rows.batch(4) if kind == "indexed" else rows.filter(parts.keep).batch(4)
    with isolated(dataset, num_workers) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(9)] == [*range(0, 36, 4)]
        for _ in range(2):
            with pytest.raises(WorkerError, match=r"37.* crashes workers.*SIGKILL") as raised:
                next(batches)
            assert raised.value.exit_code == -signal.SIGKILL
        if kind == "indexed":
            loader.seek(10)
            assert [batch[0] for batch in loader] == [*range(40, 100, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "in order", "above a fold"])
def test_a_crashing_row_follows_on_error(num_workers: int, kind: str) -> None:
    """A crashing row is replaced or skipped where a step says so, also without worker processes."""
    numbers: ps.Dataset[Any] = ps.range(100)
    datasets: dict[str, ps.Dataset[Any]] = {
        "indexed": numbers.map(parts.Connected()).map(parts.kills_itself, on_error=ps.Substitute()).batch(4),
        "in order": numbers.map(parts.kills_itself, on_error="skip").batch(4),
        "above a fold": numbers.filter(parts.keep).batch(1).map(parts.kills_itself, on_error="skip"),
    }
    with isolated(datasets[kind], num_workers) as loader:
        found = [int(number) for batch in loader for number in batch]
        stats = loader.stats()
    left = [number for number in range(100) if number != parts.DEADLY]
    if kind == "indexed":
        assert [number for place, number in enumerate(found) if place != parts.DEADLY] == left
        assert stats["substituted"] == 1
    else:
        assert found == left
        assert stats["skipped"] == 1


def test_events_are_counted_once() -> None:
    """A substitution before a crash is not counted again after it."""
    dataset = ps.range(100).map(functions.broken, on_error=ps.Substitute()).batch(4)
    with isolated(dataset) as loader:
        for number, _ in enumerate(loader):
            if number in {9, 10}:
                kill_a_worker()
        assert loader.stats()["substituted"] == 1
        assert len(loader.replaced()) == 1
