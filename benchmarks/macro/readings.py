"""The cost of readings, of a watcher, and of a trace: the rate of a loader with them, as a share of that without.

The limit of each workload is the same loader of a copy of the package without readings (`unread`). Two equal processes
may differ by a percent for as long as they run, by where their code and data happen to be. So where a percent counts,
each contestant has several processes that take turns, and "again" shows how far equal contestants are apart. Without
workers, the seconds are those of the process's processor time, which other programs hardly change.

A watched loader is compared with itself, unwatched: `penstock watch` reads its page each second, in passes of some
seconds. A trace costs nothing until it is written, since a loader always keeps its last intervals; so its figure is the
time of a call of `Loader.trace` beside that of ten seconds of training.

A rival's share is that of its own loader without its tool. "names the step" is 1 where the tool's output names the
function that takes the time. torch's DataLoader runs under torch.profiler, which has the time between two calls of
`next`, under Python's cProfile, which names functions of the training's own process, and beside py-spy, which samples
any process. None of them has a cause of waiting or a prediction. SPDL logs the times of its stages and the waits of its
queues; Grain, in its debug mode, the times of its nodes once a minute, which is more than a pass takes here. Ray Data
is no contestant: it takes the statistics of `Dataset.stats` in each run, and has no documented option without them, so
there is no rate to compare with.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.machine import ROOT
from benchmarks.macro.unread import write_copy
from benchmarks.scenario import Batch, Contestant, Goal, Measurement, Role, Scenario, Unit, per_second
from penstock._live_page import pages_of

UNIT = per_second("batches")
TRACE_UNIT = Unit("% of 10 s", lambda measured: 10 * measured.seconds / measured.amount, more_is_better=False)
WITH_READINGS: Final = Goal("share", 0.99)
WATCHED: Final = Goal("share", 0.995)
TRACED: Final = Goal("value", 3)
ROUNDS: Final = 15
LAYOUTS: Final = 5  # processes of a contestant whose batches take microseconds
WATCHED_REPEATS: Final = 10  # passes of a fifth of a second
ENDLESS: Final = 10**9
PAGE_SECONDS: Final = 20.0  # a loader makes its page after a tenth of a second
COMPUTED_BYTES: Final = bytes(1 << 15)
Kind = Literal["inline", "threads", "processes"]


@dataclass(frozen=True, slots=True)
class Work:
    """A workload.

    Attributes:
        name: its name.
        workers: 0, or the number of threads or processes.
        kind: the kind of workers.
        computes: whether an element takes 20 microseconds of a processor, without the interpreter's lock.
        batches: the number of batches of a pass.
    """

    name: str
    workers: int
    kind: Kind
    computes: bool
    batches: int

    @property
    def function(self) -> Callable[[int], int]:
        """The function of each element."""
        return compute if self.computes else add_one


WORKS: Final = (
    Work("32 ints, inline", 0, "inline", computes=False, batches=80_000),
    Work("32 elements of 20 us, inline", 0, "inline", computes=True, batches=400),
    Work("32 elements of 20 us, 1 thread", 1, "threads", computes=True, batches=400),
    Work("32 elements of 20 us, 1 process", 1, "processes", computes=True, batches=400),
)


def add_one(number: int) -> int:
    """Return the next integer."""
    return number + 1


def compute(number: int) -> int:
    """Return the integer after computing for about 20 microseconds."""
    hashlib.sha256(COMPUTED_BYTES)
    return number


def build(bench: Bench) -> Scenario:
    """Return the scenario: each workload with and without readings; one watched, one traced; rivals."""
    copy = write_copy(bench.directory / "without")
    first, *others = WORKS
    made: list[Contestant] = []
    for work in WORKS[:1] if bench.smoke else WORKS:
        layouts = LAYOUTS if work is first and not bench.smoke else 1
        without, with_them = (Children(bench, work, path, layouts) for path in (copy, None))
        if without.digest() != with_them.digest():
            raise RuntimeError(f"{work.name}: the copy of the package without readings makes other batches")
        limit = f"{work.name}, without readings"
        made.append(_of_children(limit, "limit", without))
        made.append(_of_children(work.name, "ours", with_them, limit, WITH_READINGS))
        if work is first:
            again = Children(bench, work, None, layouts)
            made.append(_of_children(f"{work.name}, again", "reference", again, limit))
    seen = Child(bench, first, None)
    seen.show()
    unwatched, watched = f"{first.name}, unwatched", f"{first.name}, watched"
    made.append(contestant(unwatched, "reference", seen.timed, repeats=WATCHED_REPEATS))
    made.append(contestant(watched, "ours", partial(_watched, seen), unwatched, WATCHED, WATCHED_REPEATS))
    traced = Child(bench, others[-1], None).traced
    made.append(Contestant("a trace", "ours", traced, TRACE_UNIT, goal=TRACED, repeats=1))
    made += bench.rivals("readings", first)
    question = "the share of the rate that is left with readings, a watcher and a trace"
    return Scenario("readings", question, tuple(made), rounds=ROUNDS)


def contestant(
    name: str,
    role: Role,
    timed: Callable[[int], Measurement],
    against: str = "",
    goal: Goal | None = None,
    repeats: int = 1,
) -> Contestant:
    """Return a contestant that is compared with another one, by its name."""
    return Contestant(name, role, timed, UNIT, (against,) if against else (), goal, repeats=repeats)


def tool(name: str, timed: Callable[[int], Measurement], against: str, output: Sequence[str]) -> Contestant:
    """Return a rival with a tool, whose texts are in `output` when it has run, beside the rival without it."""

    def facts() -> Mapping[str, float]:
        return {"names the step": float(any(add_one.__name__ in text for text in output))}

    return replace(contestant(name, "rival", timed, against), facts=facts)


def _of_children(
    name: str, role: Role, children: "Children", against: str = "", goal: Goal | None = None
) -> Contestant:
    return replace(contestant(name, role, children.timed, against, goal), facts=children.facts)


def _watched(child: "Child", repeats: int) -> Measurement:
    command = [sys.executable, "-m", "penstock", "watch", str(child.pid), "--interval", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        if not watch.stdout.readline():  # the first view: its imports and its search are over then
            raise RuntimeError("penstock watch has found no loader")
        try:
            return child.timed(repeats)
        finally:
            watch.kill()


class Children:
    """Processes that do the same, each in its turn.

    Args:
        bench: as of `Child`.
        work: as of `Child`.
        package: as of `Child`.
        count: their number.
    """

    def __init__(self, bench: Bench, work: Work, package: Path | None, count: int) -> None:
        self._children = [Child(bench, work, package) for _ in range(count)]
        self._turns = cycle(self._children)

    def digest(self) -> str:
        """Return the SHA-256 of some batches."""
        return self._children[0].digest()

    def timed(self, repeats: int) -> Measurement:
        """Return the time of a pass of the next process."""
        return next(self._turns).timed(repeats)

    def facts(self) -> Mapping[str, float]:
        """Return the median processor time of a batch, and whether the report names the step that takes the time."""
        cpu_seconds = [seconds for child in self._children for seconds in child.cpu_seconds]
        return {"CPU us": 1e6 * median(cpu_seconds), "names the step": float(self._children[0].names_the_step())}


class Child:
    """A process that iterates over a loader when it is told to.

    Args:
        bench: the surroundings, which end the process.
        work: the workload.
        package: the folder in which the package is; None for that of this process.
    """

    def __init__(self, bench: Bench, work: Work, package: Path | None) -> None:
        self._work = work
        self._is_smoke = bench.smoke
        self.cpu_seconds: list[float] = []
        """The processor time of a batch, in each pass."""
        paths = [str(each) for each in (package, ROOT) if each is not None]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-P", "-m", "benchmarks.macro.readings", work.name, str(bench.directory)]
        self._process = bench.scope.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        bench.scope.callback(self._end)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _ask(self, action: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{action}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self._work.name!r} has ended")
        return answer.strip()

    def digest(self) -> str:
        """Return the SHA-256 of some batches."""
        return self._ask("digest")

    def show(self) -> None:
        """Iterate until `penstock watch` finds the loader.

        Raises:
            RuntimeError: its page has the layout of another version, or it has none after some seconds.
        """
        last = time.perf_counter() + PAGE_SECONDS
        while not (found := pages_of(self.pid)).pages:
            if found.is_other_version:
                raise RuntimeError(f"the page of process {self.pid} is of another version of Penstock; build it again")
            if time.perf_counter() > last:
                raise RuntimeError(f"process {self.pid} has shown no loader in {PAGE_SECONDS:.0f} s of iteration")
            self._ask("pass 1000")

    def timed(self, repeats: int) -> Measurement:
        """Return the time of a pass; that of a processor, if there are no workers."""
        batches = repeats * (200 if self._is_smoke else self._work.batches)
        seconds, cpu_seconds = map(float, self._ask(f"pass {batches}").split())
        self.cpu_seconds.append(cpu_seconds / batches)
        return Measurement(batches, seconds if self._work.workers else cpu_seconds)

    def names_the_step(self) -> bool:
        """Return whether the loader's report names the function of the workload as the bottleneck."""
        return self._ask("bottleneck") == self._work.function.__name__

    def traced(self, repeats: int) -> Measurement:
        """Return the time in which a trace is written."""
        return Measurement(repeats, sum(float(self._ask("trace")) for _ in range(repeats)))


