"""Functions that make large rows and batches, for tests of memory.

The module imports little: where an isolated loader has processes, its helper starts a server that imports it anew.
"""

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROW = 40_000  # int64 numbers, so that a batch is large: it is not copied, and no two are computed together


def row(number: int) -> Any:
    """Return a large row."""
    return np.full(ROW, number)


def larger(number: int) -> Any:
    """Return a row that is so large that it is sent by itself."""
    return np.full(4 * ROW, number)


def reported(pipe: Path, size: int, number: int) -> int:
    """Return a number; if it is the first one of its batch, write the batch's number to a pipe before."""
    if number % size == 0:
        with open(pipe, "wb", buffering=0) as begun:
            begun.write(bytes([number // size]))
    return number


@dataclass(frozen=True)
class Sized:
    """A function above the batch: its results have these sizes, and of each size there are so many in a row."""

    sizes: tuple[int, ...]
    run: int

    def __call__(self, batch: Any) -> Any:
        """Return an array of the batch's first number."""
        size = self.sizes[int(batch[0]) // 4 // self.run % len(self.sizes)]
        return np.full(size, batch[0], np.float32 if size % 2 else np.int64)


def always(_: int) -> bool:
    """Return True."""
    return True


def results(batch: Any) -> dict[str, Any]:
    """Return new arrays, made of zeroed, of grown and of unset memory, and check that zeroes are zero."""
    zeroed = np.zeros(ROW, np.int64)
    assert not zeroed.any()
    grown = np.full(ROW // 2, int(batch[0, 0]))
    grown.resize(ROW, refcheck=False)
    assert not grown[ROW // 2 :].any()
    return {"zeroed": zeroed + batch[0], "grown": grown, "cast": batch.astype(np.float32)}


def pages_mapped(_: int) -> int:
    """Return how many pages were mapped for four megabytes of temporary arrays."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for array in [np.empty(1_300_000, np.uint8) for _ in range(3)]:
        array.fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
