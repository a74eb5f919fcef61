"""Feeding a training loop in JAX: the time per step in which its thread gives the devices no work.

A step is a small jitted product. It is dispatched without waiting, and waited for once before the next batch is
requested. The measured time is the wall time of `next`, which returns a batch of JAX arrays. During `next` the devices
are idle, whether the thread computes, waits for another thread, or waits for the interpreter. A step is long enough for
a thread to make a batch meanwhile. Facts show the whole step, and the training thread's own processor time.

Rows are gathered from arrays in memory by a shuffled order, as a hand-written loop would do with NumPy, and all
contestants place them by the same sharding, over all devices. Small batches show the fixed cost of a loader, and large
ones the cost of copies. The contestants that use JAX are in `rivals/jax.py` and `rivals/grain.py`. The contestants here
leave batches on the host, which shows the cost without the placing.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import MICROSECONDS, Batch, Contestant, Goal, Measurement, Output, Role, Scenario
from penstock._seeds import derive

Open = Callable[[ExitStack], Iterator[Mapping[str, Batch]]]
HOST_TURNS = 4  # products of a step by NumPy; its own threads don't speed them up on few cores
PLACES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("inline", {}),
    ("1 thread", {"num_workers": 1, "workers": "threads"}),
)


@dataclass(frozen=True, slots=True)
class Work:
    """The rows of an epoch and their batches, of which `steps` are timed in a repeat.

    Attributes:
        name: of the size.
        columns: the arrays that rows are gathered from: floats "x" and integers "label".
        batch_size: rows of a batch; divides the number of rows.
        turns: the number of products in a step.
        steps: the number of steps in a repeat.
    """

    name: str
    columns: Mapping[str, NDArray[Any]]
    batch_size: int
    turns: int
    steps: int

    @property
    def claim(self) -> str:
        """The claim of contestants of this size."""
        return f"each row once, {self.name}"

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch."""
        return len(self.columns["x"]) // self.batch_size

    def weights(self) -> NDArray[np.float32]:
        """Return the weights that each step multiplies rows with."""
        return np.ones((self.columns["x"].shape[1], 64), np.float32)

    def dataset(self) -> ps.Dataset[Any]:
        """Return the batches of all epochs."""
        return ps.read(dict(self.columns), seed=7).shuffle().repeat().batch(self.batch_size)

    def order(self) -> NDArray[np.int64]:
        """Return the rows of the first epoch, in order."""
        keys = ps.read(range(len(self.columns["x"])), seed=7).shuffle()
        return np.array(list(keys), np.int64)


def build(bench: Bench) -> Scenario:
    """Return the scenario: small and large batches, by Penstock without JAX, and by all contestants with JAX."""
    rows, steps = (256, 4) if bench.smoke else (8192, 16)
    works = (_work("small batches", rows, 256, steps), _work("large batches", rows, 3072, steps))
    with_jax = [contestant for work in works for contestant in bench.rivals("jax-feed", work)]
    return Scenario(
        "jax-feed",
        f"host time per step: {_sizes(works)}, gathered from {rows:,} shuffled rows",
        (*with_jax, *(_on_host(bench.scope, work, *place) for work in works for place in PLACES)),
        summary=None if with_jax else lambda _: MISSING,
    )


MISSING = (
    "JAX, which this scenario is about, was left out. If JAX is installed, add --rivals; otherwise scripts/bench "
    "--setup-rivals jax-feed --rivals installs it into an environment of its own."
)


def _work(name: str, rows: int, width: int, steps: int) -> Work:
    rng = np.random.default_rng(derive(7, name))
    columns = {"x": rng.random((rows, width), np.float32), "label": np.arange(rows, dtype=np.int32)}
    return Work(name, columns, 64, 8 * 3072 // width, steps)


def _sizes(works: tuple[Work, ...]) -> str:
    return ", ".join(f"{work.name} of {work.batch_size * work.columns['x'][0].nbytes / 1024:,.0f} KB" for work in works)


def _on_host(scope: ExitStack, work: Work, place: str, options: dict[str, Any]) -> Contestant:
    weights = work.weights()

    def step(batch: Mapping[str, Batch]) -> None:
        for _ in range(HOST_TURNS):
            (batch["x"] @ weights).sum()

    opened = partial(_open_host, work, options)
    return contestant(scope, work, Way(f"penstock.Loader {place}, left on the host", "ours", opened, step))


def _open_host(work: Work, options: dict[str, Any], scope: ExitStack) -> Iterator[Mapping[str, Batch]]:
    return iter(scope.enter_context(ps.Loader(work.dataset(), **options)))


@dataclass(frozen=True, slots=True)
class Way:
    """A way to get batches.

    Attributes:
        name: of the contestant, without the size.
        role: of the contestant.
        opened: opens an endless iterator over batches, which a scope closes.
        step: computes on a batch and waits for the result.
        against: names of the ways that it should not be slower than; if given, that is its goal.
        ordered: whether rows come in the order of `Work.order`.
    """

    name: str
    role: Role
    opened: Open
    step: Callable[[Mapping[str, Batch]], object]
    against: tuple[str, ...] = ()
    ordered: bool = True


def contestant(scope: ExitStack, work: Work, way: Way) -> Contestant:
    """Return the contestant that takes a batch after every step."""
    batches = cache(partial(way.opened, scope))

    def run(repeats: int) -> Measurement:
        steps = repeats * work.steps
        return Measurement(steps, _timed(batches(), way.step, steps, time.perf_counter))

    def facts() -> Mapping[str, float]:
        steps = 4 * work.steps
        started = time.perf_counter()
        own = _timed(batches(), way.step, steps, time.thread_time)
        whole = time.perf_counter() - started
        return {"CPU us": 1e6 * own / steps, "whole step us": 1e6 * whole / steps}

    return Contestant(
        f"{way.name}, {work.name}",
        way.role,
        run,
        MICROSECONDS,
        against=tuple(f"{name}, {work.name}" for name in way.against),
        goal=Goal("share", 1) if way.against else None,
        output=Output(work.claim, partial(_epoch, work, way.opened), way.ordered),
        facts=facts,
    )


def _timed(
    batches: Iterator[Mapping[str, Batch]],
    step: Callable[[Mapping[str, Batch]], object],
    steps: int,
    clock: Callable[[], float],
) -> float:
    """Return the time of getting that many batches, by a given clock."""
    taken = 0.0
    for _ in range(steps):
        started = clock()
        batch = next(batches)
        taken += clock() - started
        step(batch)
    return taken


def _epoch(work: Work, opened: Open) -> Iterator[Batch]:
    """Yield the rows of the first epoch."""
    with ExitStack() as scope:
        for batch in itertools.islice(opened(scope), work.num_batches):
            yield batch["x"]
