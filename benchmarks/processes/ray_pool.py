"""A pool of processes of a Ray cluster, beside actors without a framework, and Ray Data.

The hosts are those of `ray.cluster_utils`: each is a scheduler and an object store of its own on this machine, so the
shares hold on a cluster, and the rates don't. The trainer is on a host without processors. The limit is one actor on
each host, each of whose calls makes a batch, and the trainer reads the results in place.

A pass of each way yields its rate, the processor time of the trainer, the time to its first batch, and the bytes that
Ray wrote to disks, since its stores were full. The rate is that after the first batch. The way's processes are there
before. The loader's own pool delivers writable arrays, as any loader.

Elements that wait show whether three hosts are used as well as one. Two trainings that share a pool by its name show
what the second one costs the processes. Each is a loader in a thread of its own, with a pool of its own that has found
the processes by their name, as in another program.
"""

import importlib
import importlib.util
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import (
    BYTES,
    MILLISECONDS,
    Batch,
    Contestant,
    Goal,
    Measurement,
    MissingError,
    Output,
    Role,
    Scenario,
    per_second,
)
from benchmarks.usage import since, used

if TYPE_CHECKING:
    from penstock.ray import Pool

Open = Callable[[], Iterator[Batch]]
Figure = Literal["rate", "trainer's CPU", "first batch", "bytes spilled"]
HOSTS = 2  # that make pictures; elements that wait have one more
AHEAD = 4  # calls of actors; blocks that Ray Data reads ahead
STORE_BYTES = 1_000_000_000  # of each host: Ray keeps what it delivered for up to a second
POOL = "penstock.ray.Pool"
MISSING = (
    "Ray is not installed. scripts/test-with ray makes an environment that has it: "
    "PYTHON=.venv-ray/bin/python scripts/bench ray"
)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Batches of pictures, which take little longer to make than to copy."""

    batches: int
    batch_size: int
    shape: tuple[int, ...] = (3, 224, 224)

    @property
    def name(self) -> str:
        """The size of a batch."""
        return f"{self.batch_size * np.prod(self.shape) / 1e6:.2g} MB"

    def batch(self, keys: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return pictures that contain their keys."""
        batch = np.empty((len(keys), *self.shape), np.uint8)
        for row, key in zip(batch, keys, strict=True):
            row[:] = key % 251
            row.reshape(-1)[:8] = np.array([key], np.int64).view(np.uint8)
        return batch

    def dataset(self) -> ps.Dataset[NDArray[np.uint8]]:
        """Return all batches."""
        return ps.range(self.batches * self.batch_size).batch(self.batch_size).map(self.batch)


@dataclass(frozen=True, slots=True)
class Elements:
    """Batches of elements that wait, or compute."""

    batches: int = 200
    batch_size: int = 8
    wait_seconds: float = 0.004
    turns: int = 60_000  # of a loop

    def waiting(self) -> ps.Dataset[NDArray[np.int64]]:
        """Return the batches of elements that wait without using a processor."""
        return ps.range(self.batches * self.batch_size).map(self._wait).batch(self.batch_size)

    def computing(self, seed: int) -> ps.Dataset[NDArray[np.int64]]:
        """Return the batches of elements that compute, in an order of their own for each seed."""
        made = ps.range(self.batches * self.batch_size, seed=seed).shuffle().map(self._compute)
        return made.batch(self.batch_size)

    def _wait(self, key: int) -> int:
        threading.Event().wait(self.wait_seconds)
        return key

    def _compute(self, key: int) -> int:
        return key + 0 * sum(range(self.turns))


SIZES = (Pictures(400, 8), Pictures(80, 64))


