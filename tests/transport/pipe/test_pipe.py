"""A pipe carries elements between processes: in order, each once, without a copy where that is possible."""

import contextlib
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._os import Bell
from penstock.errors import EndOfPipeError, UsageError
from penstock.transport import Arena, TensorPipeReader, TensorPipeWriter
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS
from tests.transport.pipe.children import (
    LARGE,
    element_of,
    free_path,
    is_element,
    listen_and_vanish,
    running,
    send_steps,
)


def test_writers_of_every_kind_take_turns(tmp_path: Path) -> None:
    """Forks, children of a fork server, and programs that know nothing but the path send to one reader.

    All their elements arrive, those of each in order; the end comes after the last writer's, and the file is gone.
    """
    address = free_path(tmp_path)
    program = f"from tests.transport.pipe.children import send_steps; send_steps({address!r}, 20, 200)"
    with TensorPipeReader(address, num_writers=3) as reader:
        with (
            running("fork", send_steps, address, 20, 0),
            running("forkserver", send_steps, address, 20, 100),
            subprocess.Popen([sys.executable, "-c", program]) as process,
        ):
            steps = [element["step"] for element in reader if is_element(element, element["step"])]
            assert process.wait(20) == 0
        with pytest.raises(EndOfPipeError):
            reader.receive()
    assert sorted(steps) == [*range(20), *range(100, 120), *range(200, 220)]
    for first in (0, 100, 200):
        own = [step for step in steps if first <= step < first + 100]
        assert own == sorted(own)
    assert not Path(address).exists()


def test_a_reader_takes_the_path_of_one_that_was_killed(tmp_path: Path) -> None:
    """A socket file without a process is replaced; one in use, whose reader notices nothing, or another file isn't."""
    address = free_path(tmp_path)
    with running("fork", listen_and_vanish, address) as process:
        process.join()
    assert Path(address).exists()
    with TensorPipeReader(address) as reader:
        with pytest.raises(UsageError, match=r"(?s)free.*Address already in use|Address already in use.*free"):
            TensorPipeReader(address)
        with pytest.raises(TimeoutError):
            reader.receive(timeout_seconds=0.02)
        with TensorPipeWriter(reader.address) as writer:
            writer.send(1)
            assert reader.receive() == 1
        assert reader.address == address
    Path(address).write_text("a file of the user's")
    with pytest.raises(UsageError, match="free"):
        TensorPipeReader(address)
    assert Path(address).read_text() == "a file of the user's"


def test_memory_is_used_again() -> None:
    """A consumer that drops what it received needs as many slots as are on their way, and one that it works on."""
    with TensorPipeReader() as reader, running("fork", send_steps, reader.address, 200):
        places = {element["x"].ctypes.data for element in reader}
    assert len(places) <= 5


def test_one_arena_serves_several_pipes() -> None:
    """The same memory is sent to two readers, and comes back when both dropped it."""
    with Arena() as arena, TensorPipeReader() as first, TensorPipeReader() as second:
        with (
            TensorPipeWriter(first.address, arena=arena) as to_first,
            TensorPipeWriter(second.address, arena=arena) as to_second,
        ):
            batch = to_first.empty(np.zeros(50_000))
            batch[:] = 5
            to_first.send(batch)
            to_second.send(batch)
            del batch
        elements = [first.receive(), second.receive()]
        assert all((element == 5).all() for element in elements)
        assert arena.counters.slots == 1
        elements.clear()
        assert arena.counters.leased == arena.counters.returned


def test_writers_that_share_an_arena_wake_each_other() -> None:
    """Several writers wait for their own readers on one bell; a ring for another writer is passed on."""
    with Arena() as arena, ExitStack() as scope:
        readers = [scope.enter_context(TensorPipeReader()) for _ in range(4)]

        def send(address: str) -> None:
            with TensorPipeWriter(address, capacity=1, arena=arena) as writer:
                for step in range(100):
                    writer.send(step, timeout_seconds=10)

        threads = [threading.Thread(target=send, args=(reader.address,)) for reader in readers]
        for thread in threads:
            thread.start()
        for reader in readers:  # one after the other: while its writer is woken for each element, the others wait
            assert [element for _, element in zip(range(99), reader, strict=False)] == list(range(99))
        for reader in readers:
            assert list(reader) == [99]
        for thread in threads:
            thread.join()
        assert arena.counters.leased == arena.counters.returned


