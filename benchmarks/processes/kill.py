"""Workers that are killed, and a trainer that is killed: the batches stay the same, and nothing is left.

Every worker writes its process id to a file when it starts, so a killer can kill one worker after another, including
those that were restarted. The limit is the same loader without kills. Passes are compared by their digests each time.

The trainer is killed at random times, also during its start. A second later its session should be empty, and its memfds
and temporary files gone. It has its own folder for temporary files, but memfds are counted for the whole machine, so
another program that uses them distorts the count.
"""

import logging
import math
import os
import signal
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.processes.held import running, shared_bytes
from benchmarks.processes.trainer import Trainer
from benchmarks.scenario import Contestant, Goal, Measurement, Output, Scenario, Unit, per_second
from benchmarks.streams import OutputDiffersError

UNIT = per_second("items")
LEFT = Unit("left", lambda measured: float(measured.amount), more_is_better=False)
ITEM_SECONDS = 0.005
NUM_WORKERS = 2
Item = Callable[[int], NDArray[np.int64]]
GRACE_SECONDS = 1.0  # the time that the processes of a killed trainer have to end
LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Work:
    """A pass of items, the interval and the maximum number of kills of workers, and the trainers in a round."""

    count: int
    batch_size: int = 8
    kill_seconds: float = 0.2
    most_kills: int | None = None
    trainers: int = 8


@dataclass(slots=True)
class Seen:
    """The events of all passes of a contestant."""

    kills: int = 0
    longest_pause: float = 0.0
    digests: set[int] = field(default_factory=set)


def asleep(key: int) -> NDArray[np.int64]:
    """Return an item after sleeping."""
    time.sleep(ITEM_SECONDS)
    return np.arange(key, key + 4)


def at_work(key: int) -> NDArray[np.int64]:
    """Return an item after computing on a core."""
    end = time.thread_time() + ITEM_SECONDS
    while time.thread_time() < end:
        pass
    return np.arange(key, key + 4)


def build(bench: Bench) -> Scenario:
    """Return the scenario: with and without kills, with items that sleep and that compute; and killed trainers."""
    work = Work(96, kill_seconds=0.1, most_kills=2, trainers=1) if bench.smoke else Work(2_000)
    return Scenario(
        "kill",
        f"items of {1e3 * ITEM_SECONDS:g} ms in {NUM_WORKERS} processes, one killed every "
        f"{1e3 * work.kill_seconds:g} ms; and the trainer killed",
        (
            *_pair(bench, work, "asleep", asleep, Goal("share", 0.8)),
            *(() if bench.smoke else _pair(bench, work, "at work", at_work, None)),
            _killed_trainers(work),
        ),
    )


# -- workers


class Passes:
    """Owns a loader, which is opened and warmed up at its first use, and records the events of its passes.

    Args:
        bench: closes it.
        work: describes a pass, and the interval of kills.
        item: the function of its workers.
        under_fire: whether workers are killed.
    """

    def __init__(self, bench: Bench, work: Work, item: Item, *, under_fire: bool) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=bench.directory))
        self._dataset = ps.range(work.count).map(item).batch(work.batch_size)
        self._scope = bench.scope
        self._work = work
        self._under_fire = under_fire
        self._loader: ps.Loader[NDArray[np.int64]] | None = None
        self._seen = Seen()

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield the batches of a pass."""
        loader = self._warm()
        if self._under_fire:
            with _quiet(), _fire(self._folder, self._work, self._seen):
                yield from loader
        else:
            yield from loader

    def _warm(self) -> ps.Loader[NDArray[np.int64]]:
        if self._loader is None:
            limits = ps.Limits(worker_init=partial(announce, self._folder))
            loader = ps.Loader(self._dataset, num_workers=NUM_WORKERS, workers="processes", limits=limits)
            self._loader = self._scope.enter_context(loader)
            for _ in loader:
                pass
        return self._loader

    def run(self, repeats: int) -> Measurement:
        """Read passes; each must equal the first one.

        Raises:
            OutputDiffersError: if one doesn't.
        """
        self._warm()
        started = time.perf_counter()
        amount = sum(self._pass() for _ in range(repeats))
        seconds = time.perf_counter() - started
        if len(self._seen.digests) > 1:
            raise OutputDiffersError(f"passes of the same loader differ: {sorted(self._seen.digests)}")
        return Measurement(amount, seconds)

    def _pass(self) -> int:
        amount = digest = 0
        last = time.perf_counter()
        for batch in self.batches():
            now = time.perf_counter()
            self._seen.longest_pause = max(self._seen.longest_pause, now - last)
            last = now
            digest = zlib.crc32(batch.data, digest)
            amount += len(batch)
        self._seen.digests.add(digest)
        return amount

    def facts(self) -> Mapping[str, float]:
        """Return the events of all rounds."""
        return {"longest pause ms": 1e3 * self._seen.longest_pause, "kills": float(self._seen.kills)}


def _pair(bench: Bench, work: Work, name: str, item: Item, goal: Goal | None) -> tuple[Contestant, ...]:
    undisturbed, under_fire = (Passes(bench, work, item, under_fire=is_so) for is_so in (False, True))
    claim = f"all items {name}, in order"
    limit = Contestant(
        f"{name}, undisturbed",
        "limit",
        undisturbed.run,
        UNIT,
        output=Output(claim, undisturbed.batches),
        facts=undisturbed.facts,
        repeats=1,
    )
    ours = Contestant(
        f"{name}, workers killed",
        "ours",
        under_fire.run,
        UNIT,
        against=(limit.name,),
        goal=goal,
        output=Output(claim, under_fire.batches),
        facts=under_fire.facts,
        repeats=1,
    )
    return limit, ours


def announce(folder: Path, number: int) -> None:
    """Write a worker's process id; called in the worker."""
    unfinished = folder / f"{number}.new"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / str(number))


