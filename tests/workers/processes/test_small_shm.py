"""Worker processes work if /dev/shm is small, as in containers."""

from tests.programs.small_shm import run_with_small_shm

PATIENCE_SECONDS = 120.0
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
    """With 16 workers, three batches that together are larger than /dev/shm are in memory at once."""
    assert run_with_small_shm(PROGRAM, PATIENCE_SECONDS) == (0, "1280\n", "")
