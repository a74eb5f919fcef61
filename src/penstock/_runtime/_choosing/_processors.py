"""How many processors this program may use: what the scheduler, the container and the launcher leave it."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

LOCAL_RANKS = "LOCAL_WORLD_SIZE"  # set by launchers that start several ranks on a machine


def usable_processors(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processors the program may use, at least 1.

    Args:
        root: where the file system with `proc` and `sys` is.
        environment: of which `LOCAL_WORLD_SIZE` says how many programs share the processors.
    """
    count: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min([count, *_quotas(root)])
    ranks = environment.get(LOCAL_RANKS, "")
    if ranks.isdecimal() and int(ranks) > 1:
        count /= int(ranks)
    return max(math.floor(count), 1)


def _quotas(root: Path) -> Iterator[float]:
    """Yield the numbers of processors that the control groups of this program, and those above them, may use."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = (root / "sys/fs/cgroup" / ("cpu" if controllers else "")).joinpath(*Path(name).parts[1:])
        for folder in (group, *group.parents):
            with suppress(ValueError, IndexError):  # "max", -1, or no file at all: no quota
                words = " ".join(_lines(folder / "cpu.max")).split()
                if controllers:
                    words = [*_lines(folder / "cpu.cfs_quota_us"), *_lines(folder / "cpu.cfs_period_us")]
                quota, period = int(words[0]), int(words[1])
                if quota > 0 and period > 0:
                    yield quota / period
            if folder == root / "sys/fs/cgroup":
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
