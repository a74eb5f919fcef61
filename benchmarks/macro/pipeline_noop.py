"""The overhead of a pipeline: integers through three stages that do nothing, and starting, stopping and continuing.

Rates are of a whole pass, including building, starting and stopping the pipeline. The limit for functions passes lists
of 64 items from thread to thread. The limit for coroutines is a chain of bounded queues in one loop that no other
thread reads. The other times are of single events, which have no limit: a first item, a stop, a short pass.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Queue
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.scenario import MILLISECONDS, Contestant, Goal, Measurement, Output, Role, Scenario, per_second
from benchmarks.usage import used
from penstock.pipeline import Pipeline, PipelineBuilder

UNIT = per_second("items")
CLAIM = "the integers that went in"
LIMIT, ASYNC_LIMIT = "64-item chunks over threads", "asyncio.Queue(2) chain"
NUM_STAGES = 3
NUM_THREADS = 4
SINK = 100  # items
CHUNK = 64  # items
ENDLESS = 10**12  # more items than any contestant reads
SYNC_GOAL, ASYNC_GOAL = 300_000, 60_000  # items a second
STOP_GOAL, EPOCH_GOAL = 5, 10  # milliseconds


@dataclass(frozen=True, slots=True)
class Work:
    """The number of integers for a rate, and of a short pass, which is timed by itself."""

    count: int
    few: int


Items = Callable[[int], Iterator[int]]  # from a number of integers to the integers that come out of the stages


@dataclass(frozen=True, slots=True)
class Way:
    """One way of sending integers through the stages.

    Attributes:
        name: unique in the scenario.
        role: as a contestant's.
        items: the timed function.
        limit: the name of the limit that it is compared with.
        goal: items a second, if there is one.
        compared: how its output is compared with that of others; "never" if it doesn't process all integers.
    """

    name: str
    role: Role
    items: Items
    limit: str | None = None
    goal: int | None = None
    compared: Literal["in order", "as a set", "never"] = "in order"


class Runnable(Protocol):
    """A built pipeline: Penstock's, or another library's with the same method names."""

    def start(self) -> None:
        """Start to compute."""

    def stop(self) -> None:
        """Stop, and discard items in progress."""

    def __iter__(self) -> Iterator[int]: ...


Make = Callable[[int], Runnable]  # makes a new pipeline of that many integers


def build(bench: Bench) -> Scenario:
    """Return the scenario: limits, Penstock and rivals by their rates, then the single events."""
    work = Work(1_000, 10) if bench.smoke else Work(100_000, 100)
    concurrent, in_order = partial(piped_async, concurrency=4), partial(piped_async, concurrency=4, in_order=True)
    ways = (
        Way(LIMIT, "limit", partial(over_threads, chunk=CHUNK)),
        Way(ASYNC_LIMIT, "limit", queue_chain),
        Way("4 threads, item by item", "reference", partial(over_threads, chunk=1), LIMIT),
        Way("penstock, sync ops", "ours", piped, LIMIT, SYNC_GOAL),
        Way("penstock, sync ops, with statistics", "ours", partial(piped, with_statistics=True), LIMIT),
        Way("penstock, async ops", "ours", piped_async, ASYNC_LIMIT, ASYNC_GOAL),
        Way("penstock, async ops, concurrency 4", "ours", concurrent, ASYNC_LIMIT, ASYNC_GOAL, "as a set"),
        Way("penstock, async ops, concurrency 4, in order", "ours", in_order, ASYNC_LIMIT),
    )
    return Scenario(
        "pipeline-noop",
        f"{work.count:,} ints through {NUM_STAGES} no-op stages, sink of {SINK}; rates of a pass, times of events",
        (
            *(rated(way, work.count) for way in ways),
            first_item("penstock", "ours", pipeline),
            stopped("penstock", "ours", pipeline),
            *_short_passes(work),
            *bench.rivals("pipeline-noop", work),
        ),
    )


def no_op(item: int) -> int:
    """Return the argument."""
    return item


async def async_no_op(item: int) -> int:
    """Return the argument without waiting."""
    return item


def rated(way: Way, count: int) -> Contestant:
    """Return a contestant whose number is a way's rate in integers a second; facts show the CPU time of each."""
    cpu_seconds: list[float] = []

    def run(repeats: int) -> Measurement:
        before, started = used().cpu_seconds, time.perf_counter()
        for _ in range(repeats):
            for _item in way.items(count):
                pass
        measured = Measurement(repeats * count, time.perf_counter() - started)
        cpu_seconds.append((used().cpu_seconds - before) / measured.amount)
        return measured

    def batches() -> list[NDArray[np.int64]]:
        return [np.fromiter(way.items(count), np.int64)]

    return Contestant(
        way.name,
        way.role,
        run,
        UNIT,
        against=(way.limit,) if way.limit else (),
        goal=Goal("value", way.goal) if way.goal else None,
        output=None if way.compared == "never" else Output(CLAIM, batches, ordered=way.compared == "in order"),
        facts=lambda: {"CPU us an item": 1e6 * statistics.median(cpu_seconds)},
    )


def pipeline(count: int, *, with_statistics: bool = False) -> Pipeline:
    """Return Penstock's pipeline of functions."""
    builder = PipelineBuilder().add_source(range(count))
    for _ in range(NUM_STAGES):
        builder.pipe(no_op)
    return builder.add_sink(SINK).build(num_threads=NUM_THREADS, statistics=with_statistics)


