"""The standard library's ways between processes: a new SharedMemory for every array, and pickles through a Pipe."""

# The return type of `Pipe` differs between platforms.
# pyright: reportArgumentType=false

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from benchmarks.carry.child import IN_FLIGHT, Ends, Send, open_carrier
from benchmarks.carry.messages import Message, from_leaves, leaves
from benchmarks.macro import transport
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant

BYTE = b"\0"


class SharedArrays:
    """The receiving end of messages whose arrays are each in new shared memory; it owns messages in transit."""

    def __init__(self, signals: Connection, prefix: str) -> None:
        self._signals = signals
        self._prefix = prefix
        self._received = 0
        self._held: list[SharedMemory] = []

    def receive(self) -> Message:
        """Wait for a message and attach its arrays."""
        described: list[tuple[str, np.dtype[np.generic], tuple[int, ...]]] = self._signals.recv()
        self._received += 1
        self._held = [SharedMemory(name) for name, _, _ in described]
        layouts = [(shape, dtype) for _, dtype, shape in described]
        return from_leaves(
            tuple(np.ndarray(*layout, memory.buf) for layout, memory in zip(layouts, self._held, strict=True))
        )

    def release(self) -> None:
        """Free the memory of the last received message, and let the sender send another."""
        self._free()
        self._signals.send_bytes(BYTE)

    def close(self) -> None:
        """Free messages that were received, and those that were sent but not received."""
        self._free()
        for number in range(self._received, self._received + IN_FLIGHT + 1):
            for leaf in range(3):
                with suppress(FileNotFoundError):
                    self._held.append(SharedMemory(array_name(self._prefix, number, leaf)))
        self._free()

    def _free(self) -> None:
        while self._held:
            memory = self._held.pop()
            memory.unlink()
            with suppress(BufferError):  # the round was interrupted, and its message is still held
                memory.close()


def array_name(prefix: str, number: int, leaf: int) -> str:
    """Return the name of the shared memory of a leaf of the message `number`."""
    return f"{prefix}-{number}-{leaf}"


def open_shared_arrays(scope: ExitStack, num_bytes: int) -> Ends:
    """Return the ends of a pipe that carries names; the arrays are in shared memory made for them."""
    ours, theirs = Pipe()
    scope.enter_context(ours)
    scope.enter_context(theirs)
    prefix = f"penstock-benchmark-{os.getpid()}-{num_bytes}"
    reader = SharedArrays(ours, prefix)
    scope.callback(reader.close)
    return Ends(partial(_sending_arrays, theirs, prefix), reader.receive, reader.release)


@contextmanager
def _sending_arrays(signals: Connection, prefix: str) -> Generator[Send]:
    sent = 0

    def send(message: Message) -> None:
        nonlocal sent
        if sent >= IN_FLIGHT:
            signals.recv_bytes()
        described: list[tuple[str, np.dtype[np.generic], tuple[int, ...]]] = []
        for number, leaf in enumerate(leaves(message)):
            memory = SharedMemory(array_name(prefix, sent, number), create=True, size=leaf.nbytes)
            np.copyto(np.ndarray(leaf.shape, leaf.dtype, buffer=memory.buf), leaf)
            memory.close()
            described.append((memory.name, leaf.dtype, leaf.shape))
        signals.send(described)
        sent += 1

    with signals:
        yield send


def open_pickles(scope: ExitStack, _: int) -> Ends:
    """Return the ends of a pipe for pickled messages; the pipe's own capacity holds the sender back."""
    ours, theirs = Pipe(duplex=False)
    scope.enter_context(ours)
    scope.enter_context(theirs)
    return Ends(partial(_sending_pickles, theirs), ours.recv, _nothing)


@contextmanager
def _sending_pickles(pipe: Connection) -> Generator[Send]:
    with pipe:
        yield pipe.send


def _nothing() -> None:
    """Release a message: do nothing, since the receiver owns it."""


def _transport(work: transport.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    return (
        *transport.carried(
            work, scope, transport.Way("SharedMemory per array", "rival", partial(open_carrier, open_shared_arrays))
        ),
        *transport.carried(
            work, scope, transport.Way("pickles through a Pipe", "rival", partial(open_carrier, open_pickles))
        ),
    )


CONTESTANTS: dict[str, Contestants] = {"transport": _transport}
