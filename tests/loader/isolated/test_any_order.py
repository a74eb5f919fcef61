"""An isolated loader hands batches out as they become ready, whatever becomes of its helper process."""

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
    """Return a function that waits at number 0 until it is opened."""
    os.mkfifo(tmp_path / "door")
    return parts.Door(str(tmp_path / "door"))


def steps_of(batches: Any) -> list[int]:
    """Return the steps of batches of four numbers."""
    return [int(batch[0]) // 4 for batch in batches]


def test_a_slow_batch_holds_nothing_up(door: parts.Door) -> None:
    """Not even over the death of the helper: what came before doesn't come again, and the state tells what did."""
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


@pytest.mark.parametrize("make", [None, parts.large_row], ids=["small", "large"])
def test_each_comes_with_its_step(make: Any) -> None:
    """Sent together or where they lie, kept or not, in two epochs, of which the first is left early."""
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


def test_an_error_says_which_step_it_is() -> None:
    """It comes after those that were ready, and again; `seek` goes on behind it."""
    with isolated(ps.range(100).map(functions.broken).batch(4), 2, ordered=False) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(LookupError, match="no record 37") as caught:
                list(batches)
            assert "while making the batch of step 9: epoch 0, from position 36 on" in caught.value.__notes__
        loader.seek(10)
        assert sorted(steps_of(loader)) == list(range(10, 25))


def test_a_batch_that_can_not_be_sent() -> None:
    """It is an error that says which step it is."""
    with isolated(ps.range(100).batch(4, merge=parts.unsendable), 2, ordered=False) as loader:
        with pytest.raises(UsageError, match="must be able to leave the helper process") as caught:
            list(loader)
        assert any("while making the batch of step 9:" in note for note in caught.value.__notes__)


@pytest.mark.slow
def test_what_kills_every_helper_is_told_soon() -> None:
    """However many others there are to hand out between its deaths; they can be had before and after it."""
    with isolated(ps.range(4000).map(parts.kills_itself).batch(4), 2, ordered=False) as loader:
        found: list[int] = []
        with pytest.raises(WorkerError, match=r"row 1 of step 9, .* crashes workers.*SIGKILL"):
            found.extend(int(batch[0]) // 4 for batch in loader)
        # Two between any of the steps before it, and then those of the process that dies in the helper's place.
        assert loader.stats()["worker_restarts"] <= 2 * 9 + 2 + 3
        assert set(found) >= set(range(9))
        state = loader.state_dict()
    with ps.Loader(ps.range(4000).batch(4)) as resumed:
        resumed.load_state_dict({**state, "fingerprint": resumed.state_dict()["fingerprint"]})
        assert sorted(found + steps_of(resumed)) == list(range(1000))
