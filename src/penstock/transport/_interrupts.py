"""Ctrl-C waits until it does no harm: inside a scope, SIGINT's handler is called where that is allowed, or at the end.

Python may call a signal's handler between any two instructions of the main thread, and what it raises then undoes
nothing: a lock that was just taken stays taken, a packet that was just read is lost. Other threads are never
interrupted; there a scope does nothing.
"""

import importlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

_Handler = Callable[[int, FrameType | None], Any]

# What is below `signal`, which takes ten times as long for making enumerations of what it is given and returns.
_signal = importlib.import_module("_signal")
_get: Final[Callable[[int], _Handler | int | None]] = _signal.getsignal
_set: Final[Callable[[int, _Handler], object]] = _signal.signal
_SIGINT: Final = int(signal.SIGINT)


class HeldInterrupts:
    """A scope in which Ctrl-C is held back, except between `allow` and `hold`; what arrived is told at its end.

    Attributes:
        arrived: whether it was pressed, and not told yet.
    """

    __slots__ = ("_allowed", "_handler", "arrived")

    def __init__(self) -> None:
        self.arrived = False
        self._allowed = False
        self._handler: _Handler | None = None

    def __enter__(self) -> Self:
        if threading.get_ident() == threading.main_thread().ident:
            handler = _get(_SIGINT)
            if callable(handler):  # not one of the system's
                self._handler = handler
                _set(_SIGINT, self._arrive)
        return self

    def __exit__(self, *error: object) -> None:
        if self._handler is not None:
            _set(_SIGINT, self._handler)
            self._tell()

    def allow(self) -> None:
        """Call the handler for what arrived, and from now on at once."""
        self._allowed = True
        self._tell()

    def hold(self) -> None:
        """Hold back from now on; needs no call after the handler has raised."""
        self._allowed = False

    def _arrive(self, _: int, frame: FrameType | None, /) -> None:
        self.arrived = True
        if self._allowed:
            self._tell(frame)

    def _tell(self, frame: FrameType | None = None) -> None:
        if self.arrived and self._handler is not None:
            self.arrived = False
            allowed, self._allowed = self._allowed, False  # stays so if the handler raises: one is enough
            self._handler(_SIGINT, frame)
            self._allowed = allowed
