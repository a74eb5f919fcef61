"""Batches that a thread takes and places ahead, taking turns with the consumer, as the JAX loader does."""

import asyncio
import gc
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._loader._placement_thread import PlacementThread, ThreadPlacedLoader, ThreadPlacedStream
from penstock._os import DaemonThread
from penstock._runtime._streams import EndOfEpoch
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.loader.gates import PATIENCE_SECONDS

NAME = "placing"
STEP_RANGE: Any = None  # only needed to report the step of a failing batch


class Batch:
    """A batch that can be held weakly."""

    def __init__(self, number: int) -> None:
        self.number = number


class Ready:
    """A stream whose batches are all ready."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self.taken_now = 0
        self.users: set[str] = set()
        self.closed = threading.Event()
        self.closed_by = ""

    def next(self) -> Any:
        """Return the next one."""
        assert not self.closed.is_set()
        self.users.add(threading.current_thread().name)
        if self.taken == self.total:
            raise EndOfEpoch
        self.taken += 1
        return Batch(self.taken - 1), None

    def next_nowait(self) -> Any:
        """Return the next one, or None at the end."""
        if self.taken == self.total:
            return None
        self.taken_now += 1
        return self.next()

    def failing(self) -> None:
        """Leave it open."""

    def fileno(self) -> None:
        """Wait for nobody."""

    def is_ready(self) -> bool:
        """Wait for nobody."""
        return True

    def close(self) -> None:
        """Record the thread that closes."""
        self.closed_by = threading.current_thread().name
        self.closed.set()


class Elsewhere:
    """Places in the thread when its gate is open, and signals it."""

    def __init__(self) -> None:
        self.placed = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, batch: Batch) -> Callable[[], Any]:
        """Place a batch."""
        assert threading.current_thread().name == NAME
        self.begun.release()
        assert self.gate.wait(PATIENCE_SECONDS)
        self.placed.release()
        return lambda: (batch, NAME)

    def wait(self, count: int = 1) -> None:
        """Wait until so many more are placed."""
        for _ in range(count):
            assert self.placed.acquire(timeout=PATIENCE_SECONDS)


def here(batch: Batch) -> Callable[[], Any]:
    """Place a batch in the consumer's thread."""
    assert threading.current_thread() is threading.main_thread()
    return lambda: (batch, "here")


def opened(thread: PlacementThread, total: int, ahead: int = 1, place: Any = here) -> tuple[Any, Ready, Elsewhere]:
    """Return a stream of batches placed in turns, the one below, and what places in the thread."""
    below, elsewhere = Ready(total), Elsewhere()
    stream = ThreadPlacedStream(below, STEP_RANGE, place, ahead, thread=thread, place_in_thread=elsewhere)
    return stream, below, elsewhere


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_the_thread_places_what_is_there(ahead: int) -> None:
    """The first batch is placed here, the others, so many ahead, in the thread, which ends with its owner."""
    thread = PlacementThread(NAME)
    stream, below, elsewhere = opened(thread, 9, ahead)
    found = [stream.next()[0]]
    for step in range(1, 9):
        elsewhere.wait(min(ahead, 8) if step == 1 else int(step + ahead <= 9))
        assert below.taken == min(step + ahead, 9)
        found.append(stream.next()[0])
    assert [(batch.number, by) for batch, by in found] == [(0, "here"), *((step, NAME) for step in range(1, 9))]
    with pytest.raises(EndOfEpoch):
        stream.next()
    stream.close()
    assert below.closed.is_set()
    thread.close()
    assert NAME not in {each.name for each in threading.enumerate()}


def test_a_consumer_that_is_back_soon_takes_the_turn_back() -> None:
    """A consumer that never waits gets every batch in order, and seldom wakes the thread."""
    thread = PlacementThread(NAME)
    stream, _, _ = opened(thread, 2000)
    assert [stream.next()[0][0].number for _ in range(2000)] == list(range(2000))
    stream.close()


def test_it_goes_on_without_the_thread() -> None:
    """When the thread has ended, the consumer places all batches itself."""
    thread = PlacementThread(NAME)
    stream, _, elsewhere = opened(thread, 40)
    stream.next()
    elsewhere.wait()
    thread.close()
    assert [stream.next()[0][0].number for _ in range(39)] == list(range(1, 40))
    stream.close()


def test_what_the_thread_cannot_place_is_placed_here() -> None:
    """An error in the thread is dropped; the consumer tries the same batch, raises its error, and tries again."""
    thread = PlacementThread(NAME)
    errors: list[Exception] = []

    def fails(batch: Batch) -> Callable[[], Any]:
        if batch.number == 1 and errors:
            raise errors.pop()
        return here(batch)

    def fails_there(batch: Batch) -> Callable[[], Any]:
        elsewhere.placed.release()
        raise ValueError(batch)

    below, elsewhere = Ready(3), Elsewhere()
    stream = ThreadPlacedStream(below, STEP_RANGE, fails, 1, thread=thread, place_in_thread=fails_there)
    stream.next()
    elsewhere.wait()
    errors.append(MemoryError("of the device"))
    with pytest.raises(MemoryError, match="of the device"):
        stream.next()
    assert [stream.next()[0][0].number for _ in range(2)] == [1, 2]
    stream.close()


def test_closing_while_a_batch_is_being_placed() -> None:
    """Closing doesn't wait; the thread closes the stream at the end of its turn, and drops what it has placed."""
    thread = PlacementThread(NAME)
    stream, below, elsewhere = opened(thread, 9)
    elsewhere.gate.clear()
    stream.next()
    assert elsewhere.begun.acquire(timeout=PATIENCE_SECONDS)
    stream.close()
    stream.close()
    assert not below.closed.is_set()
    dropped = weakref.ref(stream)
    del stream
    elsewhere.gate.set()
    assert below.closed.wait(PATIENCE_SECONDS)
    assert below.closed_by == NAME
    thread.take_back()
    assert below.taken == 2
    thread.close()
    gc.collect()
    assert dropped() is None


