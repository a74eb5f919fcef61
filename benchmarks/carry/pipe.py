"""Penstock's tensor pipe: the child copies each message into a slot, or writes it there in place."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from benchmarks.carry.child import Ends, Send
from benchmarks.carry.messages import Message, leaves
from penstock.transport import TensorPipeReader, TensorPipeWriter


def open_copying_pipe(scope: ExitStack, _: int) -> Ends:
    """Return the ends of a pipe whose writer copies every message into a slot."""
    return _ends(scope, in_place=False)


def open_writing_pipe(scope: ExitStack, _: int) -> Ends:
    """Return the ends of a pipe whose messages are written in place: into an empty message, then sent."""
    return _ends(scope, in_place=True)


def _ends(scope: ExitStack, *, in_place: bool) -> Ends:
    reader = scope.enter_context(TensorPipeReader())
    opened = _writing_in_place if in_place else _copying

    def receive() -> Message:
        message: Message = reader.receive()
        return message

    return Ends(partial(opened, reader.address), receive, _nothing)


@contextmanager
def _copying(address: str) -> Generator[Send]:
    with TensorPipeWriter(address) as writer:
        yield writer.send


@contextmanager
def _writing_in_place(address: str) -> Generator[Send]:
    with TensorPipeWriter(address) as writer:

        def send(message: Message) -> None:
            slot = writer.empty(message)
            for target, leaf in zip(leaves(slot), leaves(message), strict=True):
                np.copyto(target, leaf)
            writer.send(slot)

        yield send


def _nothing() -> None:
    """Release a message: do nothing, since its slot is released with the last array over it."""
