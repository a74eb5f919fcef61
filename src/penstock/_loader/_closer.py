"""Closing once: when it is asked for, else when the owner is dropped, else when the program ends.

What Python calls when an object is dropped can't raise: a Ctrl-C that arrives meanwhile would be printed and forgotten,
and the program would go on. Here it is raised again, as soon as the program itself goes on.
"""

import _thread
import contextlib
import weakref
from collections.abc import Callable


class Closer:
    """Calls `close` at most once to its end; `close` must be such that it can be called again after an interrupt."""

    def __init__(self, owner: object, close: Callable[[], None]) -> None:
        self._close = close
        self._finalizer = weakref.finalize(owner, _close_dropped, close)

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed yet."""
        return self._finalizer.alive

    def __call__(self) -> None:
        """Close now, if that has not been done; an interrupt comes out of it, and leaves it to be done."""
        if self._finalizer.alive:
            self._close()
            self._finalizer.detach()


def _close_dropped(close: Callable[[], None]) -> None:
    try:
        close()
    except KeyboardInterrupt:
        close()
        with contextlib.suppress(RuntimeError):  # the program ends anyway
            # Not from here: it would be raised, and forgotten, before this returns.
            _thread.start_new_thread(_thread.interrupt_main, ())
