"""Batches that are delivered as they become ready: each of an epoch exactly once, from any state."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import StateError, WorkerError
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.loader.gates import Gate
from tests.loader.isolated.parts import Door
from tests.loader.sent_functions import fails_at_four
from tests.places import LINUX, in_places
from tests.profiles import IS_LONG, in_short
from tests.workers.processes.functions import kills_itself, slow
from tests.workers.processes.killing import kill_a_worker

EXAMPLES = settings().max_examples


def loader_of(dataset: Any, **arguments: Any) -> "ps.Loader[Any]":
    """Return a loader that delivers batches as they become ready, by default from threads."""
    options: dict[str, Any] = {"ordered": False, "workers": "threads", **arguments}
    return ps.Loader(dataset, **options)


def counted(batches: Any) -> list[str]:
    """Return batches in an order that doesn't depend on their order."""
    return sorted(repr(digest(batch)) for batch in batches)


def steps_of(batches: Any) -> list[int]:
    """Return the steps of batches of two numbers."""
    return [int(batch[0]) // 2 for batch in batches]


@in_short(10)
@given(batched() | indexable(), st.integers(1, 3), st.lists(st.integers(0, 6), max_size=3), st.data())
def test_no_batch_is_lost_or_repeated(dataset: ps.Dataset, workers: int, stops: list[int], data: st.DataObject) -> None:
    """Ordered and unordered loaders that resume each other's states deliver the definition's batches together."""
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
@pytest.mark.parametrize(
    "place",
    [
        pytest.param({"workers": "processes"}, id="processes"),
        pytest.param({"isolated": True}, id="isolated"),
        # isolated/test_large.py kills such processes in the short profile
        pytest.param({"isolated": True, "workers": "processes"}, id="isolated processes", marks=pytest.mark.long),
    ],
)
@settings(max_examples=EXAMPLES // 15 if IS_LONG else 1)
@example(dataset=ps.range(60).map(slow).batch(2), kills={2, 5})  # a drawn dataset may have no batch
@given(dataset=batched() | indexable(), kills=st.sets(st.integers(0, 8), min_size=1, max_size=2))
def test_killed_processes_lose_no_batch(dataset: ps.Dataset, kills: set[int], place: dict[str, Any]) -> None:
    """Every epoch has the definition's batches, whichever processes are killed."""
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
                assert digest(loader.batch_at(loader.step)) == digest(batch)
            assert counted(found) == sorted(map(repr, expected))


@pytest.fixture
def door(tmp_path: Path) -> Door:
    """Return a function that waits at number 0, in any process, until the test opens it."""
    os.mkfifo(tmp_path / "door")
    return Door(str(tmp_path / "door"))


@in_places("out of order", "isolated, out of order")
def test_a_slow_batch_delays_no_other(place: dict[str, Any], door: Door) -> None:
    """Later batches are delivered first, also after a load of a state with gaps; the slow one comes when ready."""
    found: list[int] = []
    state: Any = None
    for count in (50, 70, 79):
        with ps.Loader(ps.range(400).map(door).batch(2), **place) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            found += steps_of(next(batches) for _ in range(count))
            assert loader.step == found[-1]
            state = loader.state_dict()
            assert state["step"] == 0
            assert {step for start, stop in state["ahead"] for step in range(start, stop)} == set(found)
            assert len(json.dumps(state)) < 1000
            door.open()
            late = steps_of(batches)
            assert sorted(found + late) == list(range(200))
            assert loader.state_dict()["epoch"] == 1
            assert "ahead" not in loader.state_dict()


def test_states_of_the_last_steps_are_known() -> None:
    """The loader returns the states of recent steps, as if fewer batches had been delivered."""
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


def test_batches_that_came_early_count_as_seen() -> None:
    """The schedule of a mixture may change behind all delivered batches, and not before one of them."""
    gate = Gate(0)

    def mix(*changes: int) -> "ps.Dataset[Any]":
        schedule = {0: [1, 1], **{change: [1, 0] for change in changes}}
        return ps.mix([ps.range(200), ps.range(200, 400)], schedule).map(gate).batch(2)

    with loader_of(mix(), num_workers=2) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        gate.open()
    end = 2 * state["ahead"][-1][1]
    ps.Loader(mix(end)).load_state_dict(state)
    with pytest.raises(StateError, match="another order"):
        ps.Loader(mix(end - 1)).load_state_dict(state)


def test_ranks_differ_until_an_epochs_end() -> None:
    """A rank that resumes in order keeps `ahead` in its state until the epoch ends: other ranks may be elsewhere."""
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


def test_an_abandoned_epoch_is_over() -> None:
    """The next epoch is whole, its steps follow all delivered steps, and states of earlier steps are forgotten."""
    gate = Gate(0)
    with loader_of(ps.range(40).map(gate).batch(2), num_workers=2) as loader:
        batches = iter(loader)
        last = max(steps_of([next(batches)])[0] for _ in range(3))
        gate.open()
        seen: list[int] = []
        numbers: list[int] = []
        for batch in loader:
            if not seen:
                assert loader.state_dict(step=last + 1)["epoch"] == 1
                with pytest.raises(StateError, match=f"known: {last + 1} to {last + 2}; got step={last}"):
                    loader.state_dict(step=last)
            seen += steps_of([batch])
            numbers.append(loader.step)
            assert loader.epoch == 1
            assert digest(loader.batch_at(loader.step)) == digest(batch)
        assert sorted(seen) == list(range(20))
        assert sorted(numbers) == list(range(last + 1, last + 21))


def test_ranks_resume_from_their_own_states() -> None:
    """Each rank finds its own state in the list; another rank's state, or another batch size, is refused."""
    dataset = ps.range(64).map(slow).batch(4)
    found: list[int] = []
    states: list[Any] = []
    for rank in range(2):
        with loader_of(dataset, num_workers=3, shard=ps.Shard(rank, 2)) as loader:
            batches = iter(loader)
            found += [int(row) for _ in range(5) for row in next(batches)]
            states.append(loader.state_dict())
    for rank in range(2):
        with loader_of(dataset, num_workers=2, shard=ps.Shard(rank, 2), ordered=rank == 0) as loader:
            loader.load_state_dict(states)
            found += [int(row) for batch in loader for row in batch]
    assert sorted(found) == list(range(64))
    for other, shard in ((dataset, ps.Shard(1, 2)), (dataset, None), (ps.range(64).map(slow).batch(8), ps.Shard(0, 2))):
        loader = loader_of(other, shard=shard)
        with pytest.raises(StateError, match=r"same batches, of 4 rows, on rank 0 of 2; got"):
            loader.load_state_dict(states[0])


def test_a_rank_at_an_epochs_begin_finds_its_own_state() -> None:
    """A state of an epoch's begin has no rank: the only one in the list is of the rank without a state, or refused."""
    dataset = ps.range(48).map(slow).batch(6)
    states: list[dict[str, Any]] = []
    for rank in range(3):
        with loader_of(dataset, num_workers=2, shard=ps.Shard(rank, 3)) as loader:
            batches = iter(loader)
            begun = loader.state_dict()
            for _ in range(3):
                next(batches)
            within = loader.state_dict()
            assert len(list(batches)) == 5
            states.append({"begun": begun, "within": within, "ended": loader.state_dict()})

    def resumed(rank: int, *kept: str) -> int:
        with loader_of(dataset, shard=ps.Shard(rank, 3)) as loader:
            loader.load_state_dict([states[number][kind] for number, kind in enumerate(kept)])
            return loader.steps_done

    assert [resumed(rank, "within", "ended", "within") for rank in range(3)] == [3, 8, 3]
    assert resumed(1, "begun", "within", "ended") == 3
    for rank in (0, 2):
        with pytest.raises(StateError, match=r"have no rank, and these are of steps \[0, 8\]. Load this rank's own"):
            resumed(rank, "begun", "within", "ended")


@in_places("out of order", "isolated, out of order")
def test_an_error_names_its_step(place: dict[str, Any]) -> None:
    """The error comes at every call until `seek` passes its step."""
    with ps.Loader(ps.range(20).map(fails_at_four).batch(2), **place) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(ValueError, match="damaged") as caught:
                list(batches)
            assert "while making the batch of step 2: epoch 0, from position 4 on" in caught.value.__notes__
        loader.seek(3)
        assert "ahead" not in loader.state_dict()
        assert sorted(steps_of(loader)) == list(range(3, 10))


@LINUX
@pytest.mark.parametrize("options", [{"workers": "processes"}, {"isolated": True}], ids=["processes", "isolated"])
def test_the_error_of_a_crashing_row_names_its_step(options: dict[str, Any]) -> None:
    """The other batches are delivered before the error, which a few restarts per step show, or from the state after."""
    with loader_of(ps.range(30, 230).map(kills_itself).batch(2), num_workers=2, **options) as loader:
        found: list[int] = []
        with pytest.raises(WorkerError, match="crashes workers") as caught:
            found.extend(steps_of([batch])[0] for batch in loader)
        assert any("while making the batch of step 3:" in note for note in caught.value.__notes__)
        state = loader.state_dict()
        # In isolation two for each step before it, and those of the worker process that crashes in the helper's place.
        assert loader.stats()["worker_restarts"] <= (2 * 3 + 2 if "isolated" in options else 0) + 3
    with loader_of(ps.range(30, 230).batch(2), num_workers=0) as resumed:
        resumed.load_state_dict({**state, "fingerprint": resumed.state_dict()["fingerprint"]})
        found += steps_of(resumed)
    assert sorted(found) == list(range(15, 115))  # of numbers from 30 on


@given(ordered(), st.integers(0, 3))
@settings(max_examples=EXAMPLES // 3)
def test_a_streaming_dataset_is_delivered_in_order(dataset: ps.Dataset, workers: int) -> None:
    """`ordered=False` changes nothing where a dataset is read in order."""
    with loader_of(dataset, num_workers=workers) as loader:
        assert outcomes(loader) == outcomes(epoch_of(dataset, 0))


def test_async_for_takes_any_ready_batch() -> None:
    """`async for` takes later batches while a slow one is computed."""
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


def test_damaged_states_are_refused() -> None:
    """A state is refused unless its spans of early steps follow each other, with gaps, inside the epoch."""
    loader = loader_of(ps.range(40).batch(2))
    damaged: list[Any] = [[[0, 2]], [[2, 2]], [[1, 3], [3, 5]], [[4, 6], [1, 2]], [[1, "2"]], [[1, 90]], 7]
    for ahead in damaged:
        with pytest.raises(StateError):
            loader.load_state_dict({**loader.state_dict(), "ahead": ahead, "rank": 0})
