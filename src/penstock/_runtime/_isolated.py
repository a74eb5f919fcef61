"""The trainer's side of an isolated loader: it runs the loader in a helper process, and replaces a helper that dies.

A crash in a decoder, or memory that leaks, must not end the training. So a helper process runs the whole runtime,
workers included, and sends batches with their tokens and events through the tensor pipe. The trainer computes nothing;
it counts what was delivered (`Remaining`), so that another helper can continue there. A thread for each helper waits
for its end and starts a successor at once, before the consumer notices, since starting takes longer than a batch.

A step that crashes every helper must end in an error that names the step. Helpers compute ahead, so a death shows no
step. The third helper in a row that dies before the first remaining batch has computed its first steps alone, one by
one; so the step at which it died is the crashing one. To do that at the first death was rejected: it makes the loader
slow after a death that has nothing to do with the data.

Guarantees:
  - Batches come in order, or as they become ready, each exactly once, whatever happens to helper processes: another
    helper computes the batches that were not delivered. Delivered batches stay valid.
  - `MAX_HELPER_DEATHS` deaths in a row without the first of the remaining batches are a WorkerError. The last of these
    helpers computed that step and nothing beside it. The next call tries again.
  - An error of a function of the dataset comes from the helper, after the batches before it. The next call makes the
    helper compute the batch again: this process computes nothing, so that a function's needs (a connection that
    `worker_init` made, memory, a library) exist in the helper and nowhere else.
  - Events of elements are counted here when the batch that they came with is delivered.
  - `close` returns when the processes have ended and were waited for; one that is inside a function of the dataset is
    killed after a moment. They end with their parent, and print nothing on Ctrl-C.

A supplier belongs to one thread; `Helpers.close` and `HelperSupplier.close` may be called wherever the garbage
collector runs.
"""

import itertools
import logging
import pickle
import sys
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from mmap import PAGESIZE
from threading import get_ident
from typing import TYPE_CHECKING, cast

from penstock._caught import Caught
from penstock._graph import Element, walk
from penstock._memory import Region, create_region
from penstock._os import PROGRAM_ENDS, Bell, DaemonThread, either_of, renewed_after_fork, uninterrupted
from penstock._plan import Plan
from penstock._processes import (
    FUNCTION_SECONDS,
    Begin,
    HelperProcess,
    MessageKind,
    Starting,
    Supervisor,
    is_imported,
    observe_seeds,
    unpack_raised,
)
from penstock._readings import words_for_helper
from penstock._runtime._batches import Remaining, StepRange, Unit
from penstock._runtime._isolated_helper import (
    NO_REPORT,
    BatchReport,
    Message,
    RunSteps,
    Setup,
    Starved,
    described_rows,
    inner_plan,
    note_rows,
    serve,
)
from penstock._runtime._policy import (
    CLOSED_SECONDS,
    COPIED_BYTES,
    HELPER_RESTARTS,
    KEPT_MESSAGES,
    LEFT_SECONDS,
    MAX_HELPER_DEATHS,
    MAX_KEPT,
    STARVED_SECONDS,
    STEPS_SINGLY,
)
from penstock._runtime._recorder import Recorder
from penstock._runtime._runtime import Runtime
from penstock._runtime._sent_batches import from_memory
from penstock._runtime._shared_values import shared
from penstock._runtime._streams import EndOfEpoch, JobStream, Owner, Stream, Supplier
from penstock._runtime._worker_processes import Inherited
from penstock._streaming import Token
from penstock._tree import flatten
from penstock.batching import cut
from penstock.errors import ClosedError, EndOfPipeError, MessageError, PeerError, UsageError, WorkerError
from penstock.events import WorkerDied
from penstock.transport import TensorPipeReader
from penstock.transport._encoding import Unreadable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_logger = logging.getLogger("penstock")


