"""The memory that this process shares with others, as the system counts it."""

import contextlib
import os

import psutil


def shared_bytes() -> int:
    """Return the bytes of all pages of anonymous shared memory to which this process has a descriptor."""
    found: dict[int, int] = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:"):
                status = os.stat(int(descriptor))
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def mapped_regions() -> int:
    """Return how many pieces of memory without a name a worker process has mapped; of several workers, the most."""
    return max(map(_mapped, _workers()), default=0)


def open_regions() -> int:
    """Return how many descriptors of memory without a name a worker process has; of several workers, the most."""
    return max(map(_open, _workers()), default=0)


def _workers() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True) if child.name() == "penstock-worker"]


def _mapped(pid: int) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return len({line.split()[4] for line in maps if "/memfd:" in line})


def _open(pid: int) -> int:
    descriptors = os.listdir(f"/proc/{pid}/fd")
    return sum(os.readlink(f"/proc/{pid}/fd/{each}").startswith("/memfd:") for each in descriptors)
