"""The limit of worker processes: each fills batches in turn, in slots that stay mapped on both sides.

It is written for batches of one shape, made by a function of their number. The slots are memory of a memfd whose pages
are mapped once. A message names the next batch to make, and an empty message announces it. There are no restarts and no
load balancing, and a batch is valid until the next is requested.
"""

import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 4096
SLOTS_EACH = 2  # one that is being filled, one that is ready or in use

Array: TypeAlias = NDArray[Any]
Fill: TypeAlias = Callable[[int, Array], None]  # takes a batch's number and its memory; it is pickled


@dataclass(frozen=True, slots=True)
class Form:
    """The shape and dtype of every batch."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """The number of bytes of a batch."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class BareProcesses:
    """Owns the processes, their pipes and the slots.

    Args:
        fill: makes a batch.
        form: the shape and dtype of a batch.
        count: the number of processes.
    """

    def __init__(self, fill: Fill, form: Form, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._scope = ExitStack()
        descriptor = os.memfd_create("penstock-benchmark")
        self._scope.callback(os.close, descriptor)
        os.truncate(descriptor, count * SLOTS_EACH * _slot_bytes(form))
        self._slots = _slots(descriptor, form, count * SLOTS_EACH)
        self._scope.callback(self._slots.clear)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._pipes: list[Any] = []  # their type differs between platforms
        for number in range(count):
            ours, theirs = Pipe()
            process = context.Process(target=_work, args=(theirs, fill, form, path, number, count), daemon=True)
            process.start()
            theirs.close()
            self._scope.callback(process.close)
            self._scope.callback(process.join)
            self._pipes.append(ours)
        for pipe in self._pipes:
            self._scope.callback(pipe.close)
            pipe.recv_bytes()  # the process is ready

    def batches(self, count: int) -> Generator[Array]:
        """Make `count` batches and yield them in order; drop each before you take the next."""
        processes = len(self._pipes)
        window = processes * SLOTS_EACH
        requested = received = 0
        try:
            while received < count:
                while requested < min(received + window, count):
                    self._pipes[requested % processes].send_bytes(requested.to_bytes(8, "little"))
                    requested += 1
                self._pipes[received % processes].recv_bytes()
                received += 1
                yield self._slots[(received - 1) % window]
        finally:
            for number in range(received, requested):  # batches in progress, if the pass was abandoned
                self._pipes[number % processes].recv_bytes()

    def close(self) -> None:
        """End the processes, and unmap the slots."""
        self._scope.close()


def _work(pipe: Connection, fill: Fill, form: Form, path: str, number: int, count: int) -> None:
    """Make the requested batches until the pipe is closed; a process's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDWR)
    slots = _slots(descriptor, form, count * SLOTS_EACH)
    os.close(descriptor)
    for slot in slots[number::count]:
        slot.fill(0)  # maps its pages
    with pipe, suppress(EOFError):
        pipe.send_bytes(b"")
        while True:
            batch = int.from_bytes(pipe.recv_bytes(), "little")
            fill(batch, slots[batch % len(slots)])
            pipe.send_bytes(b"")


def _slot_bytes(form: Form) -> int:
    return -(-form.num_bytes // ALIGNMENT) * ALIGNMENT


def _slots(descriptor: int, form: Form, count: int) -> list[Array]:
    """Map the memory, and return its slots as batches."""
    mapped = mmap.mmap(descriptor, count * _slot_bytes(form))
    return [
        np.ndarray(form.shape, np.dtype(form.dtype), buffer=mapped, offset=slot * _slot_bytes(form))
        for slot in range(count)
    ]
