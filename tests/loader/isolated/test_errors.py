"""Errors in a helper process are raised in the consumer as without one."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import MessageError, UsageError, WorkerError
from tests.loader.isolated import parts
from tests.loader.isolated.loaders import isolated

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")


def test_a_passing_error_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call computes the batch again, and the iterator continues."""
    monkeypatch.setenv("PENSTOCK_TEST_FILE", str(tmp_path / "there"))
    with isolated(ps.range(100).map(parts.fails_for_now).batch(4)) as loader:
        found: list[Any] = []
        batches = iter(loader)
        with pytest.raises(OSError, match="not there yet"):
            found.extend(batch[0] for batch in batches)
        (tmp_path / "there").touch()
        found.extend(batch[0] for batch in batches)
    assert found == [*range(0, 100, 4)]


def test_an_unsendable_error_is_a_worker_error() -> None:
    """The WorkerError has the type and text of an error that can't be sent."""
    with (
        isolated(ps.range(100).map(parts.strange).batch(4)) as loader,
        pytest.raises(WorkerError, match="StrangeError: 1 and 2"),
    ):
        list(loader)


@pytest.mark.parametrize("ordered", [True, False])
def test_an_unsendable_batch_is_an_error(*, ordered: bool) -> None:
    """The error names the rule, the part and the step; in order it comes in the batch's place."""
    with isolated(ps.range(100).batch(4, merge=parts.unsendable), 2, ordered=ordered) as loader:
        found: list[int] = []
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(UsageError, match=r"leave the helper process .* one of which \['lock'\] has") as caught:
                found.extend(batch[0] for batch in batches)
            assert any("while making the batch of step 9:" in note for note in caught.value.__notes__)
        assert found == [*range(0, 36, 4)] or not ordered


def test_an_unsendable_element_is_an_error() -> None:
    """An element that is no container has no path."""
    with (
        isolated(ps.range(4).map(lambda _: threading.Lock())) as loader,
        pytest.raises(UsageError, match=r"; got one that has the type _thread\.lock"),
    ):
        list(loader)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_batch_that_can_not_be_rebuilt_is_an_error(
    *, ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes in the batch's place, at each call, and no process is restarted; then the next batches follow."""
    file = tmp_path / "there"
    monkeypatch.setenv("PENSTOCK_TEST_FILE", str(file))
    with isolated(ps.range(100).batch(4, merge=parts.refused_for_now), 2, ordered=ordered) as loader:
        found: list[int] = []
        batches = iter(loader)
        for _ in range(5):
            with pytest.raises(MessageError, match=r"can't be rebuilt in this process .*not there yet"):
                found.extend(batch[0].first for batch in batches)
            assert found == [*range(0, 36, 4)] or not ordered
        file.touch()
        found.extend(batch[0].first for batch in batches)
        assert sorted(found) == [*range(0, 100, 4)]
        assert loader.stats()["worker_restarts"] == 0
    assert not caplog.records


def test_an_unreadable_dataset_is_an_error() -> None:
    """An error while the helper builds the dataset is raised each time, and restarts no process."""
    with isolated(ps.range(8).map(parts.Unreadable()).batch(4)) as loader:
        for _ in range(2):
            with pytest.raises(MessageError, match="no such model here") as raised:
                next(iter(loader))
            assert any("being prepared" in note for note in raised.value.__notes__)
        assert loader.stats()["worker_restarts"] == 0


def test_what_ends_programs_arrives_from_a_helper() -> None:
    """An isolated loader raises it with its type, as a loader in the program's own process does."""
    with isolated(ps.range(4).map(parts.ends_programs).batch(1)) as loader:
        for step, kind in enumerate(parts.ENDS):
            loader.seek(step)
            with pytest.raises(kind, match="by the function"):
                next(iter(loader))
