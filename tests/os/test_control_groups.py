"""The memory that the program may use follows its control groups, those above them, and the machine."""

from pathlib import Path

import pytest

from penstock._os import memory_limit
from tests.runtime.autotune.test_processors import system

MACHINE = {"proc/meminfo": "MemTotal:        8 kB\nMemFree: 1 kB\n"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (MACHINE, 8192),
        ({**MACHINE, "proc/self/cgroup": "0::/job/task\n", "sys/fs/cgroup/job/task/memory.max": "max\n"}, 8192),
        ({**MACHINE, "proc/self/cgroup": "0::/job/task\n", "sys/fs/cgroup/job/task/memory.max": "max\n",
          "sys/fs/cgroup/job/memory.max": "4096\n"}, 4096),
        ({**MACHINE, "proc/self/cgroup": "3:cpu:/other\n5:memory:/job\n",
          "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096\n",
          "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4096),
    ],
)  # fmt: skip
def test_the_smallest_limit_counts(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    """Both versions of control groups are read; a group without a limit leaves that of the machine."""
    assert memory_limit(system(tmp_path, files)) == limit
