"""The time from making a loader to its first batch, and from the call of its stop until all of it has ended.

Each is measured in a program of its own. *Cold* is the program's first loader, including everything that is started for
it, and all imports except those that programs name themselves (`import` measures those). *Warm* is any later loader,
while resources that are kept between loaders exist. A loader is stopped in the middle of an epoch.
"""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.processes.trainer import Trainer
from benchmarks.scenario import MILLISECONDS, Batch, Contestant, Goal, Measurement, Role, Scenario
from penstock import Loader

NUM_WORKERS = 2
Open = Callable[[], AbstractContextManager[Iterable[Batch]]]  # it is pickled; makes a loader, and stops it
Phase = Literal["first batch, cold", "first batch, warm", "stop"]


@dataclass(frozen=True, slots=True)
class Work:
    """Small images in batches, more than a loader has ready when it is stopped."""

    count: int = 10_000
    batch_size: int = 32

    def item(self, key: int) -> NDArray[np.uint8]:
        """Return an item."""
        return np.full((3, 32, 32), key % 251, np.uint8)


def build(bench: Bench) -> Scenario:
    """Return the scenario: Penstock on threads and in processes, and rivals."""
    work = Work()
    threads: dict[Phase, float] = {"first batch, cold": 5, "first batch, warm": 5, "stop": 50}
    processes: dict[Phase, float] = {"first batch, cold": 400, "first batch, warm": 100, "stop": 50}
    return Scenario(
        "start-stop",
        f"{NUM_WORKERS} workers: a loader's first batch, in a new program and later, and its stop",
        (
            *contestants(bench, "penstock, threads", "ours", partial(open_ours, work, "threads"), threads),
            *contestants(bench, "penstock, processes", "ours", partial(open_ours, work, "processes"), processes),
            *bench.rivals("start-stop", (bench, work)),
        ),
    )


@contextmanager
def open_ours(work: Work, place: Literal["threads", "processes"]) -> Generator[Iterable[Batch]]:
    """Make Penstock's loader."""
    dataset = ps.range(work.count).map(work.item).batch(work.batch_size)
    with Loader(dataset, num_workers=NUM_WORKERS, workers=place) as loader:
        yield loader


def contestants(
    bench: Bench, name: str, role: Role, opened: Open, goals: dict[Phase, float] | None = None
) -> tuple[Contestant, ...]:
    """Return the contestants of one kind of loader.

    Args:
        bench: closes the program that stays open.
        name: of the kind.
        role: of the contestants.
        opened: makes a loader, and stops it.
        goals: milliseconds, of every phase.
    """

    @cache
    def lasting() -> Trainer:
        trainer = bench.scope.enter_context(Trainer(partial(starting, opened)))
        trainer.ask()  # the program's cold loader
        return trainer

    def cold(repeats: int) -> Measurement:
        seconds = 0.0
        for _ in range(repeats):
            with Trainer(partial(starting, opened)) as trainer:
                seconds += trainer.ask()[0]
        return Measurement(repeats, seconds)

    def warm(phase: int, repeats: int) -> Measurement:
        return Measurement(repeats, sum(lasting().ask()[phase] for _ in range(repeats)))

    def contestant(phase: Phase, run: Callable[[int], Measurement], repeats: int) -> Contestant:
        goal = None if goals is None else Goal("value", goals[phase])
        return Contestant(f"{name}: {phase}", role, run, MILLISECONDS, goal=goal, repeats=repeats)

    often = 1 if bench.smoke else 5
    return (
        contestant("first batch, cold", cold, 1),
        contestant("first batch, warm", partial(warm, 0), often),
        contestant("stop", partial(warm, 1), often),
    )


def starting(opened: Open, commands: Connection) -> None:
    """Make a loader and stop it at each command, and send the seconds of both; a trainer's main function."""
    while True:
        commands.recv()
        started = time.perf_counter()
        with opened() as batches:
            iterator = iter(batches)
            next(iterator)
            first = time.perf_counter()
        commands.send((first - started, time.perf_counter() - first))
        del iterator
