"""Ctrl-C waits until it does no harm: inside a scope, SIGINT's handler is called where that is allowed, or at the end.

Python may call a signal's handler between any two instructions of the main thread, and what it raises then undoes
nothing: a lock that was just taken stays taken, a packet that was just read is lost. Other threads are never
interrupted; there a scope does nothing.
"""

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class HeldInterrupts:
    """A scope in which Ctrl-C is held back, except between `allow` and `hold`; what arrived is told at its end.

    Attributes:
        arrived: whether it was pressed, and not told yet.
    """

    __slots__ = ("_allowed", "_handler", "arrived")

    def __init__(self) -> None:
        self.arrived = False
        self._allowed = False
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> Self:
        if threading.get_ident() == threading.main_thread().ident:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._arrive)
        return self

    def __exit__(self, *error: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
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
            self._handler(signal.SIGINT, frame)
            self._allowed = allowed