class BatchReader(TensorPipeReader):
    """The reading end of the tensor pipe, whose loader has a warning of its own about kept memory.

    A leaf that can't be rebuilt here doesn't end the helper process: it is the error of its batch.
    """

    _keeps_unreadable = True
    is_bounded = False
    """Whether there is a bound on the bytes that the program keeps. Copies, which nothing counts, would evade it."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` may have become quick."""
        return self._operations.fileno()

    @property
    def was_joined(self) -> bool:
        """Whether the helper has connected."""
        return bool(self._writer_pids)

    @property
    def has_unreadable(self) -> bool:
        """Whether a batch had a leaf that can't be rebuilt in this process."""
        return self._last is not None and self._last.has_unreadable

    @property
    def keeps_referred(self) -> bool:
        """Whether this process may keep memory that the helper's workers compute in."""
        return self._last is not None and not self._last.ended and self._last.keeps_referred

    @property
    def kept(self) -> int:
        """The number of messages whose memory this process keeps, without those on their way."""
        last = self._last
        return 0 if last is None or last.ended else last.held - last.capacity

    def _warn_about_kept_elements(self) -> None:
        pass

    def _max_kept(self) -> int:
        return sys.maxsize if self.is_bounded else MAX_KEPT


class LoaderHelper(HelperProcess[BatchReader]):
    """One helper of a loader, from its start to the end of everything that belongs to it.

    Attributes:
        replaced: rung when the process has died, and `death` and `successor` are set.
        death: why it died; an OSError if this program may open no more files, so it couldn't hold the process.
        successor: the helper that was started in its place, if a run had begun in it.
        has_begun: whether a run had.
        is_hopeless: whether it failed by itself before it had started; then no successor is started, which would fail
            like it.
        receiving: the thread that is receiving; 0 for none.
        unclaimed: messages of a run that began while its predecessor's stream was receiving, in the same thread.
    """

    def __init__(self, supervisor: Supervisor, setup: Setup, regions: tuple[Region, Region], *, copy: bool) -> None:
        self.replaced = Bell()
        self.death: WorkerError | OSError | None = None
        self.successor: LoaderHelper | None = None
        self.has_begun = self.is_hopeless = False
        self.watch: DaemonThread | None = None
        self.receiving = 0
        self.unclaimed: deque[object] = deque()
        self._starved_at = -1  # messages
        self._ending = threading.RLock()
        reader = BatchReader(allow_pickle=True, copy=copy)
        reader.is_bounded = setup.max_bytes is not None
        setup = setup._replace(address=reader.address)
        inherited = Inherited(tuple(region.descriptor for region in regions))
        super().__init__(supervisor, "helper process", (setup, inherited), reader)

    def send(self, command: object) -> None:
        """Send a command; if the helper has died, the consumer gets an error from the reader."""
        with suppress(OSError):
            super().send(command)

    def starve(self) -> None:
        """Report, once for each message, that the consumer waits for it and keeps memory of some before it."""
        if self._starved_at != self.reader.messages:
            self._starved_at = self.reader.messages
            self.send(Starved(self._starved_at))

    def wait_unread(self) -> None:
        """Wait until no other thread receives: the stream of that thread was closed, and it would take what comes next.

        A signal's handler may be called while this thread itself receives.
        """
        while self.receiving not in {0, get_ident()} and not self.replaced.wait(LEFT_SECONDS):
            pass

    def end(self) -> None:
        """End the process, if it runs, and close what belongs to it; may be called again, and anywhere."""
        self.reader.close()  # before the lock: ends the wait of the consumer, and of the helper for room
        with self._ending:
            self.stop(FUNCTION_SECONDS)
            if self.watch is not None and not self.watch.is_current:
                self.watch.wait(None)
            self._supervisor.release(self.child)


