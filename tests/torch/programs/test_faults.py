"""Common troubles of torch's DataLoader: a small /dev/shm, few descriptors, loaders in loaders, growing workers."""

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager

import psutil
import pytest

from penstock.torch import DataLoader
from tests.programs.mounted import SMALL_SHM, run_mounted
from tests.torch.conformance.datasets import Made, Numbers
from tests.torch.conformance.untyped import torch

PATIENCE_SECONDS = 240.0
LARGE_BATCHES = """
import os, warnings
import torch
from penstock.torch import DataLoader

class Large:
    def __len__(self):
        return 1280

    def __getitem__(self, index):
        return torch.full((25_000,), index, dtype=torch.float32)

def main():
    warnings.simplefilter("ignore")  # of more workers than processors
    status = os.statvfs("/dev/shm")
    assert status.f_blocks * status.f_frsize == 64 << 20
    total = 0
    for collate in (None, lambda rows: torch.stack(rows)):
        for batch in DataLoader(Large(), batch_size=320, num_workers=16, collate_fn=collate):
            assert batch.nbytes == 32_000_000 and (batch[:, 0] == batch[:, -1]).all()
            total += len(batch)
    print(total)

if __name__ == "__main__":
    main()
"""


@pytest.mark.long
def test_sixteen_workers_with_64_megabytes() -> None:
    """Batches that together are larger than /dev/shm are there at once: no "bus error", however they are collated."""
    assert run_mounted(SMALL_SHM, LARGE_BATCHES, PATIENCE_SECONDS) == (0, "2560\n", "")


@contextmanager
def few_descriptors(more: int) -> Generator[None]:
    """Let this process open only so many files more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_all_batches_kept_with_few_descriptors() -> None:
    """`list(loader)` needs no descriptor for each batch, where torch's loader has "too many open files"."""
    rows = Made(400, lambda index: torch.full((30_000,), index))  # more than is copied in any case
    with few_descriptors(150):
        kept = list(DataLoader(rows, batch_size=1, num_workers=2))
    assert [int(batch[0, 0]) for batch in kept] == list(range(400))


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_in_loaders_and_in_workers(workers: int) -> None:
    """A loop inside that over a loader of the same class, and a dataset that loads by one, also with a worker."""
    outer, inner = (DataLoader(Numbers(6), batch_size=2, num_workers=1) for _ in range(2))
    found = [(first.tolist(), [second.tolist() for second in inner]) for first in outer]
    assert found == [([at, at + 1], [[0, 1], [2, 3], [4, 5]]) for at in (0, 2, 4)]
    sums = Made(4, lambda _: sum(int(each.sum()) for each in DataLoader(Numbers(3), batch_size=2, num_workers=workers)))
    assert [batch.tolist() for batch in DataLoader(sums, batch_size=2, num_workers=1)] == [[3, 3], [3, 3]]


class Objects(Numbers):
    """Holds an object for each index."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.texts = [f"a caption of some length, number {number}" for number in range(count)]

    def __getitem__(self, index: int) -> int:
        return len(self.texts[index])


def test_workers_do_not_grow() -> None:
    """A worker has its own copy of a dataset of Python objects from its first epoch on; further epochs take no more."""
    loader = DataLoader(Objects(80_000), batch_size=1000, num_workers=1, persistent_workers=True)
    sizes: list[int] = []
    for _ in range(3):
        assert sum(len(batch) for batch in loader) == 80_000
        sizes.append(sum(each.memory_full_info().uss for each in psutil.Process().children(recursive=True)))
    assert sizes[2] - sizes[0] < 4_000_000
