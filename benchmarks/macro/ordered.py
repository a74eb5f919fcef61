"""Reading in order: the cost per element of a filter, a flat_map or a shuffled window with trivial functions.

The limit is the plainest loop with the same predicate, which makes the same int64 batches.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import NANOSECONDS, Batch, Contestant, Goal, Measurement, Output, Scenario

CLAIM = "the even numbers, in order"
LIMIT = "loop with a predicate"
WINDOW = 1000


@dataclass(frozen=True, slots=True)
class Work:
    """The number of integers, and of elements in a batch."""

    count: int
    batch_size: int


def build(bench: Bench) -> Scenario:
    """Return the scenario: a loop, filters, steps above them, and joins, all inline."""
    work = Work(20_000 if bench.smoke else 500_000, 1024)
    numbers = ps.range(work.count, seed=7)
    even = numbers.filter(is_even)
    parts = {"a": numbers, "b": numbers}
    datasets = {
        "filter, window_shuffle, batch": even.window_shuffle(WINDOW),
        "flat_map, batch": numbers.flat_map(pair),
        "stream, batch": ps.stream(range(work.count)),
        "mix by a measure, batch": ps.mix(parts, measure=one),
    }
    filtered = _ours(bench, "filter, batch", even.batch(work.batch_size), work)
    others = [_ours(bench, name, dataset.batch(work.batch_size), work) for name, dataset in datasets.items()]
    return Scenario(
        "ordered",
        f"{work.count:,} ints read in order, inline, batches of {work.batch_size:,}; time per int",
        (
            Contestant(LIMIT, "limit", _passes(partial(loop, work), work), NANOSECONDS, output=_output(work)),
            filtered,
            *others,
        ),
    )


def is_even(value: int) -> bool:
    """Return whether an integer is even: a predicate that costs nothing."""
    return value % 2 == 0


def pair(value: int) -> list[int]:
    """Return two integers made of one."""
    return [value, -value]


def one(_: int) -> int:
    """Return 1: a measure."""
    return 1


def loop(work: Work) -> Iterator[NDArray[np.int64]]:
    """Yield batches of the even numbers."""
    rows: list[int] = []
    for value in range(work.count):
        if is_even(value):
            rows.append(value)
            if len(rows) == work.batch_size:
                yield np.array(rows, np.int64)
                rows = []
    if rows:
        yield np.array(rows, np.int64)


def _output(work: Work) -> Output:
    return Output(CLAIM, partial(loop, work))


def _passes(batches: Callable[[], Iterator[Batch]], work: Work) -> Callable[[int], Measurement]:
    """Return a run that reads all batches once for each repeat; its amount is the number of integers read."""

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            for _batch in batches():
                pass
        return Measurement(repeats * work.count, time.perf_counter() - started)

    return run


def _ours(bench: Bench, name: str, dataset: ps.Dataset[Any], work: Work) -> Contestant:
    loader = bench.scope.enter_context(ps.Loader(dataset))
    run = _passes(lambda: iter(loader), work)
    if name != "filter, batch":
        return Contestant(name, "ours", run, NANOSECONDS)
    output = Output(CLAIM, lambda: iter(loader))
    goal = Goal("value", 1000)
    return Contestant(name, "ours", run, NANOSECONDS, against=(LIMIT,), goal=goal, output=output)
