"""The name of a source in messages: short, on one line, and without an effect on the program."""

import signal
from types import FrameType

import pytest

from penstock.sources._source import name_of


class Long:
    """A source with a long repr of several lines."""

    def __repr__(self) -> str:
        return "Long(" + "x\n" * 300 + ")"


class Failing:
    """A source whose repr fails."""

    def __repr__(self) -> str:
        raise LookupError


class Struck:
    """A source in whose repr a signal arrives."""

    def __repr__(self) -> str:
        signal.raise_signal(signal.SIGUSR1)
        return "Struck()"


class StoppedError(Exception):
    """An exception of a signal's handler."""


def stop(number: int, frame: FrameType | None) -> None:
    """Raise, as a signal's handler does."""
    raise StoppedError(number, frame)


def test_a_repr_is_cut_or_replaced() -> None:
    """A long repr loses its middle, and one that fails is the type's name."""
    name = name_of(Long())
    assert name.startswith("Long(x x")
    assert name.endswith("x )")
    assert "..." in name
    assert len(name) <= 200
    assert name_of(Failing()).startswith("<Failing instance at 0x")


def test_a_handlers_exception_in_a_repr_is_raised() -> None:
    """The exception of a signal's handler is no failure of the repr."""
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(StoppedError):
            name_of(Struck())
    finally:
        signal.signal(signal.SIGUSR1, before)
