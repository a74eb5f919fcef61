"""The helper of an isolated loader: it runs the whole runtime, and sends batches to the trainer's process.

The messages, their order, and the behaviour at errors, crashes and the end are those of `_processes/_helper.py`. The
helper adds three things: the work of a run is the remaining steps of an epoch (`RunSteps`); `Starved` is one more
command; and the data channel carries several small batches in one message.

Large batches are computed in the memory from which they are sent, without a copy (`SharedOutput`). The helper computes
a batch in a region of the pipe's arena, and sends the place of the region; the trainer reads the batch there. Both
processes then refer to the region, so the helper must not reuse it while the trainer has a view. The arena counts
holds, and a thread waits for returned ones. The harder part is to know when *no* return will come: a trainer that keeps
every batch would wait for a batch while the helper waits for memory. So the trainer announces when it waits for the
next batch while it still holds memory (`Starved`). Until then it may yet return memory, as a loop drops a batch a
moment after it received the next one. Only after that is more memory allocated.

Several small batches of a job are sent as one. A batch that is smaller than a megabyte even so is copied into the
message: that takes less time than to notice the return of its memory.

Guarantees:
  - After each message the helper checks for a newer run, or the end.
  - Batches computed before an error are sent before it. A run ends with its error, or at the end of the epoch.
  - Events of elements travel with the batch before which they were recorded.
  - A batch is computed when there is room for one in flight. A large batch, or a job of small ones, is computed where
    the trainer's process reads it; all others are copied once, into shared memory that was used before.
  - A sent batch stays untouched for as long as the trainer refers to it: until then the helper keeps the batch, and
    with it the lease of its job.
  - A return is noticed at once, whatever the other threads of this process wait for.
  - More memory is leased only when the trainer has announced that it waits for the next batch.
"""

import os
import pickle
import select
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from penstock._caught import Caught
from penstock._decisions import MESSAGE_BATCHES, MESSAGE_JOBS, decide
from penstock._graph import Element, leave_accelerators
from penstock._memory import Lease, Region, open_region
from penstock._os import Bell, DaemonThread
from penstock._plan import Plan
from penstock._processes import (
    Begin,
    MessageKind,
    OwnerGoneError,
    PackedError,
    listen_to_owner,
    pack_error,
    report_started,
)
from penstock._runtime._batches import StepRange
from penstock._runtime._chunk_sizes import job_size
from penstock._runtime._jobs import own_bytes
from penstock._runtime._policy import (
    KEPT_MESSAGES,
    MAX_MESSAGE_BATCHES,
    MESSAGE_BYTES,
    MESSAGE_SECONDS,
    SHARED_BYTES,
)
from penstock._runtime._recorder import HelperRecorder, Remembered
from penstock._runtime._runtime import Runtime
from penstock._runtime._shared_values import read
from penstock._runtime._streams import EndOfEpoch, Stream
from penstock._runtime._worker_processes import Inherited
from penstock._streaming import Token, made_token
from penstock.errors import ClosedError, PeerError, PenstockError, UsageError, WorkerError
from penstock.events import Event
from penstock.transport import Arena, Sender, Steps

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ResultT = TypeVar("ResultT")
Message: TypeAlias = tuple[int, int, list[Element], bytes, int, NDArray[np.int64] | bytes | None]
"""A message of the data channel: `(run, kind, batches, reports, bytes_in_flight, bounds)`.

Where `bounds` is an array, all batches are stacked in the only one of `batches`, and batch i is its rows [bounds[i],
bounds[i + 1]): then several batches cost hardly more than one. Where it is bytes, that one is the memory that worker
processes wrote the batches into, and `bounds` has its pickled runs. `reports` is pickled.
"""
_ONLY_BATCH: Final = "[2][0]"  # the path of the only batch in its message


class Setup(NamedTuple):
    """The settings of the data channel.

    Attributes:
        address: the address of the trainer's end of the tensor pipe.
        capacity: the number of messages that may be in flight.
        max_bytes: the maximum of shared memory; None for no bound.
    """

    address: str
    capacity: int
    max_bytes: int | None


