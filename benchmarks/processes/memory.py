"""The memory of large batches in flight, and their rate, for different numbers of workers.

Each contestant is a program of its own, measured from outside. To find the maximum in flight, the program takes one
batch, keeps it until the memory stops growing, like a trainer that is slower than its data, and then reads to the end.
The number is the growth of the machine's memory files (memfds, /dev/shm), and at least the size of those that the
program has open. Facts show the total memory of all its processes. Rates are measured separately, without these
observations.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.processes.held import Held, held, shared_bytes
from benchmarks.processes.trainer import Trainer
from benchmarks.scenario import MEGABYTES, Batch, Contestant, Goal, Measurement, Role, Scenario, per_second

UNIT = per_second("items")
PREFETCH = 2
SLACK = 1.02  # tables, and slots that end on a page
LOOK_SECONDS = 0.02
SETTLED_SECONDS = 0.5  # when there was no growth for so long, nothing more is made
CHART_WIDTH = 60
PAGE_BYTES = 4096

Open = Callable[[], AbstractContextManager[Iterable[Batch]]]  # it is pickled


@dataclass(frozen=True, slots=True)
class Work:
    """Items of float32 that take a fixed time besides being filled, in batches, and the numbers of workers."""

    shape: tuple[int, ...] = (16, 3, 224, 224)
    seconds: float = 0.02
    batch_size: int = 8
    widths: tuple[int, ...] = (2, 4, 8, 16)
    items_each: int = 64  # for each worker, in a pass: four times the content of a queue of two batches each

    def bound(self, workers: int, prefetch: int = PREFETCH) -> float:
        """Return the maximum bytes in flight: `prefetch` batches or two rows a worker, and the batch in use."""
        rows = max(prefetch * self.batch_size, 2 * workers)
        return SLACK * self.batch_bytes * (1 + -(-rows // self.batch_size))

    @property
    def batch_bytes(self) -> int:
        """The number of bytes of a batch."""
        return 4 * int(np.prod(self.shape)) * self.batch_size

    def item(self, key: int) -> NDArray[np.float32]:
        """Return an item."""
        time.sleep(self.seconds)
        return np.full(self.shape, key, np.float32)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to load batches: its name, role and number of workers, and the function that opens it in the trainer."""

    name: str
    role: Role
    workers: int
    opened: Open


def build(bench: Bench) -> Scenario:
    """Return the scenario: at every width memory and rate of Penstock and rivals, and Penstock with more prefetch."""
    work = Work((4, 3, 64, 64), 0.001, widths=(2,), items_each=16) if bench.smoke else Work()
    rivals = bench.rivals("memory", work)
    rated = {contestant.name for contestant in rivals}
    ours: list[Contestant] = []
    for workers in work.widths:
        way = Way("penstock", "ours", workers, partial(open_ours, work, workers, PREFETCH))
        ours += contestants(way, limit=work.bound(workers), beside=rated)
    widest = work.widths[-1]
    if not bench.smoke:
        way = Way("penstock, prefetch=4", "ours", widest, partial(open_ours, work, widest, 4))
        ours += contestants(way, limit=work.bound(widest, 4), beside=rated)
    return Scenario(
        "memory",
        f"float32 items of {work.batch_bytes / work.batch_size / 1e6:.1f} MB and {1e3 * work.seconds:g} ms, batches of "
        f"{work.batch_size}, {work.batch_bytes / 1e6:.0f} MB, over the number of workers",
        tuple(sorted([*ours, *rivals], key=lambda one: int(one.name.split()[0]))),
        summary=partial(chart, work),
    )


def named(workers: int, name: str) -> str:
    """Return the name of the contestant that loads in a way with that many workers."""
    return f"{workers} workers: {name}"


@contextmanager
def open_ours(work: Work, workers: int, prefetch: int) -> Generator[Iterable[Batch]]:
    """Open Penstock's loader on that many processes."""
    dataset = ps.range(work.items_each * workers).map(work.item).batch(work.batch_size)
    with ps.Loader(dataset, num_workers=workers, workers="processes", prefetch=prefetch) as loader:
        yield loader


