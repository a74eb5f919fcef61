"""Integers through a Python function into batches: the overhead when the work itself is trivial.

The limit is the plainest loop that calls the same function on the same numbers and makes the same int64 batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.scenario import Contestant, Goal, Output, Scenario, per_second
from benchmarks.streams import passes

UNIT = per_second("ints")
CLAIM = "x + 1 for each x, in order"
LIMITS = ("loop with np.fromiter", "loop with np.array")


def add_one(value: int) -> int:
    """Return the next integer: the cheapest map there is."""
    return value + 1


@dataclass(frozen=True, slots=True)
class Work:
    """The number of integers, and of integers in a batch."""

    count: int
    batch_size: int


def build(bench: Bench) -> Scenario:
    """Return the scenario: two limits, Penstock inline, on threads and in processes, and rivals."""
    work = Work(20_000 if bench.smoke else 1_000_000, 1024)
    return Scenario(
        "tiny",
        f"{work.count:,} ints through a Python function, batches of {work.batch_size:,}",
        (
            *bench.rivals("tiny", work),
            _limit(LIMITS[0], partial(fromiter_loop, work)),
            _limit(LIMITS[1], partial(array_loop, work)),
            _ours(bench, work, "inline", goal=Goal("share", 0.9)),
            _ours(bench, work, "threads", goal=None),
            _ours(bench, work, "processes", goal=Goal("share", 1.2)),
            _ours(bench, work, "isolated", goal=Goal("share", 1.2)),
        ),
    )


def fromiter_loop(work: Work) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of a loop that fills each array from an iterator."""
    for start in range(0, work.count, work.batch_size):
        block = range(start, min(start + work.batch_size, work.count))
        yield np.fromiter(map(add_one, block), np.int64, len(block))


def array_loop(work: Work) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of a loop that makes each array from a list."""
    for start in range(0, work.count, work.batch_size):
        yield np.array([add_one(value) for value in range(start, min(start + work.batch_size, work.count))], np.int64)


def _limit(name: str, batches: Callable[[], Iterator[NDArray[np.int64]]]) -> Contestant:
    return Contestant(name, "limit", passes(batches), UNIT, output=Output(CLAIM, batches))


def _ours(bench: Bench, work: Work, place: Place, *, goal: Goal | None) -> Contestant:
    dataset = ps.range(work.count).map(add_one).batch(work.batch_size)
    name, loader = open_loader(bench.scope, dataset, place)
    output = Output(CLAIM, lambda: loader)
    return Contestant(name, "ours", passes(lambda: loader), UNIT, against=LIMITS, goal=goal, output=output)
