"""The machine, the versions and the commit of a measurement, so that numbers can be compared later."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("penstock", "numpy", "torch", "torchdata", "grain", "spdl", "webdataset", "simplejpeg")


def machine() -> dict[str, object]:
    """Return the processor's model, usable cores, memory in bytes, kernel and load average of this machine."""
    return {
        "cpu": _cpu_field("model name") or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_average": load_average(),
    }


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def load_average() -> float:
    """Return the average number of runnable threads during the last minute."""
    return os.getloadavg()[0]


def has_avx2() -> bool:
    """Return whether the processor is known to have AVX2."""
    return "avx2" in _cpu_field("flags").split()


def versions() -> dict[str, str]:
    """Return the versions of Python and of all relevant packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the checkout's commit, with `+` if files differ from it; None outside a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _cpu_field(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo, or an empty string if there is none."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return ""
    for line in information.read_text().splitlines():
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return ""
