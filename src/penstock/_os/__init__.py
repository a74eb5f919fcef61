"""Wake-ups, signals, daemon threads, and closing at exit: the parts of the operating system that every package needs.

A *bell* wakes one waiter through a file descriptor; a *common bell* wakes several listeners; `watch_process` returns a
descriptor that reports the end of a process. `HeldInterrupts` delays Ctrl-C where it would leave something half done. A
`DaemonThread` never keeps the program from ending. A `Closer` closes a resource exactly once. A *control group* limits
what the program may use. `this_host` distinguishes the hosts of a job. `local_path` refuses paths that are none of this
machine.
"""

from penstock._os._bell import Bell, CommonBell, Listener, Waiter, either_of, has_ended, watch_process
from penstock._os._closer import PROGRAM_ENDS, Closer, Reference, renewed_after_fork, weakly
from penstock._os._control_groups import control_groups, memory_limit
from penstock._os._hosts import this_host
from penstock._os._interrupts import DaemonThread, HeldInterrupts, holding_interrupts, uninterrupted
from penstock._os._paths import local_path

__all__ = [
    "PROGRAM_ENDS",
    "Bell",
    "Closer",
    "CommonBell",
    "DaemonThread",
    "HeldInterrupts",
    "Listener",
    "Reference",
    "Waiter",
    "control_groups",
    "either_of",
    "has_ended",
    "holding_interrupts",
    "local_path",
    "memory_limit",
    "renewed_after_fork",
    "this_host",
    "uninterrupted",
    "watch_process",
    "weakly",
]
