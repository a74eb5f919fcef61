"""A child process that is started once, and then sends a requested number of messages, round after round.

Guarantees:
  - The child is started, and its message made, before a round is timed.
  - After `close`, or after Ctrl-C in the middle of a round, the child has ended. It has closed its end of the way,
    because the signal that ends it raises an exception there.
  - Ctrl-C reaches only the parent.
"""

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Protocol

from benchmarks.carry.messages import Message, first_message, numbered
from benchmarks.usage import Usage, since, used

IN_FLIGHT = 3  # messages that may be sent before the first of them is released
JOIN_SECONDS = 5

Send = Callable[[Message], None]
OpenSend = Callable[[], AbstractContextManager[Send]]  # it is pickled


class Carrier(Protocol):
    """An open way of carrying messages to this process."""

    def messages(self, count: int) -> Iterator[Message]:
        """Make the child send `count` messages, and yield them; drop each before you take the next."""
        ...

    def sender_usage(self) -> Usage:
        """Return the resources that the sending process used in the last round."""
        ...


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a way of carrying.

    Attributes:
        open_send: called in the child; returns the function that sends a message.
        receive: called here; waits for the next message.
        release: called here when the last received message has been dropped.
    """

    open_send: OpenSend
    receive: Callable[[], Message]
    release: Callable[[], None]


OpenEnds = Callable[[ExitStack, int], Ends]  # takes the scope that closes this process's end, and a message's bytes


class ChildCarrier:
    """Owns the child that sends, and the pipe that commands it."""

    def __init__(self, ends: Ends, num_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends = ends
        self._usage = Usage(0, 0)
        self._in_round = False
        self._commands, theirs = context.Pipe()
        self._process = context.Process(target=_send_rounds, args=(theirs, ends.open_send, num_bytes), daemon=True)
        self._process.start()
        theirs.close()
        self._commands.recv()  # the child is ready

    def messages(self, count: int) -> Iterator[Message]:
        """Make the child send `count` messages, and yield them; drop each before you take the next."""
        self._in_round = True
        self._commands.send(count)
        for _ in range(count):
            yield self._ends.receive()
            self._ends.release()
        self._commands.send(None)  # asks for the usage only after everything was sent, by whichever thread of the child
        self._usage = self._commands.recv()
        self._in_round = False

    def sender_usage(self) -> Usage:
        """Return the resources that the child used in the last round."""
        return self._usage

    def close(self) -> None:
        """End the child at once."""
        self._commands.close()
        if self._in_round:  # otherwise the child waits for a command, and ends because the pipe is closed
            self._process.terminate()
        self._process.join(JOIN_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def open_carrier(open_ends: OpenEnds, scope: ExitStack, num_bytes: int) -> ChildCarrier:
    """Open both ends and start the child; `scope` ends the child before it closes this process's end."""
    carrier = ChildCarrier(open_ends(scope, num_bytes), num_bytes)
    scope.callback(carrier.close)
    return carrier


def _send_rounds(commands: Connection, open_send: OpenSend, num_bytes: int) -> None:
    """Send as many messages as each command requests, then the usage on request; the child's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    message = first_message(num_bytes)
    with open_send() as send, contextlib.suppress(EOFError):
        commands.send(None)
        while True:
            count: int = commands.recv()
            before = used()
            for number in range(count):
                send(numbered(message, number))
            commands.recv()
            commands.send(since(before))

    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()
