"""Stages whose functions wait for a network or a disk: a pipeline's share of the limit at different waits.

Each cell has a number of requests, their duration in milliseconds, and a number of concurrent requests. The limit for
coroutines is asyncio's own gather with a semaphore; for functions that wait in threads, it is a `ThreadPoolExecutor`
with as many threads. A pass is timed in a pipeline that has just started, from the request of the first item to the
last item. Facts show the time that the requests need by themselves, in rounds of `concurrency`.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from benchmarks.bench import Bench
from benchmarks.scenario import MILLISECONDS, Contestant, Goal, Measurement, Role, Scenario
from penstock.pipeline import Pipeline, PipelineBuilder

GOAL = 0.97
SINK = 100  # items


@dataclass(frozen=True, slots=True)
class Cell:
    """One case.

    Attributes:
        requests: the number of requests.
        milliseconds: the duration of each.
        concurrency: the number of concurrent requests.
    """

    requests: int
    milliseconds: int
    concurrency: int

    def __str__(self) -> str:
        return f"{self.requests} of {self.milliseconds} ms, {self.concurrency} at once"

    @property
    def ideal_seconds(self) -> float:
        """The time that the requests need by themselves."""
        return -(-self.requests // self.concurrency) * self.milliseconds / 1e3


Pass = Callable[[], int]  # does all requests once, and returns their number

CELLS = (
    Cell(10, 5, 1),
    Cell(10, 100, 10),
    Cell(10, 2000, 10),
    Cell(100, 5, 10),
    Cell(100, 100, 100),
    Cell(100, 2000, 100),
    Cell(1000, 5, 10),
    Cell(1000, 5, 100),
    Cell(1000, 100, 100),
    Cell(1000, 100, 1000),
    Cell(1000, 2000, 1000),
)
"""Cells for coroutines: from few short requests to many long ones, with a concurrency up to their number."""

THREAD_CELLS = (Cell(10, 100, 10), Cell(100, 5, 10), Cell(100, 100, 100), Cell(1000, 5, 100), Cell(1000, 100, 100))
"""Cells for functions that wait in threads."""

SMOKE_CELLS = (Cell(4, 1, 1), Cell(10, 1, 10))


def build(bench: Bench) -> Scenario:
    """Return the scenario: for each cell a limit and Penstock, in completion order and, for coroutines, input order."""
    cells, thread_cells = (SMOKE_CELLS, SMOKE_CELLS[1:]) if bench.smoke else (CELLS, THREAD_CELLS)
    return Scenario(
        "pipeline-waiting",
        f"concurrent requests that wait; ms a pass, in a running pipeline; goal: {GOAL} of the limit",
        (
            *(each for cell in cells for each in awaited(cell)),
            *(each for cell in thread_cells for each in threaded(cell)),
            *bench.rivals("pipeline-waiting", cells),
        ),
    )


def limit_name(cell: Cell) -> str:
    """Return the name of the limit of a cell of coroutines."""
    return f"{cell}: gather"


def awaited(cell: Cell) -> Iterator[Contestant]:
    """Yield the contestants that measure coroutines."""
    yield timed(limit_name(cell), "limit", cell, partial(once, lambda: asyncio.run(gathered(cell))))
    orders: tuple[Literal["completion", "input"], ...] = ("completion", "input")
    for order in orders:
        make = partial(pipeline, cell, request, 1, order)
        yield timed(f"{cell}: penstock, {order} order", "ours", cell, partial(running, make), limit_name(cell))


def threaded(cell: Cell) -> Iterator[Contestant]:
    """Yield the contestants that measure functions in threads."""
    limit = f"{cell}, threads: pool"
    op = partial(blocking_request, cell.milliseconds)

    def pooled() -> int:
        with ThreadPoolExecutor(cell.concurrency) as pool:
            return len([*pool.map(op, range(cell.requests))])

    make = partial(pipeline, cell, blocking_request, cell.concurrency, "completion")
    yield timed(limit, "limit", cell, partial(once, pooled))
    yield timed(f"{cell}, threads: penstock", "ours", cell, partial(running, make), limit)


def pipeline(
    cell: Cell, op: Callable[[int, int], object], num_threads: int, order: Literal["completion", "input"]
) -> Pipeline[int]:
    """Return Penstock's pipeline of one stage."""
    builder = PipelineBuilder[int, int]().add_source(range(cell.requests))
    builder.pipe(partial(op, cell.milliseconds), concurrency=cell.concurrency, output_order=order)
    return builder.add_sink(SINK).build(num_threads=num_threads)


async def request(milliseconds: int, number: int) -> int:
    """Wait like a request to a server."""
    await asyncio.sleep(milliseconds / 1e3)
    return number


def blocking_request(milliseconds: int, number: int) -> int:
    """Wait in a thread like a read from a disk."""
    time.sleep(milliseconds / 1e3)
    return number


async def gathered(cell: Cell) -> int:
    """Do all requests with a semaphore; return their number."""
    free = asyncio.Semaphore(cell.concurrency)

    async def one(number: int) -> int:
        async with free:
            return await request(cell.milliseconds, number)

    return len(await asyncio.gather(*map(one, range(cell.requests))))


class Runnable(Protocol):
    """A built pipeline: Penstock's, or another library's with the same method names."""

    def auto_stop(self) -> AbstractContextManager[object]:
        """Return the scope in which it runs."""
        ...

    def __iter__(self) -> Iterator[object]: ...


@contextmanager
def once(read: Pass) -> Generator[Pass]:
    """Yield a function that reads a pass and needs no other resource."""
    yield read


@contextmanager
def running(make: Callable[[], Runnable]) -> Generator[Pass]:
    """Yield a function that reads one pass of a running pipeline."""
    pipeline = make()
    with pipeline.auto_stop():
        yield lambda: sum(1 for _ in pipeline)


def timed(
    name: str, role: Role, cell: Cell, scope: Callable[[], AbstractContextManager[Pass]], limit: str | None = None
) -> Contestant:
    """Return a contestant whose number is the time of a pass."""

    def run(repeats: int) -> Measurement:
        seconds = 0.0
        for _ in range(repeats):
            with scope() as read:
                started = time.perf_counter()
                found = read()
                seconds += time.perf_counter() - started
                if found != cell.requests:
                    raise AssertionError(f"{name} lost requests")
        return Measurement(repeats, seconds)

    return Contestant(
        name,
        role,
        run,
        MILLISECONDS,
        against=(limit,) if limit else (),
        goal=Goal("share", GOAL) if limit else None,
        facts=lambda: {"ideal ms": 1e3 * cell.ideal_seconds},
    )
