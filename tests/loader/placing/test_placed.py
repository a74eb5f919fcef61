"""Loaders that place batches ahead, in the consumer's thread or in another: only delivered batches count."""

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ClosedError
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.loader.placing.loaders import PlacedByThread, PlacedLoader
from tests.loader.sent_functions import divide, large
from tests.places import PLACES, in_places, place_of
from tests.profiles import in_short

EXPECTED = [[number, number + 1] for number in range(0, 40, 2)]


class Placing(PlacedLoader):
    """Delivers batches unchanged, and records which were placed and handed over."""

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


BY_THREAD = ("threads", "processes", "isolated", "isolated threads")
EVERY_LOADER = pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(place_of(name, Placing) for name in ("inline", "threads", "out of order")),
        *(place_of(name, PlacedByThread) for name in BY_THREAD),
    ],
)


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
    """Return twenty batches of two numbers."""
    return ps.range(40).batch(2)


def counted(batches: Any) -> list[str]:
    """Return batches in an order that doesn't depend on their order."""
    return sorted(repr(digest(batch)) for batch in batches)


@pytest.mark.parametrize("kind", [Placing, PlacedByThread])
@in_short(10)
@given(
    dataset=batched() | indexable() | ordered(),
    ahead=st.integers(0, 3),
    workers=st.integers(0, 2),
    in_order=st.booleans(),
    stops=st.lists(st.integers(1, 6), max_size=3),
)
def test_no_batch_is_lost_or_repeated(
    kind: Any, dataset: ps.Dataset, ahead: int, workers: int, stops: list[int], *, in_order: bool
) -> None:
    """Loaders that resume each other's states, saved after any batches, deliver an epoch's batches."""
    expected = outcomes(epoch_of(dataset, 0))
    if raised(expected) or not expected:
        return
    ahead = max(ahead, kind is PlacedByThread)
    found: list[Any] = []
    state: Any = None
    for stop in (*stops, 0):
        with kind(dataset, ahead, num_workers=workers, workers="threads", ordered=in_order) as loader:
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


@pytest.mark.parametrize("ahead", [0, 3])
def test_only_delivered_batches_count(ahead: int) -> None:
    """Batches are placed ahead; the state, the step and the counters are those of delivered batches."""
    loader = Placing(numbers(), ahead)
    for step, batch in enumerate(loader):
        assert batch.tolist() == EXPECTED[step]
        assert len(loader.placed) == min(step + 1 + ahead, 20)
        assert len(loader.handed_over) == step + 1
        assert (loader.step, loader.stats()["batches"]) == (step, step + 1)
        assert loader.state_dict() == ps.Loader(numbers()).state_dict(step=step + 1)
    assert [batch.tolist() for batch in loader] == EXPECTED
    assert loader.epoch == 1


@EVERY_LOADER
def test_an_error_comes_after_the_batches_before_it(kind: Any, place: dict[str, Any]) -> None:
    """An exception of a function is raised whenever its batch is requested; `seek` moves past it."""
    with kind(ps.range(40).map(divide).batch(2), 2, **place) as loader:
        found: list[Any] = []
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as caught:
                found.extend(batch.tolist() for batch in iterator)
            assert any("step 3:" in note for note in caught.value.__notes__)
        if place.get("ordered", True):
            assert (found, loader.state_dict()["step"]) == (EXPECTED[:3], 3)
        loader.seek(4)
        assert sorted(batch.tolist() for batch in loader) == EXPECTED[4:]


@EVERY_LOADER
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_error_that_ends_programs_comes_at_its_batch(
    kind: Any, place: dict[str, Any], error: type[BaseException]
) -> None:
    """An exception of any kind, of a batch ahead, waits until all batches before it are delivered."""

    def ends(number: int) -> int:
        if number == 7:
            raise error("no number")
        return number

    with kind(ps.range(40).map(ends).batch(2), 2, **place) as loader:
        found: list[Any] = []
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(error, match="no number"):
                found.extend(batch.tolist() for batch in iterator)
        if place.get("ordered", True):
            assert (found, loader.state_dict()["step"]) == (EXPECTED[:3], 3)
        loader.seek(4)
        assert sorted(batch.tolist() for batch in loader) == EXPECTED[4:]


