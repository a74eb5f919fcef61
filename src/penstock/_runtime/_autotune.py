"""The choice of a loader's workers where the caller leaves it open: first from known facts, then from measurements.

The choice itself is a function of the cost of rows and of the machine. Threads serve functions that wait or release the
GIL. Processes serve functions that hold it, where these cost enough to be worth starting a process. Elements that cost
less than handing their batches over are computed inline. There is a worker for each processor: a trainer that needs one
takes its share from the workers, and where it needs none, one worker less would be a loss, on two processors of half.

To measure the cost, the caller's thread computes some rows and drops them; then two threads do so at once. This takes
about `MEASURING_SECONDS`, or as long as a few elements take where that is longer, since a running function can't be
stopped. The elements are the first of epoch 0. They are computed again when they are loaded, so measuring changes
nothing: evaluation is pure, no event of a substitution is recorded, and an error is raised when the element is loaded.

Processes get a copy of the dataset, and import the program's main module, which must guard the code that starts them.
So they are chosen without the user's request only where that is safe and changes nothing: a dataset that can't be
copied stays in the program, and no script runs twice.
"""

import logging
import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from penstock._caught import Caught, CaughtFailure
from penstock._frozen import frozen
from penstock._graph import (
    Cache,
    Context,
    GlobalDraws,
    Map,
    Node,
    PerWorker,
    awaits,
    evaluate_block,
    kept_globals,
    walk,
)
from penstock._os import DaemonThread
from penstock._pickles import dumps as dumps_exactly
from penstock._pickles import pickler
from penstock._plan import Place, Plan
from penstock._processes import has_cloudpickle, is_guarded, missing
from penstock._runtime._batches import InlineBatches, StepRange, Unit, rows_of
from penstock._runtime._policy import (
    GAINING_SPEEDUP,
    HELD_SECONDS,
    LONG_ELEMENT_SECONDS,
    MAX_WAITING_THREADS,
    MEASURED_ROUNDS,
    MEASURED_ROWS,
    MEASURING_SECONDS,
    NOTHING_SECONDS,
    PIECE_SECONDS,
    RELEASING_SPEEDUP,
    UNASKED_COPY_BYTES,
    WAITING_TIMES,
    WHOLE_BATCH_SECONDS,
    WORTH_SECONDS,
)
from penstock._runtime._processors import usable_processors
from penstock._runtime._recorder import Recorder
from penstock._storage import MemoryCache
from penstock._streaming import count_positions

Workers: TypeAlias = Literal["auto", "processes", "threads"]
_UNKNOWN: Final = "nothing could be measured"
_logger: Final = logging.getLogger("penstock")


@frozen
class Cost:
    """The cost of a dataset's rows, measured on a few of them.

    Attributes:
        row_seconds: the time of a row, including its share of the merge.
        row_cpu_seconds: the processor time in that.
        speedup: how many times as many rows two threads compute as one; None if that was not tried.
    """

    row_seconds: float
    row_cpu_seconds: float
    speedup: float | None = None

    @property
    def waits(self) -> bool:
        """Whether rows wait, for storage for example, longer than they compute."""
        return self.row_seconds > WAITING_TIMES * self.row_cpu_seconds


@frozen
class Room:
    """The work of a step, and the processors for it.

    Attributes:
        step_rows: the rows of a step, on this rank.
        epoch_rows: the rows of an epoch, on this rank.
        processors: the number of usable processors.
        obstacle: why there can be no processes; empty if there can.
    """

    step_rows: int
    epoch_rows: int
    processors: int
    obstacle: str = ""


class Choice(NamedTuple):
    """The chosen workers, and the reason in a few words."""

    place: Place
    num_workers: int
    why: str


def choose_kind(num_workers: int, cost: Cost | None, room: Room) -> Choice:
    """Choose threads or processes for a given number of workers.

    Args:
        num_workers: at least 1.
        cost: the cost of the rows; None if it could not be measured.
        room: the work, and the machine.
    """
    why_threads = room.obstacle or _why_threads(cost, room)
    if why_threads:
        return Choice("threads", num_workers, why_threads)
    return Choice("processes", num_workers, _holding(cost))


