"""Frames that don't fit the socket: those that wait are sent later, and long ones in pieces, all in order."""

import threading

import numpy as np

from penstock.transport import TensorPipeReader, TensorPipeWriter
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


def test_a_layout_longer_than_a_packet_arrives_whole() -> None:
    """An element whose layout takes several packets is received as it was sent."""
    element = {f"a rather long name of leaf {number}": number for number in range(6_000)}

    def write(address: str) -> None:
        with TensorPipeWriter(address) as writer:
            writer.send(element)

    with TensorPipeReader() as reader:
        thread = threading.Thread(target=write, args=(reader.address,))
        thread.start()
        assert reader.receive(timeout_seconds=PATIENCE_SECONDS) == element
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
