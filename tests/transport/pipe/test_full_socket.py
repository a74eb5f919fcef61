"""Frames that don't fit the socket: those that wait are sent later, and long ones in pieces, all in order."""

import contextlib
import threading

import numpy as np
import pytest

from penstock._os import Bell
from penstock.transport import Arena, TensorPipeReader, TensorPipeWriter
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS


def test_messages_beyond_a_full_socket_arrive_in_order() -> None:
    """A writer whose reader is busy fills the socket; the rest is sent once there is room again."""
    count, sent = 24, threading.Semaphore(0)

    def write(address: str) -> None:
        with TensorPipeWriter(address, capacity=count) as writer:
            for number in range(count):
                writer.send(np.full(60_000, number, np.uint8))
                sent.release()

    with TensorPipeReader() as reader:
        thread = threading.Thread(target=write, args=(reader.address,))
        thread.start()
        while sent.acquire(timeout=0.2):  # until the writer waits
            pass
        assert [int(element[-1]) for element in reader] == list(range(count))
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


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