@pytest.mark.filterwarnings("ignore:.*received elements are still referenced")
def test_threads_may_send_at_once() -> None:
    """Elements of threads that share a writer arrive whole, and those of each thread in order."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:

        def send(first: int) -> None:
            for step in range(first, first + 30):
                writer.send(element_of(step))

        threads = [threading.Thread(target=send, args=(first,)) for first in (0, 100, 200)]
        for thread in threads:
            thread.start()
        received = [reader.receive() for _ in range(90)]
        for thread in threads:
            thread.join()
    assert all(is_element(element, element["step"]) for element in received)
    for first in (0, 100, 200):
        own = [element["step"] for element in received if first <= element["step"] < first + 100]
        assert own == list(range(first, first + 30))


def test_counters_count_messages_copies_pickles_and_waits() -> None:
    """The counters of both ends are exact."""
    with TensorPipeReader(allow_pickle=True) as reader:
        with TensorPipeWriter(reader.address, allow_pickle=True) as writer:
            for what in ({1, 2}, {3}):
                writer.send({"x": np.zeros(LARGE), "what": what})
            with pytest.raises(TimeoutError):
                writer.send(element_of(3), timeout_seconds=0.02)
            assert [reader.receive()["what"] for _ in range(2)] == [{1, 2}, {3}]
            copied_bytes = writer.counters.copied_bytes
            writer.send(writer.empty({"x": np.zeros((300, 300), np.float32), "y": np.zeros(3, np.int16)}))
            counters = writer.counters
            assert (counters.messages, counters.pickled, counters.waits) == (3, 2, 1)
            assert copied_bytes >= 2 * 8 * LARGE
            assert counters.copied_bytes <= copied_bytes + 64
            assert counters.shared_bytes == 300 * 300 * 4 + 6
        assert len(list(reader)) == 1
        assert reader.messages == 3


def fill_socket(writer: TensorPipeWriter, parts: Any, timeout_seconds: float) -> int:
    """Send until the socket is full, long before `capacity` is reached.

    Returns:
        How many elements were sent.
    """
    for step in range(99):
        try:
            writer.send({"x": np.full(60_000, step, np.uint8), "parts": parts}, timeout_seconds=timeout_seconds)
        except TimeoutError:
            return step
    raise AssertionError("the socket is never full")


def drain(reader: TensorPipeReader) -> list[int]:
    """Receive all elements that have arrived.

    Returns:
        The steps of these elements of `fill_socket`, after checking that each is whole.
    """
    steps: list[int] = []
    with contextlib.suppress(TimeoutError):
        while True:
            element: Any = reader.receive(timeout_seconds=0)
            steps.append(int(element["x"][0]))
            assert (element["x"] == steps[-1]).all()
            assert all(part == 7 for part in element["parts"])
    return steps


def test_a_send_that_waits_for_the_socket_sleeps() -> None:
    """If the socket is full before `capacity` is reached, `send` neither spins nor forgets its timeout."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=100) as writer:
        writer.send("first")
        assert reader.receive() == "first"  # the writer gets no frame for it, and needs none
        fill_socket(writer, [], 0)
        began = time.thread_time()
        assert fill_socket(writer, [], 0.5) == 0
        assert time.thread_time() - began < 0.25
        drain(reader)


