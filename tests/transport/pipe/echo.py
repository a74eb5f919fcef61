"""A process that sends back what it receives, through one pipe after the other; importable, for every start method.

It listens at a path for ever. Each writer that comes tells where its answers go, sends elements, and says that it is
done; then the pipe of the answers ends as well, and the next writer may come.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import ClosedError, PeerError
from penstock.transport import TensorPipeReader, TensorPipeWriter, register_container
from tests.transport.encoding import samples as samples  # registers its containers here, too


@dataclass(frozen=True)
class Answers:
    """The address to which answers are sent, and the way: a writer's first element."""

    address: str
    capacity: int
    max_bytes: int | None
    by_reference: bool


@dataclass(frozen=True)
class Question:
    """An element to be sent back."""

    element: Any


@dataclass(frozen=True)
class Done:
    """No more questions."""

    after: int


for _kind in (Answers, Question, Done):
    register_container(_kind)


def echo(address: str, waiting: str) -> None:
    """Answer until killed; notify the reader that waits that this process listens."""
    with TensorPipeReader(address, num_writers=None) as reader:
        with TensorPipeWriter(waiting) as writer:
            writer.send("listening")
        while True:
            # A failed test leaves the loop in the middle; the next test starts a new one.
            with contextlib.suppress(PeerError, ClosedError):
                first = reader.receive()
                if isinstance(first, Answers):
                    _answer(reader, first)


def _answer(reader: TensorPipeReader, answers: Answers) -> None:
    with TensorPipeWriter(answers.address, capacity=answers.capacity, max_bytes=answers.max_bytes) as writer:
        while True:
            received = reader.receive()
            if isinstance(received, Done):
                return
            element = received.element
            del received
            writer.send(_moved(element, writer) if answers.by_reference else element)
            del element  # or it would be kept while waiting for the next


def _moved(element: dict[str, Any], writer: TensorPipeWriter) -> dict[str, Any]:
    """Return the element, a dict, with its arrays in memory that is sent by reference."""
    return {
        name: _copied(part, writer) if isinstance(part, np.ndarray) and part.flags.c_contiguous else part
        for name, part in element.items()
    }


def _copied(array: Any, writer: TensorPipeWriter) -> Any:
    shared = writer.empty(array)
    shared[...] = array
    return shared
