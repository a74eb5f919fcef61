"""An isolated loader delivers batches as they become ready, also after its helper crashed."""

import os
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import UsageError, WorkerError
from tests.equivalence.definition import digest, epoch_of, outcomes
from tests.loader.isolated import parts
from tests.loader.isolated.parts import isolated
from tests.workers.processes import functions
from tests.workers.processes.killing import kill_a_worker

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")


@pytest.fixture
def door(tmp_path: Path) -> parts.Door:
    """Return a function that waits at number 0 until the test opens it."""
    os.mkfifo(tmp_path / "door")
    return parts.Door(str(tmp_path / "door"))


def steps_of(batches: Any) -> list[int]:
    """Return the steps of batches of four numbers."""
    return [int(batch[0]) // 4 for batch in batches]


def test_a_slow_batch_delays_no_other(door: parts.Door) -> None:
    """After a crash of the helper, too, each batch comes once, and the state lists the delivered ones."""
    dataset = ps.range(20_000).map(door).batch(4)
    with isolated(dataset, 2, workers="threads", ordered=False) as loader:
        batches = iter(loader)
        early = steps_of(next(batches) for _ in range(10))
        kill_a_worker()
        early += steps_of(next(batches) for _ in range(4989))
        assert early.count(0) == 0
        assert loader.step == early[-1]
        state = loader.state_dict()
        assert {step for start, stop in state["ahead"] for step in range(start, stop)} == set(early)
        door.open()
        assert sorted(early + steps_of(batches)) == list(range(5000))
        assert loader.stats()["worker_restarts"] == 1
    with ps.Loader(ps.range(20_000).batch(4)) as resumed:
        resumed.load_state_dict({**state, "fingerprint": resumed.state_dict()["fingerprint"]})
        assert steps_of(resumed) == [0]


@pytest.mark.parametrize("make", [None, functions.large_row], ids=["small", "large"])
def test_each_batch_comes_with_its_step(make: Any) -> None:
    """Small and large batches, kept or not, come with their steps in two epochs, of which one is abandoned."""
    rows = ps.range(4000 if make is None else 200, seed=3).shuffle()
    dataset = (rows if make is None else rows.map(make)).batch(4)
    with isolated(dataset, 2, ordered=False, copy=make is not None) as loader, ps.Loader(dataset) as inline:
        for number, batch in enumerate(loader):
            assert digest(batch) == digest(inline.batch_at(loader.step))
            if number == 20:
                break
        found: list[Any] = []
        for batch in loader:
            found.append(digest(batch))
            if len(found) % 10 == 1:
                assert found[-1] == digest(loader.batch_at(loader.step))
        assert loader.epoch == 1
        assert sorted(found, key=repr) == sorted(outcomes(epoch_of(dataset, 1)), key=repr)


def test_an_unsendable_batch_is_an_error_of_its_step() -> None:
    """The error names the step of the batch that can't be sent."""
    with isolated(ps.range(100).batch(4, merge=parts.unsendable), 2, ordered=False) as loader:
        with pytest.raises(UsageError, match="must be able to leave the helper process") as caught:
            list(loader)
        assert any("while making the batch of step 9:" in note for note in caught.value.__notes__)


@pytest.mark.slow
def test_a_crashing_row_is_an_error_soon() -> None:
    """A few restarts per step show the row; the other batches are delivered before the error or after it."""
    with isolated(ps.range(4000).map(parts.kills_itself).batch(4), 2, ordered=False) as loader:
        found: list[int] = []
        with pytest.raises(WorkerError, match=r"row 1 of step 9, .* crashes workers.*SIGKILL"):
            found.extend(int(batch[0]) // 4 for batch in loader)
        # Two for each of the steps before it, and then those of the worker process that crashes in the helper's place.
        assert loader.stats()["worker_restarts"] <= 2 * 9 + 2 + 3
        assert set(found) >= set(range(9))
        state = loader.state_dict()
    with ps.Loader(ps.range(4000).batch(4)) as resumed:
        resumed.load_state_dict({**state, "fingerprint": resumed.state_dict()["fingerprint"]})
        assert sorted(found + steps_of(resumed)) == list(range(1000))