def piped(count: int, *, with_statistics: bool = False) -> Iterator[int]:
    """Yield the output of Penstock's pipeline of functions."""
    with pipeline(count, with_statistics=with_statistics).auto_stop() as running:
        yield from running


def piped_async(count: int, *, concurrency: int = 1, in_order: bool = False) -> Iterator[int]:
    """Yield the output of Penstock's pipeline of coroutines."""
    builder = PipelineBuilder().add_source(range(count))
    for _ in range(NUM_STAGES):
        builder.pipe(async_no_op, concurrency=concurrency, output_order="input" if in_order else "completion")
    with builder.add_sink(SINK).build(num_threads=NUM_THREADS).auto_stop() as running:
        yield from running


def over_threads(count: int, *, chunk: int) -> Iterator[int]:
    """Yield items that went through one thread for the source and one for each stage, in lists.

    A queue holds `SINK` lists. So with large lists more items are in transit than in a pipeline, which makes this the
    limit.
    """
    queues: list[Queue[list[int]]] = [Queue(SINK) for _ in range(NUM_STAGES + 1)]

    def source() -> None:
        for start in range(0, count, chunk):
            queues[0].put(list(range(start, min(start + chunk, count))))
        queues[0].put([])

    def stage(number: int) -> None:
        while items := queues[number].get():
            queues[number + 1].put([no_op(item) for item in items])
        queues[number + 1].put([])

    threads = [threading.Thread(target=source)]
    threads += [threading.Thread(target=stage, args=(number,)) for number in range(NUM_STAGES)]
    for thread in threads:
        thread.start()
    while items := queues[-1].get():
        yield from items
    for thread in threads:
        thread.join()


def queue_chain(count: int) -> Iterator[int]:
    """Return the items that came through a chain of bounded queues in one event loop."""
    return iter(asyncio.run(_queue_chain(count)))


async def _queue_chain(count: int) -> list[int]:
    queues: list[asyncio.Queue[int | None]] = [asyncio.Queue(2) for _ in range(NUM_STAGES + 1)]
    came: list[int] = []

    async def source() -> None:
        for item in range(count):
            await queues[0].put(item)
        await queues[0].put(None)

    async def stage(number: int) -> None:
        while (item := await queues[number].get()) is not None:
            await queues[number + 1].put(await async_no_op(item))
        await queues[number + 1].put(None)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source())
        for number in range(NUM_STAGES):
            tasks.create_task(stage(number))
        while (item := await queues[-1].get()) is not None:
            came.append(item)
    return came


def first_item(name: str, role: Role, make: Make) -> Contestant:
    """Return a contestant whose number is the time from the start of a new pipeline to its first item."""

    def seconds() -> float:
        made = make(ENDLESS)
        started = time.perf_counter()
        made.start()
        next(iter(made))
        elapsed = time.perf_counter() - started
        made.stop()
        return elapsed

    return timed_event(f"first item: {name}", role, seconds)


def stopped(name: str, role: Role, make: Make) -> Contestant:
    """Return a contestant whose number is the time to stop a pipeline at full speed."""

    def seconds() -> float:
        made = make(ENDLESS)
        made.start()
        items = iter(made)
        for _ in range(SINK):
            next(items)
        started = time.perf_counter()
        made.stop()
        return time.perf_counter() - started

    return timed_event(f"stop: {name}", role, seconds, STOP_GOAL if role == "ours" else None)


def rebuilt(name: str, role: Role, make: Make, work: Work) -> Contestant:
    """Return a contestant whose number is the time of a short pass, including building and stopping a pipeline."""

    def seconds() -> float:
        started = time.perf_counter()
        _run_once(make(work.few))
        return time.perf_counter() - started

    return timed_event(f"{work.few} items: {name}, rebuilt", role, seconds)


def _short_passes(work: Work) -> tuple[Contestant, ...]:
    """Return Penstock's ways to make a short pass: a new pipeline, a stopped one, and a running one."""
    ours = pipeline(work.few)

    def restarted() -> float:
        started = time.perf_counter()
        _run_once(ours)
        return time.perf_counter() - started

    def running(repeats: int) -> Measurement:
        with ours.auto_stop():
            started = time.perf_counter()
            for _ in range(repeats):
                for _item in ours:
                    pass
            return Measurement(repeats, time.perf_counter() - started)

    named, goal = f"{work.few} items: penstock", Goal("value", EPOCH_GOAL)
    return (
        rebuilt("penstock", "ours", pipeline, work),
        timed_event(f"{named}, restarted", "ours", restarted, EPOCH_GOAL),
        Contestant(f"{named}, running", "ours", running, MILLISECONDS, goal=goal),
    )


def _run_once(made: Runnable) -> None:
    made.start()
    for _ in made:
        pass
    made.stop()


def timed_event(name: str, role: Role, seconds: Callable[[], float], goal: int | None = None) -> Contestant:
    """Return a contestant whose number is a time in milliseconds; facts show the longest one.

    Args:
        name: unique in the scenario.
        role: as a contestant's.
        seconds: does the work once, and returns its time.
        goal: milliseconds, if there is one.
    """
    slowest = 0.0

    def run(repeats: int) -> Measurement:
        nonlocal slowest
        times = [seconds() for _ in range(repeats)]
        slowest = max(slowest, *times)
        return Measurement(repeats, sum(times))

    def facts() -> Mapping[str, float]:
        return {"slowest ms": 1e3 * slowest}

    return Contestant(name, role, run, MILLISECONDS, goal=Goal("value", goal) if goal else None, facts=facts)
