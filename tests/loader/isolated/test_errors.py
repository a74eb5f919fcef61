"""What goes wrong in a helper process arrives as it would without one."""

import os
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import MessageError, UsageError, WorkerError
from tests.loader.isolated import parts
from tests.loader.isolated.parts import isolated
from tests.workers.processes import functions

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_an_error_is_the_users_own(num_workers: int, kind: str) -> None:
    """What a function raises arrives in its place, each time, with the helper's traceback; others come before it."""
    rows = ps.range(100).map(functions.broken)
    dataset = rows.batch(4) if kind == "indexed" else rows.filter(parts.keep).batch(4)
    with isolated(dataset, num_workers) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(9)] == [*range(0, 36, 4)]
        for _ in range(2):
            with pytest.raises(LookupError, match="no record 37") as raised:
                next(batches)
            notes = "\n".join(raised.value.__notes__)
            assert "step 'broken'" in notes
            assert "batch of step 9" in notes
            assert "in broken" in notes
        if kind == "indexed":
            loader.seek(10)
            assert [batch[0] for batch in loader] == [*range(40, 100, 4)]


def test_an_error_that_time_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call tries the batch again, and goes on."""
    monkeypatch.setenv("PENSTOCK_TEST_FILE", str(tmp_path / "there"))
    with isolated(ps.range(100).map(parts.fails_for_now).batch(4)) as loader:
        found: list[Any] = []
        batches = iter(loader)
        with pytest.raises(OSError, match="not there yet"):
            found.extend(batch[0] for batch in batches)
        (tmp_path / "there").touch()
        found.extend(batch[0] for batch in batches)
    assert found == [*range(0, 100, 4)]


def test_an_error_that_can_not_be_sent() -> None:
    """It is told in words."""
    with (
        isolated(ps.range(100).map(parts.strange).batch(4)) as loader,
        pytest.raises(WorkerError, match="StrangeError: 1 and 2"),
    ):
        list(loader)


def test_a_batch_that_can_not_be_sent() -> None:
    """It is an error in its place, which names what can't be sent."""
    with isolated(ps.range(100).batch(4, merge=parts.unsendable)) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(9)] == [*range(0, 36, 4)]
        for _ in range(2):
            with pytest.raises(UsageError, match="must be able to leave the helper process"):
                next(batches)


def test_a_dataset_that_can_not_be_sent() -> None:
    """The rule, the cause and the remedies are in the message."""
    with isolated(ps.range(8).map(functions.Unpicklable()).batch(4)) as loader:
        for _ in range(2):
            with pytest.raises(UsageError, match=r"isolated=True sends .*it holds a connection.*cloudpickle"):
                iter(loader)


def test_a_dataset_that_can_not_be_received() -> None:
    """What building it in the helper raises arrives, each time; no process is started anew for it."""
    with isolated(ps.range(8).map(parts.Unreadable()).batch(4)) as loader:
        for _ in range(2):
            with pytest.raises(MessageError, match="no such model here") as raised:
                next(iter(loader))
            assert any("being prepared" in note for note in raised.value.__notes__)
        assert loader.stats()["worker_restarts"] == 0


def test_a_worker_that_can_not_be_prepared() -> None:
    """What `worker_init` raises in the helper's workers arrives instead of a batch."""
    with isolated(ps.range(8).batch(4), 1, limits=ps.Limits(worker_init=functions.refuses)) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="no device"):
                next(iter(loader))
