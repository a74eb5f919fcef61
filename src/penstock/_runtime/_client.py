"""A client of a scheduler: one loader, with everything that its jobs need and other loaders' jobs must not share.

A scheduler has one client, or several that share its workers. A client holds its plan, measurements of its rows, the
recorder of its events, its queues of jobs and its memory. So no client notices the others, except by their use of the
workers.
"""

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock._graph import Context
from penstock._plan._plan import Plan
from penstock._runtime._jobs import Learned
from penstock._runtime._recorder import Recorder
from penstock._runtime._region_pool import Lender, RegionPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._os import Listener
    from penstock._runtime._stalls import Stall

_logger = logging.getLogger("penstock")


class Client:
    """The state of one loader in a scheduler.

    Attributes:
        plan: the plan of the loader.
        recorder: records events.
        lender: provides the memory of the scheduler's jobs; None for the scheduler's own memory.
        learned: measurements of its rows.
        crashing_rows: rows that no worker may compute, as in `Context`.
        ahead: how many batches are taken, and held, before they are delivered.
        region_pool: its memory. It may outlive the client, as delivered batches do.
        merging: held by each thread that merges one of its batches.
        queues: for each queue, the function that gives up its jobs.
        arm_more: arms the jobs that its queue can arm; called by workers that own the scheduler; must not raise.
        told_of_kept_batches: whether the warning about kept batches was given, once for all its queues.
        listener: woken when one of its jobs may be complete; None before it joins a scheduler.
        is_folded_ahead: whether a thread that folds ahead waits for its jobs; the consumer then looks for stalls.
        stall: finds the work that its consumer waits for; None while none waits.
        waited_until: when the last wait ended, by `monotonic`.
    """

    def __init__(self, plan: Plan, recorder: Recorder, lender: Lender | None = None) -> None:
        self.plan = plan
        self.recorder = recorder
        self.lender = lender
        self.learned = Learned()
        self.crashing_rows: dict[tuple[int, ...], Exception] = {}
        self.ahead = 0
        self.region_pool = RegionPool()
        self.merging = threading.Semaphore(plan.limits.num_batch_workers or plan.prefetch)
        self.queues: list[Callable[[], None]] = []
        self.arm_more: Callable[[], None] = nothing
        self.has_warned_of_kept = lender is not None  # the trainer's process warns
        self.listener: Listener | None = None
        self.is_folded_ahead = False
        self.stall: Callable[[], Stall | None] | None = None
        self.waited_until = 0.0
        self._prepared = threading.local()  # whether this thread was
        self._told_of: set[str] = set()
        self._contexts: dict[int, Context] = {}  # by the number of a thread

    def context(self) -> Context:
        """Return a new context for a thread that computes."""
        return Context(
            observe=self.recorder.observe, substituted=self.recorder.substituted, crashing_rows=self.crashing_rows
        )

    def consumer_context(self) -> Context:
        """Return a context for the thread that folds: it counts the elements that filters leave out, workers don't."""
        return replace(self.context(), filtered=self.recorder.count_filtered)

    def context_of(self, worker: int) -> Context:
        """Return the context of a worker thread, which calls this itself."""
        known = self._contexts.get(worker)
        if known is None:
            known = self._contexts[worker] = self.context()
        return known

    def prepare(self) -> None:
        """Prepare the calling thread as workers are, once, before it computes their work."""
        worker_init = self.plan.limits.worker_init
        if worker_init is None or self.plan.place == "inline" or getattr(self._prepared, "is_done", False):
            return
        try:
            worker_init(self.plan.num_workers)
        except Exception as error:
            error.add_note("in worker_init, which prepares the thread that computes what workers would")
            raise
        self._prepared.is_done = True

    def give_up(self) -> None:
        """Give up all queues' jobs; with the scheduler owned."""
        while self.queues:
            self.queues[-1]()
        self.arm_more = nothing

    def tell_of(self, complaint: str) -> None:
        """Log, once for each type of exception, what a worker raised and the consumer did not, if that is known."""
        kind = complaint.partition(":")[0]
        if complaint and kind not in self._told_of:
            self._told_of.add(kind)
            _logger.warning(
                "a worker process raised what this one did not when it computed the same again. The batch is as it "
                "should be, but such batches take this process's time: %s",
                complaint,
            )


def nothing() -> None:
    """Arm nothing: no queue is open."""
