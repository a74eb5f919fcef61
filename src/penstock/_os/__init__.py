"""Wake-ups, signals, daemon threads, and closing at exit: the parts of the operating system that every package needs.

A *bell* wakes one waiter through a file descriptor; a *common bell* wakes several listeners. `HeldInterrupts` delays
Ctrl-C where it would leave something half done. A `DaemonThread` never keeps the program from ending. A `Closer` closes
a resource exactly once.
"""

from penstock._os._after_fork import renewed_after_fork
from penstock._os._bell import Bell, Waiter
from penstock._os._closer import Closer
from penstock._os._daemon_thread import DaemonThread
from penstock._os._interrupts import HeldInterrupts
from penstock._os._listener import CommonBell, Listener

__all__ = [
    "Bell",
    "Closer",
    "CommonBell",
    "DaemonThread",
    "HeldInterrupts",
    "Listener",
    "Waiter",
    "renewed_after_fork",
]
