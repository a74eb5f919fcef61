"""Where /dev/shm is small, as it is in containers, worker processes work all the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

CHECKOUT = str(Path(__file__).parents[3])
SOURCES = str(Path(penstock.__file__).parents[1])
PATIENCE_SECONDS = 120.0
SMALL = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
PROGRAM = """
import os
import penstock as ps
from tests.workers.processes import functions

def main():
    status = os.statvfs("/dev/shm")
    assert status.f_blocks * status.f_frsize == 64 << 20
    dataset = ps.range(1280).map(functions.large_row).batch(320)
    with ps.Loader(dataset, num_workers=16, workers="processes") as loader:
        total = 0
        for batch in loader:
            assert batch.nbytes == 32_000_000 and (batch[:, 0] == batch[:, -1]).all()
            total += len(batch)
    print(total)

if __name__ == "__main__":
    main()
"""


def test_sixteen_workers_with_64_megabytes() -> None:
    """Three batches that together are larger than /dev/shm are in memory at once, of 16 workers; nothing fails."""
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "--mount", "sh", "-c", SMALL], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system lets nobody here mount a small /dev/shm")
    environment = os.environ | {"PYTHONPATH": f"{SOURCES}:{CHECKOUT}"}
    program = subprocess.run(
        [unshare, "--mount", "sh", "-c", f'{SMALL} && exec "$0" -c "$1"', sys.executable, PROGRAM],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=environment,
        check=False,
    )
    assert (program.returncode, program.stdout, program.stderr) == (0, "1280\n", "")