class Helpers:
    """Owns the helper process, and its successors. Serves one stream at a time; outlives it.

    Args:
        plan: the plan of the loader.
        recorder: counts deaths; new helpers continue from its events.
        crashing_rows: the rows that are known to crash processes; new ones are added.
        times: the memory in which helpers write the times of steps.

    Attributes:
        bytes_in_flight: in the helper's and the shared memory, as last reported.
        is_closed: whether this was closed, or left to a fork; a lost process alone doesn't close it.
    """

    def __init__(
        self, plan: Plan, recorder: Recorder, crashing_rows: dict[tuple[int, ...], Exception], times: Region
    ) -> None:
        self.recorder = recorder
        self.crashing_rows = crashing_rows
        self.bytes_in_flight = 0
        self.has_warned_of_kept = False
        inner = inner_plan(plan)
        seeds = observe_seeds().child(plan.shard.rank, plan.shard.count)  # ranks are often seeded alike
        starting = Starting(plan.limits.start_method, imports_main=is_imported())
        self._supervisor = Supervisor(
            serve, lambda _number, started: seeds.child(started), policy=HELPER_RESTARTS, starting=starting
        )
        self._make = partial(
            LoaderHelper,
            self._supervisor,
            Setup("", plan.prefetch if plan.place == "inline" else 1, _max_shared_bytes(plan, inner)),
            (shared(inner, asked="isolated=True"), times),
            copy=plan.copy,
        )
        self._lock = threading.RLock()  # over the two below; the collector may close this wherever it is held
        self._processes: list[LoaderHelper] = []  # all that have not been ended
        self._current: LoaderHelper | None = None
        self._sending = threading.Lock()
        self._runs = 0
        self.is_closed = False
        self._closed_text = "the loader was closed"
        renewed_after_fork(self)
        self._supervisor.end_with_program(self._end_with_program)

    @property
    def is_owned_here(self) -> bool:
        """Whether the helpers are this process's, and it is no fork of the one that started them."""
        return self._supervisor.is_owned_here

    def renew_after_fork(self) -> None:
        """Leave the helpers to the parent."""
        self.is_closed = True

    def check(self) -> None:
        """Raise if this was closed, or the helpers belong to the process that this one was forked from."""
        if not self.is_owned_here:
            raise ClosedError("this loader was started before a fork and can't be used in the child; make a new one")
        if self.is_closed:
            raise ClosedError(self._closed_text)

    @uninterrupted
    def begin(self, step_ranges: list[StepRange], *, steps_singly: int) -> tuple[LoaderHelper, int]:
        """Begin a run, its first steps one by one, in the current process or in a new one; return its number."""
        self.check()
        with self._sending:
            process = self._running()
            process.wait_unread()
            self._runs += 1
            process.has_begun = True
            known = described_rows(self.crashing_rows)
            process.send(Begin(self._runs, RunSteps(step_ranges, steps_singly, self.recorder.remembered(), known)))
            return process, self._runs

    def cancel(self, process: LoaderHelper, run: int) -> None:
        """End a run; may be called anywhere."""
        # A thread that finds this locked is inside `begin`, which gives up the run before.
        if self.is_owned_here and self._sending.acquire(blocking=False):
            try:
                if run == self._runs and not self.is_closed:
                    self._runs += 1
                    process.send(Begin(self._runs, RunSteps([])))
            finally:
                self._sending.release()

    def reap(self, process: LoaderHelper) -> WorkerError | OSError:
        """Wait until a dead process was replaced, and return why it died."""
        process.child.kill()  # its connection is lost, even if it still runs
        process.replaced.wait()
        self._succeed(process)
        death, process.death = process.death, None  # once raised, it would keep what keeps it
        if death is None:
            raise ClosedError(self._closed_text)
        return death

    @uninterrupted
    def _succeed(self, process: LoaderHelper) -> None:
        with self._lock:
            if self._current is process:
                self._current = process.successor
            self._end(process)

    def _end_with_program(self) -> None:
        self._closed_text = PROGRAM_ENDS
        self.close()

    def close(self) -> None:
        """End the processes."""
        if not self.is_owned_here:
            return
        with self._lock:
            self.is_closed = True
            self._supervisor.refuse()
            self._current = None
            processes = list(self._processes)
        for process in processes:
            self._end(process)
        self._supervisor.close()

    def _end(self, process: LoaderHelper) -> None:
        process.end()
        with self._lock:
            if process in self._processes:
                self._processes.remove(process)

    def _running(self) -> LoaderHelper:
        with self._lock:
            self.check()
            if self._current is None:
                self._current = self._start()
            return self._current

    def _start(self) -> LoaderHelper:
        process = self._make()
        with self._lock:
            closed = self.is_closed
            if not closed:
                self._processes.append(process)
                self._begin_watch(process)
        if closed:
            process.end()
        return process

    def _begin_watch(self, process: LoaderHelper) -> None:
        try:
            process.watch = DaemonThread(partial(self._watch, process), "penstock-helper")
        except BaseException:
            self._end(process)
            raise

    # -- in a thread for each process

    def _watch(self, process: LoaderHelper) -> None:
        try:
            process.child.wait_for_end()
        except OSError as error:
            process.death = error.with_traceback(None)
        with self._lock:
            closed = self.is_closed
        try:
            if not closed:
                self._replace(process)
        finally:  # also of an error in a filter of the log: the consumer would wait for ever
            process.replaced.ring()

    def _replace(self, process: LoaderHelper) -> None:
        """Find out why a process died, and start its successor."""
        if not process.reader.was_joined:
            process.reader.close()  # otherwise a consumer that waits for a batch would hang
        if process.death is not None:
            return
        death, may_restart = self._supervisor.reap(process.child, started=process.has_started())
        process.death = death
        process.is_hopeless = not may_restart
        if process.is_hopeless:
            return
        self.recorder.observe(WorkerDied(None, process.child.pid, death.exit_code, str(death), None, None))
        _logger.warning("%s; another one takes its place", death)
        if process.has_begun:  # otherwise helpers that die at once would be restarted forever
            with Caught():  # if this fails, the next run starts a helper
                process.successor = self._start()


