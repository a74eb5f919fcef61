"""A main thread that is busy in Python, as when it launches kernels: the share of its rate that a loader leaves it.

A step spins in Python for 20 ms, then takes a batch, whose items spin for 8 ms together. The limit takes the same array
again and again. Items that are computed in threads of this process compete with the steps for the GIL. A bare process
that fills batches beside the steps shows the part of the loss that is due to the machine, since two busy cores may run
slower than one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.processes.bare import Array, BareProcesses, Form
from benchmarks.scenario import Batch, Contestant, Goal, Measurement, Role, Scenario, per_second

UNIT = per_second("steps")
LIMIT = "no loader"
STEP_SECONDS = 0.02
ITEM_SECONDS = 0.001
BATCH_SIZE = 8
SHAPE = (3, 64, 64)
ENDLESS = 10**9  # items; the iterator continues from round to round, so no round includes a start or an end
TRIALS = 20

Open = Callable[[ExitStack], Iterator[Batch]]


@dataclass(frozen=True, slots=True)
class Work:
    """The number of loop turns in a step and in an item, and the number of timed steps."""

    step_turns: int
    item_turns: int
    steps: int

    def item(self, key: int) -> NDArray[np.float32]:
        """Return an item that holds the GIL for a while."""
        spin(self.item_turns)
        return np.full(SHAPE, key % 251, np.float32)

    def fill(self, number: int, out: Array) -> None:
        """Make a batch."""
        for row in range(BATCH_SIZE):
            out[row] = self.item(number * BATCH_SIZE + row)


def spin(turns: int) -> int:
    """Run a number of turns of a Python loop."""
    total = 0
    for turn in range(turns):
        total += turn
    return total


def build(bench: Bench) -> Scenario:
    """Return the scenario: no loader, Penstock in every place, and rivals."""
    per_turn = _seconds_per_turn()
    work = Work(round(STEP_SECONDS / per_turn), round(ITEM_SECONDS / per_turn), 3 if bench.smoke else 75)
    rivals = bench.rivals("busy-trainer", work)
    batch = np.stack([work.item(key) for key in range(BATCH_SIZE)])
    ways: tuple[tuple[str, dict[str, Any], Goal | None], ...] = (
        ("isolated, 1 worker", {"num_workers": 1, "isolated": True}, Goal("share", 0.97)),
        ("1 thread", {"num_workers": 1, "workers": "threads"}, None),
        ("1 process", {"num_workers": 1, "workers": "processes"}, None),
        ("2 processes", {"num_workers": 2, "workers": "processes"}, None),
    )
    return Scenario(
        "busy-trainer",
        f"steps that spin in Python for {1e3 * STEP_SECONDS:g} ms, batches whose items do for "
        f"{1e3 * ITEM_SECONDS * BATCH_SIZE:g} ms",
        (
            *rivals,
            contestant(bench.scope, work, LIMIT, "limit", lambda _: repeat(batch)),
            contestant(bench.scope, work, "a bare process", "reference", partial(_bare, work)),
            *(_ours(bench.scope, work, name, options, goal) for name, options, goal in ways),
        ),
    )


def _seconds_per_turn() -> float:
    turns = 20_000  # few enough that the thread is rarely interrupted
    seconds: list[float] = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        spin(turns)
        seconds.append(time.perf_counter() - started)
    return min(seconds) / turns


def _open(work: Work, options: dict[str, Any], scope: ExitStack) -> Iterator[Batch]:
    dataset = ps.range(ENDLESS).map(work.item).batch(BATCH_SIZE)
    return iter(scope.enter_context(ps.Loader(dataset, **options)))


def _bare(work: Work, scope: ExitStack) -> Iterator[Batch]:
    bare = BareProcesses(work.fill, Form((BATCH_SIZE, *SHAPE), "float32"), 1)
    scope.callback(bare.close)
    batches = bare.batches(ENDLESS)
    scope.callback(batches.close)
    return batches


def _ours(scope: ExitStack, work: Work, name: str, options: dict[str, Any], goal: Goal | None) -> Contestant:
    return contestant(scope, work, f"penstock, {name}", "ours", partial(_open, work, options), goal)


def contestant(
    scope: ExitStack, work: Work, name: str, role: Role, opened: Open, goal: Goal | None = None
) -> Contestant:
    """Return a contestant that takes a batch after every step.

    Args:
        scope: closes the loader.
        work: the work of a step.
        name: of the contestant.
        role: of the contestant.
        opened: opens an endless iterator over batches at its first use.
        goal: of the contestant.
    """
    batches = cache(partial(opened, scope))

    def run(repeats: int) -> Measurement:
        iterator, steps = batches(), repeats * work.steps
        next(iterator)  # it has started
        started = time.perf_counter()
        for _ in range(steps):
            spin(work.step_turns)
            next(iterator)
        return Measurement(steps, time.perf_counter() - started)

    against = () if role == "limit" else (LIMIT,)
    return Contestant(name, role, run, UNIT, against=against, goal=goal, repeats=1)