CrashingRows: TypeAlias = tuple[tuple[tuple[int, ...], str], ...]
"""Elements as in `Context.crashing_rows`, each with the text of its error."""


def described_rows(crashing_rows: Mapping[tuple[int, ...], Exception], known: int = 0) -> CrashingRows:
    """Return rows that crash processes, to be sent; without some of the first ones, which the receiver knows."""
    return tuple((at, str(error)) for at, error in list(crashing_rows.items())[known:])


def note_rows(crashing_rows: dict[tuple[int, ...], Exception], described: CrashingRows) -> None:
    """Add rows that were received."""
    for at, text in described:
        crashing_rows.setdefault(at, WorkerError(text))


class RunSteps(NamedTuple):
    """The work of a run.

    Attributes:
        step_ranges: the steps; none if the run only ends the one before.
        steps_singly: the number of steps at the beginning that are computed one by one, by a process made for that,
            since helpers have died in one of them.
        remembered: the state of the trainer's recorder.
        crashing_rows: the rows that are known to crash processes.
    """

    step_ranges: list[StepRange]
    steps_singly: int = 0
    remembered: Remembered = Remembered((), ())
    crashing_rows: CrashingRows = ()


class Starved(NamedTuple):
    """The command of a trainer that waits for another message, and keeps memory of some of the `messages` before."""

    messages: int


class BatchReport(NamedTuple):
    """The report that comes with a batch, and with the end of a run.

    Attributes:
        token: of the stream after the batch; with an error, the step that failed, or None for the next in order.
        events: of elements, since the batch before.
        filtered: the elements that filters kept and left out since then: number of the step, and both counts.
        error: the failure of the run.
        crashing_rows: rows that were found to crash processes since then.
    """

    token: Token
    events: tuple[Event, ...]
    filtered: tuple[tuple[int, int, int], ...]
    error: PackedError | None = None
    crashing_rows: CrashingRows = ()


NO_REPORT: Final = BatchReport(None, (), ())


class SharedOutput:
    """Owns the leases of the arena that jobs are computed in, and keeps the batches that the trainer refers to.

    Args:
        sender: sends the batches; the memory is of its arena.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._leases: dict[int, Lease] = {}  # by the identity of the region; the arena keeps regions alive
        self._changed = threading.Condition()  # protects what follows
        self._kept: dict[int, Collection[Element]] = {}  # by slot
        self._starved_at = -1
        self._has_returned = self._has_begun = False
        self._watch: DaemonThread | None = None  # there since the first batch was kept
        self._bell = Bell()
        self._closed = False
        self.returned: Callable[[], None] = lambda: None
        """Called, in any thread, when memory was returned."""
        self.is_over: Callable[[], bool] = lambda: False
        """Whether the run was given up; `wake` is called when that changes."""

    def allocate(self, size_bytes: int) -> Region | None:
        """Return memory for a job; None for a small job."""
        if size_bytes < SHARED_BYTES:
            return None
        region, self._leases[id(region)] = self._sender.arena.lease_region(size_bytes)
        return region

    def discard(self, region: Region) -> None:
        """Return unreferenced memory to the arena, if it came from there, before more is allocated."""
        self._leases.pop(id(region), None)

    def keep(self, slots: Collection[int], batches: Collection[Element]) -> None:
        """Keep sent batches as long as the trainer holds their slots.

        Of several batches in one slot the last one is enough: all are of one job, and each keeps the lease of the job.
        """
        if not slots:
            return
        with self._changed:
            self._kept.update(dict.fromkeys(slots, batches))
            if self._watch is None:
                self._watch = DaemonThread(self._notice_returns, "penstock-returns")
        self._release_returned()  # of batches whose memory was returned before they were kept

    def await_return(self) -> bool:
        """Wait for returned memory; return False if the trainer holds all memory, and waits for more.

        Raises:
            EndOfEpoch: the run was given up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_returned or self._is_starved() or self.is_over())
            if self.is_over():
                raise EndOfEpoch
            has_returned, self._has_returned = self._has_returned, False
            return has_returned

    def _is_starved(self) -> bool:
        return not self._kept or self._starved_at == self._sender.counters.messages

    def starve(self, messages: int) -> None:
        """Record that the trainer waits for more than `messages` messages, and keeps memory of some of them."""
        self._release_returned()  # of memory that was returned before that, perhaps unnoticed
        with self._changed:
            self._starved_at = messages
            self._changed.notify_all()

    def wake(self) -> None:
        """Make a thread that waits for memory check whether the run was given up."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread that notices returns."""
        self._closed = True
        self._bell.ring()

    def _notice_returns(self) -> None:
        arena = self._sender.arena
        arena.listen(self._bell)
        with suppress(ClosedError), select.epoll() as either:
            either.register(arena.fileno(), select.EPOLLIN)
            either.register(self._bell.fileno(), select.EPOLLIN)
            while not self._closed:
                self._bell.clear()
                arena.clear_bell(self._bell)
                self._release_returned()
                either.poll()

    def _release_returned(self) -> None:
        with self._changed:
            over = [self._kept.pop(slot) for slot in list(self._kept) if not self._sender.holds(slot)]
            if not over:
                return
            over.clear()
            self._has_returned = True
            self._changed.notify_all()
            begins, self._has_begun = not self._has_begun, True
        self.returned()
        if begins:
            self._sender.arena.discard_idle()  # of the first batches: they were copied, since their size wasn't known