def choose_number(workers: Workers, cost: Cost | None, room: Room) -> Choice:
    """Choose the number and the kind of workers.

    Args:
        workers: the kinds that the caller allows.
        cost: the cost of the rows; None if it could not be measured.
        room: the work, and the machine.
    """
    most = max(min(room.processors, room.epoch_rows), 1)
    if cost is None:
        if workers == "processes":
            return Choice("processes", most, _UNKNOWN)
        return Choice("threads", most, room.obstacle or _UNKNOWN)
    if cost.row_seconds < worth_workers(room):
        return Choice("inline", 0, f"a batch takes {_short(cost.row_seconds * room.step_rows)}")
    if workers == "processes":
        return Choice("processes", most, f"of {room.processors} processors")
    if cost.waits:
        share = cost.row_seconds / max(cost.row_cpu_seconds, 1e-9)
        many = math.ceil(min(room.processors * share, max(MAX_WAITING_THREADS, room.processors)))
        return Choice("threads", max(min(many, room.epoch_rows), 1), _waiting(cost))
    releases = cost.speedup is not None and cost.speedup >= RELEASING_SPEEDUP
    if releases or room.processors == 1:
        return Choice("threads", most, _why_threads(cost, room))
    why_threads = 'workers="threads"' if workers == "threads" else room.obstacle or _why_threads(cost, room)
    if why_threads:
        return _few_threads(cost, room, most, why_threads)
    return Choice("processes", most, _holding(cost))


def _few_threads(cost: Cost, room: Room, most: int, why: str) -> Choice:
    """Choose for functions that hold the GIL, at least in part, where there are no processes."""
    if cost.speedup is not None:
        why = f"{_holding(cost)}, and {why}"
    if cost.speedup is not None and cost.speedup >= GAINING_SPEEDUP:
        return Choice("threads", min(most, 2), why)
    is_short = cost.row_seconds * room.step_rows < HELD_SECONDS
    return Choice("inline", 0, why) if is_short else Choice("threads", 1, why)


def worth_workers(room: Room) -> float:
    """Return the seconds of a row from which any worker pays."""
    return NOTHING_SECONDS / max(room.step_rows, 1)


def worth_processes(room: Room) -> float:
    """Return the seconds of a row from which starting processes pays."""
    return max(WORTH_SECONDS / max(room.epoch_rows, 1), worth_workers(room))


def _why_threads(cost: Cost | None, room: Room) -> str:
    """Return why threads are better than processes; empty if they aren't."""
    if cost is None:
        return _UNKNOWN
    if room.processors == 1:
        return "there is one processor"
    if cost.row_seconds < worth_processes(room):
        of_batch, of_epoch = cost.row_seconds * room.step_rows, cost.row_seconds * room.epoch_rows
        is_small = cost.row_seconds < worth_workers(room)
        taken = f"a batch takes {_short(of_batch)}" if is_small else f"an epoch takes {_short(of_epoch)} of computing"
        return f"{taken}, too little for processes to pay"
    if cost.waits:
        return _waiting(cost)
    if cost.speedup is None:
        return ""
    return f"{_times(cost.speedup)}: the functions release the GIL" if cost.speedup >= RELEASING_SPEEDUP else ""


def _waiting(cost: Cost) -> str:
    return f"an element takes {_short(cost.row_seconds)} and computes for {_short(cost.row_cpu_seconds)} of it"


def _holding(cost: Cost | None) -> str:
    speedup = None if cost is None else cost.speedup
    return "elements take long" if speedup is None else f"{_times(speedup)}: the functions hold the GIL"


def _times(speedup: float) -> str:
    return f"two threads compute {speedup:.1f} times as much as one"


