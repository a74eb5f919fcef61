"""From positions to keys: the cost of a random order per index, and its memory, at any size.

This scenario has no limit; the reference is NumPy's permutation, which is made and held as a whole.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.machine import has_avx2
from benchmarks.scenario import NANOSECONDS, Contestant, Goal, Measurement, Output, Scenario
from penstock.sampling import Permutation, Shuffle

BLOCK = 1 << 16
SIZES = {"1.28 M": 1_280_000, "2^20 + 1": (1 << 20) + 1, "1e8": 10**8, "1e12": 10**12}
TABLE = 1 << 16  # up to here a permutation is a table of two bytes a position
GONE_THROUGH = 10**7  # up to here every key is checked
HELD_BY_NUMPY = 10**8  # larger permutations don't fit into memory


@dataclass(frozen=True, slots=True)
class Work:
    """Sizes to permute, by name, and the number of indices in a block."""

    sizes: dict[str, int]
    block: int


def build(bench: Bench) -> Scenario:
    """Return the scenario: the permutation and the whole sampler at each size, with NumPy's and rivals'."""
    work = Work({"1,000": 1000} if bench.smoke else SIZES, 100 if bench.smoke else BLOCK)
    contestants: list[Contestant] = [*bench.rivals("shuffle", work)]
    for size_name, size in work.sizes.items():
        contestants += [_permutation(work, size_name, size), _sampler(work, size_name, size)]
        if size <= HELD_BY_NUMPY:
            contestants.append(_numpy(size_name, size))
    return Scenario("shuffle", f"position → key in blocks of {work.block:,}; time per index", tuple(contestants))


def blocks(size: int, block: int) -> Iterator[NDArray[np.int64]]:
    """Yield all positions of [0, size) in blocks."""
    for start in range(0, size, block):
        yield np.arange(start, min(start + block, size), dtype=np.int64)


def timed_blocks(size: int, block: int, apply: Callable[[NDArray[np.int64]], object]) -> Callable[[int], Measurement]:
    """Return a run that applies a function to 16 blocks, spread over [0, size), for each repeat."""
    starts = [index * (size - block) // 15 for index in range(16)]
    positions = [np.arange(start, start + block, dtype=np.int64) for start in starts]

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            for part in positions:
                apply(part)
        return Measurement(repeats * 16 * block, time.perf_counter() - started)

    return run


def claim(size: int) -> str:
    """Return the claim of all permutations of one size."""
    return f"every key below {size}"


def whole(size: int, keys: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Output | None:
    """Return the output of a permutation that is small enough to read: every key once, in any order."""
    if size > GONE_THROUGH:
        return None
    return Output(claim(size), lambda: (keys(part) for part in blocks(size, BLOCK)), ordered=False)


def _permutation(work: Work, size_name: str, size: int) -> Contestant:
    permutation = Permutation(size, seed=7)
    goal = Goal("value", 10 if has_avx2() else 30)
    run = timed_blocks(size, work.block, permutation.block)
    return Contestant(
        f"Permutation.block, n = {size_name}",
        "ours",
        run,
        NANOSECONDS,
        goal=goal,
        output=whole(size, permutation.block),
        facts=lambda: {"bytes held": 2 * size if size <= TABLE else 0},
    )


def _sampler(work: Work, size_name: str, size: int) -> Contestant:
    sampler = Shuffle(size, seed=7)
    epochs = np.zeros(work.block, np.int64)
    run = timed_blocks(size, work.block, lambda positions: sampler.block(epochs, positions))
    return Contestant(f"Shuffle.block, n = {size_name}", "ours", run, NANOSECONDS, goal=Goal("value", 30))


def _numpy(size_name: str, size: int) -> Contestant:
    generator = np.random.default_rng(7)

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            generator.permutation(size)
        return Measurement(repeats * size, time.perf_counter() - started)

    output = Output(claim(size), lambda: [generator.permutation(size)], ordered=False) if size <= GONE_THROUGH else None
    return Contestant(
        f"NumPy's permutation, n = {size_name}",
        "reference",
        run,
        NANOSECONDS,
        output=output,
        facts=lambda: {"bytes held": 8 * size},
        max_rounds=None if size <= GONE_THROUGH else 3,
    )
