"""The rows of an epoch that a training loses or repeats when its number of processes changes from 4 to 2, and to 3.

Each run saves its state after some steps, and the next one continues from it, with other ranks, to the end of the
epoch. All keep the global batch, except Accelerate in one of its two ways to divide batches. A lost row was in no
batch, and a repeated one in several; rows of padding count as repeated. The ranks are simulated one after the other in
this process, so no time is measured.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import Contestant, Goal, Measurement, Role, Scenario, Unit

ROWS = Unit("rows", lambda measurement: float(measurement.amount), more_is_better=False)
Run = Callable[[int, int | None, object], tuple[Iterable[int], object]]
"""Takes a number of ranks, a number of steps (None for all that are left), and a state or None; returns the rows and
the state after them."""


@dataclass(frozen=True, slots=True)
class Work:
    """An epoch of rows, the global batch, and the numbers of ranks, each with its steps."""

    rows: int = 240
    batch_size: int = 12  # each number of ranks divides it
    runs: tuple[tuple[int, int | None], ...] = ((4, 6), (2, 5), (3, None))


def build(bench: Bench) -> Scenario:
    """Return the scenario: Penstock, and rivals."""
    work = Work()
    return Scenario(
        "elastic",
        f"rows of {work.rows} that are lost or repeated while 4 ranks become 2, and 3",
        (*contestants("penstock", "ours", _ours(work), work, Goal("value", 0)), *bench.rivals("elastic", work)),
        warms_up=False,
    )


def contestants(name: str, role: Role, run: Run, work: Work, goal: Goal | None = None) -> tuple[Contestant, ...]:
    """Return the contestants of a way to continue, whose values are the rows lost and repeated."""

    def counted() -> Counter[int]:
        state: object = None
        counts = Counter[int]()
        for ranks, steps in work.runs:
            rows, state = run(ranks, steps, state)
            counts.update(rows)
        return counts

    def lost(_: int) -> Measurement:
        return Measurement(len(set(range(work.rows)) - set(counted())), 0)

    def repeated(_: int) -> Measurement:
        return Measurement(sum(count - 1 for count in counted().values()), 0)

    return (
        Contestant(f"{name}: lost", role, lost, ROWS, goal=goal, repeats=1),
        Contestant(f"{name}: repeated", role, repeated, ROWS, goal=goal, repeats=1),
    )


def _ours(work: Work) -> Run:
    dataset = ps.range(work.rows, seed=7).shuffle().batch(work.batch_size)

    def run(ranks: int, steps: int | None, state: object) -> tuple[list[int], object]:
        rows: list[int] = []
        after: object = None
        for rank in range(ranks):
            with ps.Loader(dataset, shard=ps.Shard(rank, ranks)) as loader:
                if state is not None:
                    loader.load_state_dict(cast("dict[str, Any]", state))
                rows += (row for batch in taken(loader, steps) for row in batch.tolist())
                after = loader.state_dict()
        return rows, after

    return run


def taken(batches: Iterable[Any], steps: int | None) -> Iterable[Any]:
    """Return some batches, or all for None."""
    return list(batches) if steps is None else [batch for _, batch in zip(range(steps), batches, strict=False)]
