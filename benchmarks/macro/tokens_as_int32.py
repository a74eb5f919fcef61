"""The windows of `tokens` as int32: cast by a function above the batch, or by the source as it gathers.

Embeddings refuse uint16, so this is what models train on. The limits are the C gather: one calls the same function on
each batch, and the other casts each token as it copies it. The windows also come from an object of the user's, which
has only a length and items.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.macro.tokens import UNIT, Work, gather_batches, opened_gather, source, write_tokens
from benchmarks.scenario import Batch, Contestant, Goal, Output, Role, Scenario
from benchmarks.streams import passes

CLAIM = "every window once, as int32"
LIMIT = "C gather, the function in the loop"
LIMIT_CASTING = "C gather that casts"
PLACES: tuple[Place, ...] = ("inline", "threads", "processes", "isolated")
OBJECT_GOALS: dict[Place, float] = {"inline": 0.6, "threads": 0.4, "processes": 0.7}


class Windows:
    """The windows as an object of the user's; each is a view of the mapped file."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.mapped: NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return self.work.num_windows

    def __getitem__(self, key: int) -> NDArray[np.uint16]:
        if self.mapped is None:  # opened in each worker, since pickling a memory map copies it
            self.mapped = np.memmap(self.work.path, np.dtype("<u2"), "r").view(np.ndarray)
        start = key * self.work.stride
        return self.mapped[start : start + self.work.length]


def build(bench: Bench) -> Scenario:
    """Return the scenario: both limits, the three ways to cast in every place, and rivals."""
    work = Work(bench.directory / "tokens.bin", 200_000 if bench.smoke else 100_000_000)
    write_tokens(work)
    tokens = source(work)
    library, mapped, starts = opened_gather(bench, work)
    bare = partial(gather_batches, library.gather, np.uint16, mapped, starts, work)
    casting = partial(gather_batches, library.gather_as_int32, np.int32, mapped, starts, work)
    above = _shuffled(tokens, work).map(as_int32)
    objects = _shuffled(Windows(work), work).map(as_int32)
    gathered = _shuffled(tokens.astype("int32"), work)
    return Scenario(
        "tokens-as-int32",
        f"{work.num_windows:,} windows of {work.length:,} uint16 as int32, shuffled, batches of {work.batch_size}",
        (
            *bench.rivals("tokens-as-int32", work),
            contestant(LIMIT, "limit", lambda: map(as_int32, bare())),
            contestant(LIMIT_CASTING, "limit", casting),
            *(_ours(bench, above, place, "a function above", LIMIT, 0.8) for place in PLACES),
            *(_ours(bench, gathered, place, "cast in the gather", LIMIT_CASTING, 0.9) for place in PLACES),
            *(_ours(bench, objects, place, "an object", LIMIT, goal) for place, goal in OBJECT_GOALS.items()),
        ),
    )


def as_int32(batch: NDArray[np.uint16]) -> NDArray[np.int32]:
    """Return the tokens of a batch in a dtype that embeddings take."""
    return batch.astype(np.int32)


def contestant(
    name: str,
    role: Role,
    batches: Callable[[], Iterable[Batch]],
    limit: str | None = None,
    goal: float | None = None,
    *,
    ordered: bool = True,
) -> Contestant:
    """Return a contestant that is timed over whole passes."""
    bound = None if goal is None else Goal("share", goal)
    output = Output(CLAIM, batches, ordered)
    return Contestant(name, role, passes(batches), UNIT, () if limit is None else (limit,), bound, output)


def _shuffled(records: Any, work: Work) -> ps.Dataset[Any]:  # noqa: ANN401 - a source of any kind
    return ps.read(records, seed=7).shuffle().batch(work.batch_size)


def _ours(bench: Bench, dataset: ps.Dataset[Any], place: Place, way: str, limit: str, goal: float) -> Contestant:
    name, loader = open_loader(bench.scope, dataset, place)
    return contestant(f"{name}, {way}", "ours", lambda: loader, limit, goal)
