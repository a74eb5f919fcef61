"""Planted faults: whether a report names the cause of the waiting, and predicts the gain of its removal.

Each contestant is a loader with one fault, in one place. A training takes batches from it, and the report's bottleneck
is compared with the fault. Then the fault is removed, and the rate is measured again. The figure is how far the
predicted gain is from the measured one; a wrong verdict counts as 1,000 %, and the text below the table names it.

Most faults wait, since waits are the same on a busy machine. Those that compute need a quiet machine with at least two
free cores: their names begin with "computing".
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import Batch, Contestant, Goal, Measurement, Scenario, Unit
from penstock._loader._placement import PlacedLoader
from penstock.observe import Report

T = TypeVar("T")
Argument: TypeAlias = Any  # of a loader
UNIT = Unit("% off", lambda measured: 100 * measured.seconds, more_is_better=False)
GOAL = Goal("value", 20)
WRONG = 10.0  # the error of a prediction whose verdict is wrong
SECONDS = 0.5
ROUNDS = 2
BATCH = 4
ROW_SECONDS = 0.002
TRAINING_SECONDS = 0.002
LONG_SECONDS = 0.02
RARELY = 64
CONTENT = bytes(1 << 16)
ENDLESS = 10**9
PLACES: Final[dict[str, dict[str, Any]]] = {
    "inline": {},
    "thread": {"num_workers": 1, "workers": "threads"},
    "threads": {"num_workers": 2, "workers": "threads"},
    "4 threads": {"num_workers": 4, "workers": "threads"},
    "process": {"num_workers": 1, "workers": "processes"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "4 processes": {"num_workers": 4, "workers": "processes"},
    "isolated": {"isolated": True},
    "isolated threads": {"num_workers": 2, "workers": "threads", "isolated": True},
    "isolated processes": {"num_workers": 2, "workers": "processes", "isolated": True},
}
WORKERS: Final = ("threads", "processes", "isolated threads", "isolated processes")
ALL: Final = ("inline", "isolated", *WORKERS)


@dataclass(frozen=True, slots=True)
class Run:
    """A loader, and a training that takes its batches.

    Attributes:
        dataset: the dataset.
        settings: the arguments of the loader, those of its place included.
        training_seconds: the training's own time for a batch.
        loader: the class of the loader.
    """

    dataset: ps.Dataset[Any]
    settings: Mapping[str, Any]
    training_seconds: float = TRAINING_SECONDS
    loader: Callable[..., ps.Loader[Any]] = ps.Loader

    def observed(self, seconds: float) -> tuple[Report, float]:
        """Return the report of some seconds of training after the first batch, and the batches a second in them."""
        with self.loader(self.dataset, **self.settings) as loader:
            first, last, count = 0.0, 0.0, 0
            for count, _ in enumerate(loader):
                last = time.perf_counter()
                first = first or last
                if last - first > seconds and count > 1:
                    break
                time.sleep(self.training_seconds)
            return loader.report(), count / (last - first)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and what is right about it.

    Attributes:
        name: the name.
        run: returns the run in a place, with the fault (1) or without it (0).
        verdict: the bottleneck that the report must name.
        change: that removes the fault, as the report names it.
        places: the places.
    """

    name: str
    run: Callable[[Mapping[str, Any], int], Run]
    verdict: str
    change: str
    places: tuple[str, ...] = ALL


@dataclass(slots=True)
class Seen:
    """Results of all rounds.

    Attributes:
        is_warm: whether the call that warms up is over; it measures nothing, since each call makes new loaders.
        predicted: the predicted gains.
        measured: the measured ones.
        wrong: the texts of reports whose verdict is wrong.
    """

    is_warm: bool = False
    predicted: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def build(bench: Bench) -> Scenario:
    """Return the scenario: each fault in each of its places."""
    seconds = 0.02 if bench.smoke else SECONDS
    faults = FAULTS[1:2] if bench.smoke else FAULTS
    seen: dict[str, Seen] = {}
    contestants: list[Contestant] = []
    for fault in faults:
        for place in fault.places:
            name = f"{fault.name}: {place}"
            found = seen[name] = Seen()
            work = partial(judge, fault, PLACES[place], seconds, found)
            facts = partial(_facts, found)
            contestants.append(Contestant(name, "ours", work, UNIT, goal=GOAL, facts=facts, repeats=1))
    question = "does the report name the planted fault, and predict the gain of its removal?"
    return Scenario("verdicts", question, tuple(contestants), rounds=ROUNDS, summary=partial(_summary, seen))


