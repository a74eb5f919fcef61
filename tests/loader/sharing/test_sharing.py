"""Two loaders share one set of workers; each gives what it would give alone."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import UsageError
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.loader.sharing.parts import (
    IN_ORDER,
    KINDS,
    MERGED,
    TRAINING,
    VALIDATION,
    by_one,
    by_true,
    listed,
    pair,
    plain,
)

DATASETS = [TRAINING, VALIDATION, IN_ORDER, MERGED]


def taken_in_turns(loaders: list[ps.Loader], turns: list[int]) -> list[tuple[int, Any, Any]]:
    """Take batches from loaders in given turns, anew where an epoch ends; return each with the state after it."""
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
def test_turns_of_threads(first: ps.Dataset, second: ps.Dataset, workers: int, prefetch: int, turns: list[int]) -> None:
    """However the two take turns, each has the batches and states that it has without workers."""
    expected = taken_in_turns([ps.Loader(first), ps.Loader(second)], turns)
    with pair("threads", first, second, workers, prefetch=prefetch) as loaders:
        assert taken_in_turns([*loaders], turns) == expected


@pytest.mark.parametrize(("first", "second"), [*itertools.product(DATASETS[:2], DATASETS[1:])])
def test_turns_of_processes(first: ps.Dataset, second: ps.Dataset) -> None:
    """So it is with processes, which are sent both datasets."""
    turns = [0, 1, 1, 0, 0, 0, 1] * 8
    expected = taken_in_turns([ps.Loader(first), ps.Loader(second)], turns)
    with pair("processes", first, second) as loaders:
        assert taken_in_turns([*loaders], turns) == expected


@KINDS
def test_zip(kind: str) -> None:
    """Both are gone through together, and again."""
    expected = list(zip(listed(ps.Loader(VALIDATION)), listed(ps.Loader(VALIDATION)), strict=True))
    with pair(kind, VALIDATION, VALIDATION) as (owner, other):
        for _ in range(2):
            assert [(plain(one), plain(two)) for one, two in zip(owner, other, strict=True)] == expected


@KINDS
def test_equal_keys_of_other_types(kind: str) -> None:
    """The keys 1 and True are equal; the batches of each loader keep their own."""
    numbers = ps.range(40)
    with pair(kind, numbers.map(by_one).batch(4), numbers.map(by_true).batch(4)) as (owner, other):
        for _ in range(2):
            found = [[type(key).__name__ for batch in both for key in batch] for both in zip(owner, other, strict=True)]
            assert found == [["int", "bool"]] * 10


@KINDS
def test_the_other_may_come_first(kind: str) -> None:
    """The workers are started by whoever needs them first."""
    with pair(kind, TRAINING, VALIDATION) as (owner, other):
        assert listed(other) == listed(ps.Loader(VALIDATION))
        assert listed(owner) == listed(ps.Loader(TRAINING))


@KINDS
def test_a_chain(kind: str) -> None:
    """A loader that takes the workers of one that has none of its own takes the same."""
    with pair(kind, TRAINING, VALIDATION) as (owner, other), ps.Loader(IN_ORDER, workers=other) as third:
        found = [[plain(batch) for batch in batches] for batches in zip(owner, other, third, strict=False)]
        other.close()
        assert found == [
            [*batches]
            for batches in zip(*(listed(ps.Loader(each)) for each in (TRAINING, VALIDATION, IN_ORDER)), strict=False)
        ]
        assert listed(third) == listed(ps.Loader(IN_ORDER))


def test_no_workers_of_a_loader_without() -> None:
    """Where the owner computes in the caller's thread, so does the other; so one argument switches both."""
    with ps.Loader(TRAINING) as owner, ps.Loader(VALIDATION, workers=owner) as other:
        assert listed(other) == listed(ps.Loader(VALIDATION))
        assert "inline, rank" in repr(other)


@KINDS
def test_it_says_whose_they_are(kind: str) -> None:
    """The loader tells that its workers are another's."""
    with pair(kind, TRAINING, VALIDATION) as (_, other):
        assert f"2 {kind} (another loader's)" in repr(other)


@KINDS
def test_a_state_goes_on_with_other_workers(kind: str) -> None:
    """A state that was saved over shared workers is like any other."""
    with pair(kind, VALIDATION, TRAINING) as (owner, other):
        batches, _ = iter(other), next(iter(owner))
        next(batches)
        state = other.state_dict()
        rest = listed(batches)
    with ps.Loader(TRAINING) as alone:
        alone.load_state_dict(state)
        assert listed(alone) == rest


@KINDS
def test_batches_as_they_become_ready(kind: str) -> None:
    """The other may take its batches as they become ready."""
    with pair(kind, TRAINING, VALIDATION, ordered=False) as (owner, other):
        next(iter(owner))
        assert sorted(listed(other)) == listed(ps.Loader(VALIDATION))


@pytest.mark.parametrize("second", [VALIDATION, IN_ORDER])
def test_two_tasks_wait_at_once(second: ps.Dataset) -> None:
    """Tasks of one event loop that wait for both loaders are both woken, in whatever order batches become ready."""

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


def test_one_that_computes_far_ahead_leaves_room() -> None:
    """However much one computes ahead, there is room for the other's jobs."""
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


def refused(*words: str, owner: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a case: options of the owner, and of the other, and what is said of them."""
    return pytest.param(owner or {"num_workers": 2, "workers": "threads"}, options, words)


@pytest.mark.parametrize(
    ("owner_options", "options", "words"),
    [
        refused("takes the workers of that loader (2 threads)", "got num_workers=3", num_workers=3),
        refused("got num_workers='auto'", "Leave num_workers out", num_workers="auto"),
        refused("this loader has isolated=True", isolated=True),
        refused("that loader has isolated=True", owner={"isolated": True}),
        refused("got worker_init, timeout", limits=ps.Limits(worker_init=print, timeout=3)),
        refused("got worker_threads beside it", "Give them to that loader", limits=ps.Limits(worker_threads=2)),
    ],
)
def test_messages(owner_options: dict[str, Any], options: dict[str, Any], words: tuple[str, ...]) -> None:
    """What only the owner may say is refused, with the value and the remedy."""
    with ps.Loader(TRAINING, **owner_options) as owner:
        with pytest.raises(UsageError) as raised:
            ps.Loader(VALIDATION, workers=owner, **options)
        assert all(word in str(raised.value) for word in words)


def test_bounds_of_its_own() -> None:
    """How much is merged and read at once may be said for each."""
    limits = ps.Limits(num_batch_workers=1, read_ahead=3)
    with pair("threads", MERGED, MERGED, limits=limits) as (owner, other):
        assert listed(owner) == listed(other)


def test_too_many() -> None:
    """More loaders than there are slots for is an error when the first that is too many is read; others go on."""
    with ps.Loader(VALIDATION, num_workers=2, workers="threads") as owner:
        others = [ps.Loader(VALIDATION.take(1), workers=owner) for _ in range(7)]
        assert len(listed(owner)) == len(VALIDATION)
        for other in others[:-1]:
            assert len(listed(other)) == 1
        with pytest.raises(UsageError, match="2 workers compute for at most 7 loaders"):
            iter(others[-1])
        others[0].close()
        assert len(listed(others[-1])) == 1
