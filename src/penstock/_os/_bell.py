"""File descriptors that wake a waiter: a bell, a bell with several listeners, and the end of a process.

A bell is a file descriptor that becomes readable when it is rung.

Guarantees:
  - No ring is lost if the waiter clears the bell, then checks its condition, then waits. Several rings before a
    clear count as one.
  - `ring` never blocks, and may be called from any thread.
  - `wait` releases the GIL. On the main thread a signal ends it at once, in whichever thread the signal arrived: `wait`
    raises `KeyboardInterrupt`, or the exception of another handler, and clears nothing.
  - The descriptor is closed when its last owner is dropped: this object, or a ring that holds it.
  - Every process that attached to a shared ring can ring the bell of that ring.

One thread waits at a time. An event loop may watch `fileno()` instead; it clears before it checks its condition. A wait
on the main thread sets `signal.set_wakeup_fd` until it returns, and forwards each signal's byte to the descriptor that
was set before. `Waiter().wait(descriptor, timeout_seconds)` waits in the same way for a given descriptor.

Where several threads wait for one `CommonBell`, each has a `Listener`, with the same guarantees. A listener has a bell
of its own beside the common one, and waits for both; the one that clears the common bell rings the others. So a ring
wakes each listener at most twice, and listeners don't keep each other awake. More than one listener requires Linux.

A pidfd, which `watch_process` returns, is a descriptor of a process that becomes readable when the process has ended.
Pids are used again, so a pid may refer to another process later; a pidfd never does. It is held as an unbuffered file,
which Python closes at the latest when it is dropped.
"""

import contextlib
import io
import os
import select
import sys
from typing import Protocol

from penstock._native import Bell as _NativeBell
from penstock._native import Waiter as Waiter
from penstock.errors import UsageError


class HasDescriptor(Protocol):
    """An object with a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...


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
            self._either = either_of(common.bell, self._own)
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


def either_of(*watched: HasDescriptor) -> select.epoll:
    """Return an object whose descriptor is readable while one of several is. It is closed when it is dropped.

    One that is closed counts as never readable.
    """
    either = select.epoll()
    for each in watched:
        with contextlib.suppress(OSError, ValueError):
            either.register(each.fileno(), select.EPOLLIN)
    return either


def watch_process(pid: int) -> io.FileIO | None:
    """Return the pidfd of a process, to be closed; None if the system has none, or the process has been waited for."""
    with contextlib.suppress(OSError, AttributeError):
        return io.FileIO(os.pidfd_open(pid))
    return None


def has_ended(process: io.FileIO) -> bool:
    """Return whether the process has certainly ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
