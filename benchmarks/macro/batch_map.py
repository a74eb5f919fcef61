"""A function above the batch: the time that it adds to a batch, beyond the time of the function itself.

The windows of `tokens` are gathered into batches, and a function takes the inputs of each: a view, in less than a
microsecond. The limit is the same loader without the function, which the loop then calls on each batch. The bare
function over batches of the C gather shows the whole cost of a batch.
"""

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.macro.tokens import Work, bare_batches, dataset, write_tokens
from benchmarks.scenario import MICROSECONDS, Contestant, Goal, Measurement, Output, Role, Scenario

CLAIM = "the inputs of every window once"
Batches = Callable[[], Iterable[NDArray[np.uint16]]]


def build(bench: Bench) -> Scenario:
    """Return the scenario: the function in the dataset and in the loop, for each place."""
    work = Work(bench.directory / "tokens.bin", 200_000 if bench.smoke else 20_000_000)
    write_tokens(work)
    bare = bare_batches(bench, work)
    return Scenario(
        "batch-map",
        f"a function of each batch of {work.batch_size} x {work.length:,} uint16",
        (
            _contestant("C gather, function in the loop", "reference", lambda: map(inputs, bare())),
            *_pair(bench, work, "inline", Goal("difference", 3.0)),
            *_pair(bench, work, "threads", None),
        ),
    )


def inputs(batch: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Return all tokens of each window but the last."""
    return batch[:, :-1]


def _pair(bench: Bench, work: Work, place: Place, goal: Goal | None) -> Iterator[Contestant]:
    """Yield a loader whose loop calls the function, as the limit, and one whose dataset has the function."""
    name, plain = open_loader(bench.scope, dataset(work), place)
    _, mapped = open_loader(bench.scope, dataset(work).map(inputs), place)
    looped = f"{name}, function in the loop"
    yield _contestant(looped, "limit", lambda: map(inputs, plain))
    yield _contestant(name, "ours", lambda: mapped, (looped,), goal)


def _contestant(
    name: str, role: Role, batches: Batches, against: tuple[str, ...] = (), goal: Goal | None = None
) -> Contestant:
    def run(repeats: int) -> Measurement:
        count = 0
        started = time.perf_counter()
        for _ in range(repeats):
            for _ in batches():
                count += 1
        return Measurement(count, time.perf_counter() - started)

    return Contestant(name, role, run, MICROSECONDS, against=against, goal=goal, output=Output(CLAIM, batches))