class IsolatedRuntime(Runtime):
    """A runtime whose batches a helper process computes; single steps, requested by number, it computes itself."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._helper: Helpers | None = None  # made when the first stream is opened
        self._times: Region | None = None

    def open_stream(self, step_ranges: list[StepRange], *, ahead: int = 0) -> Stream:
        self.recorder.start_epoch()
        if self._helper is None:
            self._helper = Helpers(self._plan, self.recorder, self.crashing_rows, self._times_memory())
            self._check_open()
        self.readings.waits.begin("helper")
        stream = JobStream(HelperSupplier(self._helper, self._plan, step_ranges, ahead))
        stream.waits = self.readings.waits
        return stream

    def _times_memory(self) -> Region:
        """Return memory in which helpers write the times of steps, for the readings."""
        if self._times is None:
            workers = self._plan.num_workers
            self._times = create_region(8 * words_for_helper(self.readings.numbers, workers))
            self.readings.read_helper(cast("memoryview", self._times), workers)
        return self._times

    def bytes_in_flight(self) -> int:
        return 0 if self._helper is None else self._helper.bytes_in_flight

    def close(self) -> None:
        self._is_closed = True
        if self._helper is not None:
            self._helper.close()
        super().close()


class Received:
    """The batches of a message with their reports; the last one of a run has an error, or the end, in place of a batch.

    Attributes:
        steps: the number of batches, the error included.
        batches: the batches.
        reports: their reports, and that of the error.
        error: the error, or EndOfEpoch; None for neither.
    """

    def __init__(self, batches: list[Element], reports: Sequence[BatchReport], error: BaseException | None) -> None:
        self.steps = len(batches) + (error is not None)
        self.batches = batches
        self.reports = [*reports, *itertools.repeat(NO_REPORT, self.steps - len(reports))]
        self.error = error


class ReceivedSupplier(Supplier[Received]):
    """Batches that another process computes, with its runtime; they arrive several at a time.

    Args:
        owner: the owner of the process.
        recorder: gets the events that arrive with the batches.
        plan: the plan of the loader.
        step_ranges: the steps.
    """

    def __init__(self, owner: Owner, recorder: Recorder, plan: Plan, step_ranges: list[StepRange]) -> None:
        super().__init__(owner)
        self._recorder = recorder
        self._nodes = list(walk(plan.node))
        self._remaining = Remaining(step_ranges)
        self._failing: Unit | None = None
        self._deaths = 0  # in a row

    def results(self, job: Received) -> list[Element]:
        batches, job.batches = job.batches, []
        return batches

    def delivered(self, job: Received, index: int, batch: Element) -> Token:
        del batch
        report = job.reports[index]
        if report is not NO_REPORT:
            self._count(report)
        # A later batch wouldn't show that the first one crashes no process.
        if self._remaining.remove_delivered(report.token):
            self._deaths = 0
        return report.token

    def error(self, job: Received) -> BaseException | None:
        error, job.error = job.error, None
        self._count(job.reports[-1])
        if not isinstance(error, EndOfEpoch):
            self._failing = self._remaining.unit_of(job.reports[-1].token)
        return error

    def failing(self, job: Received | None, index: int) -> Unit | None:
        del job, index
        return self._failing

    def _count(self, report: BatchReport) -> None:
        for event in report.events:
            self._recorder.observe(event)
        for number, kept, dropped in report.filtered:
            self._recorder.count_filtered(self._nodes[number], kept, dropped)


class HelperSupplier(ReceivedSupplier):
    """Messages of batches that a helper process computes. It opens itself.

    Args:
        helpers: owns the helper process, and its successors.
        plan: the plan of the loader.
        step_ranges: the steps.
        ahead: how many batches the caller takes before it delivers them.
    """

    def __init__(self, helpers: Helpers, plan: Plan, step_ranges: list[StepRange], ahead: int) -> None:
        super().__init__(helpers, helpers.recorder, plan, step_ranges)
        self._helpers = helpers
        self._memory = plan.memory
        self._usually_kept = KEPT_MESSAGES + ahead  # messages
        self._arrived: Received | None = None  # a message that `is_ready` has received
        self._lost = False  # whether the process has died
        self._closed = False
        self._is_running = False  # whether the run has not ended
        self._run = 0
        self._process: LoaderHelper | None = None  # in which the run was begun
        self._closing = Bell()  # rung by `close`
        self._either = either_of(self._closing)  # the last descriptor that a caller waits for
        self._begin()

    def open(self) -> "HelperSupplier":
        self._closed = False  # after an error the next request begins another run
        self._closing.clear()
        return self

    def next_job(self) -> Received | None:
        """Wait for the next message, and return it; None once closed."""
        self._helpers.check()
        arrived, self._arrived = self._arrived, None
        return arrived or self._receive(None)

    def next_job_nowait(self) -> Received | None:
        """Return the next message, if it has arrived."""
        arrived, self._arrived = self._arrived, None
        return arrived or self._receive(0.0, awaited=False)

    def is_ready(self) -> bool:
        """Return whether a message has arrived, or none will."""
        self._arrived = self._arrived or self._receive(0.0)
        return self._arrived is not None or self._closed

    def close(self) -> None:
        """End the run."""
        self._closed = True
        if self._helpers.is_owned_here:  # a fork has the parent's bell, which would wake a task there again and again
            self._closing.ring()
        self._arrived, process = None, self._process
        if self._is_running and process is not None:
            self._helpers.cancel(process, self._run)

    def error(self, job: Received) -> BaseException | None:
        error = super().error(job)
        if not isinstance(error, EndOfEpoch):
            self._process = None
        return error

    def fileno(self) -> int | None:
        process = self._process
        if process is None:
            return None
        # An event loop doesn't notice that a descriptor is closed, as that of the reader may be at any moment.
        self._either = either_of(self._closing, process.replaced, *(() if self._lost else (process.reader,)))
        return self._either.fileno()

    def _begin(self) -> LoaderHelper:
        """Begin a run of the batches that were not delivered."""
        steps_singly = STEPS_SINGLY if self._deaths == MAX_HELPER_DEATHS - 1 else 0
        process, self._run = self._helpers.begin(self._remaining.step_ranges(), steps_singly=steps_singly)
        self._process, self._failing, self._is_running = process, None, True
        return process

    def _receive(self, timeout_seconds: float | None, *, awaited: bool = True) -> Received | None:
        """Return the next message; None where none arrived in time, and once closed."""
        while not self._closed:
            process = self._process or self._begin()
            if self._lost:
                if timeout_seconds is not None and not process.replaced.wait(0.0):
                    return None
                self._reap(process)
                continue
            self._warn_of_kept(process)
            try:
                message = self._message(process, timeout_seconds, awaited=awaited)
                arrived = None if message is None else self._accepted(process, message)
                if arrived is not None or (message is None and timeout_seconds is not None):
                    return arrived
            except (PeerError, EndOfPipeError):
                self._lost = True
            except ClosedError:  # of the reader: the loader was closed, or the helper never connected
                self._helpers.check()
                self._lost = True
            except UsageError:
                raise UsageError(self._starved_text()) from None
        return None

    def _message(self, process: LoaderHelper, timeout_seconds: float | None, *, awaited: bool) -> object:
        """Return the next message; None if there was none for so many seconds, or for a while if that is None."""
        if process.unclaimed:
            return process.unclaimed.popleft()
        outer = process.receiving  # this thread, inside a signal's handler; else 0
        process.receiving = get_ident()
        try:
            # `close`, and then `wait_unread`, look in the opposite order, so one of the two threads notices the other.
            return None if self._closed else self._received(process, timeout_seconds, awaited=awaited)
        finally:
            process.receiving = outer

    def _received(self, process: LoaderHelper, timeout_seconds: float | None, *, awaited: bool) -> object:
        if awaited and process.reader.keeps_referred:  # it may keep all memory; that is rare, so wait a moment first
            patience = STARVED_SECONDS if timeout_seconds is None else 0.0
            with Caught(TimeoutError):
                return process.reader.receive(timeout_seconds=patience)
            process.starve()
        with Caught(TimeoutError):
            # The helper doesn't answer if another thread has closed this: it may be inside a function of the dataset.
            seconds = CLOSED_SECONDS if timeout_seconds is None else timeout_seconds
            return process.reader.receive(timeout_seconds=seconds)
        return None

    def _reap(self, process: LoaderHelper) -> None:
        death = self._helpers.reap(process)
        self._process, self._lost = None, False
        if not isinstance(death, OSError):
            self._deaths += 1
        if process.is_hopeless or isinstance(death, OSError):
            try:
                raise death
            finally:
                del death  # otherwise its traceback would keep it and this
        if self._deaths >= MAX_HELPER_DEATHS:
            self._deaths = MAX_HELPER_DEATHS - 1  # the next call tries once more
            raise WorkerError(
                "helper processes of isolated=True die while they make the batch of step "
                f"{self._remaining.step_ranges()[0].first.step}; the last: {death}",
                exit_code=death.exit_code,
            )

    def _accepted(self, process: LoaderHelper, message: object) -> Received | None:
        """Return the batches of a message; None for one of another run."""
        run, status, batches, packed, in_flight, bounds = cast("Message", message)
        self._helpers.bytes_in_flight = in_flight
        if run > self._run:
            process.unclaimed.append(message)
        if run != self._run:
            return None
        reports: tuple[BatchReport, ...] = pickle.loads(packed) if packed else ()
        if bounds is not None:
            batches = _divided(batches[0], bounds)
        elif process.reader.has_unreadable:
            for index, batch in enumerate(batches):
                if (error := _unreadable(batch)) is not None:
                    return Received(batches[:index], _with_token(reports, index), error)
        if status == MessageKind.ITEM:
            return Received(batches, reports, None)
        self._is_running = False
        packed_error = reports[0].error if reports else None
        return Received(batches, reports, EndOfEpoch() if packed_error is None else unpack_raised(packed_error))

    def _count(self, report: BatchReport) -> None:
        super()._count(report)
        note_rows(self._helpers.crashing_rows, report.crashing_rows)

    def _warn_of_kept(self, process: LoaderHelper) -> None:
        kept = process.reader.kept
        if kept > self._usually_kept and not self._helpers.has_warned_of_kept:
            self._helpers.has_warned_of_kept = True
            warnings.warn(
                f"{kept} batches are kept by the training loop, so the loader takes more memory for others. Keep "
                "fewer, or use copy=True, which delivers copies.",
                stacklevel=8,
            )

    def _starved_text(self) -> str:
        return (
            f"memory={self._memory} is too small: the batches that you still reference use all of it that is for "
            "batches outside of the helper process of isolated=True. Raise memory=, keep fewer batches, or use "
            "copy=True, which delivers copies."
        )


def _divided(element: Element, bounds: "NDArray[np.int64] | bytes") -> list[Element]:
    """Return the batches that are in one element of a message."""
    if isinstance(bounds, bytes):
        return from_memory(element, bounds, COPIED_BYTES)
    columns, structure = flatten(element)
    return cut(structure, columns, bounds.tolist(), COPIED_BYTES)


def _max_shared_bytes(plan: Plan, inner: Plan) -> int | None:
    """Return the bound of the memory that is shared, in whole pages, since the arena would round it up to these."""
    if plan.memory is None:
        return None
    given = plan.memory - (inner.memory or 0) * (plan.num_workers > 0)
    return max(given // PAGESIZE, 1) * PAGESIZE


def _unreadable(batch: Element) -> MessageError | None:
    """Return the error of a batch with a leaf that can't be rebuilt in this process; None for any other batch."""
    return next((leaf.error for leaf in flatten(batch)[0] if isinstance(leaf, Unreadable)), None)


def _with_token(reports: Sequence[BatchReport], index: int) -> list[BatchReport]:
    """Return the reports of the batches before the one at `index`, and one with its token."""
    token = reports[index].token if index < len(reports) else None
    return [*reports[:index], *itertools.repeat(NO_REPORT, index - len(reports)), NO_REPORT._replace(token=token)]
