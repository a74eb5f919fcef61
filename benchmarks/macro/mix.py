"""Mixtures of few and of many components: the cost of one element, and its dependence on the number of components.

The same records are divided into 2 components and into 500, and each pair of contestants does the same work. The share
is the speed with 500 components relative to that with 2: 1 means no dependence. For a new dataset and loader that were
read for a while, facts show the memory that they hold in Python and NumPy, and the number of threads.
"""

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import NANOSECONDS, Batch, Contestant, Measurement, Scenario
from penstock._graph._coordinates import components_of, keys_of, locate_block
from penstock.sources import Arrays

Elements = Literal["ints", "rows"]
Weights = Literal["equal", "unequal"]
PARTS = (2, 500)
ROW_BYTES = 2048
BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Work:
    """The number of integers and rows over all components, and the batch sizes.

    Attributes:
        ints: the number of trivial elements.
        table: uint8 of shape (rows, 2,048): the elements that cost about 10 microseconds each.
        batch_sizes: rows of a batch.
        held_batches: batches after which the held memory is measured.
    """

    ints: int
    table: NDArray[np.uint8]
    batch_sizes: tuple[int, ...]
    held_batches: int


def build(bench: Bench) -> Scenario:
    """Return the scenario: keys alone, loading of trivial and of costly elements, an ordered mixture, rivals."""
    rows = 1000 if bench.smoke else 100_000
    table = np.random.default_rng(7).integers(0, 256, (rows, ROW_BYTES), np.uint8)
    work = Work(5000, table, (32,), 1) if bench.smoke else Work(2_000_000, table, (32, 1024), 64)
    contestants: list[Contestant] = [*bench.rivals("mix", work)]
    chosen: tuple[Weights, ...] = ("unequal",) if bench.smoke else ("equal", "unequal")
    for weights in chosen:
        contestants += [_keys(work, parts, weights) for parts in PARTS]
        contestants += [
            _loading(bench, work, parts, f"{elements}, batches of {size:,}, {weights}", mixture, size)
            for elements in ("ints", "rows")
            for mixture in (partial(_mixed, work, elements, weights),)
            for size in work.batch_sizes
            for parts in PARTS
        ]
    by_measure = partial(_mixed, work, "ints", "unequal", measure=digits)
    contestants += [_loading(bench, work, parts, "ints by a measure, batches of 32", by_measure, 32) for parts in PARTS]
    question = "time per element inline; share: the speed with 500 components relative to that with 2"
    return Scenario("mix", question, tuple(contestants), rounds=5)


def negate(value: int) -> int:
    """Return the negative: a map that costs nothing."""
    return -value


def standardise(row: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return every eighth value of a row around their mean: some microseconds of NumPy."""
    values = row[::8].astype(np.float32)
    values -= values.mean()
    values /= 74
    return values


def digits(value: int) -> int:
    """Return how many digits an integer has: a measure."""
    return len(str(value))


def weight_of(number: int, weights: Weights) -> int:
    """Return the weight of component `number`: 1, or from 1 to 7."""
    return 1 if weights == "equal" else 1 + number % 7


def reading(batches: Iterator[Batch]) -> Callable[[int], Measurement]:
    """Return a run that takes a batch for each repeat, and continues after the previous repeat."""

    def run(repeats: int) -> Measurement:
        amount = 0
        started = time.perf_counter()
        for _ in range(repeats):
            amount += len(next(batches))
        return Measurement(amount, time.perf_counter() - started)

    return run


def pair_name(parts: int, what: str) -> str:
    """Return the name of one contestant of a pair."""
    return f"{what}, {parts} parts"


def against(parts: int, what: str) -> tuple[str, ...]:
    """Return the contestant to compare with: for many components, that with few."""
    return () if parts == PARTS[0] else (pair_name(PARTS[0], what),)


def _mixed(
    work: Work, elements: Elements, weights: Weights, parts: int, *, measure: Callable[[Any], int] | None = None
) -> ps.Dataset[Any]:
    """Return the endless mixture of some components, each shuffled and mapped."""
    total = work.ints if elements == "ints" else len(work.table)
    size = total // parts
    components: dict[str, ps.Dataset[Any]] = {}
    for number in range(parts):
        start = number * size
        if elements == "ints":
            components[f"part {number}"] = ps.range(start, start + size, seed=number).shuffle().map(negate)
        else:
            source = Arrays(work.table[start : start + size])
            components[f"part {number}"] = ps.read(source, seed=number).shuffle().map(standardise)
    shares = {f"part {number}": weight_of(number, weights) for number in range(parts)}
    return ps.mix(components, shares, stop="never", measure=measure)


def _keys(work: Work, parts: int, weights: Weights) -> Contestant:
    dataset = _mixed(work, "ints", weights, parts)
    epochs = np.zeros(BLOCK, np.int64)
    starts = [number * (work.ints // 16) for number in range(16)]

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            for start in starts:
                shares = locate_block(dataset.node, epochs, np.arange(start, start + BLOCK))
                keys_of(shares, BLOCK)
                components_of(shares, BLOCK)
        return Measurement(repeats * len(starts) * BLOCK, time.perf_counter() - started)

    what = f"position → (component, key) in blocks of {BLOCK:,}, {weights}"
    return Contestant(pair_name(parts, what), "ours", run, NANOSECONDS, against=against(parts, what))


def _loading(
    bench: Bench, work: Work, parts: int, what: str, mixture: Callable[[int], ps.Dataset[Any]], size: int
) -> Contestant:
    loader = bench.scope.enter_context(ps.Loader(mixture(parts).batch(size)))

    def facts() -> dict[str, float]:
        tracemalloc.start()
        try:
            with ps.Loader(mixture(parts).batch(size)) as another:
                batches = iter(another)
                for _ in range(work.held_batches):
                    next(batches)
                held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return {"MB held": held / 1e6, "threads": threading.active_count()}

    run = reading(iter(loader))
    return Contestant(pair_name(parts, what), "ours", run, NANOSECONDS, against=against(parts, what), facts=facts)