def judge(fault: Fault, place: Mapping[str, Any], seconds: float, seen: Seen, _repeats: int) -> Measurement:
    """Return how far a report's prediction is from the gain, as seconds."""
    if not seen.is_warm:
        seen.is_warm = True
        return Measurement(1, 0.0)
    report, before = fault.run(place, 1).observed(seconds)
    _, after = fault.run(place, 0).observed(seconds)
    predicted = next((each.times for each in report.what_if if each.change == fault.change), None)
    measured = after / before
    seen.measured.append(measured)
    if report.bottleneck != fault.verdict or predicted is None:
        lacks = f" It lacks the prediction {fault.change!r}." if predicted is None else ""
        seen.wrong.append(f"{fault.verdict!r} was expected.{lacks}\n{report}")
        return Measurement(1, WRONG)
    seen.predicted.append(predicted)
    return Measurement(1, abs(predicted / measured - 1))


def _facts(seen: Seen) -> Mapping[str, float]:
    known = {"predicted x": seen.predicted, "measured x": seen.measured}
    medians = {name: float(np.median(values)) for name, values in known.items() if values}
    return {**medians, "wrong": float(len(seen.wrong))}


def _summary(seen: Mapping[str, Seen], medians: Mapping[str, float]) -> str:
    """Return how many verdicts and predictions are right, and the wrong ones."""
    right = sum(not found.wrong for found in seen.values())
    close = sum(value <= GOAL.bound for value in medians.values())
    lines = [f"the verdict is right in {right} of {len(seen)}, the prediction within {GOAL.bound:g} % in {close}"]
    lines += [f"{name}: {found.wrong[-1]}" for name, found in seen.items() if found.wrong]
    return "\n".join(lines)


# -- what is planted


def wait(element: T) -> T:
    """Return the element after a wait, as a request to a server does."""
    time.sleep(ROW_SECONDS)
    return element


def wait_rarely(number: int) -> int:
    """Return the number; one in `RARELY` after a wait that is as long as many batches take."""
    time.sleep(ROW_SECONDS / 8 if number % RARELY else 40 * ROW_SECONDS)
    return number


def hold(element: T) -> T:
    """Return the element after computing with the interpreter's lock."""
    end = time.thread_time() + ROW_SECONDS
    while time.thread_time() < end:
        pass
    return element


def release(element: T) -> T:
    """Return the element after computing without the interpreter's lock."""
    end = time.thread_time() + ROW_SECONDS
    while time.thread_time() < end:
        hashlib.sha256(CONTENT)
    return element


def wait_long(batch: T) -> T:
    """Return the batch after a wait."""
    time.sleep(BATCH * ROW_SECONDS)
    return batch


def same(element: T) -> T:
    """Return the element."""
    return element


def stack_slowly(rows: list[Any]) -> NDArray[Any]:
    """Return the stacked rows after a wait."""
    time.sleep(BATCH * ROW_SECONDS)
    return np.stack(rows)


def large(number: int) -> NDArray[Any]:
    """Return a large array after a wait; its batch isn't copied out of the loader's memory."""
    time.sleep(ROW_SECONDS / 2)
    return np.full(8192, number)


def start_slowly(_number: int) -> None:
    """Prepare a worker, which takes longer than the training that follows."""
    time.sleep(2 * SECONDS)


