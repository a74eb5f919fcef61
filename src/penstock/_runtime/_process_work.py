"""What a worker process runs: jobs that its crew describes on the board, written into the crew's memory.

A job's rows lie in shared memory, or the job is one block whose batches are sent. What raises, and what can't be sent,
is marked as failed and computed again by the consumer, which meets the user's exception in its own thread.
"""

import importlib
import os
import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._graph._apply import Context
from penstock._graph._nodes import Element
from penstock._plan._plan import Plan
from penstock._runtime._batches import Course
from penstock._runtime._board import FAILED, FINE, IRREGULAR, Board
from penstock._runtime._crew import BLOCKS, SLOTS
from penstock._runtime._jobs import BatchJob, Learned
from penstock._workers._processes import Inherited, SharedDescriptors
from penstock.batching._layout import Layout
from penstock.concurrency._children._begin import begin_process
from penstock.concurrency._children._packed_error import pack_error
from penstock.errors import UsageError
from penstock.events import Event
from penstock.transport._arena._table import open_region
from penstock.transport._memory import Region
from penstock.transport._ring import SlotRing

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class Described(NamedTuple):
    """A job, as it is described to processes."""

    number: int
    course: Course
    block_rows: int | None
    layout: Layout | None
    region: int | None
    """The number of the memory that its rows are written to; None where it is one block whose batches are sent."""
    living: tuple[int, ...]
    """The numbers of all memory that was in use when the job was armed."""
    newest: int
    """The highest number then; what is neither in use nor newer, a process lets go of."""


@frozen
class Sent:
    """A job's batches on their way, and what was learned."""

    number: int
    batches: list[Element]
    layout: Layout | None
    rows: int
    seconds: float
    cpu_seconds: float


class _Noticed:
    """Whether a block had events, which only the consumer counts."""

    def __init__(self) -> None:
        self.any = False

    def observe(self, event: Event) -> None:
        del event
        self.any = True


def pickled(plan: Plan) -> bytes:
    """Return a plan as it is sent to processes.

    Raises:
        UsageError: something of it can't be pickled.
    """
    with Caught() as caught:
        try:
            # An extra, which also takes lambdas and the functions of notebooks.
            pickles: Any = importlib.import_module("cloudpickle")
        except ImportError:
            pickles = pickle
        return bytes(pickles.dumps(plan, pickle.HIGHEST_PROTOCOL))
    error = caught.taken()
    if not isinstance(error, Exception):
        raise error
    raise UsageError(
        f'workers="processes" sends the dataset to other processes, so all of it must be picklable; got {error}. '
        "Use functions that are defined in a module, or install cloudpickle (the extra `processes`), which takes "
        'lambdas and local functions too; or use workers="threads"'
    ) from error


def work(
    pipe: "Connection[Any, Any]",
    number: int,
    descriptors: Inherited,
    setup: bytes,
) -> None:
    """Run tasks until the ring is stopped."""
    begin_process()
    memory, bell, board_memory = descriptors.taken
    ring = SlotRing.attach(memory, bell)
    board = Board.attach(board_memory, SLOTS, BLOCKS)
    for descriptor in descriptors.taken:
        os.close(descriptor)
    plan = _prepared(pipe, number, setup)
    if plan is not None:
        _Worker(pipe, number, ring, board, plan).run()


def _prepared(pipe: "Connection[Any, Any]", number: int, setup: bytes) -> Plan | None:
    """Return the plan of a process that is ready to work, and tell whether it is."""
    with Caught() as caught:
        plan: Plan = pickle.loads(setup)
        if plan.limits.worker_init is not None:
            plan.limits.worker_init(number)
        pipe.send_bytes(pickle.dumps(None))
        return plan
    error = caught.taken()
    error.add_note(f"while worker {number} was being prepared, in a process of its own")
    pipe.send_bytes(pickle.dumps(pack_error(error)))
    return None


class _Worker:
    """Runs what it claims."""

    def __init__(self, pipe: "Connection[Any, Any]", number: int, ring: SlotRing, board: Board, plan: Plan) -> None:
        self._pipe = pipe
        self._number = number
        self._ring = ring
        self._board = board
        self._plan = plan
        self._regions = _Regions(SharedDescriptors(pipe))
        self._noticed = _Noticed()
        self._context = replace(Context(), observe=self._noticed.observe)
        self._jobs: dict[int, tuple[Described, BatchJob, Learned]] = {}  # by slot

    def run(self) -> None:
        """Work until there is nothing to be done any more."""
        while (claim := self._ring.claim_wait(self._number)) is not None:
            slot, block = claim.slot, claim.block
            self._board.begin(self._number, slot, claim.number, block)
            self._noticed.any = False
            with Caught() as caught:
                described, job, learned = self._job(slot, claim.number)
                self._run(described, job, learned, block)
            if caught.error is not None or self._noticed.any:
                is_irregular = slot in self._jobs and self._jobs[slot][2].is_irregular
                self._board.tell(slot, block, IRREGULAR if is_irregular else FAILED)
            else:
                self._board.tell(slot, block, FINE)  # whoever was at it before may have told otherwise
            del caught
            self._ring.finish(slot, block, self._number)
            self._board.end(self._number)

    def _job(self, slot: int, number: int) -> tuple[Described, BatchJob, Learned]:
        known = self._jobs.get(slot)
        if known is not None and known[0].number == number:
            return known
        described: Described = pickle.loads(self._board.description(slot))
        learned = Learned()
        learned.layout = described.layout
        whole = described.region is None
        job = BatchJob(self._plan, described.course, described.block_rows, learned, whole=whole)
        job.use(None if described.region is None else self._regions.get(described.region))
        self._regions.keep(described.living, described.newest)
        self._jobs[slot] = described, job, learned
        return self._jobs[slot]

    def _run(self, described: Described, job: BatchJob, learned: Learned, block: int) -> None:
        began, cpu_began = time.perf_counter(), time.thread_time()
        rows = job.run_block(block, self._context)
        if described.region is not None:
            self._board.count(self._number, rows, time.perf_counter() - began, time.thread_time() - cpu_began)
            return
        job.run_merge(self._context)
        seconds, cpu_seconds = time.perf_counter() - began, time.thread_time() - cpu_began
        batches = [job.take(index) for index in range(described.course.steps)]
        if not self._noticed.any:
            sent = Sent(described.number, batches, learned.layout, rows, seconds, cpu_seconds)
            self._pipe.send_bytes(pickle.dumps(sent, pickle.HIGHEST_PROTOCOL))


class _Regions:
    """The crew's memory, as far as this process has met it."""

    def __init__(self, arriving: SharedDescriptors) -> None:
        self._arriving = arriving
        self._known: dict[int, Region] = {}

    def get(self, number: int) -> Region:
        while number not in self._known:
            known, descriptor = self._arriving.next()
            try:
                self._known[known] = open_region(descriptor)
            finally:
                os.close(descriptor)
        return self._known[number]

    def keep(self, living: tuple[int, ...], newest: int) -> None:
        for number in self._known.keys() - living:
            if number <= newest:  # jobs are not met in the order in which they were armed
                del self._known[number]
