"""Failing work: the errors for rows that crash workers, and the warnings and errors for work that takes too long.

An error for a crash names the record, and the ways to continue without it. A *stall* is a long wait of a consumer: it
logs the work that it waits for, and with a timeout it raises an error.

Guarantees for stalls:
  - Nothing polls, and no thread watches: the consumer's own wait ends, at most once for each threshold.
  - One wait logs one warning at most.
  - A stall is measured from the later of two moments: when the consumer began to wait, and when the worker began its
    work. So neither a slow consumer nor a slow batch of quick blocks is a stall.
"""

import logging
import sys
import traceback
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Final, NamedTuple

from penstock._caught import CaughtFailure, waited
from penstock._graph import Integers, Node, describe_record, locate
from penstock._os import Listener
from penstock._plan import Batches, Plan, Shard
from penstock._printable import printable
from penstock._readings import LONG_WAIT_SECONDS, Waits
from penstock._runtime._batches import Unit, row_coordinates, row_origins, rows_of
from penstock._runtime._jobs import Job, Work
from penstock._runtime._policy import STALL_SECONDS
from penstock._streaming import BlockInput
from penstock.errors import WorkerError

_MAX_RECORDS: Final = 4  # of a block, named in a message
_MAX_FRAMES: Final = 5
_MAX_CHARACTERS: Final = 8_000  # of a stack
_PACKAGE: Final = str(Path(__file__).parent.parent / "_")[:-1]
# A documented function, in spite of its name.
_current_frames: Final[Callable[[], dict[int, FrameType]]] = vars(sys)["_current_frames"]
_logger = logging.getLogger("penstock")


def crashing_position_error(block_input: BlockInput, number: int, crash: WorkerError) -> WorkerError:
    """Return the error for an element of a dataset that is read in order, given by its index in the input range."""
    position = int(block_input.input_range.positions(number, number + 1)[0])
    record = describe_record_at(block_input.node, block_input.epoch, position)
    return WorkerError(
        f"position {position} of epoch {block_input.epoch}, {record}, repeatedly crashes "
        f"workers. Filter it out or fix the transform. The last crash: {crash}",
        exit_code=crash.exit_code,
    )


def crashing_batch_error(step: int, crash: WorkerError, row: int | None = None) -> WorkerError:
    """Return the error for a batch of a dataset that is read in order, given by its step.

    Args:
        step: the step of the batch.
        crash: the last crash.
        row: the row that crashed; None where the batch as a whole did.
    """
    if row is not None:
        return WorkerError(
            f"row {row} of step {step} repeatedly crashes workers. Filter it out or fix the transform. The last "
            f"crash: {crash}",
            exit_code=crash.exit_code,
        )
    return WorkerError(
        f"the collate function or batch-level map of step {step} repeatedly crashes workers. Fix it, or leave the "
        f'batch out with on_error="skip" of a step above the batch. The last crash: {crash}',
        exit_code=crash.exit_code,
    )


def describe_record_at(node: Node, epoch: int, position: int) -> str:
    """Describe the record of an element: its key, and its file where the source knows the file."""
    _, component, key = locate(node, epoch, position)
    return _record(node, component, key)


def _record(node: Node, component: str, key: int) -> str:
    record = describe_record(node, component, key)
    return f"{record} of {component!r}" if component else record


def crashing_row_error(program: Batches, shard: Shard, unit: Unit, row: int | None, crash: WorkerError) -> WorkerError:
    """Return the error for a batch.

    Args:
        program: the program of the plan.
        shard: the shard of the plan.
        unit: the step.
        row: the row that crashed; None where the batch as a whole did.
        crash: the last crash.
    """
    if row is None:
        what = f"the collate function or batch-level map of step {unit.step}"
    else:
        (found,) = row_origins(program, rows_of(program, shard, unit), row, row + 1)
        record = _record(program.rows, found.component, found.key)
        what = f"row {row} of step {unit.step}, at epoch {found.epoch}, position {found.position}, {record},"
    return WorkerError(
        f"{what} repeatedly crashes workers. Filter it out, fix the transform, or continue after it with "
        f"loader.seek({unit.step + 1}). The last crash: {crash}",
        exit_code=crash.exit_code,
    )


class Stall(NamedTuple):
    """The work that a consumer waits for.

    Attributes:
        worker: a description of the worker.
        since: when it began this work, by `monotonic`.
        what: returns a description of the work.
        thread: the identifier of its thread; None for a worker process.
        step: the step that it computes; None where that is not known, or it computes several.
    """

    worker: str
    since: float
    what: Callable[[], str]
    thread: int | None = None
    step: int | None = None


class Patience:
    """The thresholds of one wait of a consumer: a warning, and an error.

    Args:
        find: returns the work that the consumer waits for; None where there is none yet.
        timeout: the seconds after which a stall is an error; None for never.
    """

    def __init__(self, find: Callable[[], Stall | None], timeout: float | None) -> None:
        self._find = find
        self._timeout = timeout
        self._has_warned = False
        self._began = monotonic()
        self._ends = self._next_after(self._began)

    def _next_after(self, began: float) -> float | None:
        """Return the time at which a stall that began at `began` reaches its next threshold; None for never."""
        thresholds = [None if self._has_warned else STALL_SECONDS, self._timeout]
        return min((began + each for each in thresholds if each is not None), default=None)

    def seconds_left(self) -> float | None:
        """Return how many seconds to wait before a call of `look`; None for no limit."""
        return None if self._ends is None else max(self._ends - monotonic(), 0.0)

    def look(self) -> None:
        """Log a warning or raise an error, if a threshold is reached.

        Raises:
            WorkerError: the work has taken longer than the timeout.
        """
        now, stall = monotonic(), self._find()
        began = self._began if stall is None else max(self._began, stall.since)
        if stall is not None:
            if self._timeout is not None and now >= began + self._timeout:
                raise _error(stall, self._timeout)
            if not self._has_warned and now >= began + STALL_SECONDS:
                self._has_warned = True
                _warn(stall, now - self._began, now - stall.since, has_timeout=self._timeout is not None)
        ends = self._next_after(began)
        self._ends = None if ends is None else ends if ends > now else self._next_after(now)


