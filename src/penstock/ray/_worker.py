"""The process of a pool: it computes spans of steps for loaders, each with a runtime of its own for each loader.

Ray makes an actor of `Worker`. A call is a span of steps, with all that is needed to compute it, so a process that has
just started, in place of a lost one, needs no other preparation. The batches return as one array, the pickle of all of
them, which the trainer reads in Ray's object store.
"""

import os
import socket
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np

from penstock._caught import Caught
from penstock._pickles import dump
from penstock._plan import Plan
from penstock._processes import pack_error
from penstock._runtime import Runtime, StepRange
from penstock._runtime._isolated_helper import BatchReport
from penstock._runtime._recorder import HelperRecorder, Remembered
from penstock._runtime._shared_values import contiguous, write
from penstock.ray._sent import Failed, Sent, failed, received

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock._graph import Element

_KEPT: Final = 4  # runtimes: a job has a few loaders, which take turns


class Computed(NamedTuple):
    """The batches of a span.

    Attributes:
        block: the pickle of the batches, and of a report for each; one more report is that of the step that failed.
        steps: the number of batches.
        seconds: the time that they took.
        host: the host that computed them.
    """

    block: "NDArray[np.uint8]"
    steps: int
    seconds: float
    host: str


class Worker:
    """Computes spans of steps.

    Args:
        number: the number of the process in its pool.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._opened: OrderedDict[str, _Opened] = OrderedDict()  # by the keys of what was sent

    def start(self) -> tuple[str, int]:
        """Return the host and the process's ID."""
        return socket.gethostname(), os.getpid()

    def compute(
        self, sent: Sent, stored: "NDArray[np.uint8]", step_range: StepRange, remembered: Remembered
    ) -> Computed | Failed:
        """Return the batches of some steps; `remembered` is the state of the trainer's recorder."""
        with Caught(Exception) as caught:
            return self._of(sent, stored).compute(step_range, remembered)
        return failed(caught.taken())

    def _of(self, sent: Sent, stored: "NDArray[np.uint8]") -> "_Opened":
        opened = self._opened.get(sent.key)
        if opened is None:
            plan = cast("Plan", received(sent, stored))
            if plan.limits.worker_init is not None:
                plan.limits.worker_init(self._number)
            opened = self._opened[sent.key] = _Opened(plan)
            while len(self._opened) > _KEPT:
                self._opened.popitem(last=False)[1].close()
        self._opened.move_to_end(sent.key)
        return opened


class _Opened:
    """The runtime of one loader's plan."""

    def __init__(self, plan: Plan) -> None:
        self._recorder = HelperRecorder(plan.node)
        self._runtime = Runtime(plan, self._recorder)
        self.close = self._runtime.close

    def compute(self, step_range: StepRange, remembered: Remembered) -> Computed:
        began = time.perf_counter()
        self._recorder.recall(remembered)
        self._recorder.taken()
        batches: list[Element] = []
        reports: list[BatchReport] = []
        stream = self._runtime.open_stream([step_range])
        with Caught(Exception) as caught:
            for _ in range(step_range.steps):
                batch, _ = stream.next()
                batches.append(contiguous(batch))
                reports.append(BatchReport(None, *self._recorder.taken()))
        stream.close()
        if caught.error is not None:
            error = pack_error(caught.taken(), with_cause=True, contain=Exception)
            reports.append(BatchReport(None, *self._recorder.taken(), error))
        pickled = dump((batches, reports))
        block = np.empty(pickled.nbytes, np.uint8)
        write(pickled, block, 0)
        return Computed(block, len(batches), time.perf_counter() - began, socket.gethostname())