def test_an_element_that_timed_out_was_not_sent() -> None:
    """It never arrives, and holds no memory, even if it waited for the socket, or a part of it was sent."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=100) as writer:
        memory = writer.empty(np.zeros(3000, np.uint8))
        memory[:] = 7
        parts = [memory[step : step + 1] for step in range(3000)]  # so that it takes several packets
        drained: list[int] = []
        sent: list[int] = []
        for _ in range(4):
            sent += range(fill_socket(writer, parts, 0))
            assert writer.counters.messages == len(sent)
            drained += drain(reader)
        assert drained == sent
        assert sent
        writer.send("next", timeout_seconds=1)
        assert reader.receive(timeout_seconds=1) == "next"
        del memory, parts
        counters = writer.arena.counters
        assert counters.leased == counters.returned


def test_wrong_arguments_are_refused() -> None:
    """The rule and the value are named, or the path of a leaf that `empty` can't make."""
    with pytest.raises(UsageError, match=r"num_writers must be at least 1, .*got 0"):
        TensorPipeReader(num_writers=0)
    with TensorPipeReader() as reader, Arena() as arena:
        with pytest.raises(UsageError, match="capacity"):
            TensorPipeWriter(reader.address, capacity=0)
        with pytest.raises(UsageError, match="max_bytes"):
            TensorPipeWriter(reader.address, max_bytes=10, arena=arena)
        with TensorPipeWriter(reader.address) as writer, pytest.raises(UsageError, match=r"\['name'\] is str"):
            writer.empty({"x": np.zeros(3), "name": "a"})


class Received(Arena):
    """An arena of which a reader receives all elements at a moment before its writer waits for the socket."""

    def __init__(self) -> None:
        super().__init__()
        self.reader: TensorPipeReader | None = None
        self.elements: list[int] = []

    def clear_bell(self, own: Bell | None = None) -> None:
        """Clear the bell, as the writer does before it waits."""
        with contextlib.suppress(TimeoutError):
            while self.reader is not None:
                self.elements.append(int(self.reader.receive(timeout_seconds=0)[-1]))
        super().clear_bell(own)


def test_an_element_is_sent_though_there_is_room_just_before_the_wait() -> None:
    """`send` doesn't wait for the reader's next call, and the element is counted, and arrives once."""
    with Received() as arena, TensorPipeReader() as reader:
        with TensorPipeWriter(reader.address, arena=arena, capacity=1000) as writer:
            with contextlib.suppress(TimeoutError):
                while True:
                    writer.send(np.full(60_000, writer.counters.messages, np.uint8), timeout_seconds=0.02)
            sent, arena.reader = writer.counters.messages, reader
            writer.send(np.full(60_000, sent, np.uint8), timeout_seconds=PATIENCE_SECONDS)
            arena.reader = None
            assert writer.counters.messages == sent + 1
        assert arena.elements + [int(element[-1]) for element in reader] == list(range(sent + 1))


ALONE = """
from penstock.errors import UsageError
from penstock.transport import TensorPipeReader, TensorPipeWriter
for element, sent in [(1, 2), ([b""] * 30_000, 0)]:
    try:
        with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
            for count in range(3):
                writer.send(element)
    except UsageError as error:
        assert "Receive what was sent first (capacity=2 elements" in str(error), error
        assert writer.counters.messages == sent
        print(count)
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_wait_for_a_reader_in_the_same_thread_is_an_error() -> None:
    """Nothing could receive while the only thread waits: for one element too many, or for a full socket."""
    assert outcome(ALONE) == (0, "2\n0\n", "")


STARTED = """
import _thread, sys
from penstock.transport import TensorPipeReader, TensorPipeWriter

def receive():
    print([reader.receive() for _ in range(3)])
    is_over.release()

sys.setswitchinterval(10)
is_over = _thread.allocate_lock()
is_over.acquire()
with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=1) as writer:
    _thread.start_new_thread(receive, ())
    for number in range(3):
        writer.send(number)
    is_over.acquire()
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_reader_in_a_thread_that_has_just_started_is_waited_for() -> None:
    """Python counts a thread from its first step on, which may come after the writer's first wait."""
    assert outcome(STARTED) == (0, "[0, 1, 2]\n", "")
