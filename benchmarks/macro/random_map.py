"""A random function per element: the cost of a reproducible generator for each element.

The limit calls the same function with one generator that is never seeded again, so its numbers depend on the order of
calls. A reference makes them depend on the element alone in the usual way, with a new Generator for each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import Contestant, Output, Scenario, Unit
from benchmarks.streams import passes

UNIT = Unit("ns/element", lambda measured: 1e9 * measured.seconds / measured.amount, more_is_better=False)
Draw = Callable[[int, np.random.Generator], float]


def draw_float(_: int, rng: np.random.Generator) -> float:
    """Draw one float in [0, 1)."""
    return rng.random()


def draw_integer(_: int, rng: np.random.Generator) -> int:
    """Draw one integer below 1,000."""
    return int(rng.integers(1000))


def keep_seed(_: int, seed: int) -> float:
    """Use the seed itself: the element's 64-bit integer, without a generator."""
    return seed * 2.0**-64


@dataclass(frozen=True, slots=True)
class Work:
    """The number of elements, and of elements in a batch."""

    count: int
    batch_size: int


def build(bench: Bench) -> Scenario:
    """Return the scenario: for a float and for an integer the limit, Penstock, and a new generator for each element."""
    work = Work(2_000 if bench.smoke else 200_000, 1024)
    contestants: list[Contestant] = []
    for draw in (draw_float, draw_integer):
        limit, each = f"one generator, {draw.__name__}", f"a generator each, {draw.__name__}"
        contestants += [
            Contestant(limit, "limit", passes(partial(one_generator, work, draw)), UNIT),
            _ours(bench, work, draw, limit),
            Contestant(each, "reference", passes(partial(generator_each, work, draw)), UNIT, against=(limit,)),
        ]
    contestants.append(_seeds(bench, work))
    return Scenario(
        "random-map",
        f"{work.count:,} elements, one draw each, batches of {work.batch_size:,}",
        (*bench.rivals("random-map", work), *contestants),
    )


def one_generator(work: Work, draw: Draw) -> Iterator[NDArray[np.generic]]:
    """Yield batches of draws from a single generator."""
    rng = np.random.Generator(np.random.Philox(7))
    for start in range(0, work.count, work.batch_size):
        yield np.array([draw(element, rng) for element in range(start, min(start + work.batch_size, work.count))])


def generator_each(work: Work, draw: Draw) -> Iterator[NDArray[np.generic]]:
    """Yield batches of draws, each from a generator made for its element."""
    for start in range(0, work.count, work.batch_size):
        block = range(start, min(start + work.batch_size, work.count))
        yield np.array([draw(element, np.random.Generator(np.random.Philox(key=[7, element]))) for element in block])


def _ours(bench: Bench, work: Work, draw: Draw, limit: str) -> Contestant:
    dataset = ps.range(work.count, seed=7).random_map(draw).batch(work.batch_size)
    loader = bench.scope.enter_context(ps.Loader(dataset))
    output = Output(draw.__name__, partial(ps.Loader, dataset))
    run = passes(lambda: loader)
    return Contestant(f"penstock inline, {draw.__name__}", "ours", run, UNIT, against=(limit,), output=output)


def _seeds(bench: Bench, work: Work) -> Contestant:
    dataset = ps.range(work.count, seed=7).random_map(keep_seed, rng="seed").batch(work.batch_size)
    loader = bench.scope.enter_context(ps.Loader(dataset))
    return Contestant('penstock inline, rng="seed"', "ours", passes(lambda: loader), UNIT)
