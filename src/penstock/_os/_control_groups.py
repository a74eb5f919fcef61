"""The control groups of Linux that limit this program, and the memory that they leave to it.

Paths are strings here: `pathlib` raises and handles errors of its own, and a Ctrl-C at that moment would show both.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from penstock._caught import Caught


class ControlGroup(NamedTuple):
    """A control group, as the folder that has its files."""

    folder: str
    is_unified: bool
    """Whether its files are those of version 2, in which one group has all controllers."""

    def words(self, name: str) -> list[str]:
        """Return the words of a file of this group; none if there is no such file."""
        return " ".join(_lines(os.path.join(self.folder, name))).split()


def control_groups(controller: str, root: str = "/") -> Iterator[ControlGroup]:
    """Yield the control groups of this program, and those above them.

    Args:
        controller: "cpu" or "memory".
        root: the directory that contains `proc` and `sys`.
    """
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = os.path.join(root, "sys/fs/cgroup", controller if controllers else "")
        names = [part for part in name.split("/") if part]
        for length in range(len(names), -1, -1):
            yield ControlGroup(os.path.join(top, *names[:length]), not controllers)


def memory_limit(root: str = "/") -> int | None:
    """Return how many bytes of memory this program and those in its control groups may use; None if it isn't known.

    Args:
        root: the directory that contains `proc` and `sys`.
    """
    return min(_memory_limits(root), default=None)


def _memory_limits(root: str) -> Iterator[int]:
    for group in control_groups("memory", root):
        with suppress(ValueError, IndexError):  # no limit: "max", or no file
            yield int(group.words("memory.max" if group.is_unified else "memory.limit_in_bytes")[0])
    for line in _lines(os.path.join(root, "proc/meminfo")):
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            yield 1024 * int(rest.split()[0])


def _lines(path: str) -> list[str]:
    """Return the lines of a file; none if it can't be read."""
    with Caught(OSError), open(path, encoding="utf-8") as file:  # the exception of a signal's handler passes
        return file.read().splitlines()
    return []
