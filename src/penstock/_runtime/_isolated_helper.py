"""The helper process of an isolated loader: it runs the whole runtime, and sends batches to the trainer's process.

Guarantees:
  - One run at a time, each the rest of an epoch. After each batch the helper looks for a newer run, or the end.
  - Batches computed before an error are sent before it. A run ends with its error, or at the end of the epoch.
  - Events of elements travel with the batch before which they were recorded.
  - A batch is requested when there is room for one in flight. A large one is computed where the trainer's process reads
    it, and so is a job of small ones; all others are copied once, into shared memory that was used before.

Batches go through the tensor pipe, in the format of `_isolated_outbox`. Commands come through the process's own pipe,
pickled; an empty one means the end.
"""

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from penstock._caught import Caught
from penstock._decisions import MESSAGE_JOBS, decide
from penstock._graph import Element, leave_accelerators
from penstock._memory import open_region
from penstock._os import DaemonThread
from penstock._plan._plan import Plan
from penstock._processes import pack_error
from penstock._runtime._batches import StepRange
from penstock._runtime._isolated_outbox import NO_REPORT, BatchReport, Message, Outbox, RunStatus, TrainerGoneError
from penstock._runtime._pickle_buffers import read
from penstock._runtime._recorder import HelperRecorder, Remembered
from penstock._runtime._runtime import Runtime
from penstock._runtime._shared_output import MIN_BYTES, SharedOutput
from penstock._runtime._streams import EndOfEpoch, Stream
from penstock._runtime._threads import ThreadBatchStream
from penstock._workers._processes import Inherited
from penstock.errors import ClosedError, PeerError, PenstockError
from penstock.transport._arena import Arena
from penstock.transport._pipe._operations import Steps
from penstock.transport._pipe._sender import Sender

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ResultT = TypeVar("ResultT")
_CHUNK_BYTES: Final = {"inline": 1_000_000, "threads": 4_000_000, "processes": 4_000_000}  # fresh memory if inline


class Setup(NamedTuple):
    """How batches are sent.

    Attributes:
        address: of the trainer's end of the tensor pipe.
        capacity: how many messages may be on their way.
        max_bytes: of shared memory; None for no bound.
    """

    address: str
    capacity: int
    max_bytes: int | None


class Begin(NamedTuple):
    """Begin a run; the one before is over.

    Attributes:
        run: its number, higher than those before.
        step_ranges: which steps; none if it is only the end of the one before.
        alone: so many steps, at first, are computed one by one, by a process made for that: others have died here.
        remembered: what the trainer's recorder knows.
    """

    run: int
    step_ranges: list[StepRange]
    alone: int = 0
    remembered: Remembered = Remembered((), ())


class Starved(NamedTuple):
    """The trainer's process waits for more than so many messages, and keeps memory of some of them."""

    messages: int


def serve(pipe: "Connection[Any, Any]", setup: Setup, plan: Inherited) -> None:
    """Run a loader for the trainer's process until that says the end, or is gone."""
    leave_accelerators()
    (descriptor,) = plan.taken
    region = open_region(descriptor)
    os.close(descriptor)
    with suppress(PeerError, ClosedError):  # it has been closed meanwhile
        sender = Sender(
            setup.address,
            Arena(max_bytes=setup.max_bytes),
            capacity=setup.capacity,
            allow_pickle=True,
            owns_arena=True,
            least_shared_bytes=MIN_BYTES,
        )
        memory = SharedOutput(sender)
        commands = _Commands(pipe, sender, memory)
        helper: _Helper | None = None
        with Caught() as caught:
            helper = _Helper(lambda: cast("Plan", read(region, slice(None), 0)), commands, sender, memory)
        with suppress(OSError):
            pipe.send_bytes(b"started")
        if helper is not None:
            helper.serve()
        else:
            _refuse(caught.taken(), commands, sender)


def _refuse(error: BaseException, commands: "_Commands", sender: Sender) -> None:
    """Answer all commands with the error of a plan that can't be used here."""
    error.add_note("while the helper process of isolated=True was being prepared")
    report = pickle.dumps((NO_REPORT._replace(error=pack_error(error)),))
    while (begin := commands.next()) is not None:
        message: Message = (begin.run, int(RunStatus.FAILED), [], report, 0, None)
        with suppress(PenstockError):
            sender.operations.run(sender.sending(message), None)


