"""The limit: the child copies into a ring of slots that stay mapped on both sides, and a byte announces each one.

It is written for one kind of message: both sides know the places of its arrays in a slot in advance. The slots are
memory of a memfd whose pages are mapped once. A byte is returned for each slot that may be written again.
"""

import mmap
import os
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from benchmarks.carry.child import IN_FLIGHT, Ends, Send
from benchmarks.carry.messages import Message, first_message, from_leaves, leaves

ALIGNMENT = 4096
BYTE = b"\0"

Layout = list[tuple[np.dtype[np.generic], tuple[int, ...], int]]  # dtype, shape and start of every leaf


def open_ring(scope: ExitStack, num_bytes: int) -> Ends:
    """Return the ends of a ring of `IN_FLIGHT` slots in a memfd."""
    layout, slot_bytes = _layout(first_message(num_bytes))
    descriptor = os.memfd_create("penstock-benchmark")
    scope.callback(os.close, descriptor)
    os.truncate(descriptor, IN_FLIGHT * slot_bytes)
    slots = _slots(descriptor, layout, slot_bytes)
    scope.callback(slots.clear)
    ours, theirs = socket.socketpair()
    scope.enter_context(ours)
    scope.enter_context(theirs)
    received = 0

    def receive() -> Message:
        nonlocal received
        ours.recv(1)
        received += 1
        return slots[(received - 1) % IN_FLIGHT]

    def release() -> None:
        ours.send(BYTE)

    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    return Ends(_OpenSend(theirs, path, layout, slot_bytes), receive, release)


class _OpenSend:
    """Opens the sending end when it is called in the child."""

    def __init__(self, signals: socket.socket, path: str, layout: Layout, slot_bytes: int) -> None:
        self._signals = signals
        self._path = path
        self._layout = layout
        self._slot_bytes = slot_bytes

    @contextmanager
    def __call__(self) -> Generator[Send]:
        descriptor = os.open(self._path, os.O_RDWR)
        slots = _slots(descriptor, self._layout, self._slot_bytes)
        os.close(descriptor)
        sent = 0

        def send(message: Message) -> None:
            nonlocal sent
            if sent >= IN_FLIGHT:
                self._signals.recv(1)
            for target, leaf in zip(leaves(slots[sent % IN_FLIGHT]), leaves(message), strict=True):
                np.copyto(target, leaf)
            self._signals.send(BYTE)
            sent += 1

        with self._signals:
            yield send


def _layout(message: Message) -> tuple[Layout, int]:
    """Return the start of each leaf in a slot, and the bytes of a slot."""
    layout: Layout = []
    start = 0
    for leaf in leaves(message):
        layout.append((leaf.dtype, leaf.shape, start))
        start += -(-leaf.nbytes // ALIGNMENT) * ALIGNMENT
    return layout, start


def _slots(descriptor: int, layout: Layout, slot_bytes: int) -> list[Message]:
    """Map the ring, and return the message in each slot."""
    mapped = mmap.mmap(descriptor, IN_FLIGHT * slot_bytes)

    def leaf(slot: int, dtype: np.dtype[np.generic], shape: tuple[int, ...], start: int) -> NDArray[np.generic]:
        return np.ndarray(shape, dtype, buffer=mapped, offset=slot * slot_bytes + start)

    return [from_leaves(tuple(leaf(slot, *place) for place in layout)) for slot in range(IN_FLIGHT)]
