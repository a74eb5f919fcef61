"""Worker processes are killed as the system kills them."""

import contextlib

import psutil


def kill_a_worker() -> None:
    """Kill the newest worker process of this program, if there is any now."""
    for child in reversed(psutil.Process().children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--multiprocessing-fork" in child.cmdline():  # and not the resource tracker
                child.kill()
                return
