"""Resuming from a saved state: the time to the next batch, and the size of the state, early and late in a run.

A job that resumes makes a loader, loads the state and requests batches. *Ready* is the time until `iter` returns,
*first batch* the time until the first batch; both start before the loader is made. Datasets of every kind are resumed
early and late; those read in order are also resumed on fewer ranks than saved the states. If a dataset holds elements
open, the limit is a plain loop that computes as many elements.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.resume_kinds import Kind, computed, indexable, negate, ordered
from benchmarks.scenario import BYTES, MILLISECONDS, Contestant, Goal, Measurement, Role, Scenario
from penstock import Shard

OLD_RANKS, NEW_RANKS = 8, 3
BATCH = 48  # both numbers of ranks divide it


@dataclass(frozen=True, slots=True)
class Work:
    """The number of records, the batch size, and the steps to resume at.

    Rivals that hold a permutation get fewer records, and only steps within one epoch of these. Datasets of every kind
    have `kind_count` records, and are resumed at `kind_steps`. Those read in order are resumed at `ordered_steps`,
    since they must first be read up to there.
    """

    count: int
    batch_size: int
    steps: tuple[int, ...]
    rival_count: int
    rival_steps: tuple[int, ...]
    kind_count: int
    kind_steps: tuple[int, ...]
    ordered_steps: tuple[int, ...]


def build(bench: Bench) -> Scenario:
    """Return the scenario: Penstock inline and on threads at every step, and rivals."""
    work = (
        Work(10**6, 32, (10, 1000), 4096, (10, 100), 5000, (10,), (3,))
        if bench.smoke
        else Work(10**12, 256, (10, 5_000, 10**6, 10**9), 2**21, (10, 5_000), 10**6, (10, 10**6), (10, 310))
    )
    contestants: list[Contestant] = [*bench.rivals("resume", work)]
    for num_workers, place in ((0, "inline"), (2, "2 threads")):
        for step in work.steps:
            contestants += _ours(work, place, step, num_workers)
    for kind in indexable(work.kind_count, BATCH):
        for step in work.kind_steps:
            contestants += _of_kind(kind, step, [_state_at(kind, step)])
    for kind in ordered(BATCH * (work.ordered_steps[-1] + 100), BATCH):
        for step, states in _read_states(kind, work.ordered_steps, 1).items():
            contestants += _of_kind(kind, step, states)
        for step, states in _read_states(kind, work.ordered_steps, OLD_RANKS).items():
            contestants += _of_kind(kind, step, states, new_ranks=NEW_RANKS)
    return Scenario("resume", "time from a state to ready, and to the first batch; bytes of state", tuple(contestants))


def timed(seconds_once: Callable[[], float]) -> Callable[[int], Measurement]:
    """Return a run that adds up the results of `seconds_once`; other work of the function isn't counted."""

    def run(repeats: int) -> Measurement:
        return Measurement(repeats, sum(seconds_once() for _ in range(repeats)))

    return run


def state_bytes(name: str, role: Role, encoded: bytes, goal: Goal | None = None) -> Contestant:
    """Return a contestant whose value is the length of its encoded state."""
    return Contestant(name, role, lambda _: Measurement(len(encoded), 0), BYTES, goal=goal, max_rounds=1, repeats=1)


def _ours(work: Work, place: str, step: int, num_workers: int) -> list[Contestant]:
    dataset = ps.range(work.count, seed=7).shuffle().map(negate).batch(work.batch_size)

    def make() -> ps.Loader:
        return ps.Loader(dataset, num_workers=num_workers, workers="threads")

    with make() as loader:
        loader.seek(step)
        state = loader.state_dict()
    encoded = json.dumps(state).encode()

    def seconds_once(*, first_batch: bool) -> float:
        started = time.perf_counter()
        with make() as loader:
            loader.load_state_dict(state)
            batches = iter(loader)
            if first_batch:
                next(batches)
            return time.perf_counter() - started

    name = f"penstock {place}, step {step:,}"
    ready = timed(lambda: seconds_once(first_batch=False))
    first = timed(lambda: seconds_once(first_batch=True))
    return [
        Contestant(f"{name}: ready", "ours", ready, MILLISECONDS, goal=Goal("value", 10)),
        Contestant(f"{name}: first batch", "ours", first, MILLISECONDS),
        *([state_bytes(f"{name}: state", "ours", encoded, Goal("value", 1000))] if num_workers == 0 else []),
    ]


def _state_at(kind: Kind, step: int) -> object:
    with ps.Loader(kind.dataset) as loader:
        loader.seek(step)
        return loader.state_dict()


def _read_states(kind: Kind, steps: tuple[int, ...], ranks: int) -> dict[int, list[Any]]:
    """Return, by step, the states of all ranks, each of which was read up to that step."""
    states: dict[int, list[Any]] = {step: [] for step in steps}
    for rank in range(ranks):
        with ps.Loader(kind.dataset, shard=Shard(rank, ranks, uneven=True)) as loader:
            for step, _ in enumerate(loader, 1):
                if step in states:
                    states[step].append(loader.state_dict())
                if step == steps[-1]:
                    break
    return states


def _of_kind(kind: Kind, step: int, states: list[Any], *, new_ranks: int = 1) -> list[Contestant]:
    """Return contestants for the time from a state, or the list of all ranks' states, to a rank's first batch."""
    given = states if new_ranks > 1 else states[0]
    shard = Shard(0, new_ranks, uneven=True)

    def seconds_once() -> float:
        started = time.perf_counter()
        with ps.Loader(kind.dataset, shard=shard) as loader:
            loader.load_state_dict(given)
            next(iter(loader))
            return time.perf_counter() - started

    name = f"{kind.name}, step {step:,}" + (f", {len(states)} → {new_ranks} ranks" if new_ranks > 1 else "")
    first = partial(Contestant, f"{name}: first batch", "ours", timed(seconds_once), MILLISECONDS)
    goal = Goal("value", 1000) if kind.open_elements is None else None  # a state lists the positions of open elements
    state = state_bytes(f"{name}: state", "ours", json.dumps(states[0]).encode(), goal)
    if kind.open_elements is None:
        return [first(goal=Goal("value", 10)), state]
    elements = kind.open_elements(states[0])  # of one rank; a resumed rank starts with one rank's elements
    limit = f"{name}: {elements:,} open elements"
    compute = timed(partial(_seconds, computed(kind, elements)))
    return [
        Contestant(limit, "limit", compute, MILLISECONDS),
        first(against=(limit,), goal=Goal("share", 1 / 1.2)),
        state,
    ]


def _seconds(compute: Callable[[], object]) -> float:
    started = time.perf_counter()
    compute()
    return time.perf_counter() - started
