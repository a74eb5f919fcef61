"""A thread that the end of the program doesn't wait for, and over which no Ctrl-C is lost.

Two traps of `threading` are why nobody here holds a `Thread`. When the object is dropped, Python code of `threading`
runs for it, and a Ctrl-C that arrives there is printed and forgotten; so the last to hold it is the thread itself,
which is never interrupted. And a `join` that Ctrl-C ends takes the thread for ended (in Python 3.11); so its end is
told by a bell.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Final

from penstock.transport._bell import Bell
from penstock.transport._interrupts import HeldInterrupts


class DaemonThread:
    """A thread that runs `work` once.

    Example:
        >>> done = []
        >>> thread = DaemonThread(lambda: done.append("work"), "example")
        >>> thread.wait(None), done
        (True, ['work'])
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        """Start the thread."""
        self.name: Final = name
        ended = Bell()
        self._ended: Bell | None = ended  # let go of once it has rung
        with HeldInterrupts():
            thread = threading.Thread(target=_run, args=(work, ended), name=name, daemon=True)
            self._thread = weakref.ref(thread)
            thread.start()
            self._ident = thread.ident
            del thread

    @property
    def is_current(self) -> bool:
        """Whether this is called in the thread."""
        return threading.get_ident() == self._ident and not self.has_ended  # idents are used again

    @property
    def has_ended(self) -> bool:
        """Whether the work is over."""
        ended = self._ended
        return ended is None or ended.wait(0.0)

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for the thread's end; Ctrl-C ends the wait, and changes nothing.

        Returns:
            Whether it has ended; False after the timeout.
        """
        ended = self._ended
        if ended is not None and not ended.wait(timeout_seconds):
            return False
        self._ended = None
        with HeldInterrupts():
            thread = self._thread()
            if thread is not None:
                thread.join()  # it has nothing left to do
            del thread
        return True


def _run(work: Callable[[], None], ended: Bell) -> None:
    try:
        work()
    finally:
        ended.ring()
        del ended, work  # an error of the work's that somebody keeps holds this frame