class Passes:
    """Passes of a loader that continue where the last one ended.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: ps.Loader[Any]) -> None:
        self._loader = loader
        self._batches: Iterator[Batch] = iter(loader)

    def digest(self) -> str:
        """Return the SHA-256 of the next 64 batches."""
        found = hashlib.sha256()
        for _, batch in zip(range(64), self._batches, strict=False):
            found.update(batch.tobytes())
        return found.hexdigest()

    def timed(self, count: int) -> tuple[float, float]:
        """Return the seconds of a number of batches, and the processor time of this process in them."""
        following = self._batches.__next__
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(count):
            following()
        return time.perf_counter() - began, time.process_time() - cpu_began

    def traced(self, path: Path) -> float:
        """Return the seconds in which a trace is written, after some more batches."""
        self.timed(100)
        began = time.perf_counter()
        self._loader.trace(path)
        return time.perf_counter() - began


def main(name: str, folder: str) -> None:
    """Do what the lines of stdin say, with the workload of a name, until there are no more."""
    work = next(each for each in WORKS if each.name == name)
    dataset = ps.range(ENDLESS, seed=7).map(work.function).batch(32)
    with ExitStack() as scope:
        kind: Any = work.kind if work.workers else "auto"
        loader = scope.enter_context(ps.Loader(dataset, num_workers=work.workers, workers=kind))
        passes = Passes(loader)
        for line in sys.stdin:
            action, _, rest = line.partition(" ")
            match action.strip():
                case "digest":
                    answer = passes.digest()
                case "bottleneck":
                    answer = str(loader.report().bottleneck)
                case "trace":
                    answer = str(passes.traced(Path(folder, f"{os.getpid()}.json.gz")))
                case _:
                    answer = " ".join(map(str, passes.timed(int(rest))))
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
