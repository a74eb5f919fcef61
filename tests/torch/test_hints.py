"""The log gets the hints of a `DataLoader`, once each, where a run loses time or data without an error."""

import threading
from typing import Any

import pytest

from penstock.torch import DataLoader
from tests.constants import SetConstant
from tests.torch.conformance.datasets import Made, Numbers, Streamed
from tests.torch.conformance.untyped import torch

PROCESSORS = 4


def slow(index: int) -> int:
    """Return the index after a while."""
    threading.Event().wait(0.002)
    return index


ROWS, STREAM = Made(32, slow), Streamed(lambda worker, workers: map(slow, range(32)))


def hints(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """Return the logged messages that have a part."""
    return [each.getMessage() for each in caplog.records if each.name == "penstock" and part in each.getMessage()]


@pytest.mark.parametrize("dataset", [ROWS, STREAM])
def test_a_training_that_mostly_computes_its_own_batches_is_advised_once(
    dataset: Any, caplog: pytest.LogCaptureFixture, set_constant: SetConstant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that waits little gets no hint; the others get the number of workers that keeps up, or fits."""
    set_constant("LOOKED_AT_SECONDS", 0.05)
    monkeypatch.setattr("penstock.torch._data_loader._hints.usable_processors", lambda: PROCESSORS)
    for _ in DataLoader(dataset, batch_size=2):
        threading.Event().wait(0.02)
    assert not hints(caplog, "has waited for")
    loader = DataLoader(dataset, batch_size=2)
    for _ in range(3):
        assert torch.equal(torch.cat(list(loader)), torch.arange(32))
    (message,) = hints(caplog, "has waited for")
    assert f"pass num_workers={PROCESSORS}: up to " in message
    assert loader.stats()["batches"] == 0


def test_a_slow_batch_is_named(caplog: pytest.LogCaptureFixture, set_constant: SetConstant) -> None:
    """The 1st, the 10th, and so on, with the indices of the dataset."""
    set_constant("SLOW_SECONDS", 0.001)
    assert len(list(DataLoader(ROWS, batch_size=2))) == 16
    first, tenth = hints(caplog, "own thread")
    assert "the batch of step 0 took 0 s" in first
    assert first.endswith("indices 0, 1. With num_workers, workers compute batches ahead")
    assert "indices 18, 19; it is the 10th of such batches. With num_workers" in tenth
    assert len(list(DataLoader(STREAM, batch_size=2))) == 16
    assert hints(caplog, "the next 2 elements")


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Numbers(0), "the dataset has no elements"),
        (Numbers(3), "its 3 elements are fewer than a batch of 4, and drop_last=True leaves such a rest out"),
    ],
)
def test_an_epoch_without_a_batch_is_logged_once(
    dataset: Numbers, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is the first thing that the log of such a training has."""
    loader = DataLoader(dataset, batch_size=4, drop_last=True, sampler=range(dataset.count))
    assert not list(loader)
    assert not list(loader)
    (message,) = hints(caplog, "gives no batch")
    assert message.endswith(reason)
