"""Loaders with shared workers deliver the batches that each delivers alone."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import UsageError
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.loader.sent_functions import by_one, by_true
from tests.loader.sharing.parts import (
    IN_ORDER,
    KINDS,
    MERGED,
    TRAINING,
    VALIDATION,
    listed,
    pair,
    plain,
)

DATASETS = [TRAINING, VALIDATION, IN_ORDER, MERGED]


def taken_in_turns(loaders: list[ps.Loader], turns: list[int]) -> list[tuple[int, Any, Any]]:
    """Take batches from loaders in turns, over epochs; return each with the state after it."""
    iterators: dict[int, Any] = {}
    found: list[tuple[int, Any, Any]] = []
    for turn in turns:
        if turn not in iterators:
            iterators[turn] = iter(loaders[turn])
        batch = next(iterators[turn], None)
        if batch is None:
            del iterators[turn]
        found.append((turn, plain(batch), loaders[turn].state_dict()))
    return found


@settings(max_examples=12)
@given(
    st.sampled_from(DATASETS),
    st.sampled_from(DATASETS),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.integers(0, 1), max_size=60),
)
def test_threads_serve_loaders_in_any_turns(
    first: ps.Dataset, second: ps.Dataset, workers: int, prefetch: int, turns: list[int]
) -> None:
    """Over shared threads, each loader has the batches and states that it has inline."""
    expected = taken_in_turns([ps.Loader(first), ps.Loader(second)], turns)
    with pair("threads", first, second, workers, prefetch=prefetch) as loaders:
        assert taken_in_turns([*loaders], turns) == expected


@pytest.mark.parametrize(("first", "second"), [(TRAINING, IN_ORDER), (VALIDATION, MERGED), (TRAINING, VALIDATION)])
def test_processes_serve_loaders_in_turns(first: ps.Dataset, second: ps.Dataset) -> None:
    """Over shared processes, which receive both datasets, each loader has its batches and states."""
    turns = [0, 1, 1, 0, 0, 0, 1] * 8
    expected = taken_in_turns([ps.Loader(first), ps.Loader(second)], turns)
    with pair("processes", first, second) as loaders:
        assert taken_in_turns([*loaders], turns) == expected


@KINDS
def test_equal_keys_keep_their_types(kind: str) -> None:
    """The keys 1 and True are equal, and each loader's batches keep their own."""
    numbers = ps.range(40)
    with pair(kind, numbers.map(by_one).batch(4), numbers.map(by_true).batch(4)) as (owner, other):
        for _ in range(2):
            found = [[type(key).__name__ for batch in both for key in batch] for both in zip(owner, other, strict=True)]
            assert found == [["int", "bool"]] * 10


@KINDS
def test_workers_are_shared_along_a_chain(kind: str) -> None:
    """A loader that shares the workers of a sharing loader uses the owner's."""
    with pair(kind, TRAINING, VALIDATION) as (owner, other), ps.Loader(IN_ORDER, workers=other) as third:
        assert f"2 {kind} (another loader's)" in repr(other)
        found = [[plain(batch) for batch in batches] for batches in zip(owner, other, third, strict=False)]
        other.close()
        assert found == [
            [*batches]
            for batches in zip(*(listed(ps.Loader(each)) for each in (TRAINING, VALIDATION, IN_ORDER)), strict=False)
        ]
        assert listed(third) == listed(ps.Loader(IN_ORDER))


def test_an_inline_owner_has_inline_sharers() -> None:
    """One argument of the owner switches both loaders to the caller's thread."""
    with ps.Loader(TRAINING) as owner, ps.Loader(VALIDATION, workers=owner) as other:
        assert listed(other) == listed(ps.Loader(VALIDATION))
        assert "inline, rank" in repr(other)


@KINDS
def test_the_other_may_be_unordered(kind: str) -> None:
    """The other loader may deliver its batches as they become ready."""
    with pair(kind, TRAINING, VALIDATION, ordered=False) as (owner, other):
        next(iter(owner))
        assert sorted(listed(other)) == listed(ps.Loader(VALIDATION))


@pytest.mark.parametrize("second", [VALIDATION, IN_ORDER])
def test_two_tasks_wait_for_shared_workers(second: ps.Dataset) -> None:
    """Tasks of one event loop that wait for both loaders are both woken, whichever batch is ready first."""

    async def read(loader: ps.Loader) -> list[Any]:
        return [plain(batch) async for batch in loader]

    async def main(loaders: tuple[ps.Loader, ...]) -> list[list[Any]]:
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            reading = [group.create_task(read(loader)) for loader in loaders]
        return [task.result() for task in reading]

    expected = [listed(ps.Loader(IN_ORDER)), listed(ps.Loader(second))]
    with pair("threads", IN_ORDER, second, 3) as loaders:
        for _ in range(10):
            assert asyncio.run(main(loaders)) == expected


def test_a_loader_far_ahead_leaves_room() -> None:
    """A loader that computes far ahead leaves slots for the other's jobs."""
    gate = Gate(0)
    first = ps.range(4_000).map(gate).batch(1)
    with (
        ps.Loader(first, num_workers=2, workers="threads", prefetch=2_000) as owner,
        ps.Loader(VALIDATION, workers=owner) as other,
    ):
        batches = iter(owner)
        gate.wait_entered()
        assert listed(other) == listed(ps.Loader(VALIDATION))
        gate.open()
        assert [int(batch[0]) for batch in batches] == [*range(4_000)]


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"num_workers": 3}, ["takes the workers of that loader (2 threads)", "got num_workers=3"]),
    ({"num_workers": "auto"}, ["got num_workers='auto'", "Leave num_workers out"]),
    ({"isolated": True}, ["this loader has isolated=True"]),
    ({"limits": ps.Limits(worker_init=print, timeout=3)}, ["got worker_init, timeout"]),
    ({"limits": ps.Limits(worker_threads=2)}, ["got worker_threads beside it", "Give them to that loader"]),
]


def test_options_of_the_owner_are_refused() -> None:
    """An option that only the owner may have is refused with its value and the remedy; others are the loader's own."""
    with ps.Loader(TRAINING, num_workers=2, workers="threads") as owner:
        for options, words in REFUSED:
            with pytest.raises(UsageError) as raised:
                ps.Loader(VALIDATION, workers=owner, **options)
            assert [word for word in words if word not in str(raised.value)] == []
        with ps.Loader(MERGED, workers=owner, limits=ps.Limits(num_batch_workers=1, read_ahead=3)) as other:
            assert listed(other) == listed(ps.Loader(MERGED))
    with ps.Loader(TRAINING, isolated=True) as owner, pytest.raises(UsageError, match="that loader has isolated=True"):
        ps.Loader(VALIDATION, workers=owner)


def test_too_many_sharers_are_refused() -> None:
    """A loader beyond the number of slots is refused when it is read, and the others continue."""
    with ps.Loader(VALIDATION, num_workers=2, workers="threads") as owner:
        others = [ps.Loader(VALIDATION.take(1), workers=owner) for _ in range(7)]
        assert len(listed(owner)) == len(VALIDATION)
        for other in others[:-1]:
            assert len(listed(other)) == 1
        with pytest.raises(UsageError, match="2 workers compute for at most 7 loaders"):
            iter(others[-1])
        others[0].close()
        assert len(listed(others[-1])) == 1
