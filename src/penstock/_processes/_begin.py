"""What each of our processes does first: Ctrl-C is the parent's to handle, and the parent's end is its own.

Guarantees:
  - SIGINT, which reaches all processes of a terminal, is ignored.
  - When the parent has gone, however it went, the process ends at once, in the middle of a call that keeps Python's
    lock, too: a native thread watches.
  - The global random generators are seeded, each process's differently.
  - Memory that is freed is kept for what is allocated next.
  - What runs in it may start processes of its own.
"""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from typing import Final

from penstock._caught import keep_all
from penstock._decisions import follow_environment
from penstock._native import end_when_readable
from penstock._processes._freed_memory import keep_freed_memory
from penstock._processes._seeding import GlobalSeeds, seed_process

_watching: Final[set[int]] = set()  # by process: what is forked has another number


def begin_process(seeds: GlobalSeeds) -> None:
    """Make this process, which `ChildProcess` has started, what the module says.

    Args:
        seeds: of the global random generators.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was held back until now
    parent = multiprocessing.parent_process()
    assert parent is not None
    if os.getpid() not in _watching:
        watched: list[int] = [parent.sentinel]
        with suppress(OSError, AttributeError):  # not on every system, and not of one that has gone already
            # A process that the parent forked holds what the sentinel is made of, and may outlive it.
            watched.append(os.pidfd_open(parent.pid or 0))
        watch_parent(*watched)
    # A daemon to its parent, which need not wait for it; but one that may have children, as `multiprocessing` sees it.
    multiprocessing.current_process().daemon = False
    follow_environment()
    keep_all()
    seed_process(seeds)
    keep_freed_memory()


def watch_parent(*descriptors: int) -> None:
    """End this process as soon as one of the descriptors is readable."""
    _watching.add(os.getpid())
    end_when_readable(descriptors)