def wait_until(
    listener: Listener, is_over: Callable[[], bool], patience: Patience | None = None, waits: Waits | None = None
) -> None:
    """Wait for a listener's bell until a condition holds.

    Args:
        listener: of the thread that waits.
        is_over: the condition; it is looked at as seldom as the bell allows, since a look takes microseconds.
        patience: looks at a wait that takes long; None for nothing.
        waits: notes a long wait.
    """
    began = monotonic()
    while True:
        listener.clear()
        if is_over():
            return
        seconds = None if patience is None else patience.seconds_left()
        before_long = inf if waits is None or waits.long is None else began + LONG_WAIT_SECONDS - monotonic()
        if before_long <= 0 and waits is not None:
            waits.note_long()
        is_first = 0 < before_long < (inf if seconds is None else seconds)
        is_rung = waited(listener.wait, before_long if is_first else seconds)
        if is_over():
            return
        if patience is not None and not is_rung and not is_first:
            patience.look()


def _warn(stall: Stall, waited_seconds: float, busy_seconds: float, *, has_timeout: bool) -> None:
    frame = _frame_of(stall)
    _logger.warning(
        "the loader has waited %.0f s for a batch: %s has been at the same work for %.0f s: %s%s%s",
        waited_seconds,
        stall.worker,
        busy_seconds,
        stall.what(),
        "" if frame is None else f". The thread is in {_place(frame)}",
        "" if frame is None or has_timeout else ". Limits(timeout=...) limits such waits",
    )


def _error(stall: Stall, timeout: float) -> WorkerError:
    frame = _frame_of(stall)
    stack = "" if frame is None else "".join(traceback.format_stack(frame))[-_MAX_CHARACTERS:]
    past = "" if stall.step is None else f", or continue after it with loader.seek({stall.step + 1})"
    return WorkerError(
        f"{stall.worker} was at the same work for longer than timeout={timeout} seconds: {stall.what()}. A thread "
        "can't be killed, so this one computes nothing else until its function returns, and the next call waits for "
        f'the same batch again. Leave the record out, raise timeout, use workers="processes"{past}. It was here:'
        f"\n{stack}"
    )


def _frame_of(stall: Stall) -> FrameType | None:
    return None if stall.thread is None else _current_frames().get(stall.thread)


def _place(frame: FrameType) -> str:
    """Describe the position of a thread: its functions from the one that Penstock calls to the innermost."""
    lines = [_line(frame)]
    outer = frame.f_back
    while outer is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame, outer = outer, outer.f_back
        lines.append(_line(frame))
    lines = lines if len(lines) == 1 else lines[-2::-1]
    if len(lines) > _MAX_FRAMES:
        lines[1 : 1 - _MAX_FRAMES] = ["…"]
    return printable(" > ".join(lines))


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"


def describe_block(job: Job[Work], block: int) -> str:
    """Describe the rows of a block, or the steps that are merged.

    Args:
        job: the job of the block.
        block: the number of the block; the merge is the block after all blocks of rows.
    """
    step, rows = job.extent(block)
    if block >= job.blocks:
        last = None if step is None else step + job.steps - 1
        return "a merge" if last is None else f"the merge of {_counted('step', step or 0, last)}"
    known = "some rows" if step is None or rows is None else f"{_counted('row', *rows)} of step {step}"
    records = ""
    with CaughtFailure():  # a sampler or a source of the user may raise
        records = _records(job, block)
    return f"{known}{records}"


def _records(job: Job[Work], block: int) -> str:
    at = job.coordinates(block)
    if at is None:
        return ""
    return f", {_records_at(at.node, at.epochs, at.positions)}"


def _records_at(node: Node, epochs: Integers, positions: Integers) -> str:
    at = list(zip(epochs.tolist(), positions.tolist(), strict=True))
    named = [describe_record_at(node, *each) for each in at[:_MAX_RECORDS]]
    more = f" and {len(at) - _MAX_RECORDS} more" if len(at) > _MAX_RECORDS else ""
    return f"epoch {at[0][0]}, {_counted('position', at[0][1], at[-1][1])}: {', '.join(named)}{more}"


def describe_step(plan: Plan, unit: Unit) -> str:
    """Describe the records of a step's batch, or, where only reading shows them, where it begins."""
    if plan.is_indexed:
        rows = rows_of(plan.batches, plan.shard, unit)
        with CaughtFailure():  # a sampler or a source of the user may raise
            return _records_at(plan.batches.rows, *row_coordinates([(rows, 0, rows.data)]))
    return f"epoch {unit.epoch}, from position {unit.position} on"


def _counted(noun: str, first: int, last: int) -> str:
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
