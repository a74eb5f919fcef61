"""The number of usable processors follows the scheduler, the container and the launcher."""

import os
from pathlib import Path

import pytest

from tests.runtime.autotune.choices import usable_processors

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def system(root: Path, files: dict[str, str]) -> str:
    """Make a file system of these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ALL),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, ALL),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": ""}, ALL),
        ({"proc/self/cgroup": "0::/\n"}, ALL),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/job\n", "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
          "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n"}, ALL),
        ({"proc/self/cgroup": "0::/job/task\n", "sys/fs/cgroup/job/task/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/job/task\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
          "sys/fs/cgroup/job/task/cpu.max": "max 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
        ({"proc/self/cgroup": "5:memory:/other\n3:cpu,cpuacct:/job\n",
          "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000\n",
          "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)  # fmt: skip
def test_a_containers_quota_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    """The smallest quota of the program's group and those above it, rounded down, at least 1."""
    assert usable_processors(system(tmp_path, files), {}) == expected


def test_ranks_of_one_machine_share_it(tmp_path: Path) -> None:
    """The launcher's variable has the number of ranks on the machine."""
    for ranks, expected in {"": ALL, "1": ALL, "none": ALL, "100000": 1}.items():
        assert usable_processors(str(tmp_path), {"LOCAL_WORLD_SIZE": ranks}) == expected
