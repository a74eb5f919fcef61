"""Programs with other mounts than this system has, as in containers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

CHECKOUT = Path(__file__).parents[2]
SOURCES = Path(penstock.__file__).parents[1]
SMALL_SHM = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
NO_PROC = "mount -t tmpfs tmpfs /proc"


def run_mounted(mount: str, program: str, patience_seconds: float) -> tuple[int, str, str]:
    """Run a program after a mount that it alone sees; return its exit code, and what it wrote to each stream."""
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "--mount", "sh", "-c", mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system lets nobody here mount anything")
    ended = subprocess.run(
        [unshare, "--mount", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
        timeout=patience_seconds,
        env=os.environ | {"PYTHONPATH": f"{SOURCES}:{CHECKOUT}"},
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr
