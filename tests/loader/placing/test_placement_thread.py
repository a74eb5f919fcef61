"""A thread that takes batches and places them ahead, in turns with the consumer, as for the JAX loader."""

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from penstock._loader._placement import PlacedStream, PlacementThread
from penstock._os import DaemonThread
from penstock._runtime._streams import EndOfEpoch, Stream
from tests.loader.gates import PATIENCE_SECONDS

NAME = "placing"
STEP_RANGE: Any = None  # only needed to report the step of a failing batch


class Batch:
    """A batch that can be referred to weakly."""

    def __init__(self, number: int) -> None:
        self.number = number


class Ready(Stream):
    """A stream whose batches are all ready."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self.taken_now = 0
        self.users: set[str] = set()
        self.closed = threading.Event()
        self.closed_by = ""

    def next(self) -> Any:
        """Return the next batch."""
        assert not self.closed.is_set()
        self.users.add(threading.current_thread().name)
        if self.taken == self.total:
            raise EndOfEpoch
        self.taken += 1
        return Batch(self.taken - 1), None

    def next_nowait(self) -> Any:
        """Return the next batch, or None at the end."""
        if self.taken == self.total:
            return None
        self.taken_now += 1
        return self.next()

    def close(self) -> None:
        """Record the thread that closes."""
        self.closed_by = threading.current_thread().name
        self.closed.set()


class Elsewhere:
    """A placement in the thread, which waits for its gate and announces each batch."""

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
        """Wait until so many more batches are placed."""
        for _ in range(count):
            assert self.placed.acquire(timeout=PATIENCE_SECONDS)


def here(batch: Batch) -> Callable[[], Any]:
    """Place a batch in the consumer's thread."""
    assert threading.current_thread() is threading.main_thread()
    return lambda: (batch, "here")


def opened(thread: PlacementThread, total: int, ahead: int = 1, place: Any = here) -> tuple[Any, Ready, Elsewhere]:
    """Return a stream of placed batches, the stream below it, and the placement in the thread."""
    below, elsewhere = Ready(total), Elsewhere()
    stream = PlacedStream(below, STEP_RANGE, place, ahead, thread, elsewhere)
    return stream, below, elsewhere


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_thread_places_ready_batches(ahead: int) -> None:
    """The consumer places the first batch; the thread places the others ahead, and ends with its owner."""
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
    """It gets every batch in order, and seldom wakes the thread; it places all batches when the thread has ended."""
    thread = PlacementThread(NAME)
    stream, _, _ = opened(thread, 1040)
    assert [stream.next()[0][0].number for _ in range(1000)] == list(range(1000))
    thread.close()
    assert [stream.next()[0][0].number for _ in range(40)] == list(range(1000, 1040))
    stream.close()


def test_the_consumer_places_a_batch_that_the_thread_can_not() -> None:
    """An error in the thread is dropped; the consumer places the same batch, raises its own error, and retries."""
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
    stream = PlacedStream(below, STEP_RANGE, fails, 1, thread, fails_there)
    stream.next()
    elsewhere.wait()
    errors.append(MemoryError("of the device"))
    with pytest.raises(MemoryError, match="of the device"):
        stream.next()
    assert [stream.next()[0][0].number for _ in range(2)] == [1, 2]
    stream.close()


def test_closing_while_a_batch_is_being_placed() -> None:
    """`close` doesn't wait; the thread closes the stream after its turn, and drops the placed batch."""
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
    """The consumer closes the stream, and nothing more is placed."""
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
    """Ctrl-C is raised by `next` while the thread places a batch, which the next call delivers."""
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
