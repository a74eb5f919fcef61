"""Batches handed out as they become ready: an epoch's, each exactly once, from whatever state reading goes on."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import StateError, WorkerError
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.loader.gates import Gate
from tests.loader.isolated.parts import Door
from tests.workers.processes.functions import kills_itself, mark_process, slow
from tests.workers.processes.killing import kill_a_worker

EXAMPLES = settings().max_examples
LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def loader_of(dataset: Any, **arguments: Any) -> "ps.Loader[Any]":
    """Return a loader that hands batches out as they become ready, if nothing else is said."""
    said: dict[str, Any] = {"ordered": False, "workers": "threads", **arguments}
    return ps.Loader(dataset, **said)


def counted(batches: Any) -> list[str]:
    """Return batches in an order that doesn't depend on theirs."""
    return sorted(repr(digest(batch)) for batch in batches)


def steps_of(batches: Any) -> list[int]:
    """Return the steps of batches of two numbers."""
    return [int(batch[0]) // 2 for batch in batches]


@given(batched() | indexable(), st.integers(1, 3), st.lists(st.integers(0, 6), max_size=3), st.data())
def test_nothing_is_lost_or_repeated(dataset: ps.Dataset, workers: int, stops: list[int], data: st.DataObject) -> None:
    """Saved and gone on from at any points, by loaders in order and in none, an epoch has the definition's batches."""
    expected = outcomes(epoch_of(dataset, 0))
    if raised(expected) or not expected:
        return
    found: list[Any] = []
    state: Any = None
    for stop in (*stops, None):
        arguments: Any = data.draw(st.sampled_from([{}, {"ordered": True}, {"ordered": True, "num_workers": 0}]))
        with loader_of(dataset, **{"num_workers": workers, **arguments}) as loader:
            if state is not None:
                loader.load_state_dict(state)
                if loader.epoch:
                    break
            for batch in loader:
                found.append(batch)
                assert digest(loader.batch_at(loader.step)) == digest(batch)
                if stop is not None and (stop := stop - 1) <= 0:
                    break
            state = json.dumps(loader.state_dict())
            assert len(state) < 1000
    assert counted(found) == sorted(map(repr, expected))


@LINUX
@settings(max_examples=EXAMPLES // 5)
@given(
    batched() | indexable(),
    st.sets(st.integers(0, 8), max_size=2),
    st.sampled_from([{"workers": "processes"}, {"isolated": True}, {"isolated": True, "workers": "processes"}]),
)
def test_processes_that_are_killed_lose_nothing(dataset: ps.Dataset, kills: set[int], place: dict[str, Any]) -> None:
    """Every epoch has the definition's batches, whichever processes die."""
    whole = [outcomes(epoch_of(dataset, epoch)) for epoch in range(2)]
    if any(map(raised, whole)):
        return
    with loader_of(dataset, num_workers=2, **place) as loader:
        for expected in whole:
            found: list[Any] = []
            for number, batch in enumerate(loader):
                if number in kills:
                    kill_a_worker()
                found.append(batch)
            assert counted(found) == sorted(map(repr, expected))


def test_a_slow_batch_holds_nothing_up() -> None:
    """Those after it come, the state tells which, and it comes when it is ready."""
    gate = Gate(0)
    with loader_of(ps.range(40).map(gate).batch(2), num_workers=2) as loader:
        batches = iter(loader)
        early = [steps_of([next(batches)])[0] for _ in range(12)]
        assert 0 not in early
        assert loader.step == early[-1]
        state = loader.state_dict()
        assert state["step"] == 0
        assert {step for start, stop in state["ahead"] for step in range(start, stop)} == set(early)
        assert len(json.dumps(state)) < 1000
        gate.open()
        late = steps_of(batches)
        assert sorted(early + late) == list(range(20))
        assert loader.state_dict()["epoch"] == 1
        assert "ahead" not in loader.state_dict()
        assert sorted(steps_of(loader)) == list(range(20))


@pytest.mark.parametrize("place", [{}, pytest.param({"isolated": True}, marks=LINUX)], ids=["threads", "isolated"])
def test_a_slow_batch_holds_nothing_up_when_resumed(place: dict[str, Any], tmp_path: Path) -> None:
    """A state with gaps is gone on from in all of them at once, in the same loader or another."""
    os.mkfifo(tmp_path / "door")
    door = Door(str(tmp_path / "door"))
    dataset = ps.range(400).map(door).batch(2)
    state: Any = None
    found: list[int] = []
    for count in (50, 70, 79):
        with loader_of(dataset, num_workers=2, **place) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            found += steps_of(next(batches) for _ in range(count))
            state = loader.state_dict()
            door.open()
    assert sorted(found) == list(range(1, 200))


@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_batches_that_are_chosen_among(remainder: Any) -> None:
    """A state saved with batches handed out early is gone on from, where a step above the batch takes some of them."""
    gate = Gate(0)
    dataset = ps.range(41).map(gate).batch(2, remainder=remainder)[:18]
    with loader_of(dataset, num_workers=2) as loader:
        batches = iter(loader)
        early = [steps_of([next(batches)])[0] for _ in range(5)]
        state = loader.state_dict()
        gate.open()
    assert state["ahead"]
    resumed = loader_of(dataset, num_workers=0)
    resumed.load_state_dict(state)
    assert sorted(early + steps_of(resumed)) == list(range(18))


def test_states_of_the_last_steps_are_known() -> None:
    """As if fewer batches had been handed out: for wrappers that look ahead."""
    gate = Gate(0)
    dataset = ps.range(2000).map(gate).batch(2)
    with loader_of(dataset, num_workers=2) as loader:
        batches = iter(loader)
        early = [steps_of([next(batches)])[0] for _ in range(300)]
        for count in (300, 299, 250, 44):
            resumed = loader_of(dataset, num_workers=0)
            resumed.load_state_dict(loader.state_dict(step=count))
            gate.open()
            expected = sorted(set(range(1000)) - set(early[:count]))
            assert steps_of(resumed) == expected
        for count in (43, 301):
            with pytest.raises(StateError, match=f"after the last ones are known: 44 to 300; got step={count}"):
                loader.state_dict(step=count)


def test_states_of_an_earlier_epoch_are_refused() -> None:
    """In which order its batches came is forgotten when the next one begins."""
    gate = Gate(0)
    with loader_of(ps.range(16).map(gate).batch(2), num_workers=2) as loader:
        for _ in zip(range(7), loader, strict=False):
            pass
        gate.open()
        loader.load_state_dict(loader.state_dict())
        assert steps_of(loader) == [0]
        iter(loader)
        assert loader.state_dict(step=8)["epoch"] == 1
        with pytest.raises(StateError, match="known: 8 to 8; got step=7"):
            loader.state_dict(step=7)


def test_states_of_an_epoch_that_was_left_early_are_refused() -> None:
    """What was handed out of it is forgotten, also of the steps between the first gap and the next epoch's number."""
    gate = Gate(0)
    with loader_of(ps.range(32).map(gate).batch(2), num_workers=2) as loader:
        batches = iter(loader)
        last = max(steps_of([next(batches)])[0] for _ in range(3))
        gate.open()
        iter(loader)
        assert loader.state_dict(step=last + 1)["epoch"] == 1
        for step in range(last + 1):
            with pytest.raises(StateError, match=f"known: {last + 1} to {last + 1}; got step={step}"):
                loader.state_dict(step=step)


def test_ranks_differ_until_an_epochs_end() -> None:
    """One that goes on in order says in its state that others may be elsewhere, also where its first step came last."""
    gate = Gate(0)
    dataset = ps.range(32).map(gate).batch(2)
    with loader_of(dataset, num_workers=2, shard=ps.Shard(0, 2)) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        gate.open()
    with ps.Loader(dataset, shard=ps.Shard(0, 2)) as resumed:
        resumed.load_state_dict(state)
        batches = iter(resumed)
        next(batches)
        state = resumed.state_dict()
        assert (state["step"], state["ahead"]) == (4, [])
        assert len(list(batches)) == 12
        assert "ahead" not in resumed.state_dict()
    with ps.Loader(dataset) as alone, pytest.raises(StateError, match=r"on rank 0 of 2; got"):
        alone.load_state_dict(state)


def test_an_epoch_that_is_left_early_is_over() -> None:
    """The next one is whole, and numbers its batches after all that were handed out."""
    gate = Gate(0)
    with loader_of(ps.range(40).map(gate).batch(2), num_workers=2) as loader:
        batches = iter(loader)
        early = max(steps_of([next(batches)])[0] for _ in range(3))
        gate.open()
        seen: list[int] = []
        numbers: list[int] = []
        for batch in loader:
            seen += steps_of([batch])
            numbers.append(loader.step)
            assert loader.epoch == 1
            assert digest(loader.batch_at(loader.step)) == digest(batch)
        assert sorted(seen) == list(range(20))
        assert sorted(numbers) == list(range(early + 1, early + 21))


@pytest.mark.parametrize("kind", [False, True])
def test_ranks_go_on_from_their_own_states(kind: bool) -> None:  # noqa: FBT001 - a case
    """Each finds its own among all; no other's will do, nor other batches."""
    dataset = ps.range(64).map(slow).batch(4)
    found: list[int] = []
    states: list[Any] = []
    for rank in range(2):
        with loader_of(dataset, num_workers=3, shard=ps.Shard(rank, 2)) as loader:
            batches = iter(loader)
            found += [int(row) for _ in range(5) for row in next(batches)]
            states.append(loader.state_dict())
    for rank in range(2):
        with loader_of(dataset, num_workers=2, shard=ps.Shard(rank, 2), ordered=kind) as loader:
            loader.load_state_dict(states)
            found += [int(row) for batch in loader for row in batch]
    assert sorted(found) == list(range(64))
    for other, shard in ((dataset, ps.Shard(1, 2)), (dataset, None), (ps.range(64).map(slow).batch(8), ps.Shard(0, 2))):
        loader = loader_of(other, shard=shard)
        with pytest.raises(StateError, match=r"same batches, of 4 rows, on rank 0 of 2; got"):
            loader.load_state_dict(states[0])


def fails_at_four(number: int) -> int:
    """Fail at one number."""
    if number == 4:
        raise ValueError("damaged")
    return number


def test_an_error_says_which_step_it_is() -> None:
    """It comes again until it is passed by; `seek` gives all from a step on."""
    with loader_of(ps.range(20).map(fails_at_four).batch(2), num_workers=2) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(ValueError, match="damaged") as caught:
                list(batches)
            assert "while making the batch of step 2: epoch 0, from position 4 on" in caught.value.__notes__
        loader.seek(3)
        assert "ahead" not in loader.state_dict()
        assert sorted(steps_of(loader)) == list(range(3, 10))


@LINUX
def test_a_deadly_batch_is_told_of_alone() -> None:
    """Its step is in the error; after those that came, the others can be had."""
    arguments: dict[str, Any] = {
        "num_workers": 2,
        "workers": "processes",
        "limits": ps.Limits(worker_init=mark_process),
    }
    with loader_of(ps.range(400).map(kills_itself).batch(2), **arguments) as loader:
        found: list[int] = []
        with pytest.raises(WorkerError, match="crashes workers") as caught:
            found.extend(steps_of([batch])[0] for batch in loader)
        assert any("while making the batch of step 18:" in note for note in caught.value.__notes__)
        state = loader.state_dict()
    with loader_of(ps.range(400).batch(2), num_workers=0) as resumed:
        resumed.load_state_dict({**state, "fingerprint": resumed.state_dict()["fingerprint"]})
        found += steps_of(resumed)
    assert sorted(found) == list(range(200))


@given(ordered(), st.integers(0, 3))
@settings(max_examples=EXAMPLES // 3)
def test_what_is_read_in_order_comes_in_order(dataset: ps.Dataset, workers: int) -> None:
    """There is nothing to gain."""
    with loader_of(dataset, num_workers=workers) as loader:
        assert outcomes(loader) == outcomes(epoch_of(dataset, 0))


def test_without_workers_batches_come_in_order() -> None:
    """And the state is one of any loader."""
    with loader_of(ps.range(40).batch(2), num_workers=0, shard=ps.Shard(0, 2)) as loader:
        batches = iter(loader)
        next(batches)
        assert "ahead" not in loader.state_dict()
        assert [int(batch[0]) // 2 for batch in batches] == list(range(1, 20))


def test_async_for_takes_what_is_ready() -> None:
    """It waits for any batch."""
    gate = Gate(0)

    async def load() -> list[int]:
        found: list[int] = []
        with loader_of(ps.range(40).map(gate).batch(2), num_workers=2) as loader:
            async for batch in loader:
                found += steps_of([batch])
                if len(found) == 8:
                    gate.open()
        return found

    found = asyncio.run(load())
    assert 0 not in found[:8]
    assert sorted(found) == list(range(20))


@pytest.mark.parametrize("ahead", [[[0, 2]], [[2, 2]], [[1, 3], [3, 5]], [[4, 6], [1, 2]], [[1, "2"]], [[1, 90]], 7])
def test_damaged_states_are_refused(ahead: Any) -> None:
    """Spans follow each other, with gaps between, inside the epoch."""
    loader = loader_of(ps.range(40).batch(2))
    state = {**loader.state_dict(), "ahead": ahead, "rank": 0}
    with pytest.raises(StateError):
        loader.load_state_dict(state)
