"""Batches of 77 MB from worker processes: the share of memory bandwidth that is left when every row is copied once.

An item is an array that its worker already has, so copying it into the batch is all of the work. The limits are bare
processes that copy the same items into slots that stay mapped on both sides (see `bare.py`). The consumer reads a byte
of each page of a batch. The CPU time of receiving without reading is measured separately.

Some contestants load the same arrays as elements that aren't batched, each stacked by a function. Their memory is
measured from outside, while a consumer keeps one element and then reads the others (see `memory.py`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.processes.bare import Array, BareProcesses, Form
from benchmarks.processes.memory import SLACK, most_held, touch
from benchmarks.scenario import (
    MEGABYTES,
    MILLISECONDS,
    Batch,
    Contestant,
    Goal,
    Measurement,
    Output,
    Role,
    Scenario,
    per_second,
)
from benchmarks.streams import take_batches
from benchmarks.usage import usage

UNIT = per_second("batches")
LIMITS = ("ring, 1 bare process", "ring, 2 bare processes")
NUM_CHECKED = 3  # batches whose contents are compared
NUM_ITEMS = 4  # different items of a worker
MOST_ELEMENTS = 4  # in memory, that of the consumer included

Batches = Callable[[], Iterable[Batch]]


@dataclass(frozen=True, slots=True)
class Work:
    """Float32 items in batches, and the number of batches in a pass."""

    shape: tuple[int, ...] = (16, 3, 224, 224)
    batch_size: int = 8
    num_batches: int = 96

    @property
    def claim(self) -> str:
        """The claim of all contestants."""
        return "all items, in order"

    @property
    def form(self) -> Form:
        """The shape and dtype of a batch."""
        return Form((self.batch_size, *self.shape), "float32")

    def item(self, key: int) -> NDArray[np.float32]:
        """Return an item that this process has made before."""
        return _items(self.shape)[key % NUM_ITEMS]

    def element(self, number: int) -> NDArray[np.float32]:
        """Return the batch of that number as one element."""
        return np.stack([self.item(number * self.batch_size + row) for row in range(self.batch_size)])

    def fill(self, number: int, out: Array) -> None:
        """Copy the items of a batch into it."""
        for row in range(self.batch_size):
            out[row] = self.item(number * self.batch_size + row)


@cache
def _items(shape: tuple[int, ...]) -> list[NDArray[np.float32]]:
    size = int(np.prod(shape))
    return [np.arange(number, number + size, dtype=np.float32).reshape(shape) for number in range(NUM_ITEMS)]


def build(bench: Bench) -> Scenario:
    """Return the scenario: rings filled by one and two processes, Penstock with two and more, and rivals."""
    work = Work((4, 3, 64, 64), num_batches=8) if bench.smoke else Work()
    return Scenario(
        "big-batches",
        f"float32 batches of {work.form.num_bytes / 1e6:.0f} MB, each item copied once",
        (
            *bench.rivals("big-batches", work),
            *(_limit(bench, work, number, name) for number, name in enumerate(LIMITS, 1)),
            *_ours(bench, work, 2),
            *(() if bench.smoke else _ours(bench, work, 4)),
            *_ours(bench, work, 2, isolated=True),
            *_elements(bench, work, isolated=False),
            *_elements(bench, work, isolated=True),
        ),
    )


def _limit(bench: Bench, work: Work, processes: int, name: str) -> Contestant:
    @cache
    def opened() -> BareProcesses:
        bare = BareProcesses(work.fill, work.form, processes)
        bench.scope.callback(bare.close)
        return bare

    return contestant(work, name, "limit", lambda: opened().batches(work.num_batches))


def _ours(bench: Bench, work: Work, workers: int, *, isolated: bool = False) -> tuple[Contestant, ...]:
    dataset = ps.range(work.num_batches * work.batch_size).map(work.item).batch(work.batch_size)
    most = 0.0

    @cache
    def opened() -> ps.Loader[NDArray[np.float32]]:
        return bench.scope.enter_context(
            ps.Loader(dataset, num_workers=workers, workers="processes", isolated=isolated)
        )

    def watched() -> Iterator[NDArray[np.float32]]:
        nonlocal most
        for batch in opened():
            most = max(most, opened().stats()["bytes_in_flight"])
            yield batch

    name = f"penstock, {'isolated, ' * isolated}{workers} processes"
    return (
        contestant(work, name, "ours", watched, goal=Goal("share", 0.97), facts=lambda: {"MB in flight": most / 1e6}),
        receiving(work, name, "ours", opened, goal=Goal("value", 1)),
    )


def _elements(bench: Bench, work: Work, *, isolated: bool) -> tuple[Contestant, ...]:
    """Return the contestants of elements that aren't batched: their rate, and their memory."""

    @cache
    def opened() -> ps.Loader[NDArray[np.float32]]:
        return bench.scope.enter_context(open_elements(work, isolated=isolated))

    def grown(_: int) -> Measurement:
        return Measurement(most_held(partial(open_elements, work, isolated=isolated))[0], 0)

    name = f"penstock, {'isolated, ' * isolated}2 processes, elements"
    memory = Goal("value", SLACK * MOST_ELEMENTS * work.form.num_bytes / 1e6)
    return (
        contestant(work, name, "ours", opened, goal=Goal("share", 0.97)),
        Contestant(f"{name}: in flight", "ours", grown, MEGABYTES, goal=memory, max_rounds=3, repeats=1),
    )


def open_elements(work: Work, *, isolated: bool) -> ps.Loader[NDArray[np.float32]]:
    """Return a loader of elements that aren't batched."""
    dataset = ps.range(work.num_batches).map(work.element)
    return ps.Loader(dataset, num_workers=2, workers="processes", isolated=isolated)


def contestant(
    work: Work,
    name: str,
    role: Role,
    batches: Batches,
    *,
    goal: Goal | None = None,
    facts: Callable[[], Mapping[str, float]] | None = None,
) -> Contestant:
    """Return a contestant that reads whole passes and touches every batch."""

    def run(repeats: int) -> Measurement:
        amount = 0
        started = time.perf_counter()
        for _ in range(repeats):
            for batch in batches():
                touch(batch)
                amount += 1
        return Measurement(amount, time.perf_counter() - started)

    against = () if role == "limit" else LIMITS
    output = Output(work.claim, lambda: take_batches(batches(), NUM_CHECKED))
    return Contestant(name, role, run, UNIT, against=against, goal=goal, output=output, facts=facts)


def receiving(work: Work, name: str, role: Role, batches: Batches, *, goal: Goal | None = None) -> Contestant:
    """Return a contestant whose time is the CPU time of receiving in this process, without reading the batch."""

    def receive() -> None:
        for batch in take_batches(batches(), work.num_batches):
            del batch

    def run(repeats: int) -> Measurement:
        seconds = sum(usage(receive).cpu_seconds for _ in range(repeats))
        return Measurement(repeats * work.num_batches, seconds)

    return Contestant(f"{name}: CPU of receiving", role, run, MILLISECONDS, goal=goal, repeats=1)
