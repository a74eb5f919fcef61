"""Programs where /dev/shm is small, as it is in containers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

CHECKOUT = Path(__file__).parents[2]
SOURCES = Path(penstock.__file__).parents[1]
_SMALL = "mount -t tmpfs -o size=64m tmpfs /dev/shm"


def run_with_small_shm(program: str, patience_seconds: float) -> tuple[int, str, str]:
    """Run a program where /dev/shm has 64 MB; return its exit code, and what it wrote to each stream."""
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "--mount", "sh", "-c", _SMALL], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system lets nobody here mount a small /dev/shm")
    ended = subprocess.run(
        [unshare, "--mount", "sh", "-c", f'{_SMALL} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
        timeout=patience_seconds,
        env=os.environ | {"PYTHONPATH": f"{SOURCES}:{CHECKOUT}"},
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr
