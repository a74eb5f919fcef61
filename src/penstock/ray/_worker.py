"""The process of a pool: it computes spans of steps for loaders, each with a runtime of its own for each loader.

Ray makes an actor of `Worker`. A call is a span of steps, with all that is needed to compute it, so a process that has
just started, in place of a lost one, needs no other preparation. The batches return as one array, the pickle of all of
them, which the trainer reads in Ray's object store.

A batch that takes longer than `Limits.timeout` ends the process, so that it counts as one that crashes: a thread could
not end a function that hangs. A step that has ended two processes is computed in a worker process of this one.
"""

import faulthandler
import importlib
import os
import pickle
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock._caught import CaughtFailure
from penstock._graph import Element
from penstock._pickles import Part, dump
from penstock._plan import Plan
from penstock._processes import pack_error
from penstock._runtime import Runtime
from penstock._runtime._isolated_helper import BatchReport, CrashingRows, RunSteps, described_rows, note_rows
from penstock._runtime._recorder import HelperRecorder, Remembered
from penstock._runtime._sent_blocks import SentBlock
from penstock._runtime._shared_values import apart, in_parts
from penstock._streaming import InputRange
from penstock.ray._sent import Failed, Sent, failed, received

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed

_KEPT: Final = 16  # runtimes: a job has a few loaders, which take turns, and jobs share processes that have a name
_LARGE_BYTES: Final = 500_000  # of an array: from then on a copy takes longer than what Ray does for each array
ENDED_ITSELF: Final = "exit_actor() is called"
"""In Ray's reason for the end of a process that had no work for long."""
HOST_ENDED: Final = "its node has died"
"""In Ray's reason for the end of a process whose host was lost."""


class Computed(NamedTuple):
    """The batches of a span.

    Attributes:
        parts: the pickle of the batches, of a report for each, and of the times of their steps; one more report is that
            of the step that failed. Or that of elements, events and times.
        steps: the number of batches, or of positions.
        seconds: the time that they took.
        host: the host that computed them.
        is_whole: whether all of them were computed, without an exception, and no row is known to crash processes.
    """

    parts: tuple[Part, ...]
    steps: int
    seconds: float
    host: str
    is_whole: bool

    @property
    def nbytes(self) -> int:
        """The size of the pickle."""
        return self.parts[-1].stop


class InputWork(NamedTuple):
    """Positions of an input of a dataset that is read in order.

    Attributes:
        number: of the input.
        epoch: the epoch.
        input_range: the positions of the input.
        start: the number of the first one in it.
        stop: the number after the last one.
        remembered: the state of the trainer's recorder.
        crashing_rows: the elements that are known to crash processes.
    """

    number: int
    epoch: int
    input_range: InputRange
    start: int
    stop: int
    remembered: Remembered
    crashing_rows: CrashingRows


class Kept:
    """The last results of a process, which it keeps for other programs of its pool.

    Two programs that train on the same dataset, or two ranks that share a replica, request the same spans. A result is
    returned again where all that it depends on is equal, byte for byte: the pickle of the plan, the fingerprint, and
    the work with the events and rows that are known to the program. So a program gets what it would get without the
    others. Results with an exception are computed again each time.
    """

    def __init__(self) -> None:
        self._results: OrderedDict[tuple[str, bytes], Computed] = OrderedDict()
        self._bytes = 0

    def result(self, sent: Sent, work: object, compute: Callable[[], Computed]) -> Computed:
        """Return the result of some work, if it is kept; else compute it, and keep it in place of the oldest ones."""
        if not sent.digest:
            return compute()
        key = sent.digest, pickle.dumps(work)
        found = self._results.get(key)
        if found is not None:
            return found
        computed = compute()
        if computed.is_whole:
            self._results[key] = computed
            self._bytes += computed.nbytes
            while self._bytes > sent.kept_bytes:
                self._bytes -= self._results.popitem(last=False)[1].nbytes
        return computed


class Worker:
    """Computes spans of steps, or of positions.

    Args:
        number: the number of the process in its pool.
        idle_seconds: without work, after which the process ends; None for never.
    """

    def __init__(self, number: int, idle_seconds: float | None = None) -> None:
        self._number = number
        self._opened: OrderedDict[str, _Opened] = OrderedDict()  # by the keys of what was sent
        self._kept = Kept()
        self._idle_seconds = idle_seconds
        self._used_at = time.monotonic()
        if idle_seconds is not None:
            self._look_in(idle_seconds)

    def start(self) -> tuple[str, str, int]:
        """Return the host's name, what identifies it in the cluster, and the process's ID."""
        return socket.gethostname(), ray.get_runtime_context().get_node_id(), os.getpid()

    def compute(self, sent: Sent, stored: "NDArray[np.uint8]", work: RunSteps) -> Computed | Failed:
        """Return the batches of the steps of some work, which is one range."""
        with self._in_use(), CaughtFailure() as caught:
            plan = cast("Plan", received(sent, stored, is_fresh=True)) if work.steps_singly else None
            opened = self._of(sent, stored)
            return self._kept.result(sent, work, lambda: opened.compute(work, plan))
        return failed(caught.taken())

    def evaluate(self, sent: Sent, stored: "NDArray[np.uint8]", work: InputWork) -> Computed | Failed:
        """Return the elements of some positions."""
        with self._in_use(), CaughtFailure() as caught:
            opened = self._of(sent, stored)
            return self._kept.result(sent, work, lambda: opened.evaluate(work))
        return failed(caught.taken())

    @contextmanager
    def _in_use(self) -> Generator[None]:
        try:
            yield
        finally:
            self._used_at = time.monotonic()

    def end_if_idle(self) -> None:
        """End the process, if it had no work for long. It calls this itself, so that no work is lost."""
        if self._idle_seconds is not None:
            rest = self._used_at + self._idle_seconds - time.monotonic()
            if rest <= 0:
                ray.actor.exit_actor()
            self._look_in(rest)

    def _look_in(self, seconds: float) -> None:
        """Call `end_if_idle` after some seconds, when the work that is there then was done."""
        timer = threading.Timer(seconds, ray.get_runtime_context().current_actor.end_if_idle.remote)
        timer.daemon = True
        timer.start()

    def _of(self, sent: Sent, stored: "NDArray[np.uint8]") -> "_Opened":
        opened = self._opened.get(sent.key)
        if opened is None:
            plan = cast("Plan", received(sent, stored))
            if plan.limits.worker_init is not None:
                with _watched(plan.limits.timeout):
                    plan.limits.worker_init(self._number)
            opened = self._opened[sent.key] = _Opened(plan, is_kept=bool(sent.digest))
            while len(self._opened) > _KEPT:
                self._opened.popitem(last=False)[1].close()
        self._opened.move_to_end(sent.key)
        return opened


class _Opened:
    """The runtime of one loader's plan."""

    def __init__(self, plan: Plan, *, is_kept: bool) -> None:
        self._is_kept = is_kept  # results are, so they must not refer to arrays of the user's functions
        self._recorder = HelperRecorder(plan.node)
        self._runtime = Runtime(plan, self._recorder)
        self._timeout = plan.limits.timeout
        self.close = self._runtime.close

    def compute(self, work: RunSteps, careful: Plan | None) -> Computed:
        """Return the batches of some steps; in a worker process, with a plan that nothing has used, if there is one.

        A plan in use may hold open files, which can't be sent to the process.
        """
        began = time.perf_counter()
        self._recorder.recall(work.remembered)
        self._recorder.taken()
        rows = self._runtime.crashing_rows
        note_rows(rows, work.crashing_rows)
        known = len(rows)
        batches: list[Element] = []
        reports: list[BatchReport] = []
        with CaughtFailure() as caught:
            for batch in self._each(work) if careful is None else self._each_with_care(work, careful):
                batches.append(batch)
                reports.append(BatchReport(None, *self._recorder.taken(), crashing_rows=described_rows(rows, known)))
                known = len(rows)
        is_whole = caught.error is None and not rows
        if caught.error is not None:
            error = pack_error(caught.taken(), with_cause=True)
            reports.append(BatchReport(None, *self._recorder.taken(), error))
        value = apart(batches), reports, self._runtime.readings.taken()
        return self._answered(value, len(batches), began, is_whole=is_whole)

    def evaluate(self, work: InputWork) -> Computed:
        """Return the elements of some positions, or the exception that was raised there, as text."""
        began = time.perf_counter()
        self._recorder.recall(work.remembered)
        self._recorder.taken()
        rows = self._runtime.crashing_rows
        note_rows(rows, work.crashing_rows)
        evaluated: SentBlock | str = ""
        with CaughtFailure() as caught, _watched(self._timeout):
            block_input = self._runtime.block_input(work.number, work.epoch, work.input_range)
            evaluated = SentBlock(block_input.evaluate(work.start, work.stop, block_input.context))
        is_whole = caught.error is None and not rows
        if caught.error is not None:
            evaluated = f"{type(caught.error).__name__}: {caught.taken()}"
        events, _ = self._recorder.taken()
        value = evaluated, events, self._runtime.readings.taken()
        return self._answered(value, work.stop - work.start, began, is_whole=is_whole)

    def _answered(self, value: object, steps: int, began: float, *, is_whole: bool) -> Computed:
        parts = in_parts(dump(value), sys.maxsize if self._is_kept else _LARGE_BYTES)
        return Computed(parts, steps, time.perf_counter() - began, socket.gethostname(), is_whole)

    def _each(self, work: RunSteps) -> Iterator[Element]:
        (step_range,) = work.step_ranges
        stream = self._runtime.open_stream([step_range])
        try:
            for _ in range(step_range.steps):
                with _watched(self._timeout):
                    batch, _ = stream.next()
                yield batch
        finally:
            stream.close()

    def _each_with_care(self, work: RunSteps, plan: Plan) -> Iterator[Element]:
        (step_range,) = work.step_ranges
        self._recorder.know(plan.node)
        plan = replace(plan, place="processes", num_workers=1, prefetch=1, remote="")
        runtime = Runtime(plan, self._recorder, crashing_rows=self._runtime.crashing_rows)
        try:
            stream = runtime.open_on_request(step_range)
            for _ in range(step_range.steps):
                batch, _ = stream.next()
                yield batch
        finally:
            runtime.close()


@contextmanager
def _watched(timeout: float | None) -> Generator[None]:
    """End this process if what runs meanwhile takes longer than a timeout; Ray's log then has its stack."""
    if timeout is not None:
        faulthandler.dump_traceback_later(timeout, exit=True)
    try:
        yield
    finally:
        if timeout is not None:
            faulthandler.cancel_dump_traceback_later()