class Numbers:
    """A source of numbers.

    Args:
        seconds: the time of a read.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, key: int) -> int:
        if self.seconds:
            time.sleep(self.seconds)
        return int(key)


class Remote:
    """Numbers in a storage with latency, which are requested ahead.

    Args:
        seconds: the latency.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return ENDLESS

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return numbers, some time after they were requested."""
        import asyncio  # noqa: PLC0415 - in the process that reads

        await asyncio.sleep(self.seconds)
        return [int(key) for key in keys]


class Fold:
    """Passes elements on, in order.

    Args:
        seconds: the time of an element.
    """

    held = 0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def add(self, element: T) -> list[T]:
        """Return the element."""
        if self.seconds:
            time.sleep(self.seconds)
        return [element]

    def flush(self) -> list[Any]:
        """Return no element."""
        return []


class Placing(PlacedLoader):
    """A loader that places its batches in the training's thread.

    Args:
        dataset: the dataset.
        seconds: the time to place a batch.
        arguments: those of a loader.
    """

    def __init__(self, dataset: ps.Dataset[Any], *, seconds: float, **arguments: Argument) -> None:
        super().__init__(dataset, **arguments)
        self._seconds = seconds
        self._ahead = 1

    def _place(self, batch: Batch) -> Callable[[], Batch]:
        if self._seconds:
            time.sleep(self._seconds)
        return lambda: batch


NUMBERS = ps.range(ENDLESS)


def of_map(function: Callable[[Any], Any], place: Mapping[str, Any], planted: int, seconds: float = 0.002) -> Run:
    """Return a run whose map has a fault, or costs nothing."""
    return Run(NUMBERS.map(function if planted else same, name="decode").batch(BATCH), place, seconds)


def of_workers(function: Callable[[Any], Any], place: Mapping[str, Any], planted: int) -> Run:
    """Return a run with too few workers, or one more."""
    count = place.get("num_workers", 0) + (not planted)
    kind = place.get("workers", "threads") if count else "auto"
    return of_map(function, {**place, "num_workers": count, "workers": kind}, 1)


FREE = "decode costs nothing"
FAULTS: Final = (
    Fault("slow map", partial(of_map, wait), "decode", FREE),
    Fault("too few workers", partial(of_workers, wait), "decode", "1 worker more", ("thread", "process")),
    Fault("no workers", partial(of_workers, wait), "decode", "1 worker", ("inline",)),
    Fault(
        "slow source",
        lambda place, planted: Run(ps.read(Numbers(ROW_SECONDS * planted)).batch(BATCH), place),
        "read",
        "read costs nothing",
    ),
    Fault(
        "slow storage",
        lambda place, planted: Run(
            ps.read(Remote(LONG_SECONDS * planted)).batch(BATCH), {**place, "limits": ps.Limits(read_ahead=8)}
        ),
        "read",
        "read costs nothing",
        WORKERS,
    ),
    Fault(
        "slow merge",
        lambda place, planted: Run(NUMBERS.batch(BATCH, merge=stack_slowly if planted else np.stack), place),
        "batch",
        "batch costs nothing",
    ),
    Fault(
        "slow function of batches",
        lambda place, planted: Run(NUMBERS.batch(BATCH).map(wait_long if planted else same, name="decode"), place),
        "decode",
        FREE,
    ),
    Fault(
        "slow step in order",
        lambda place, planted: Run(NUMBERS.map(same).combine(partial(Fold, ROW_SECONDS * planted)).batch(BATCH), place),
        "combine",
        "combine costs nothing",
    ),
    Fault(
        "slow step before one in order",
        lambda place, planted: Run(
            NUMBERS.map(wait if planted else same, name="decode").window_shuffle(8).batch(BATCH), place
        ),
        "decode",
        FREE,
    ),
    Fault(
        "stragglers",
        lambda place, planted: of_map(wait_rarely, {**place, "prefetch": 2 if planted else RARELY}, 1),
        "stragglers",
        "more batches ahead",
        ("4 threads", "4 processes"),
    ),
    Fault(
        "too little memory",
        lambda place, planted: Run(
            NUMBERS.map(large, name="decode").batch(BATCH), {**place, "memory": 600_000 if planted else None}
        ),
        "memory",
        "more memory",
        ("4 threads", "4 processes"),
    ),
    Fault(
        "slow placing",
        lambda place, planted: Run(
            NUMBERS.map(same).batch(BATCH),
            {**place, "seconds": BATCH * ROW_SECONDS * planted},
            loader=Placing,
        ),
        "placing",
        "placing costs nothing",
    ),
    Fault("slow training", lambda place, planted: of_map(same, place, planted, LONG_SECONDS), "the consumer", FREE),
    Fault(
        "too many workers",
        lambda place, _: Run(NUMBERS.map(wait, name="decode").batch(BATCH), place, LONG_SECONDS),
        "the consumer",
        "1 worker more",
        ("4 threads", "4 processes"),
    ),
    Fault(
        "slow start",
        lambda place, planted: Run(
            NUMBERS.map(wait if planted else same, name="decode").batch(BATCH),
            {**place, "limits": ps.Limits(worker_init=start_slowly)},
        ),
        "decode",
        FREE,
        WORKERS,
    ),
    Fault("computing map, with the lock", partial(of_map, hold), "decode", FREE),
    Fault("computing map, without the lock", partial(of_map, release), "decode", FREE),
    Fault(
        "computing map, with the lock, in threads",
        lambda place, planted: of_map(hold, {**place, "workers": "threads" if planted else "processes"}, 1),
        "decode",
        "processes",
        ("threads",),
    ),
    Fault(
        "computing map, with the lock, in a thread",
        lambda place, planted: of_map(hold, place if planted else PLACES["processes"], 1),
        "decode",
        "2 processes",
        ("thread",),
    ),
    Fault(
        "computing map, more workers than processors",
        partial(of_workers, release),
        "decode",
        "1 worker more",
        ("4 processes",),
    ),
)
