"""A bell: a file descriptor that becomes readable when it is rung.

Guarantees:
  - No ring is lost to one who waits as: clear, look at what one waits for, wait. Many rings before a clear count once.
  - `ring` never blocks, and may be called from any thread.
  - `wait` releases the interpreter's lock. On the main thread a signal ends it at once: `KeyboardInterrupt`, or what
    another handler raises, comes out of `wait`, wherever in the process the signal arrived; nothing was cleared then.
  - The descriptor is closed when the last owner is gone: this object, and every ring that was given it.
  - The bell of a shared ring is rung from any process that attached to the ring.

`Waiter().wait(descriptor, timeout_seconds)` waits in the same way until any descriptor is readable.

One thread waits at a time, or several with a `Listener` each; an event loop may watch `fileno()` instead, and clears
before it looks. During a wait on the main thread `signal.set_wakeup_fd` is ours; what arrives is handed on to its
former holder.
"""

from penstock._native import Bell as _NativeBell
from penstock._native import Waiter as Waiter


class Bell:
    """Wakes one waiter, through a file descriptor that threads and event loops can wait on.

    Args:
        native: the native bell that this one is; None makes a new one.

    Example:
        >>> bell = Bell()
        >>> bell.ring()
        >>> bell.wait(timeout_seconds=1.0)
        True
        >>> bell.clear()
        True
        >>> bell.wait(timeout_seconds=0.0)
        False
    """

    __slots__ = ("native",)

    def __init__(self, native: _NativeBell | None = None) -> None:
        self.native: _NativeBell = _NativeBell() if native is None else native

    def ring(self) -> None:
        """Make the descriptor readable, until the next `clear`."""
        self.native.ring()

    def clear(self) -> bool:
        """Make the descriptor unreadable, whether it was rung or not. Look for what you wait for after this.

        Returns:
            Whether it was readable.
        """
        return self.native.clear()

    def fileno(self) -> int:
        """Return the descriptor, for `select`, `poll` or an event loop; it is not to be read from."""
        return self.native.fileno()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the bell is rung, and leave it so.

        Args:
            timeout_seconds: how long at most; None waits for ever, 0 only looks.

        Returns:
            True if the bell is rung, False after the timeout.
        """
        return self.native.wait(timeout_seconds)
