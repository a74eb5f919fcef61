"""The protocol between a helper process and its owner.

A *helper* is a process that computes items and sends them to the process that owns it. The helper of an isolated loader
sends batches, that of `run_in_subprocess` sends a pipeline's items. Both use this protocol, and add commands, answers
and contents of their own.

The problem. A helper runs the user's code for hours: it crashes, is killed, takes long to start, and gets a new run
while it waits for room to send an item of the old one. Its owner is interrupted, closed, dropped, forked or killed at
any moment. Even so no item may be lost or delivered twice, no process may stay behind, and neither may wait for ever.

The solution. There are two channels. Commands and answers are pickled, small, and go through the process's own pipe.
Items go through a data channel of bounded capacity, a tensor pipe, whose reader belongs to the owner; a helper that
waits for room there still receives commands, since a thread listens. Each run has a number, which each of its items
carries, so the owner recognizes items that were on their way when the next run began.

Messages, in their order:

    owner to helper, pipe     Begin(run, work)                    begins a run, and ends the one before
                              a command of the owner's            at any time
                              an empty message                    the end: the last one
    helper to owner, pipe     None or a PackedError               the first: it is prepared, or why it can't be
                              an answer of the helper's           to a command
    helper to owner, data     (run, MessageKind.ITEM, …)          any number of them
                              (run, MessageKind.END_OF_PASS, …)   more items follow
                              (run, MessageKind.END, …)           the last of a run
                              (run, MessageKind.FAILED, …)        or this, with a PackedError

Guarantees:
  - Start. The owner may send commands at once; the pipe keeps them until the helper listens. Where the arguments can't
    be unpickled, or an initializer raises, the first answer has the exception. The helper then ends, or answers each
    run with FAILED.
  - The user's exception. The items before it are sent, then FAILED. The helper lives on: the owner may begin another
    run. An item that can't be pickled is such a failure, too.
  - Crash. Both channels end. The items that were received stay valid. The owner calls `Supervisor.reap`, and decides
    whether another helper computes the rest.
  - Stop. The owner closes its end of the data channel, which ends all waits for items and for room, and sends the
    empty message. The helper ends its run, closes what it owns, and may send a last answer. After the owner's patience
    it is killed.
  - Ctrl-C. Helpers ignore it (`_begin`). In the owner it interrupts waits only; an item that was received and not
    returned is returned by the next call.
  - The owner's end. A native thread of the helper ends it at once (`_begin`), whatever it does. Until then, sending
    raises OwnerGoneError.

Rejected: commands through the data channel, where they would wait behind items; a wait for the first answer before the
first command, which adds the time of a start to each restart; and a common class for the loops of the two helpers,
since one drives threads and the other an event loop.
"""

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

from penstock._os import DaemonThread
from penstock._processes._exceptions import PackedError, pack_error, unpack_error
from penstock._processes._supervisor import Supervisor

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock._processes._child import ChildProcess

WorkT = TypeVar("WorkT")
CommandT = TypeVar("CommandT")


class MessageKind(IntEnum):
    """The kind of a message of the data channel."""

    ITEM = 0
    END_OF_PASS = 1
    END = 2
    FAILED = 3


class Begin(NamedTuple, Generic[WorkT]):
    """The command that begins a run, which ends the one before.

    Attributes:
        run: its number, higher than those before.
        work: the items to compute, as the helper understands it.
    """

    run: int
    work: WorkT


class OwnerGoneError(Exception):
    """The owner receives no items any more."""


class DataReader(Protocol):
    """The owner's end of the data channel."""

    def close(self) -> None:
        """End all waits of both ends; harmless when repeated."""
        ...


ReaderT = TypeVar("ReaderT", bound=DataReader)


# -- the owner's side


class HelperProcess(Generic[ReaderT]):
    """Owns one helper and the owner's ends of both channels. Any thread may call any method.

    Args:
        supervisor: starts the process.
        name: of the process, in messages.
        arguments: of the supervisor's target.
        reader: the data channel; closed with the helper, or if that can't be started.

    Attributes:
        child: the process.
        reader: the data channel.
    """

    def __init__(self, supervisor: Supervisor, name: str, arguments: tuple[object, ...], reader: ReaderT) -> None:
        self.reader = reader
        self._supervisor = supervisor
        self._name = name
        self._sending = threading.RLock()  # the garbage collector may send while it is held
        self._has_started = False
        self._failure: PackedError | None = None  # of the preparation
        try:
            self.child: ChildProcess = supervisor.start(name, arguments)
        except BaseException:
            reader.close()
            raise

    def send(self, command: object) -> None:
        """Send a command.

        Raises:
            OSError: the helper has died.
        """
        pickled = pickle.dumps(command, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self.child.pipe.send_bytes(pickled)

    def answer(self, timeout_seconds: float | None) -> object:
        """Return the helper's next answer.

        Raises:
            TimeoutError: it took too long.
            EOFError: the helper has died.
        """
        if not self.child.wait(timeout_seconds):
            raise TimeoutError
        if not self.child.pipe.poll():
            raise EOFError
        return cast("object", pickle.loads(self.child.pipe.recv_bytes()))

    def has_started(self) -> bool:
        """Return whether the first answer has arrived; call it before `answer`, and from one thread."""
        if not self._has_started:
            with suppress(EOFError, OSError):
                self._failure = cast("PackedError | None", self.answer(0.0))
                self._has_started = True
        return self._has_started

    def wait_until_started(self, timeout_seconds: float | None) -> None:
        """Wait for the first answer.

        Raises:
            TimeoutError: it took too long.
            WorkerError: the helper died before.
            Exception: what the preparation raised.
        """
        if not (self._has_started or self.child.wait(timeout_seconds)):
            raise TimeoutError(f"the {self._name} did not start within {timeout_seconds} s")
        if not self.has_started():
            raise self._supervisor.reap(self.child, started=False).error
        if self._failure is not None:
            error = unpack_error(self._failure)
            raise error

    def stop(self, patience_seconds: float, receive: Callable[[], object] = bool) -> None:
        """Ask the helper to end, and kill it if it takes longer; the supervisor still has to release it.

        Args:
            patience_seconds: how long the helper has.
            receive: called once the helper was asked, to receive its last answer.
        """
        self.reader.close()
        with suppress(EOFError, OSError, ValueError):  # it has ended, takes too long, or was closed before
            self.child.pipe.send_bytes(b"")
            receive()
            self.child.wait_for_end(patience_seconds)
        self.child.kill()


# -- the helper's side


def report_started(pipe: "Connection[Any, Any]", error: BaseException | None = None) -> None:
    """Send the first answer: the helper is prepared, or what the preparation raised."""
    with suppress(OSError):  # the owner has ended
        pipe.send_bytes(pickle.dumps(None if error is None else pack_error(error, with_cause=True)))


def listen_to_owner(pipe: "Connection[Any, Any]", receive: Callable[[CommandT | None], object]) -> None:
    """Call a function with each command, in a thread; and at last with None, at the end or when the owner has ended."""

    def listen() -> None:
        with suppress(EOFError, OSError):
            while message := pipe.recv_bytes():
                receive(cast("CommandT", pickle.loads(message)))
        receive(None)

    DaemonThread(listen, "penstock-commands")
