"""Signals wait until they do no harm: a scope holds their handlers until it allows them, or ends.

Python may call a signal's handler between any two instructions of the main thread, and what it raises (Ctrl-C, a
timer's time-out, whatever the program wants) then undoes nothing: a lock that was just taken stays taken, a packet that
was just read is lost. Other threads are never interrupted; there a scope does nothing.

Guarantees:
  - A handler is called once for a signal, or once for several of the same number, as Python does. What it raises is
    raised once, by `allow`, by what follows it, or at the end of the scope.
  - All handlers are as they were after the scope, however it is left.
  - Scopes may be nested: the inner one's signals wait for the outer one.
"""

import importlib
import inspect
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, Self

from penstock._caught import Handler, python_handlers

_signal = importlib.import_module("_signal")
_get: Final[Callable[[int], object]] = _signal.getsignal
_set: Final[Callable[[int, Handler], object]] = _signal.signal


class HeldInterrupts:
    """A scope in which signals are held back, except between `allow` and `hold`.

    The handlers of those that arrived are called at its end.

    Attributes:
        undo: called at the end if a handler raises there, so that what the scope would return is not lost. The scope
            drops it at its end, since it may hold an exception whose traceback holds the scope.
        has_raised: whether a handler has raised where that was allowed.
    """

    __slots__ = ("_allowed", "_arrived", "_handlers", "has_raised", "undo")

    def __init__(self) -> None:
        self.undo: Callable[[], object] | None = None
        self.has_raised = False
        self._arrived: list[int] = []  # signals whose handlers were not called yet
        self._allowed = False
        self._handlers: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        if threading.get_ident() == threading.main_thread().ident:
            self._handlers = python_handlers()
            try:
                for number in self._handlers:
                    _set(number, self._arrive)
            except BaseException:  # a handler's that was not replaced yet
                self.__exit__()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        undo, self.undo = self.undo, None
        if self._handlers:
            try:
                try:
                    self._restore()
                finally:
                    self._tell()
            except BaseException:
                if undo is not None:
                    undo()
                raise

    def allow(self) -> None:
        """Call the handlers of what arrived, and from now on at once."""
        self._allowed = True
        self._tell()

    def hold(self) -> None:
        """Hold back from now on; needs no call after a handler has raised."""
        self._allowed = False

    def _restore(self) -> None:
        try:
            for number, handler in self._handlers.items():
                if _get(number) == self._arrive:  # else a handler has set another one
                    _set(number, handler)
        except BaseException:  # a handler's that was just restored
            self._restore()
            raise

    def _arrive(self, number: int, frame: FrameType | None, /) -> None:
        if number not in self._arrived:
            self._arrived.append(number)
        if self._allowed:
            self._tell(frame)

    def _tell(self, frame: FrameType | None = None) -> None:
        if not self._arrived:
            return
        allowed, self._allowed = self._allowed, False  # stays so if a handler raises: one is enough
        number = self._arrived.pop(0)
        try:
            self._handlers[number](number, frame or inspect.currentframe())
        except BaseException:
            self.has_raised = True
            raise
        finally:
            self._tell()
        self._allowed = allowed