class _Commands:
    """The commands of the trainer's process; only the latest counts."""

    def __init__(self, pipe: "Connection[Any, Any]", sender: Sender, memory: SharedOutput) -> None:
        self._pipe = pipe
        self._sender = sender
        self._memory = memory
        memory.is_over = lambda: self.waiting
        self._changed = threading.Condition()  # protects both below
        self._latest: Begin | None = None
        self._has_ended = False
        self._taken = 0
        self._thread = DaemonThread(self._listen, "penstock-commands")

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while message := self._pipe.recv_bytes():
                command: Begin | Starved = pickle.loads(message)
                if isinstance(command, Starved):
                    self._memory.starve(command.messages)
                    continue
                with self._changed:
                    self._latest = command
                    self._changed.notify_all()
                self._memory.wake()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._memory.wake()
        with suppress(PenstockError):
            self._sender.operations.close()  # ends the wait of a thread that waits for room

    def next(self) -> Begin | None:
        """Return the latest command that was not taken yet, or None at the end; wait for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._is_newer())
            if self._has_ended or self._latest is None:
                return None
            self._taken = self._latest.run
            return self._latest

    def _is_newer(self) -> bool:
        return self._latest is not None and self._latest.run > self._taken

    @property
    def waiting(self) -> bool:
        """Whether there is a command that was not taken yet, or the end."""
        return self._has_ended or self._is_newer()


class _Helper:
    """Executes the trainer's commands; closes the runtime at the end."""

    def __init__(
        self, load_plan: Callable[[], Plan], commands: _Commands, sender: Sender, memory: SharedOutput
    ) -> None:
        plan = load_plan()
        self._load_plan = load_plan
        self._commands = commands
        self._sender = sender
        self._recorder = HelperRecorder(plan.node)
        self._memory = memory
        # With a bound of memory batches are copied: then it is known how much they take.
        self._runtime = Runtime(plan, self._recorder, lender=memory if plan.memory is None else None)
        memory.returned = self._runtime.arm_more
        self._careful: Runtime | None = None  # made for steps that may kill processes
        self._plan = plan

    def serve(self) -> None:
        """Do what the trainer's process says, until it says the end or is gone."""
        try:
            with suppress(TrainerGoneError):
                while (begin := self._commands.next()) is not None:
                    if begin.step_ranges:
                        self._run(begin)
        finally:
            if self._careful is not None:
                self._careful.close()
            self._runtime.close()
            self._memory.close()

    def _run(self, begin: Begin) -> None:
        self._recorder.recall(begin.remembered)
        self._recorder.taken()
        outbox = Outbox(self._recorder, _CHUNK_BYTES[self._plan.place], begin.run, self._send)
        with Caught() as caught:
            step_ranges = begin.step_ranges
            if begin.alone:
                step_ranges = [self._send_alone(step_ranges[0], begin.alone, outbox), *step_ranges[1:]]
            self._send_all(self._runtime.open_stream(step_ranges), outbox)
        if caught.error is None or isinstance(caught.error, TrainerGoneError):
            outbox.drop()
            if caught.error is not None:
                raise caught.taken()
            return
        outbox.end(caught.taken())

    def _send_alone(self, step_range: StepRange, steps: int, outbox: "Outbox") -> StepRange:
        """Compute and send some steps, of which one may crash processes; return the range of the others.

        A process of this one's computes them. So it is known what it dies of, and `on_error` is followed.
        """
        stream = self._carefully().open_alone(step_range)
        try:
            with suppress(EndOfEpoch):
                for _ in range(steps):
                    if self._commands.waiting:
                        break
                    self._do(self._sender.making_room)
                    outbox.begin()
                    batch, token = stream.next()
                    outbox.add(batch, token)
                    del batch
                    outbox.send()
                    step_range = step_range.after(1, token)
        finally:
            stream.close()
        return step_range

    def _carefully(self) -> Runtime:
        if self._careful is None:
            plan = self._load_plan()  # as it was sent: what is in use may hold what can't be sent, as open files
            limits = plan.limits if plan.num_workers else replace(plan.limits, worker_init=None)
            plan = replace(plan, place="processes", num_workers=1, prefetch=1, limits=limits)
            self._recorder.know(plan.node)
            self._careful = Runtime(plan, self._recorder, crashing_rows=self._runtime.crashing_rows)
        return self._careful

    def _send_all(self, stream: Stream, outbox: "Outbox") -> None:
        try:
            self._send_each(stream, outbox)
        except Exception:
            failing = stream.failing()
            if outbox.failing is None and failing is not None:  # else a batch before it could not be sent
                outbox.failing = failing.step
            raise
        finally:
            stream.close()

    def _send_each(self, stream: Stream, outbox: "Outbox") -> None:
        while not self._commands.waiting:
            if outbox.is_empty:
                self._do(self._sender.making_room)
                outbox.begin()
                jobs = stream if isinstance(stream, ThreadBatchStream) and decide(MESSAGE_JOBS, 1) else None
                stacked = None if jobs is None else jobs.next_stacked()
                if stacked is not None:
                    outbox.send_stacked(*stacked)
                    del stacked
                    continue
            batch, token = stream.next()
            outbox.add(batch, token)
            del batch
            if outbox.is_full or not stream.is_ready():
                outbox.send()

    def _send(
        self,
        run: int,
        status: RunStatus,
        batches: list[Element],
        reports: list[BatchReport],
        bounds: list[int] | None = None,
    ) -> None:
        packed = b"" if all(each == NO_REPORT for each in reports) else pickle.dumps(tuple(reports))
        in_flight = self._runtime.bytes_in_flight() + self._sender.arena.counters.bytes
        message: Message = (run, int(status), batches, packed, in_flight, None if bounds is None else np.array(bounds))
        slots = self._do(lambda: self._sender.sending(message))
        self._memory.keep(slots, batches)

    def _do(self, make_steps: Callable[[], Steps[ResultT]]) -> ResultT:
        try:
            return self._sender.operations.run(make_steps(), None)
        except (ClosedError, PeerError) as error:
            raise TrainerGoneError from error


def inner_plan(plan: Plan) -> Plan:
    """Return the plan that the helper runs.

    A large batch that waits in the pipe is one of those that the scheduler has memory for. Where memory is bounded, all
    are copied: one waits in the pipe, the others of `prefetch` in the scheduler; but two there, without which workers
    would wait for each other's last rows.
    """
    if plan.place == "inline" or plan.memory is None:
        return replace(plan, isolated=False)
    memory = max(plan.memory // 2, 1)
    return replace(plan, isolated=False, prefetch=max(plan.prefetch - 1, min(plan.prefetch, 2)), memory=memory)
