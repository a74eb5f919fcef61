"""Killing worker processes as the system does."""

import contextlib

import psutil


def kill_a_worker(*, oldest: bool = False) -> bool:
    """Kill the newest worker process of this program, or the oldest; return whether there was any."""
    children = psutil.Process().children(recursive=True)
    for child in sorted(children, key=psutil.Process.create_time, reverse=not oldest):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "penstock-worker":  # and not its server, or a spare
                child.kill()
                return True
    return False
