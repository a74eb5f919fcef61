"""Batches that are placed ahead, as the loaders for frameworks do it: only what is handed out counts."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._loader._placed import PlacedLoader
from penstock.errors import ClosedError
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.loader.gates import Gate

EXPECTED = [[number, number + 1] for number in range(0, 12, 2)]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Placing(PlacedLoader):
    """Hands out the batches as they are, and says which were placed and handed over."""

    def __init__(self, dataset: Any, ahead: int, **arguments: Any) -> None:
        super().__init__(dataset, **arguments)
        self._ahead = ahead
        self.placed: list[Any] = []
        self.handed_over: list[Any] = []
        self.fails: Callable[[str, Any], None] | None = None

    def _place(self, batch: Any) -> Callable[[], Any]:
        self._may_fail("placing", batch)
        self.placed.append(batch)

        def hand_over() -> Any:
            self._may_fail("handing over", batch)
            self.handed_over.append(batch)
            return batch

        return hand_over

    def _may_fail(self, doing: str, batch: Any) -> None:
        if self.fails is not None:
            self.fails(doing, batch)


class FailsOnce:
    """Raises an error the first time that a batch is placed or handed over."""

    def __init__(self, doing: str, first: int, error: BaseException) -> None:
        self.left = [(doing, first)]
        self.error = error

    def __call__(self, doing: str, batch: Any) -> None:
        """Raise it, if this is the time."""
        if (doing, int(batch[0])) in self.left:
            self.left.clear()
            raise self.error


def numbers() -> ps.Dataset:
    """Return six batches of two numbers."""
    return ps.range(12).batch(2)


def counted(batches: Any) -> list[str]:
    """Return batches in an order that doesn't depend on theirs."""
    return sorted(repr(digest(batch)) for batch in batches)


@given(
    dataset=batched() | indexable() | ordered(),
    ahead=st.integers(0, 3),
    workers=st.integers(0, 2),
    in_order=st.booleans(),
    stops=st.lists(st.integers(1, 6), max_size=3),
)
def test_nothing_is_lost_or_repeated(
    dataset: ps.Dataset, ahead: int, workers: int, stops: list[int], *, in_order: bool
) -> None:
    """Left at any points and gone on from by another loader, an epoch has the definition's batches."""
    expected = outcomes(epoch_of(dataset, 0))
    if raised(expected) or not expected:
        return
    found: list[Any] = []
    state: Any = None
    for stop in (*stops, 0):
        with Placing(dataset, ahead, num_workers=workers, workers="threads", ordered=in_order) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state))
                if loader.epoch:
                    break
            for batch in loader:
                found.append(batch)
                assert digest(loader.batch_at(loader.step)) == digest(batch)
                if (stop := stop - 1) == 0:
                    break
            state = json.dumps(loader.state_dict())
    if in_order:
        assert outcomes(found) == expected
    assert counted(found) == sorted(map(repr, expected))


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_only_what_is_handed_out_counts(ahead: int) -> None:
    """So many batches are placed ahead, and the state, the step and the counters know nothing of them."""
    loader = Placing(numbers(), ahead)
    for step, batch in enumerate(loader):
        assert batch.tolist() == EXPECTED[step]
        assert len(loader.placed) == min(step + 1 + ahead, 6)
        assert len(loader.handed_over) == step + 1
        assert (loader.step, loader.stats()["batches"]) == (step, step + 1)
        assert loader.state_dict() == ps.Loader(numbers()).state_dict(step=step + 1)
    assert [batch.tolist() for batch in loader] == EXPECTED
    assert loader.epoch == 1


@WORKERS
@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_comes_after_the_batches_before_it(workers: int, *, in_order: bool) -> None:
    """What a function raises comes when its batch is asked for, as often as it is; `seek` goes past it."""

    def divide(number: int) -> int:
        return number // (number - 7) * 0 + number

    dataset = ps.range(12).map(divide).batch(2)
    with Placing(dataset, 2, num_workers=workers, workers="threads", ordered=in_order) as loader:
        found: list[Any] = []
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as caught:
                found.extend(batch.tolist() for batch in iterator)
            assert any("step 3:" in note for note in caught.value.__notes__)
        state = loader.state_dict()
        if in_order or not workers:
            assert (found, state["step"]) == (EXPECTED[:3], 3)
        loader.seek(4)
        assert [batch.tolist() for batch in loader] == EXPECTED[4:]


@WORKERS
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("doing", ["placing", "handing over"])
def test_what_cannot_be_placed_is_tried_again(workers: int, doing: str, *, in_order: bool) -> None:
    """An error of the placing names its step and loses no batch, and the state stands before it."""
    with Placing(numbers(), 2, num_workers=workers, workers="threads", ordered=in_order) as loader:
        loader.fails = FailsOnce(doing, 4, MemoryError("of the device"))
        found: list[Any] = []
        iterator = iter(loader)
        with pytest.raises(MemoryError) as caught:
            found.extend(batch.tolist() for batch in iterator)
        assert any("step 2:" in note for note in caught.value.__notes__)
        assert [4, 5] not in found
        resumed = ps.Loader(numbers())
        resumed.load_state_dict(loader.state_dict())
        rest = [batch.tolist() for batch in resumed]
        assert sorted(found + rest) == EXPECTED
        assert sorted(found + [batch.tolist() for batch in iterator]) == EXPECTED


@WORKERS
@pytest.mark.parametrize("doing", ["placing", "handing over"])
def test_an_interrupt_loses_nothing(workers: int, doing: str) -> None:
    """After Ctrl-C anywhere in the placing, the iterator goes on with what was not handed out."""
    with Placing(numbers(), 2, num_workers=workers, workers="threads") as loader:
        loader.fails = FailsOnce(doing, 6, KeyboardInterrupt())
        found: list[Any] = []
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            found.extend(batch.tolist() for batch in iterator)
        assert found + [batch.tolist() for batch in iterator] == EXPECTED


def test_what_is_not_ready_is_not_waited_for() -> None:
    """A batch is handed out though the next one, to be placed ahead, is still being made."""
    gate = Gate(2)
    with Placing(ps.range(12).map(gate).batch(2), 1, num_workers=1, workers="threads") as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        gate.wait_entered()
        assert len(loader.placed) == 1
        gate.open()
        assert [batch.tolist() for batch in iterator] == EXPECTED[1:]


@WORKERS
def test_async_iteration(workers: int) -> None:
    """`async for` gives the same batches."""

    async def collected(loader: Placing) -> list[Any]:
        return [batch.tolist() async for batch in loader]

    with Placing(numbers(), 2, num_workers=workers, workers="threads") as loader:
        assert asyncio.run(collected(loader)) == EXPECTED


def test_closing_drops_what_was_placed() -> None:
    """After closing there is no batch left, and the iterator says why."""
    loader = Placing(numbers(), 2)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(ClosedError, match="the loader was closed"):
        next(iterator)