def _short(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def chosen(plan: Plan, num_workers: int | Literal["auto"], workers: Workers) -> Plan:
    """Return a plan with its place and number of workers chosen, and the reason; log the choice in one line.

    Args:
        plan: its place and number of workers are right as far as the caller has given them.
        num_workers: the number of workers; "auto" to choose it.
        workers: the kind of workers; "auto" to choose it.
    """
    if num_workers == 0 or (num_workers != "auto" and workers != "auto"):
        return plan
    choice = _number(plan, workers) if num_workers == "auto" else _kind(plan, num_workers)
    decided = replace(plan, place=choice.place, num_workers=choice.num_workers, why=choice.why)
    _logger.info("%s: %s", decided.workers_text, choice.why)
    return decided


def _kind(plan: Plan, num_workers: int) -> Choice:
    if not _may_be_threads(plan.node) and not obstacle(plan):
        return Choice("processes", num_workers, "globals=True seeds generators that all threads share")
    room = _room(plan, _without_gil() or obstacle(plan))
    if room.obstacle or room.processors == 1 or not _is_measurable(plan):
        return choose_kind(num_workers, None, room)
    threads = _may_be_threads(plan.node)
    cost = measure(copy_of(plan), enough_seconds=worth_processes(room), stacking=False, threads=threads)
    return choose_kind(num_workers, cost, room)


def _number(plan: Plan, workers: Workers) -> Choice:
    if not plan.program.worker_inputs:
        only_read = "everything is computed in one thread, in order"
        return Choice("inline", 0, "a stream isn't read to see" if plan.program.uses_workers else only_read)
    room = _room(plan, (_without_gil() or obstacle(plan)) if workers == "auto" else "")
    may_be_threads = _may_be_threads(plan.node)
    cost: Cost | None = None
    if _is_measurable(plan):
        compares = may_be_threads and workers != "processes" and room.processors > 1
        measured = copy_of(plan) if plan.isolated or not room.obstacle else plan
        cost = measure(measured, enough_seconds=worth_workers(room), stacking=True, threads=compares)
    choice = choose_number(workers, cost, room)
    if choice.place == "threads" and not may_be_threads:
        return Choice("inline", 0, "globals=True seeds generators that all threads share")
    return choice


def _room(plan: Plan, why_not: str = "") -> Room:
    program, processors = plan.program, usable_processors()
    if not program.is_indexed:
        rows = sum(map(count_positions, program.worker_inputs)) // plan.shard.count
        return Room(max(plan.batch_size // plan.shard.count, 1), rows, processors, why_not)
    if not plan.length:  # a step above the batch may leave out all batches
        return Room(1, 0, processors, why_not)
    first = StepRange(Unit(0, 0, 0, plan.batch_size), 1, 1).first
    rows = rows_of(plan.batches, plan.shard, first).total
    return Room(max(rows, 1), plan.batches.total // plan.shard.count, processors, why_not)


def _without_gil() -> str:
    """Return why this Python needs no processes; empty if it may, since it has a GIL."""
    has_lock = getattr(sys, "_is_gil_enabled", None)
    return "this Python has no GIL" if has_lock is not None and not has_lock() else ""


def _is_measurable(plan: Plan) -> bool:
    """Return whether rows may be computed to measure their cost.

    Rows of streams may not, since they can't be read again. Rows of async sources may not, since their records are
    requested together when they are prefetched. Rows with a `PerWorker` may not, since each worker makes its object
    first, which may be large.
    """
    has_positions = bool(plan.program.worker_inputs)
    return has_positions and not awaits(plan.node) and not any(_makes_its_own(step) for step in walk(plan.node))


def _makes_its_own(step: Node) -> bool:
    step_fields: Any = fields(step) if is_dataclass(step) else ()
    return any(isinstance(getattr(step, field.name), PerWorker) for field in step_fields)


def _may_be_threads(node: Node) -> bool:
    """Return whether threads may compute: no step seeds generators that all threads share."""
    return not any(isinstance(step, Map) and step.form == "globals" for step in walk(node))


_Run = Callable[[int], None]


class _Kind(NamedTuple):
    """A kind of work to measure: numbered pieces of `rows` rows each."""

    rows: int
    make: Callable[[], _Run]
    """Called in each thread; returns the function that computes a piece in it."""


class _Timed(NamedTuple):
    """The time of a row."""

    seconds: float
    cpu_seconds: float


def measure(plan: Plan, *, enough_seconds: float, stacking: bool, threads: bool) -> Cost | None:
    """Return the cost of a plan's rows; None if there are no rows, or one raises.

    Args:
        plan: the plan of a dataset with at least one input that has positions.
        enough_seconds: rows that take less need no closer measurement.
        stacking: whether the cost of stacking rows counts.
        threads: whether to measure the speedup of two threads.
    """
    with kept_globals(), CaughtFailure():  # the program's own draws stay the same
        return _Measuring(plan).cost(enough_seconds, stacking=stacking, threads=threads)
    return None


class _Measuring:
    """Computes rows; the same ones twice only if there are no others, since a cache may keep them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.perf_counter()
        self._node = plan.program.worker_inputs[0]
        self._total = plan.batches.total if plan.is_indexed else count_positions(self._node)
        self._next = 0
        self._draws = GlobalDraws(1)  # compares in this thread only

    def cost(self, enough_seconds: float, *, stacking: bool, threads: bool) -> Cost | None:
        """Return the cost of rows."""
        if not self._total:
            return None
        kind, timed = self._rows(), self._time_rows(enough_seconds)
        batch = self._batch() if stacking or self._merges_otherwise or timed.seconds >= enough_seconds else None
        if batch is not None and timed.seconds * batch.rows <= WHOLE_BATCH_SECONDS:
            kind, timed = batch, min(self._timed(batch, batch.make(), 1) for _ in range(2))
        cost = Cost(*timed)
        if not threads or cost.waits or not enough_seconds <= timed.seconds < LONG_ELEMENT_SECONDS:
            return cost
        return Cost(*timed, self._speedup(kind, max(round(PIECE_SECONDS / max(timed.seconds * kind.rows, 1e-9)), 1)))

    @property
    def _merges_otherwise(self) -> bool:
        """Whether making a batch takes more than functions of rows and stacking."""
        return self._plan.is_indexed and self._plan.batches.merges

    # -- the work to measure

    def _rows(self, count: int = 1) -> _Kind:
        def make() -> _Run:
            context = Context(observe=Recorder().observe, draws=self._draws)

            def run(piece: int) -> None:
                positions = np.arange(piece * count, (piece + 1) * count, dtype=np.int64) % self._total
                evaluate_block(self._node, np.zeros(count, np.int64), positions, context)

            return run

        return _Kind(count, make)

    def _batch(self) -> _Kind | None:
        """Return this rank's part of full batches; None if there is none."""
        plan = self._plan
        if not plan.is_indexed or plan.batches.batch is None:
            return None
        program = plan.batches
        stride = plan.batch_size if program.can_recut else 1
        steps = max((program.total if program.can_recut else plan.length) // stride, 1)
        step_range = StepRange(Unit(0, 0, 0, plan.batch_size), steps, stride)

        def make() -> _Run:
            batches = InlineBatches(program, plan.shard, Context())
            return lambda piece: _drop(batches.batch(step_range.unit(piece % steps)))

        rows = rows_of(program, plan.shard, step_range.first).total
        return _Kind(rows, make) if rows else None

    # -- its time

    def _time_rows(self, enough: float) -> _Timed:
        """Return the least time of a row among pieces of 1, 2, 4 rows and so on: the first rows take longer."""
        best, count, taken = _Timed(float("inf"), 0.0), 1, 0
        while True:
            kind = self._rows(count)
            self._next = -(-taken // count)
            began = time.perf_counter()
            best = min(best, self._timed(kind, kind.make(), 1))
            seconds = time.perf_counter() - began
            taken += count
            spent = time.perf_counter() - self._began
            is_known = seconds >= PIECE_SECONDS / 2 and count > 1
            if best.seconds < enough or is_known or spent > MEASURING_SECONDS / 4 or taken + count > self._total:
                return best
            if count >= MEASURED_ROWS:
                return best
            count *= 2

    def _timed(self, kind: _Kind, run: _Run, pieces: int) -> _Timed:
        began, cpu_began = clock(), time.thread_time()
        self._run(run, pieces)
        cpu_seconds, seconds = time.thread_time() - cpu_began, clock() - began
        return _Timed(seconds / pieces / kind.rows, cpu_seconds / pieces / kind.rows)

    def _run(self, run: _Run, pieces: int) -> None:
        first = self._next
        self._next += pieces
        for piece in range(first, first + pieces):
            run(piece)

    def _speedup(self, kind: _Kind, pieces: int) -> float:
        """Return how many times as many pieces two threads compute as one, in a few rounds of each."""
        one = two = 0.0
        run = kind.make()
        for _ in range(MEASURED_ROUNDS):
            one += self._timed(kind, run, pieces).seconds
            two += self._two_at_once(kind, run, pieces) / pieces / kind.rows
            if time.perf_counter() - self._began > MEASURING_SECONDS:
                break
        return 2 * one / max(two, 1e-9)

    def _two_at_once(self, kind: _Kind, run: _Run, pieces: int) -> float:
        """Return the seconds in which two threads compute `pieces` pieces each."""
        caught, seconds, started = Caught(), [0.0], threading.Event()
        other_first, self._next = self._next, self._next + pieces

        def compute() -> None:
            with caught:
                try:
                    other = kind.make()
                finally:
                    started.set()
                began = clock()
                for piece in range(other_first, other_first + pieces):
                    other(piece)
                seconds.append(clock() - began)

        thread = DaemonThread(compute, "penstock-measuring")
        try:
            started.wait()
            began = clock()
            self._run(run, pieces)
            seconds.append(clock() - began)
        finally:
            thread.wait(None)
        if caught.error is not None:
            raise caught.taken()
        return max(seconds)


def clock() -> float:
    """Return the time in seconds without this thread's waits for a processor, where the system counts these.

    So a busy machine doesn't look like functions that wait for storage or for each other. A wait between the readings
    of the two clocks would count in one of them alone: then both are read again.
    """
    while True:
        queued, now = _queued(), time.perf_counter()
        if _queued() == queued:
            return now - queued / 1e9


def _queued() -> int:
    """Return the nanoseconds that this thread has waited for a processor; 0 where the system doesn't count them."""
    # Not `suppress`: a signal's handler may raise a TimeoutError, which is an OSError.
    with Caught(Exception), open("/proc/thread-self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1])
    return 0


def _drop(batch: object) -> None:
    """Drop a batch that was only measured."""
    del batch


class _TooLargeError(Exception):
    """The dataset is too large to be copied without a request."""


class _Copy:
    """A file in memory to which a pickle is written, up to `UNASKED_COPY_BYTES`."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._room = UNASKED_COPY_BYTES

    def write(self, data: "bytes | bytearray | memoryview") -> int:
        size = memoryview(data).nbytes
        self._room -= size
        if self._room < 0:
            raise _TooLargeError
        self.parts.append(bytes(data))
        return size


def obstacle(plan: Plan) -> str:
    """Return in a few words why processes can't be chosen for a plan; empty if they can."""
    if not plan.program.uses_workers:
        return "everything is computed in one thread, in order"
    if awaits(plan.node):
        return "async sources are read ahead for threads"
    if any(isinstance(step, Cache) and isinstance(step.store, MemoryCache) for step in walk(plan.node)):
        return "threads share the elements kept in memory"
    return _without_processes() or _not_copied(plan)


def copy_of(plan: Plan) -> Plan:
    """Return a copy of a plan for measuring, which shares its arrays; the plan itself if it can't be copied.

    A function or a source that opens a file when it is first used may not be picklable after that.
    """
    for dumps in (dumps_exactly, pickler().dumps):  # as for worker processes
        buffers: list[pickle.PickleBuffer] = []
        with CaughtFailure():
            copied = dumps(plan, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
            return cast("Plan", pickle.loads(copied, buffers=buffers))
    return plan


def _without_processes() -> str:
    """Return why this program can't start processes; empty if it can."""
    if not hasattr(os, "memfd_create"):
        return "this system has no memory for processes to share"
    if getattr(sys, "frozen", False):
        return "the program is frozen into one file"
    running: Any = sys.modules.get("multiprocessing.process")
    if running is not None and (current := running.current_process()) is not None:
        if getattr(current, "_inheriting", False):
            return "the program is a process that is being started itself"
        if current.daemon:
            return "the program is a daemonic process, which may start none"
    return "" if has_cloudpickle() or is_guarded() else 'the script has no `if __name__ == "__main__":` around this'


def _not_copied(plan: Plan) -> str:
    """Return why a plan can't be copied into new processes; empty if it can."""
    copy = _Copy()
    with CaughtFailure() as caught:
        pickle.Pickler(copy, pickle.HIGHEST_PROTOCOL).dump(plan)
    if isinstance(caught.error, _TooLargeError):
        return f"the dataset holds more than {UNASKED_COPY_BYTES // 1_000_000} MB, which would be copied"
    if caught.error is not None:
        return f"it can't be pickled ({_line(caught.taken())})"
    return "" if has_cloudpickle() else missing(b"".join(copy.parts))


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else f"{text[:99]}…"
