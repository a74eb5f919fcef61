"""Pidfds: descriptors of processes, which become readable when the process has ended.

Pids are used again, so a pid may refer to another process later; a pidfd never does. It is held as an unbuffered file,
which Python closes at the latest when it is dropped.
"""

import contextlib
import io
import os
import select


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
