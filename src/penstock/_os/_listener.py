"""A bell with several waiters: the listener that clears it rings the others.

Guarantees, for each listener, as for the one waiter of a bell:
  - No ring is lost if the waiter clears, then checks its condition, then waits.
  - Ctrl-C ends `wait`, as it ends `Bell.wait`. An event loop may watch `fileno()` instead.
  - A ring wakes each listener at most twice, so listeners don't keep each other awake.

Each listener has a bell of its own beside the common one, and waits for both. All methods may be called from any
thread; a listener has one waiter at a time. More than one listener requires Linux.
"""

import select
import sys

from penstock._os._bell import Bell, Waiter
from penstock.errors import UsageError


class CommonBell:
    """A bell that several listeners can wait for.

    Args:
        bell: the bell to ring for all of them; only listeners clear it.

    Example:
        >>> common = CommonBell(Bell())
        >>> first, second = common.listen(), common.listen()
        >>> common.bell.ring()
        >>> first.clear()
        >>> first.wait(timeout_seconds=0.0), second.wait(timeout_seconds=0.0)
        (False, True)
    """

    def __init__(self, bell: Bell) -> None:
        self.bell = bell
        self.listeners: tuple[Listener, ...] = ()  # immutable, since other threads iterate over it

    def listen(self) -> "Listener":
        """Return a new listener.

        Raises:
            UsageError: there is a listener already, and this is not Linux.
        """
        if self.listeners and sys.platform != "linux":
            raise UsageError(f"several loaders can share workers only on Linux; this is {sys.platform}")
        listener = Listener(self)
        self.listeners = (*self.listeners, listener)
        return listener

    def forget(self, listener: "Listener") -> None:
        """Stop waking a listener."""
        self.listeners = tuple(other for other in self.listeners if other is not listener)


class Listener:
    """One waiter of a common bell; made by `CommonBell.listen`."""

    def __init__(self, common: CommonBell) -> None:
        self._common = common
        self._own = Bell()
        self._waiter = Waiter()
        self._descriptor = common.bell.fileno()
        if sys.platform == "linux":
            self._either = select.epoll()
            self._either.register(common.bell.fileno(), select.EPOLLIN)
            self._either.register(self._own.fileno(), select.EPOLLIN)
            self._descriptor = self._either.fileno()

    def ring(self) -> None:
        """Wake this listener alone."""
        if sys.platform == "linux":
            self._own.ring()
        else:
            self._common.bell.ring()

    def clear(self) -> None:
        """Clear the bell, and wake the other listeners if it was rung. Check your condition after this call."""
        self._own.clear()  # first: a ring of another listener after this counts
        if self._common.bell.clear():
            for other in self._common.listeners:
                if other is not self:
                    other.ring()

    def fileno(self) -> int:
        """Return the descriptor, which is readable after a ring; do not read from it."""
        return self._descriptor

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the common bell or this listener is rung; it stays rung until `clear`.

        Args:
            timeout_seconds: the longest wait; None has no limit, 0 returns at once.

        Returns:
            True if it is rung, False after the timeout.
        """
        return self._waiter.wait(self._descriptor, timeout_seconds)
