"""`penstock watch` shows a `DataLoader` with workers, as it shows a `Loader`."""

import copy
import os
import threading
from pathlib import Path

import pytest

from penstock.torch import DataLoader
from tests.cli.command import main
from tests.torch.conformance.datasets import Made

Output = pytest.CaptureFixture[str]
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads the folder /proc")


def slow(index: int) -> int:
    """Return the index after a while."""
    threading.Event().wait(0.01)
    return index


def test_a_loader_with_workers_is_shown(capsys: Output) -> None:
    """The view has the progress in the epoch and the waits; a second epoch, and one that resumes, count on."""
    loader = DataLoader(Made(64, slow), batch_size=4, num_workers=2)
    command = ["watch", str(os.getpid()), "--once"]
    state = loader.state_dict()
    for epoch in range(2):
        batches = iter(loader)
        before = [next(batches) for _ in range(12)]
        assert main(command) == 0
        text = capsys.readouterr().out
        assert "DataLoader(Made, batch_size=4)" in text
        assert f" {epoch}, step " in text
        assert "2 processes" in text
        assert "the start" in text.partition("waiting")[2].partition("\n")[0]
        state = loader.state_dict()
        assert len([*before, *batches]) == 16
        del batches  # it keeps the page
    assert main(command) == 0
    assert "1, step 32 (100%)" in capsys.readouterr().out
    resumed = copy.deepcopy(loader)
    del loader
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 4
    assert main(command) == 0
    assert "step 36 (100%)" in capsys.readouterr().out
    del resumed
    assert main(command) == 1