def serve(pipe: "Connection[Any, Any]", setup: Setup, inherited: Inherited) -> None:
    """Run a loader for the trainer's process until that sends the end, or has ended."""
    leave_accelerators()
    region, times = map(open_region, inherited.taken)
    for descriptor in inherited.taken:
        os.close(descriptor)
    with suppress(PeerError, ClosedError):  # the trainer has closed the pipe meanwhile
        sender = Sender(
            setup.address,
            Arena(max_bytes=setup.max_bytes),
            capacity=setup.capacity,
            allow_pickle=True,
            owns_arena=True,
            least_shared_bytes=SHARED_BYTES,
        )
        memory = SharedOutput(sender)
        commands = _Commands(pipe, sender, memory)
        helper: _Helper | None = None
        with Caught() as caught:
            helper = _Helper(lambda: cast("Plan", read(region, slice(None), 0)), commands, sender, memory, times)
        report_started(pipe, caught.error)
        if helper is not None:
            helper.serve()
        else:
            _refuse(caught.taken(), commands, sender)


def _refuse(error: BaseException, commands: "_Commands", sender: Sender) -> None:
    """Answer each run with the error of a plan that can't be used here."""
    error.add_note("while the helper process of isolated=True was being prepared")
    report = pickle.dumps((NO_REPORT._replace(error=pack_error(error)),))
    while (begin := commands.next()) is not None:
        message: Message = (begin.run, int(MessageKind.FAILED), [], report, 0, None)
        with suppress(PenstockError):
            sender.operations.run(sender.sending(message), None)


