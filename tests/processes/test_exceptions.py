"""Exceptions on their way to another process: as themselves, or in words where they would arrive as something else."""

import pickle
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock._processes._exceptions import PackedError, pack_error, unpack_error
from penstock.errors import WorkerError


class ChangesError(Exception):
    """Is unpickled as another exception."""

    def __reduce__(self) -> tuple[type[Exception], tuple[str]]:
        return LookupError, ("nothing",)


def test_an_exception_arrives_as_itself() -> None:
    """Type and arguments are kept; a note has the traceback."""
    arrived = unpack_error(pack_error(LookupError("no such record", 7)))
    assert (type(arrived), arrived.args) == (LookupError, ("no such record", 7))
    assert "LookupError" in arrived.__notes__[0]


def test_an_exception_that_would_arrive_as_another_comes_in_words() -> None:
    """Its own type and message are named, and not those that pickle makes of it."""
    arrived = unpack_error(pack_error(ChangesError("a hole in the bucket")))
    assert type(arrived) is WorkerError
    assert "ChangesError: a hole in the bucket" in str(arrived)


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception that refuses to have attributes set."""


def test_an_exception_that_refuses_a_note_arrives_as_itself() -> None:
    """It has no traceback of the other process then."""
    with pytest.raises(FrozenError) as raised:
        raise FrozenError from ValueError("the cause")
    arrived = unpack_error(pack_error(raised.value, with_cause=True))
    assert type(arrived) is FrozenError
    assert isinstance(arrived.__cause__, ValueError)


class InterruptingError(Exception):
    """An error whose unpickling is interrupted."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return signal.raise_signal, (signal.SIGINT,)


def test_an_interrupt_during_unpickling_is_raised() -> None:
    """The KeyboardInterrupt is raised in place of the error that another process sent."""
    packed = PackedError(pickle.dumps(InterruptingError()), "InterruptingError", "", "", 0)
    with pytest.raises(KeyboardInterrupt):
        unpack_error(packed)


class EndingError(Exception):
    """An error whose unpickling raises an exception that ends threads."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[object, ...]]:
        return end, self.args


def end(kind: type[BaseException]) -> None:
    """Raise an exception."""
    raise kind


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_thread_survives_an_error_that_ends_threads(kind: type[BaseException]) -> None:
    """A thread, which Ctrl-C never reaches, gets the error's text: a thread that serves a process must continue."""
    found: list[object] = []
    packed = PackedError(pickle.dumps(EndingError(kind)), "EndingError", "its words", "", 0)
    thread = threading.Thread(target=lambda: found.append(unpack_error(packed)))
    thread.start()
    thread.join()
    assert "its words" in str(found)