def contestants(way: Way, *, limit: float | None = None, beside: Iterable[str] = ()) -> tuple[Contestant, ...]:
    """Return the contestants that load in one way: its rate, and its memory.

    Args:
        way: the way to load batches.
        limit: the bound of its memory, in bytes.
        beside: contestants to compare the rate with; it should be at least torch's, if torch takes part.
    """
    name, rival = named(way.workers, way.name), named(way.workers, "torch")
    most: list[Held] = []

    def run(_: int) -> Measurement:
        grown, seen = most_held(way.opened)
        most.append(seen)
        return Measurement(grown, 0)

    def facts() -> Mapping[str, float]:
        return {
            "all processes' MB": max(seen.resident_bytes for seen in most) / 1e6,
            "processes": max(seen.processes for seen in most),
        }

    compared = way.role == "ours" and rival in beside
    return (
        Contestant(
            name,
            way.role,
            _rate(way),
            UNIT,
            against=(rival,) if compared else (),
            goal=Goal("share", 1) if compared else None,
            repeats=1,
        ),
        Contestant(
            f"{name}, in flight",
            way.role,
            run,
            MEGABYTES,
            goal=Goal("value", limit / 1e6) if way.role == "ours" and limit is not None else None,
            facts=facts,
            max_rounds=3,
            repeats=1,
        ),
    )


# -- rates


def _rate(way: Way) -> Callable[[int], Measurement]:
    """Return a run that reads whole passes in a trainer of its own, after its workers have started."""

    def run(repeats: int) -> Measurement:
        with Trainer(partial(passing, way.opened)) as trainer:
            trainer.ask()  # the first pass starts the workers
            done: list[Measurement] = [trainer.ask() for _ in range(repeats)]
        return Measurement(sum(one.amount for one in done), sum(one.seconds for one in done))

    return run


def passing(opened: Open, commands: Connection) -> None:
    """Read a pass at each command, and send its time; a trainer's main function."""
    with opened() as batches:
        while True:
            commands.recv()
            started = time.perf_counter()
            amount = 0
            for batch in batches:
                touch(batch)
                amount += len(batch)
            commands.send(Measurement(amount, time.perf_counter() - started))


def touch(batch: Any) -> int:  # noqa: ANN401 - an array, or another library's tensor
    """Read one byte of every page, so that the whole batch is mapped here; return their sum."""
    return int(np.asarray(batch).reshape(-1).view(np.uint8)[::PAGE_BYTES].sum(dtype=np.int64))


# -- memory


def most_held(opened: Open) -> tuple[int, Held]:
    """Return the maximum growth of the machine's memory files, and the maximum that the trainer's session held.

    Args:
        opened: opens the loader, in the trainer.
    """
    before = shared_bytes()
    with Trainer(partial(holding, opened)) as trainer:
        most = _most_until_answered(trainer, Held(0, 0, 0, before))  # the trainer has its first batch
        grew = time.perf_counter()
        while time.perf_counter() - grew < SETTLED_SECONDS:
            time.sleep(LOOK_SECONDS)
            known, most = most, most.at_most(held(trainer.session))
            if most.shared_bytes > known.shared_bytes:
                grew = time.perf_counter()
        trainer.commands.send(None)
        most = _most_until_answered(trainer, most)
    return max(most.shared_bytes - before, most.open_bytes), most


def _most_until_answered(trainer: Trainer, most: Held) -> Held:
    while not trainer.commands.poll(LOOK_SECONDS):
        most = most.at_most(held(trainer.session))
    trainer.commands.recv()
    return most


def holding(opened: Open, commands: Connection) -> None:
    """Keep the first batch until commanded, then read the others; a trainer's main function."""
    with opened() as batches:
        iterator = iter(batches)
        batch = next(iterator)
        touch(batch)
        commands.send(None)
        commands.recv()
        for batch in iterator:
            touch(batch)
        commands.send(None)


# -- the picture


def chart(work: Work, medians: Mapping[str, float]) -> str:
    """Return bars of text: memory in flight for each number of workers, of Penstock and rivals, and idle time.

    A worker counts as idle whenever it isn't in an item's own wait, also while it fills rows.
    """
    suffix = ", in flight"
    shown = [name.removesuffix(suffix) for name in medians if name.endswith(suffix)]
    most = max(medians[name + suffix] for name in shown)
    width = max(map(len, shown))
    batches = f"{PREFETCH + 1} batches are {(PREFETCH + 1) * work.batch_bytes / 1e6:,.0f}"
    lines = [f"memory in flight, MB ({batches}), and the workers' time outside of items"]
    for name in shown:
        value = medians[name + suffix]
        bar = "█" * round(CHART_WIDTH * value / most)
        idle = 1 - medians[name] * work.seconds / int(name.split()[0])
        lines.append(f"  {name.ljust(width)}  {bar} {value:,.0f}, {idle:.0%} idle")
    return "\n".join(lines)