def build(bench: Bench) -> Scenario:
    """Return the scenario.

    Raises:
        MissingError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingError(MISSING)
    elements = Elements(4, 4, 0.001, 100) if bench.smoke else Elements()
    small, large = (Pictures(4, 2, (3, 8, 8)), Pictures(4, 4, (3, 8, 8))) if bench.smoke else SIZES
    bench.scope.enter_context(_cluster())
    pool, actors = _pool(bench.scope, HOSTS, "pool"), _actors()
    contestants = [_contestants(pictures, pool, actors) for pictures in (small, large)]
    return Scenario(
        "ray",
        f"batches of {small.name} and {large.name} from {HOSTS} hosts of a Ray cluster on this machine; elements that "
        f"wait {1e3 * elements.wait_seconds:g} ms; two trainings with one pool",
        (
            *itertools.chain.from_iterable(contestants),
            *_waiting(bench.scope, elements),
            *_sharing(bench.scope, elements),
        ),
        rounds=3,
        warms_up=False,
    )


def _contestants(pictures: Pictures, pool: "Pool", actors: list[Any]) -> tuple[Contestant, ...]:
    bare = _Way("bare actors", partial(_bare, pictures, actors), pictures)
    data = _Way("Ray Data", partial(_ray_data, pictures), pictures)
    ours = _Way(POOL, partial(_ours, pictures.dataset(), pool), pictures)
    return (
        bare.contestant("rate", "limit"),
        data.contestant("rate", "limit"),
        ours.contestant("rate", "ours", against=bare, goal=Goal("share", 0.9)),
        ours.contestant("rate", "ours", against=data, goal=Goal("share", 1.3)),
        bare.contestant("trainer's CPU", "reference"),
        data.contestant("trainer's CPU", "limit"),
        ours.contestant("trainer's CPU", "ours", against=data, goal=Goal("share", 2.86)),  # 0.35 of it
        data.contestant("first batch", "reference"),
        ours.contestant("first batch", "ours", goal=Goal("value", 200)),
        ours.contestant("bytes spilled", "ours", goal=Goal("value", 0)),
    )


@dataclass(frozen=True, slots=True)
class _Pass:
    """The figures of one pass over all pictures."""

    batches: int  # after the first one
    seconds: float  # of these
    cpu_seconds: float  # of this process, for all of them
    first_seconds: float
    spilled_bytes: int


class _Way:
    """A way to get the batches. Its contestants show figures of the same passes, one in each round.

    Args:
        name: of the way.
        opened: begins a pass.
        pictures: the batches.
    """

    def __init__(self, name: str, opened: Open, pictures: Pictures) -> None:
        self.name = name
        self._opened = opened
        self._pictures = pictures
        self._passes: list[_Pass] = []

    def contestant(
        self, figure: Figure, role: Role, *, against: "_Way | None" = None, goal: Goal | None = None
    ) -> Contestant:
        """Return the contestant of a figure, which is compared with that of another way."""
        numbers = itertools.count()
        return Contestant(
            f"{self.named(figure)}, beside {against.name}" if against else self.named(figure),
            role,
            lambda _: self._measured(figure, next(numbers)),
            UNITS[figure],
            against=(against.named(figure),) if against else (),
            goal=goal,
            output=Output(self._pictures.name, self._opened) if figure == "rate" else None,
            repeats=1,
        )

    def named(self, figure: Figure) -> str:
        """Return the name of the contestant of a figure."""
        return f"{self._pictures.name}: {self.name}, {figure}"

    def _measured(self, figure: Figure, number: int) -> Measurement:
        while len(self._passes) <= number:
            self._passes.append(_pass(self._opened()))
        measured = self._passes[number]
        assert measured.batches + 1 == self._pictures.batches
        match figure:
            case "rate":
                return Measurement(measured.batches, measured.seconds)
            case "trainer's CPU":
                return Measurement(measured.batches + 1, measured.cpu_seconds)
            case "first batch":
                return Measurement(1, measured.first_seconds)
            case "bytes spilled":
                return Measurement(measured.spilled_bytes, 1.0)


UNITS = {
    "rate": per_second("batches"),
    "trainer's CPU": MILLISECONDS,
    "first batch": MILLISECONDS,
    "bytes spilled": BYTES,
}


def _pass(batches: Iterator[Batch]) -> _Pass:
    """Take all batches, and drop each before the next one."""
    spilled, before = _spilled_bytes(), used()
    began = time.perf_counter()
    next(batches)
    first = time.perf_counter()
    count = sum(1 for _ in batches)
    ended, cpu_seconds = time.perf_counter(), since(before).cpu_seconds
    return _Pass(count, ended - first, cpu_seconds, first - began, _spilled_bytes() - spilled)


def _ray() -> ModuleType:
    return importlib.import_module("ray")


@contextmanager
def _cluster() -> Generator[None]:
    """Start the hosts, and connect this program to the first one, which has no processors."""
    ray, utils = _ray(), importlib.import_module("ray.cluster_utils")
    options: dict[str, Any] = {"object_store_memory": STORE_BYTES}
    cluster = utils.Cluster(initialize_head=True, head_node_args={**options, "num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(HOSTS):
            own = dict.fromkeys(("pool", "bare", "waiting", "one", "shared"), 1)
            cluster.add_node(num_cpus=1, resources=own, **options)
        cluster.add_node(num_cpus=0, resources={"waiting": 1}, **options)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def _spilled_bytes() -> int:
    """Return the bytes that all hosts have written to disks because their stores were full."""
    internal = importlib.import_module("ray._private.internal_api")
    state = internal.get_state_from_address(_ray().get_runtime_context().gcs_address)
    return int(internal.get_memory_info_reply(state).store_stats.spilled_bytes_total)


def _options(resource: str) -> dict[str, Any]:
    """Return options by which actors go to hosts that have a resource, one to each."""
    return {"num_cpus": 0, "resources": {resource: 1}}


def _pool(scope: ExitStack, count: int, resource: str, name: str | None = None) -> "Pool":
    """Return a pool, all of whose processes have started."""
    door = importlib.import_module("penstock.ray")
    pool: Pool = scope.enter_context(door.Pool(count, options=_options(resource), name=name))
    with ps.Loader(ps.range(10**9).map(_pause).batch(1), workers=pool) as loader:
        for _ in loader:
            if f"{count} ready" in repr(pool):
                return pool
    raise AssertionError("the processes don't start")


def _pause(key: int) -> int:
    threading.Event().wait(0.01)
    return key


class _Actor:
    """Makes whole batches."""

    def batch(self, pictures: Pictures, number: int) -> NDArray[np.uint8]:
        """Return a batch."""
        start = number * pictures.batch_size
        return pictures.batch(np.arange(start, start + pictures.batch_size))


def _actors() -> list[Any]:
    kind = _ray().remote(**_options("bare"))(_Actor)
    actors = [kind.remote() for _ in range(HOSTS)]
    _ray().get([actor.__ray_ready__.remote() for actor in actors])
    return actors


def _bare(pictures: Pictures, actors: list[Any]) -> Iterator[Batch]:
    """Yield the batches in order; each actor has some calls ahead."""
    numbers = zip(range(pictures.batches), itertools.cycle(actors), strict=False)
    calls = (actor.batch.remote(pictures, number) for number, actor in numbers)
    waiting = deque(itertools.islice(calls, AHEAD * len(actors)))
    while waiting:
        yield _ray().get(waiting.popleft())
        waiting.extend(itertools.islice(calls, 1))


def _ray_data(pictures: Pictures) -> Iterator[Batch]:
    """Yield the batches of Ray Data, whose blocks have two of them."""
    data: Any = importlib.import_module("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = data.range(pictures.batches * pictures.batch_size, override_num_blocks=max(pictures.batches // 2, 1))
    made = rows.map_batches(partial(_rows, pictures), batch_size=pictures.batch_size)
    for batch in made.iter_batches(batch_size=pictures.batch_size, prefetch_batches=AHEAD):
        yield batch["pictures"]


def _rows(pictures: Pictures, rows: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.uint8]]:
    return {"pictures": pictures.batch(rows["id"])}


def _ours(dataset: ps.Dataset[Any], pool: "Pool") -> Iterator[Batch]:
    with ps.Loader(dataset, workers=pool) as loader:
        yield from loader


def _waiting(scope: ExitStack, elements: Elements) -> tuple[Contestant, ...]:
    """Return the contestants whose elements wait, on one host and on three."""

    def run(pool: "Pool", _: int) -> Measurement:
        measured = _pass(_ours(elements.waiting(), pool))
        return Measurement(measured.batches, measured.seconds)

    one, three = (f"{POOL}, elements that wait, on {hosts}" for hosts in ("one host", "three hosts"))
    single, triple = (partial(run, _pool(scope, *where)) for where in ((1, "one"), (HOSTS + 1, "waiting")))
    unit, goal = per_second("batches"), Goal("share", 2.7)
    return (
        Contestant(one, "limit", single, unit, repeats=1),
        Contestant(three, "ours", triple, unit, against=(one,), goal=goal, repeats=1),
    )


def _sharing(scope: ExitStack, elements: Elements) -> tuple[Contestant, ...]:
    """Return the contestants whose figure is the time of the pool's processes for a batch of one training."""
    pools = [_pool(scope, HOSTS, "shared", f"bench {os.getpid()}") for _ in range(2)]
    with ps.Loader(ps.range(10**4).map(_pid).batch(1), workers=pools[0]) as loader:
        pids = {int(pid) for batch in itertools.islice(loader, 500) for pid in batch}
    assert len(pids) == HOSTS
    seeds = itertools.count()

    def run(trainings: int, _: int) -> Measurement:
        dataset = elements.computing(next(seeds))  # whose batches no process has kept
        before = _cpu_seconds(pids)
        with ThreadPoolExecutor(trainings) as threads:
            passes = [threads.submit(_pass, _ours(dataset, pool)) for pool in pools[:trainings]]
        assert all(each.result().batches + 1 == elements.batches for each in passes)
        return Measurement(elements.batches, _cpu_seconds(pids) - before)

    one, two = (f"named pool's CPU for {trainings}" for trainings in ("one training", "two trainings"))
    goal = Goal("share", 0.91)  # 1.1 times the time
    return (
        Contestant(one, "limit", partial(run, 1), MILLISECONDS, repeats=1),
        Contestant(two, "ours", partial(run, 2), MILLISECONDS, against=(one,), goal=goal, repeats=1),
    )


def _pid(key: int) -> int:
    return os.getpid() + 0 * _pause(key)


def _cpu_seconds(pids: set[int]) -> float:
    """Return the processor time that processes have used so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")
