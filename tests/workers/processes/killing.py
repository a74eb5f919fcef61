"""Worker processes are killed as the system kills them."""

import contextlib

import psutil


def kill_a_worker() -> bool:
    """Kill the newest worker process of this program; return whether there was any."""
    for child in reversed(psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "penstock-worker":  # and not its server, or a spare
                child.kill()
                return True
    return False