@contextmanager
def _fire(folder: Path, work: Work, seen: Seen) -> Generator[None]:
    """Kill a worker again and again while the context is open."""
    ceased = threading.Event()
    most = math.inf if work.most_kills is None else seen.kills + work.most_kills

    def kill() -> None:
        turn = 0
        while seen.kills < most and not ceased.wait(work.kill_seconds):
            file = folder / str(turn % NUM_WORKERS)
            if not file.exists():
                turn += 1
                file = folder / str(turn % NUM_WORKERS)
            if file.exists():  # otherwise no worker was restarted yet
                process = int(file.read_text())
                file.unlink()
                os.kill(process, signal.SIGKILL)
                seen.kills += 1
                turn += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ceased.set()
        thread.join()


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress the loader's log lines about crashes."""
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


# -- the trainer


def large(key: int) -> NDArray[np.float32]:
    """Return an item of a megabyte that takes a moment."""
    time.sleep(ITEM_SECONDS)
    return np.full(250_000, key, np.float32)


def train(commands: Connection) -> None:
    """Read batches until killed or disconnected, and report the first one; the trainer's main function."""
    dataset = ps.range(10**9).map(large).batch(8)
    with ps.Loader(dataset, num_workers=NUM_WORKERS, workers="processes") as loader:
        for number, _ in enumerate(loader):
            if number == 0:
                commands.send(None)
            if commands.poll():  # the killer has ended
                return


def _killed_trainers(work: Work) -> Contestant:
    worst = {"processes left": 0.0, "shared MB left": 0.0, "files left": 0.0, "slowest end ms": 0.0, "trainers": 0.0}
    rng = np.random.default_rng(7)

    @cache
    def first_batch_seconds() -> float:
        started = time.perf_counter()
        with Trainer(train) as trainer:
            trainer.commands.recv()
            seconds = time.perf_counter() - started
            trainer.kill()
        return seconds

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        left = 0
        for _ in range(repeats):
            found = kill_a_trainer(rng.uniform(0, 2 * first_batch_seconds()))
            for name, value in found.items():
                worst[name] = max(worst[name], value)
            worst["trainers"] += 1
            left += int(found["processes left"] + found["files left"])
        return Measurement(left, time.perf_counter() - started)

    goal = Goal("value", 0)
    return Contestant(
        f"trainers killed, after {GRACE_SECONDS:g} s",
        "ours",
        run,
        LEFT,
        goal=goal,
        facts=lambda: worst,
        repeats=work.trainers,
    )


def kill_a_trainer(after_seconds: float) -> dict[str, float]:
    """Start a trainer, kill it after some time, and return its remains a second later.

    Args:
        after_seconds: counted from its start.
    """
    before = shared_bytes()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Trainer(train, {"TMPDIR": folder}) as trainer,
    ):
        time.sleep(after_seconds)
        trainer.kill()
        killed = time.perf_counter()
        while any(running(trainer.session)) and time.perf_counter() - killed < GRACE_SECONDS:
            time.sleep(LOOK_SECONDS)
        seconds = time.perf_counter() - killed
        return {
            "processes left": float(len(list(running(trainer.session)))),
            "shared MB left": max(shared_bytes() - before, 0) / 1e6,
            "files left": float(sum(len(files) + len(folders) for _, folders, files in os.walk(folder))),
            "slowest end ms": 1e3 * seconds,
        }
