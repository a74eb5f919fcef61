"""Closing once: when it is asked for, else when the owner is dropped, else when the program ends.

No Ctrl-C is lost over it: one that arrives while an owner is being dropped is raised when the program itself goes on.
"""

import weakref
from collections.abc import Callable

from penstock._native import CallWhenDropped


class Closer:
    """Calls `close` at most once to its end; it is kept by its owner alone, and dropped with it.

    Args:
        close: can be called again after an interrupt. What it holds must not hold the owner, but in what the garbage
            collector knows.

    Example:
        >>> closer = Closer(lambda: print("closed"))
        >>> del closer
        closed
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._closing = _Closing(close)
        self._when_dropped = CallWhenDropped(self._closing)

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed yet."""
        return self._closing.is_open

    def __call__(self) -> None:
        """Close now, if that has not been done; an interrupt comes out of it, and leaves it to be done."""
        self._closing()


class _Closing:
    """What outlives the owner, until it is closed."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.is_open = True
        self._close = close
        self._at_exit: weakref.finalize[..., _Closing] | None = (
            None  # as long as an interrupt may come before it is kept
        )
        # Weakly, since it's kept to the end of the program, and what `close` holds may lead back to the owner.
        self._at_exit = weakref.finalize(self, _close_at_exit, weakref.ref(self))

    def __call__(self) -> None:
        if self.is_open:
            self._close()
            self.is_open = False
            if self._at_exit is not None:
                self._at_exit.detach()


def _close_at_exit(closing: "weakref.ref[_Closing]") -> None:
    alive = closing()
    if alive is not None:
        alive()
