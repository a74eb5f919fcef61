"""Worker processes work if /dev/shm is small, as in containers, and if there is no /proc."""

from tests.programs.mounted import NO_PROC, SMALL_SHM, run_mounted

PATIENCE_SECONDS = 120.0
LARGE_BATCHES = """
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
    assert run_mounted(SMALL_SHM, LARGE_BATCHES, PATIENCE_SECONDS) == (0, "1280\n", "")


WITHOUT_PROC = """
import penstock as ps

def twice(number):
    return 2 * number

def main():
    dataset = ps.range(8).map(twice).batch(4)
    for options in ({"workers": "processes", "num_workers": 1}, {"isolated": True}):
        with ps.Loader(dataset, **options) as loader:
            print([batch.tolist() for batch in loader])

if __name__ == "__main__":
    main()
"""


def test_no_proc() -> None:
    """Where nothing counts the threads of a fork server, processes are spawned."""
    expected = "[[0, 2, 4, 6], [8, 10, 12, 14]]\n"
    assert run_mounted(NO_PROC, WITHOUT_PROC, PATIENCE_SECONDS) == (0, 2 * expected, "")
