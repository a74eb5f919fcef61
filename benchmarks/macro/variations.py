"""Variations of one workload, side by side, with the worst share of the limit on top.

A loader that is fast in one form of a workload may be slow in the next: with tuples in place of arrays, in batches of
one, with a function above the batch. Each variation changes one or two things of the first. The limit is the plainest
loop of this process that makes the same batches of the same items: so workers of cheap items can at best pass on what
they make, and items that take longer reach the number of workers.

A loader is opened anew for each measurement, whose time begins with the third batch.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.scenario import Contestant, Measurement, Output, Role, Scenario, per_second

UNIT = per_second("items")
MOST_ITEMS: Final = 100_000
MOST_BATCHES: Final = 4_000
MOST_SECONDS: Final = 0.5  # of the loop
ROUNDS: Final = 5
UNTIMED: Final = 2  # batches, before which workers start
VALUES: Final = np.arange(256, dtype=np.float32)
Kind = Literal["int", "array", "tuple", "dict"]


@dataclass(frozen=True, slots=True)
class Work:
    """One variation: items by their index, and batches of them.

    Attributes:
        name: the name of the variation.
        kind: the type of an item.
        batch_size: the items of a batch.
        microseconds: the processor time that an item takes, beside making it.
        above: whether a function is above the batch.
        most_items: the largest number of items of a pass.
    """

    name: str
    kind: Kind = "array"
    batch_size: int = 32
    microseconds: int = 0
    above: bool = False
    most_items: int = MOST_ITEMS

    @property
    def count(self) -> int:
        """The number of items of a pass."""
        by_time = int(MOST_SECONDS * 1e6 / max(self.microseconds, 1))
        return min(self.most_items, MOST_BATCHES * self.batch_size, by_time) // self.batch_size * self.batch_size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - of each kind
        if index >= self.count:
            raise IndexError(index)
        if self.microseconds:
            until = time.perf_counter() + self.microseconds / 1e6
            while time.perf_counter() < until:
                pass
        if self.kind == "int":
            return index
        if self.kind == "array":
            return VALUES
        return (VALUES, index) if self.kind == "tuple" else {"x": VALUES, "y": index}

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the plainest loop."""
        for start in range(0, self.count, self.batch_size):
            rows = [self[index] for index in range(start, start + self.batch_size)]
            if self.kind == "tuple":
                yield tuple(map(np.array, zip(*rows, strict=True)))
            elif self.kind == "dict":
                yield {name: np.array([row[name] for row in rows]) for name in rows[0]}
            else:
                yield np.array(rows)


VARIATIONS: Final = (
    Work("arrays by 32"),
    Work("ints by 32", kind="int"),
    Work("tuples by 32", kind="tuple"),
    Work("arrays by 1", batch_size=1),
    Work("ints by 4096", kind="int", batch_size=4096),
    Work("dicts by 32", kind="dict"),
    Work("arrays by 512", batch_size=512),
    Work("arrays by 32, a function above", above=True),
    Work("arrays by 32, 20 us each", microseconds=20),
    Work("dicts by 8, 200 us each", kind="dict", batch_size=8, microseconds=200),
)
SMOKE: Final = (Work("arrays by 100", batch_size=100, most_items=800), Work("tuples by 32", "tuple", most_items=320))


def build(bench: Bench) -> Scenario:
    """Return the scenario: for each variation the loop, Penstock in three places, and rivals."""
    variations = SMOKE if bench.smoke else VARIATIONS
    places: tuple[Place, ...] = ("inline", "threads") if bench.smoke else ("inline", "threads", "processes")
    made: list[Contestant] = []
    for work in variations:
        made.append(contestant(work, limit_of(work), "limit", work.batches))
        made += [_ours(work, place) for place in places]
        made += bench.rivals("variations", work)
    return Scenario(
        "variations", f"{len(variations)} variations of items in batches", tuple(made), ROUNDS, summary=_worst_on_top
    )


def limit_of(work: Work) -> str:
    """Return the name of a variation's limit."""
    return f"{work.name}: loop"


def _ours(work: Work, place: Place) -> Contestant:
    def batches() -> Iterator[Any]:
        dataset = ps.read(work).batch(work.batch_size)
        with ExitStack() as scope:
            _, loader = open_loader(scope, dataset.map(_same) if work.above else dataset, place)
            yield from loader

    return contestant(work, f"{work.name}: penstock {place}", "ours", batches)


def _same(batch: object) -> object:
    return batch


def contestant(work: Work, name: str, role: Role, batches: Callable[[], Iterable[Any]]) -> Contestant:
    """Return a contestant of a variation, which opens what it measures."""
    output = Output(work.name, partial(_arrays, work.kind, batches))
    against = () if role == "limit" else (limit_of(work),)
    return Contestant(name, role, partial(_timed, work, batches), UNIT, against, output=output, repeats=1)


def _arrays(kind: Kind, batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the first leaf of each batch."""
    for batch in batches():
        yield np.asarray(batch["x"] if kind == "dict" else batch[0] if kind == "tuple" else batch)


def _timed(work: Work, batches: Callable[[], Iterable[Any]], repeats: int) -> Measurement:
    amount, seconds = 0, 0.0
    for _ in range(repeats):
        number, began = 0, 0.0
        for number, _batch in enumerate(batches()):
            if number == UNTIMED - 1:
                began = time.perf_counter()
        amount += (number + 1 - UNTIMED) * work.batch_size
        seconds += time.perf_counter() - began
    return Measurement(amount, seconds)


def _worst_on_top(medians: Mapping[str, float]) -> str:
    """Return a table of all contestants but the limits, by their share of the limit's rate."""
    limits = {name.partition(": ")[0]: value for name, value in medians.items() if name.endswith(": loop")}
    shares = {
        name: value / limits[name.partition(": ")[0]] for name, value in medians.items() if not name.endswith(": loop")
    }
    lines = [f"{share:8.3f}  {name}" for name, share in sorted(shares.items(), key=lambda each: each[1])]
    return "\n".join(["share of the loop, the worst first:", *lines])
