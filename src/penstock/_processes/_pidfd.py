"""A process that is watched: its descriptor becomes readable when the process has ended, and never means another one.

Linux calls it a pidfd. Numbers of processes are used again, descriptors of them are not. It is kept as an unbuffered
file, which Python closes at the latest when it is dropped.
"""

import contextlib
import io
import os
import select


def watch_process(pid: int) -> io.FileIO | None:
    """Return a process's descriptor, as a file to be closed; None where the system gives none, or it has ended."""
    with contextlib.suppress(OSError, AttributeError):
        return io.FileIO(os.pidfd_open(pid))
    return None


def has_ended(process: io.FileIO) -> bool:
    """Return whether the process has certainly ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