class _Commands:
    """The latest command of the trainer's process to begin a run."""

    def __init__(self, pipe: "Connection[Any, Any]", sender: Sender, memory: SharedOutput) -> None:
        self._sender = sender
        self._memory = memory
        memory.is_over = lambda: self.waiting
        self._changed = threading.Condition()  # protects both below
        self._latest: Begin[RunSteps] | None = None
        self._has_ended = False
        self._taken = 0  # the number of the run that was taken last
        listen_to_owner(pipe, self._receive)

    def _receive(self, command: Begin[RunSteps] | Starved | None) -> None:
        if isinstance(command, Starved):
            self._memory.starve(command.messages)
            return
        with self._changed:
            if command is None:
                self._has_ended = True
            else:
                self._latest = command
            self._changed.notify_all()
        self._memory.wake()
        if command is None:
            with suppress(PenstockError):
                self._sender.operations.close()  # ends the wait of a thread for room

    def next(self) -> Begin[RunSteps] | None:
        """Wait for a command that was not taken yet, and return it; None at the end."""
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
        self, load_plan: Callable[[], Plan], commands: _Commands, sender: Sender, memory: SharedOutput, times: Region
    ) -> None:
        plan = load_plan()
        self._load_plan = load_plan
        self._commands = commands
        self._sender = sender
        self._recorder = HelperRecorder(plan.node)
        self._memory = memory
        # Where memory is bounded, batches are copied, so that the memory they take is known.
        provider = memory if plan.memory is None else None
        self._runtime = Runtime(plan, self._recorder, memory_provider=provider, times_memory=times)
        self._waits = self._runtime.readings.waits
        memory.returned = self._runtime.arm_more
        self._crash_runtime: Runtime | None = None  # made for steps that may crash processes
        self._plan = plan

    def serve(self) -> None:
        """Compute one run after the other, until the end."""
        try:
            with suppress(OwnerGoneError):
                while (begin := self._commands.next()) is not None:
                    if begin.work.step_ranges:
                        self._run(begin.run, begin.work)
        finally:
            if self._crash_runtime is not None:
                self._crash_runtime.close()
            self._runtime.close()
            self._memory.close()

    def _run(self, run: int, steps: RunSteps) -> None:
        self._recorder.recall(steps.remembered)
        self._recorder.taken()
        note_rows(self._runtime.crashing_rows, steps.crashing_rows)
        outbox = Outbox(self._recorder, self._runtime.crashing_rows, self._message_bytes(), run, self._send)
        with Caught() as caught:
            step_ranges = steps.step_ranges
            if steps.steps_singly:
                step_ranges = [self._send_singly(step_ranges[0], steps.steps_singly, outbox), *step_ranges[1:]]
            self._send_all(self._runtime.open_stream(step_ranges), outbox)
        if caught.error is None or isinstance(caught.error, OwnerGoneError):
            outbox.drop()
            if caught.error is not None:
                raise caught.taken()
            return
        outbox.end(caught.taken())

    def _message_bytes(self) -> int:
        """Return how many bytes of batches a message may have: bounded memory has room for what the trainer holds."""
        most, usual = self._sender.arena.max_bytes, MESSAGE_BYTES[self._plan.place]
        return usual if most is None else min(usual, most // (KEPT_MESSAGES + 1))

    def _send_singly(self, step_range: StepRange, steps: int, outbox: "Outbox") -> StepRange:
        """Compute and send some steps, of which one may crash processes; return the range of the others.

        A worker process of the helper computes them, so the crashing row is found, and `on_error` applies to it.
        """
        stream = self._runtime_for_crashes().open_on_request(step_range)
        try:
            with suppress(EndOfEpoch):
                for _ in range(steps):
                    if self._commands.waiting:
                        break
                    self._run_steps(self._sender.making_room)
                    outbox.begin()
                    batch, token = stream.next()
                    outbox.add(batch, token)
                    del batch
                    outbox.send()
                    step_range = step_range.after(1, token)
        finally:
            stream.close()
        return step_range

    def _runtime_for_crashes(self) -> Runtime:
        """Return a runtime with one worker process, for steps that may crash it."""
        if self._crash_runtime is None:
            plan = self._load_plan()  # a fresh copy: the one in use may hold open files, which can't be sent
            limits = plan.limits if plan.num_workers else replace(plan.limits, worker_init=None)
            plan = replace(plan, place="processes", num_workers=1, prefetch=1, limits=limits)
            self._recorder.know(plan.node)
            self._crash_runtime = Runtime(plan, self._recorder, crashing_rows=self._runtime.crashing_rows)
        return self._crash_runtime

    def _send_all(self, stream: Stream, outbox: "Outbox") -> None:
        try:
            self._send_each(stream, outbox)
        except Exception:
            failing = stream.failing()
            if outbox.failing is None and failing is not None:  # otherwise a batch before it could not be sent
                outbox.failing = failing.step
            raise
        finally:
            stream.close()

    def _send_each(self, stream: Stream, outbox: "Outbox") -> None:
        while not self._commands.waiting:
            began = time.perf_counter()
            if outbox.is_empty:
                self._run_steps(self._sender.making_room)
                outbox.begin()
                began = time.perf_counter()
                stacked = stream.next_stacked() if decide(MESSAGE_JOBS, 1) else None
                if stacked is not None:
                    self._waits.note_in_helper(time.perf_counter() - began)
                    outbox.send_stacked(*stacked)
                    del stacked
                    continue
            batch, token = stream.next()
            self._waits.note_in_helper(time.perf_counter() - began)
            outbox.add(batch, token)
            del batch
            # Collected batches may hold the memory that the next job waits for.
            if outbox.is_full or self._runtime.lacks_memory() or not stream.is_ready():
                outbox.send()

    def _send(
        self,
        run: int,
        kind: MessageKind,
        batches: list[Element],
        reports: list[BatchReport],
        bounds: list[int] | bytes | None = None,
    ) -> None:
        packed = b"" if all(each == NO_REPORT for each in reports) else pickle.dumps(tuple(reports))
        in_flight = self._runtime.bytes_in_flight() + self._sender.arena.counters.bytes
        divides = np.array(bounds) if isinstance(bounds, list) else bounds
        message: Message = (run, int(kind), batches, packed, in_flight, divides)
        try:
            slots = self._run_steps(lambda: self._sender.sending(message))
        except UsageError as error:
            size, most = sum(own_bytes(batch, sys.maxsize) for batch in batches), self._sender.arena.max_bytes
            if most is None or size <= most:
                raise
            raise UsageError(
                f"{size} bytes are more than the {most} that memory= allows outside of it, in whole pages. Raise "
                "memory=, or make batches smaller"
            ) from error
        self._memory.keep(slots, batches)

    def _run_steps(self, make_steps: Callable[[], Steps[ResultT]]) -> ResultT:
        """Run an operation of the pipe.

        Raises:
            OwnerGoneError: the trainer's process has closed its end.
        """
        try:
            return self._sender.operations.run(make_steps(), None)
        except (ClosedError, PeerError) as error:
            raise OwnerGoneError from error


class Send(Protocol):
    """Sends batches; with `bounds`, they are in one element, as in a `Message`."""

    def __call__(
        self,
        run: int,
        kind: MessageKind,
        batches: list[Element],
        reports: list[BatchReport],
        bounds: list[int] | bytes | None = None,
        /,
    ) -> None: ...


class Outbox:
    """Collects the batches of one message: as many small ones as take about two milliseconds.

    Their number is a power of two where possible, since the pipe keeps a layout for each number.

    Attributes:
        failing: the step whose batch can't be computed or sent, where batches come in no order.
    """

    def __init__(
        self,
        recorder: HelperRecorder,
        crashing_rows: Mapping[tuple[int, ...], Exception],
        chunk_bytes: int,
        run: int,
        send: Send,
    ) -> None:
        self._recorder = recorder
        self._crashing_rows = crashing_rows
        self._known_rows = len(crashing_rows)  # to the trainer
        self._chunk_bytes = chunk_bytes
        self._run = run
        self._send = send
        self.failing: Token = None
        self._batches: list[Element] = []
        self._reports: list[BatchReport] = []
        self._bytes = self._last_bytes = 0
        self._has_large = False  # a batch that needs no copy: it is sent at once
        self._began = 0.0
        self._limit = decide(MESSAGE_BATCHES, 1)  # batches, of the next message

    @property
    def is_empty(self) -> bool:
        return not self._batches

    @property
    def is_full(self) -> bool:
        is_enough = self._bytes + self._last_bytes > self._chunk_bytes  # with another batch of this size
        return len(self._batches) >= self._limit or is_enough or self._has_large

    def begin(self) -> None:
        """Start the clock of the next message."""
        self._began = time.perf_counter()

    def add(self, batch: Element, token: Token) -> None:
        self._batches.append(batch)
        self._reports.append(self._report(token))
        size_bytes = own_bytes(batch, sys.maxsize)
        self._bytes += size_bytes
        self._last_bytes = size_bytes
        self._has_large |= size_bytes >= SHARED_BYTES

    def send_stacked(self, stacked: Element, bounds: list[int] | bytes, tokens: Sequence[Token]) -> None:
        """Send batches that are in one element, at once; there are no others."""
        reports = [self._report(tokens[0])]
        if tokens[0] is not None:
            reports += (NO_REPORT._replace(token=token) for token in tokens[1:])
        self._send(self._run, MessageKind.ITEM, [stacked], reports, bounds)

    def send(self) -> None:
        """Send the collected batches; where one can't be sent, those before it."""
        self._choose_limit()
        batches, reports = self._batches, self._reports
        self.drop()
        try:
            self._send(self._run, MessageKind.ITEM, batches, reports)
        except UsageError as error:
            if len(batches) == 1:
                self.failing = reports[0].token
                refused = str(error).removeprefix(_ONLY_BATCH)
                got = f"that{refused}" if refused.startswith(" ") else f"of which {refused}"
                raise UsageError(
                    f"a batch must be able to leave the helper process of isolated=True; got one {got}"
                ) from error
        else:
            return
        for batch, each in zip(batches, reports, strict=True):
            self._batches, self._reports = [batch], [each]
            self.send()

    def _choose_limit(self) -> None:
        """Choose how many batches the next message may have, by the time and bytes of the last one."""
        count = len(self._batches)
        by_time = MESSAGE_SECONDS * count / max(time.perf_counter() - self._began, 1e-9)
        by_bytes = self._chunk_bytes * count / max(self._bytes, 1)
        most = min(by_bytes, MAX_MESSAGE_BATCHES)
        self._limit = job_size(MESSAGE_BATCHES, by_time, most, to_end=lambda each, _: 1 << each.bit_length() - 1)

    def end(self, error: BaseException) -> None:
        """Send the collected batches, and the end of the run or its failure."""
        kind = MessageKind.END if isinstance(error, EndOfEpoch) else MessageKind.FAILED
        if self._batches:
            with Caught() as caught:
                self.send()
            if caught.error is not None:  # of a batch before the one that failed
                error, kind = caught.taken(), MessageKind.FAILED
        if isinstance(error, OwnerGoneError):
            raise error
        packed = pack_error(error, with_cause=True) if kind is MessageKind.FAILED else None
        self._send(self._run, kind, [], [self._report(self.failing)._replace(error=packed)])

    def _report(self, token: Token) -> BatchReport:
        """Return the report of a batch, or of the end."""
        known = self._known_rows
        found = described_rows(self._crashing_rows, known) if len(self._crashing_rows) > known else ()
        self._known_rows = known + len(found)
        return BatchReport(made_token(token), *self._recorder.taken(), crashing_rows=found)

    def drop(self) -> None:
        """Discard the collected batches."""
        self._batches, self._reports, self._bytes, self._has_large = [], [], 0, False


def inner_plan(plan: Plan) -> Plan:
    """Return the plan that the helper runs.

    A large batch that waits in the pipe is one of those that the scheduler has memory for. Where memory is bounded, all
    batches are copied: one of `prefetch` waits in the pipe, the others in the scheduler, but at least two, since with
    one the workers would wait for each other's last rows, and a job, which may be sent whole, would have half of the
    memory: there is as much outside, and the trainer may hold another job there.
    """
    if plan.place == "inline" or plan.memory is None:
        return replace(plan, isolated=False)
    memory = max(plan.memory // 2, 1)
    return replace(plan, isolated=False, prefetch=max(plan.prefetch - 1, 2), memory=memory)
