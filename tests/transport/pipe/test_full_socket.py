"""A socket that is full: elements wait for room in it, unless no thread could make some."""

import contextlib

import numpy as np
import pytest

from penstock._os import Bell
from penstock.transport import Arena, TensorPipeReader, TensorPipeWriter
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS


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