@in_places("inline", "threads", "out of order")
@pytest.mark.parametrize("doing", ["placing", "handing over"])
def test_a_batch_that_can_not_be_placed_is_tried_again(place: dict[str, Any], doing: str) -> None:
    """An error of the placement, or Ctrl-C, loses no batch; the state is that before the batch, which a note names."""
    for error in (MemoryError("of the device"), KeyboardInterrupt()):
        with Placing(numbers(), 2, **place) as loader:
            loader.fails = FailsOnce(doing, 4, error)
            found: list[Any] = []
            iterator = iter(loader)
            with pytest.raises(type(error)) as caught:
                found.extend(batch.tolist() for batch in iterator)
            notes = getattr(caught.value, "__notes__", [])
            assert isinstance(error, KeyboardInterrupt) or any("step 2:" in note for note in notes)
            assert [4, 5] not in found
            resumed = ps.Loader(numbers())
            resumed.load_state_dict(loader.state_dict())
            assert sorted(found + [batch.tolist() for batch in resumed]) == EXPECTED
            assert sorted(found + [batch.tolist() for batch in iterator]) == EXPECTED


def test_a_batch_that_is_not_ready_is_not_waited_for() -> None:
    """A placed batch is delivered while the next one, to be placed ahead, is still being computed."""
    gate = Gate(2)
    with Placing(ps.range(40).map(gate).batch(2), 1, **PLACES["thread"]) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        gate.wait_entered()
        assert len(loader.placed) == 1
        gate.open()
        assert [batch.tolist() for batch in iterator] == EXPECTED[1:]


@pytest.mark.parametrize(
    ("kind", "place"), [place_of("out of order", Placing), place_of("isolated threads", PlacedByThread)]
)
def test_async_for_delivers_the_same_batches(kind: Any, place: dict[str, Any]) -> None:
    """`async for` over a placing loader delivers the same batches."""

    async def collected(loader: Any) -> list[Any]:
        return [batch.tolist() async for batch in loader]

    with kind(numbers(), 2, **place) as loader:
        assert sorted(asyncio.run(collected(loader))) == EXPECTED


def test_closing_drops_placed_batches() -> None:
    """After `close` no batch is left, and the iterator says why."""
    loader = Placing(numbers(), 2)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(ClosedError, match="the loader was closed"):
        next(iterator)


@pytest.mark.parametrize(
    ("prefetch", "place"), [place_of(name, prefetch) for name, prefetch in zip(BY_THREAD, (1, 2, 1, 2), strict=True)]
)
def test_a_batch_that_is_placed_ahead_is_not_kept(place: dict[str, Any], prefetch: int) -> None:
    """A loop that holds a batch while it requests the next is not warned of kept batches; states count delivery."""
    with PlacedByThread(ps.range(40).map(large).batch(2), 2, prefetch=prefetch, **place) as loader:
        for epoch in range(2):
            found: list[Any] = []
            for step, batch in enumerate(loader):
                found.append(batch[:, -1].tolist())
                assert loader.step == 20 * epoch + step
            assert found == EXPECTED


@pytest.mark.parametrize("steps", [0, 5])
def test_a_dropped_loader_is_collected(steps: int) -> None:
    """A loader that is dropped within an epoch ends without a message, and so does its thread."""
    loader = PlacedByThread(numbers(), 2, **PLACES["thread"])
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    dropped = weakref.ref(loader)
    del iterator, loader
    gone = threading.Event()
    if dropped() is not None:  # the thread is in its turn, and has the last reference
        weakref.finalize(dropped(), gone.set)
        assert gone.wait(PATIENCE_SECONDS)
    assert dropped() is None


@pytest.mark.parametrize(
    ("doing", "place"),
    [place_of("threads", "placing"), *(place_of(name, "making") for name in ("threads", "processes", "isolated"))],
)
def test_an_error_met_ahead_keeps_no_dropped_loader(place: dict[str, Any], doing: str) -> None:
    """A loader is freed at once, and its workers end, where a batch ahead of the delivered one failed."""

    def fail(at: str, batch: Any) -> None:
        if at == doing and batch[0] >= 2:
            raise KeyError(at)

    def fails(number: int) -> int:
        if doing == "making" and number >= 4:
            raise KeyError(number)
        return number

    gc.collect()
    gc.disable()
    try:
        loader = Placing(ps.range(40).map(fails).batch(2), 3, **place)
        loader.fails = fail
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        freed = weakref.ref(loader)
        del loader, batches
        assert freed() is None
    finally:
        gc.enable()


def test_an_end_met_ahead_keeps_no_dropped_loader() -> None:
    """A loader that computes in the consumer is freed at once, where it has met the end of the epoch ahead."""
    gc.collect()
    gc.disable()
    try:
        loader = Placing(numbers(), 3)
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(19)] == EXPECTED[:19]
        freed = weakref.ref(loader)
        del loader, batches
        assert freed() is None
    finally:
        gc.enable()
