"""Several waiters for one bell: whoever clears it passes on to the others what it told.

Guarantees, for each listener as a bell's for its one waiter:
  - No ring is lost to one who waits as: clear, look at what one waits for, wait.
  - `wait` ends by Ctrl-C as `Bell.wait` does; an event loop may watch `fileno()` instead.
  - A ring wakes every listener at most twice, so listeners don't keep each other awake.

Each has a bell of its own beside the common one, and waits for both. All may be called from any thread; a listener has
one waiter at a time. More than one listener needs Linux.
"""

import select
import sys

from penstock.errors import UsageError
from penstock.transport._bell import Bell, Waiter


class CommonBell:
    """A bell that several listeners wait for.

    Args:
        bell: rung for all of them; it is cleared by listeners alone.

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
        self.listeners: tuple[Listener, ...] = ()  # replaced as a whole, since other threads read it

    def listen(self) -> "Listener":
        """Return a new listener.

        Raises:
            UsageError: there is one already, and this is not Linux.
        """
        if self.listeners and sys.platform != "linux":
            raise UsageError(f"several loaders share workers on Linux alone; this is {sys.platform}")
        listener = Listener(self)
        self.listeners = (*self.listeners, listener)
        return listener

    def forget(self, listener: "Listener") -> None:
        """Tell a listener nothing more of what others clear away."""
        self.listeners = tuple(other for other in self.listeners if other is not listener)


class Listener:
    """One of those who wait; made by `CommonBell.listen`."""

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
        """Take for heard what was rung. Look for what you wait for after this."""
        self._own.clear()  # first: what another passes on from now on is heard
        if self._common.bell.clear():
            for other in self._common.listeners:
                if other is not self:
                    other.ring()

    def fileno(self) -> int:
        """Return the descriptor that is readable when something was rung; it is not to be read from."""
        return self._descriptor

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until something is rung, and leave it so.

        Args:
            timeout_seconds: how long at most; None waits for ever, 0 only looks.

        Returns:
            True if something is rung, False after the timeout.
        """
        return self._waiter.wait(self._descriptor, timeout_seconds)
