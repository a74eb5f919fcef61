"""A bell: a file descriptor that becomes readable when it is rung.

Guarantees:
  - No ring is lost if the waiter clears the bell, then checks its condition, then waits. Several rings before a
    clear count as one.
  - `ring` never blocks, and may be called from any thread.
  - `wait` releases the GIL. On the main thread a signal ends it at once, in whichever thread the signal arrived: `wait`
    raises `KeyboardInterrupt`, or the exception of another handler, and clears nothing.
  - The descriptor is closed when its last owner is dropped: this object, or a ring that holds it.
  - Every process that attached to a shared ring can ring the bell of that ring.

`Waiter().wait(descriptor, timeout_seconds)` waits in the same way until a given descriptor is readable.

One thread waits at a time, or several with a `Listener` each. An event loop may watch `fileno()` instead; it clears
before it checks its condition. A wait on the main thread sets `signal.set_wakeup_fd` until it returns, and forwards
each signal's byte to the descriptor that was set before.
"""

from penstock._native import Bell as _NativeBell
from penstock._native import Waiter as Waiter


class Bell:
    """Wakes one waiter, through a file descriptor that threads and event loops can wait on.

    Args:
        native: an existing native bell to wrap; None makes a new one.

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
        """Make the descriptor unreadable, whether it was rung or not. Check your condition after this call.

        Returns:
            Whether it was readable.
        """
        return self.native.clear()

    def fileno(self) -> int:
        """Return the descriptor, for `select`, `poll` or an event loop; do not read from it."""
        return self.native.fileno()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the bell is rung; it stays rung until `clear`.

        Args:
            timeout_seconds: the longest wait; None has no limit, 0 returns at once.

        Returns:
            True if the bell is rung, False after the timeout.
        """
        return self.native.wait(timeout_seconds)