def test_closing_when_the_turn_is_over_or_has_not_begun() -> None:
    """Then the consumer closes the stream, and nothing is placed any more."""
    thread = PlacementThread(NAME)
    stream, below, elsewhere = opened(thread, 9)
    stream.next()
    elsewhere.wait()
    thread.take_back()
    stream.close()
    assert below.closed_by == threading.main_thread().name
    other, below, _ = opened(thread, 9)
    thread.close()  # so that it never begins
    other.next()
    other.close()
    assert (below.closed_by, below.taken) == (threading.main_thread().name, 1)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="there are no POSIX signals here")
def test_an_interrupt_ends_the_wait_for_a_placement() -> None:
    """Ctrl-C comes out of `next` while the thread places; it goes on placing, and the batch is not lost."""
    thread = PlacementThread(NAME)
    stream, _, elsewhere = opened(thread, 9)
    elsewhere.gate.clear()
    stream.next()
    assert elsewhere.begun.acquire(timeout=PATIENCE_SECONDS)
    press_now = threading.Event()

    def press() -> None:
        if press_now.wait(PATIENCE_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)

    pressing = DaemonThread(press, "presses")
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before the wait
        press_now.set()
        stream.next()
    assert pressing.wait(PATIENCE_SECONDS)
    elsewhere.gate.set()
    batch, by = stream.next()[0]
    assert (batch.number, by) == (1, NAME)
    stream.close()


class PlacedByThread(ThreadPlacedLoader):
    """Delivers batches unchanged; all keep the memory that they were computed in."""

    def __init__(self, dataset: Any, ahead: int, **arguments: Any) -> None:
        super().__init__(dataset, **arguments)
        self._ahead = ahead
        self._keeps_memory = True
        self._thread = PlacementThread(NAME)

    def _place(self, batch: Any) -> Callable[[], Any]:
        return lambda: batch


def counted(batches: Any) -> list[str]:
    """Return batches in an order that doesn't depend on theirs."""
    return sorted(repr(digest(batch)) for batch in batches)


@given(
    dataset=batched() | indexable() | ordered(),
    ahead=st.integers(1, 3),
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
        with PlacedByThread(dataset, ahead, num_workers=workers, workers="threads", ordered=in_order) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state))
                if loader.epoch:
                    break
            for batch in loader:
                found.append(batch)
                if (stop := stop - 1) == 0:
                    break
            state = json.dumps(loader.state_dict())
    if in_order:
        assert outcomes(found) == expected
    assert counted(found) == sorted(map(repr, expected))


EXPECTED = [[number, number + 1] for number in range(0, 40, 2)]
KINDS = pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 2, "workers": "threads"},
        {"num_workers": 2, "workers": "processes"},
        {"isolated": True},
        {"isolated": True, "num_workers": 1, "workers": "threads"},
    ],
    ids=["threads", "processes", "isolated", "isolated with a thread"],
)


def large(number: int) -> Any:
    """Return a row in leased memory, not a copy."""
    return np.full(1 << 17, number, np.int64)


@KINDS
@pytest.mark.parametrize("prefetch", [1, 2])
def test_what_is_placed_ahead_is_no_kept_batch(arguments: Any, prefetch: int) -> None:
    """A loop that holds one batch, and the next while it gets that, is told of no kept ones; the state counts these."""
    with PlacedByThread(ps.range(40).map(large).batch(2), 2, prefetch=prefetch, **arguments) as loader:
        for epoch in range(2):
            found: list[Any] = []
            for step, batch in enumerate(loader):
                found.append(batch[:, -1].tolist())
                assert loader.step == 20 * epoch + step
            assert found == EXPECTED


def divide(number: int) -> int:
    """Return the number, but for one."""
    return number // (number - 7) * 0 + number


@KINDS
def test_an_error_comes_after_the_batches_before_it(arguments: Any) -> None:
    """An exception of a function is raised whenever its batch is requested; `seek` moves past it."""
    with PlacedByThread(ps.range(40).map(divide).batch(2), 2, **arguments) as loader:
        found: list[Any] = []
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as caught:
                found.extend(batch.tolist() for batch in iterator)
            assert any("step 3:" in note for note in caught.value.__notes__)
        assert (found, loader.state_dict()["step"]) == (EXPECTED[:3], 3)
        loader.seek(4)
        assert [batch.tolist() for batch in loader] == EXPECTED[4:]


@KINDS
def test_async_iteration(arguments: Any) -> None:
    """`async for` gives the same batches."""

    async def collected(loader: PlacedByThread) -> list[Any]:
        return [batch.tolist() async for batch in loader]

    with PlacedByThread(ps.range(40).batch(2), 2, **arguments) as loader:
        assert asyncio.run(collected(loader)) == EXPECTED


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_dropped_loader_is_gone(steps: int) -> None:
    """A loader dropped inside an epoch ends without a message, and its thread ends too."""
    loader = PlacedByThread(ps.range(40).batch(2), 2, num_workers=1, workers="threads")
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    dropped = weakref.ref(loader)
    del iterator, loader
    gone = threading.Event()
    if dropped() is not None:  # the thread is in its turn, and has the last of it
        weakref.finalize(dropped(), gone.set)
        assert gone.wait(PATIENCE_SECONDS)
    assert dropped() is None
