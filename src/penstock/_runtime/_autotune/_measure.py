"""Measuring the cost of rows: some are computed and dropped, first in this thread, then in two threads at once.

It takes about `_SECONDS`, or as long as a few elements take where these take longer: a function that runs can't be
stopped. The elements are the first of epoch 0. Nothing depends on their being computed here: evaluation is pure, no
event of a substitution is recorded, and an error is raised again when the element is loaded.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from penstock._caught import Caught
from penstock._graph import Context, evaluate_block
from penstock._os import DaemonThread
from penstock._plan._choose import Cost
from penstock._plan._plan import Plan
from penstock._runtime._batches import StepRange, Unit, rows_of
from penstock._runtime._inline import InlineBatches
from penstock._streaming import count_positions

_SECONDS: Final = 0.2
_PIECE_SECONDS: Final = 0.03  # of what two threads are compared on; the interpreter changes threads every 0.005
_BATCH_SECONDS: Final = 0.05  # that whole batches may take to be measured, rather than rows
_LONG_SECONDS: Final = 0.5  # an element that takes as long is not computed again, to see how threads would do
_MAX_AT_ONCE: Final = 1024
_ROUNDS: Final = 3

_Run = Callable[[int], None]


class _Kind(NamedTuple):
    """A kind of work that is measured: pieces of so many rows each, by their numbers."""

    rows: int
    make: Callable[[], _Run]
    """Called in each thread; returns the function that computes a piece there."""


class _Timed(NamedTuple):
    """The time that a row takes."""

    seconds: float
    cpu_seconds: float


def measure(plan: Plan, *, enough_seconds: float, stacking: bool, threads: bool) -> Cost | None:
    """Return what a plan's rows cost; None where there are none, or one raises.

    Args:
        plan: of any dataset but one that only streams.
        enough_seconds: rows that cost less need not be measured any closer.
        stacking: whether what stacking rows costs matters too.
        threads: whether to find out what two threads do.
    """
    with Caught(Exception):
        return _Measuring(plan).cost(enough_seconds, stacking=stacking, threads=threads)
    return None


class _Measuring:
    """Computes rows, never the same ones twice as long as there are others: some may be kept by a cache."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.perf_counter()
        self._node = plan.program.worker_inputs[0]
        self._total = plan.batches.total if plan.is_indexed else count_positions(self._node)
        self._next = 0

    def cost(self, enough_seconds: float, *, stacking: bool, threads: bool) -> Cost | None:
        """Return what rows cost."""
        if not self._total:
            return None
        kind, timed = self._rows(), self._time_rows(enough_seconds)
        batch = self._batch() if stacking or self._merges_otherwise or timed.seconds >= enough_seconds else None
        if batch is not None and timed.seconds * batch.rows <= _BATCH_SECONDS:
            kind, timed = batch, min(self._timed(batch, batch.make(), 1) for _ in range(2))
        cost = Cost(*timed)
        if not threads or cost.waits or not enough_seconds <= timed.seconds < _LONG_SECONDS:
            return cost
        return Cost(*timed, self._speedup(kind, max(round(_PIECE_SECONDS / max(timed.seconds * kind.rows, 1e-9)), 1)))

    @property
    def _merges_otherwise(self) -> bool:
        """Whether batches are made by more than the rows' functions and stacking."""
        return self._plan.is_indexed and self._plan.batches.merges

    # ------------------------------------------------------------------ what is computed

    def _rows(self, count: int = 1) -> _Kind:
        def make() -> _Run:
            context = Context()

            def run(piece: int) -> None:
                positions = np.arange(piece * count, (piece + 1) * count, dtype=np.int64) % self._total
                evaluate_block(self._node, np.zeros(count, np.int64), positions, context)

            return run

        return _Kind(count, make)

    def _batch(self) -> _Kind | None:
        """Return this rank's part of full batches; None where there is none."""
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

    # ------------------------------------------------------------------ how long it takes

    def _time_rows(self, enough: float) -> _Timed:
        """Return what a row takes: of one, two, four at once and so on, the least, since the first ones take longer."""
        best, count, taken = _Timed(float("inf"), 0.0), 1, 0
        while True:
            kind = self._rows(count)
            self._next = -(-taken // count)
            began = time.perf_counter()
            best = min(best, self._timed(kind, kind.make(), 1))
            seconds = time.perf_counter() - began
            taken += count
            spent = time.perf_counter() - self._began
            is_known = seconds >= _PIECE_SECONDS / 2 and count > 1
            if best.seconds < enough or is_known or spent > _SECONDS / 4 or taken + count > self._total:
                return best
            if count >= _MAX_AT_ONCE:
                return best
            count *= 2

    def _timed(self, kind: _Kind, run: _Run, pieces: int) -> _Timed:
        began, cpu_began = _clock(), time.thread_time()
        self._run(run, pieces)
        cpu_seconds, seconds = time.thread_time() - cpu_began, _clock() - began
        return _Timed(seconds / pieces / kind.rows, cpu_seconds / pieces / kind.rows)

    def _run(self, run: _Run, pieces: int) -> None:
        first = self._next
        self._next += pieces
        for piece in range(first, first + pieces):
            run(piece)

    def _speedup(self, kind: _Kind, pieces: int) -> float:
        """Return how many times as many pieces two threads compute as one, over a few rounds of each."""
        one = two = 0.0
        run = kind.make()
        for _ in range(_ROUNDS):
            one += self._timed(kind, run, pieces).seconds
            two += self._two_at_once(kind, run, pieces) / pieces / kind.rows
            if time.perf_counter() - self._began > _SECONDS:
                break
        return 2 * one / max(two, 1e-9)

    def _two_at_once(self, kind: _Kind, run: _Run, pieces: int) -> float:
        """Return how long two threads take, which compute so many pieces each."""
        caught, seconds, started = Caught(), [0.0], threading.Event()
        other_first, self._next = self._next, self._next + pieces

        def compute() -> None:
            with caught:
                other = kind.make()
                started.set()
                began = _clock()
                for piece in range(other_first, other_first + pieces):
                    other(piece)
                seconds.append(_clock() - began)

        thread = DaemonThread(compute, "penstock-measuring")
        try:
            started.wait()
            began = _clock()
            self._run(run, pieces)
            seconds.append(_clock() - began)
        finally:
            thread.wait(None)
        if caught.error is not None:
            raise caught.taken()
        return max(seconds)


def _clock() -> float:
    """Return the time, in seconds, less what this thread has waited for a processor, where the system tells that.

    So what is measured on a busy machine is not taken for functions that wait for storage or for each other.
    """
    queued = "0"
    with suppress(OSError, IndexError), open("/proc/thread-self/schedstat", encoding="ascii") as file:
        queued = file.read().split()[1]
    return time.perf_counter() - int(queued) / 1e9


def _drop(batch: object) -> None:
    """Let go of what was only measured."""
    del batch
