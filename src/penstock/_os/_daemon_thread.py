"""A daemon thread that never loses a Ctrl-C.

`DaemonThread` holds no `threading.Thread`, because of two traps of `threading`:
  - When a `Thread` is dropped, `threading` runs Python code for it. Python prints a Ctrl-C that arrives there, and does
    not raise it. So the last reference to the `Thread` belongs to the thread itself, which signals never interrupt.
  - In Python 3.11 a `join` that Ctrl-C ends marks the thread as ended. So a bell reports the end.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Final

from penstock._os._bell import Bell
from penstock._os._interrupts import HeldInterrupts


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
        self._ended: Bell | None = ended  # None once it has rung
        with HeldInterrupts():
            thread = threading.Thread(target=_run, args=(work, ended), name=name, daemon=True)
            self._thread = weakref.ref(thread)
            thread.start()
            self._ident = thread.ident
            del thread

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._ident and not self.has_ended  # a new thread may get the same ident

    @property
    def has_ended(self) -> bool:
        """Whether the work is over."""
        ended = self._ended
        return ended is None or ended.wait(0.0)

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait until the thread has ended; Ctrl-C ends the wait, and changes nothing.

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
                thread.join()  # short: its work is done
            del thread
        return True


def _run(work: Callable[[], None], ended: Bell) -> None:
    try:
        work()
    finally:
        ended.ring()
        del ended, work  # a traceback that outlives the thread would keep them alive through this frame
