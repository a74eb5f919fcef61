"""From a saved state to the next batch: how long it takes, and how large the state is, near and far into a run.

A job that resumes makes a loader, gives it the state and asks for batches. *Ready* is the time until `iter` has
returned, *first batch* until the first batch is there; both begin before the loader is made.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import BYTES, MILLISECONDS, Contestant, Goal, Measurement, Role, Scenario


@dataclass(frozen=True, slots=True)
class Work:
    """How many records there are, how large a batch is, and the steps to resume at.

    Rivals that hold a permutation get fewer records, and only the steps that one epoch of these has.
    """

    count: int
    batch_size: int
    steps: tuple[int, ...]
    rival_count: int
    rival_steps: tuple[int, ...]


def build(bench: Bench) -> Scenario:
    """Return the scenario: ours inline and on threads at every step, and rivals."""
    work = (
        Work(10**6, 32, (10, 1000), 4096, (10, 100))
        if bench.smoke
        else Work(10**12, 256, (10, 5_000, 10**6, 10**9), 2**21, (10, 5_000))
    )
    contestants: list[Contestant] = [*bench.rivals("resume", work)]
    for num_workers, place in ((0, "inline"), (2, "2 threads")):
        for step in work.steps:
            contestants += _ours(work, place, step, num_workers)
    return Scenario("resume", "state → ready, and → first batch; bytes of state", tuple(contestants))


def negate(value: int) -> int:
    """Return the negative: a map that costs nothing."""
    return -value


def timed(seconds_once: Callable[[], float]) -> Callable[[int], Measurement]:
    """Return a run that adds up what `seconds_once` measures; what it leaves out isn't counted."""

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
