"""The number of processors that this program may use, within the limits of system, container and launcher.

Paths are strings here: `pathlib` raises and handles errors of its own, and a Ctrl-C at that moment would show both.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

LOCAL_RANKS = "LOCAL_WORLD_SIZE"  # set by launchers that start several ranks on a machine


def usable_processors(root: str = "/", environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processors the program may use, at least 1.

    Args:
        root: where the file system with `proc` and `sys` is.
        environment: of which `LOCAL_WORLD_SIZE` says how many programs share the processors.
    """
    count = processor_share(root)
    ranks = environment.get(LOCAL_RANKS, "")
    if ranks.isdecimal() and int(ranks) > 1:
        count /= int(ranks)
    return max(math.floor(count), 1)


def processor_share(root: str = "/") -> float:
    """Return how many processors' time this thread and those it starts may take, which needn't be a whole number."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(count), *_quotas(root)])


def _quotas(root: str) -> Iterator[float]:
    """Yield the numbers of processors that the control groups of this program, and those above them, may use."""
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = os.path.join(root, "sys/fs/cgroup", "cpu" if controllers else "")
        names = [part for part in name.split("/") if part]
        for length in range(len(names), -1, -1):
            folder = os.path.join(top, *names[:length])
            with suppress(ValueError, IndexError):  # "max", -1, or no file at all: no quota
                words = " ".join(_lines(os.path.join(folder, "cpu.max"))).split()
                if controllers:
                    files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                    words = [word for file in files for word in _lines(os.path.join(folder, file))]
                quota, period = int(words[0]), int(words[1])
                if quota > 0 and period > 0:
                    yield quota / period


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []
