"""Stalls: a consumer that has waited for long logs which work it waits for; with a timeout it raises an error.

Guarantees:
  - Nothing polls, and no thread watches: the consumer's own wait ends, at most once for each threshold.
  - One wait logs one warning at most.
  - A stall is measured from the later of two moments: when the consumer began to wait, and when the worker began its
    work. So neither a slow consumer nor a slow batch of quick blocks is a stall.
"""

import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Final, NamedTuple

from penstock._caught import Caught
from penstock._runtime._crashing_rows import describe_record
from penstock._runtime._jobs import BatchJob, Job
from penstock._runtime._span_job import SpanJob
from penstock.errors import WorkerError

STALL_SECONDS = 10.0
"""How long a consumer waits before it logs a warning."""

_MAX_RECORDS: Final = 4  # of a block, that a message names
_MAX_FRAMES: Final = 5
_MAX_CHARACTERS: Final = 8_000  # of a stack
_PACKAGE: Final = str(Path(__file__).parent.parent / "_")[:-1]
_current_frames: Final[Callable[[], dict[int, FrameType]]] = vars(sys)["_current_frames"]  # public, but for its name
_logger = logging.getLogger("penstock")


class Stall(NamedTuple):
    """The work that a consumer waits for.

    Attributes:
        worker: the worker, in words.
        since: when it began this work, by `monotonic`.
        what: describes the work.
        thread: the identifier of its thread; None for another process's.
        step: the number of the first step that is computed, where it is known.
    """

    worker: str
    since: float
    what: Callable[[], str]
    thread: int | None = None
    step: int | None = None


class Patience:
    """How long one wait of a consumer may last.

    Args:
        find: returns the work that the consumer waits for; None where there is none yet.
        timeout: after how many seconds that is an error; None for never.
    """

    def __init__(self, find: Callable[[], Stall | None], timeout: float | None) -> None:
        self._find = find
        self._timeout = timeout
        self._has_warned = False
        self._began = monotonic()
        self._ends = self._next_after(self._began)

    def _next_after(self, began: float) -> float | None:
        """Return when the next threshold of a stall that began then is reached."""
        thresholds = [None if self._has_warned else STALL_SECONDS, self._timeout]
        return min((began + each for each in thresholds if each is not None), default=None)

    def seconds_left(self) -> float | None:
        """Return how long to wait before `look` is to be called; None for ever."""
        return None if self._ends is None else max(self._ends - monotonic(), 0.0)

    def look(self) -> None:
        """Log a warning or raise, if it is time to.

        Raises:
            WorkerError: the work takes longer than the timeout.
        """
        now, stall = monotonic(), self._find()
        began = self._began if stall is None else max(self._began, stall.since)
        if stall is not None:
            if self._timeout is not None and now >= began + self._timeout:
                raise _error(stall, self._timeout)
            if not self._has_warned and now >= began + STALL_SECONDS:
                self._has_warned = True
                _warn(stall, now - self._began, now - stall.since)
        ends = self._next_after(began)
        self._ends = None if ends is None else ends if ends > now else self._next_after(now)


def _warn(stall: Stall, waited_seconds: float, busy_seconds: float) -> None:
    frame = _frame_of(stall)
    _logger.warning(
        "the loader has waited %.0f s for a batch: %s has been at the same work for %.0f s: %s%s",
        waited_seconds,
        stall.worker,
        busy_seconds,
        stall.what(),
        "" if frame is None else f". The thread is in {_place(frame)}",
    )


def _error(stall: Stall, timeout: float) -> WorkerError:
    frame = _frame_of(stall)
    stack = "" if frame is None else "".join(traceback.format_stack(frame))[-_MAX_CHARACTERS:]
    past = "" if stall.step is None else f", or go past it with loader.seek({stall.step + 1})"
    return WorkerError(
        f"{stall.worker} was at the same work for longer than timeout={timeout} seconds: {stall.what()}. A thread "
        "can't be killed, so this one computes nothing else until its function returns, and the next call waits for "
        f'the same batch again. Leave the record out, raise timeout, use workers="processes"{past}. It was here:'
        f"\n{stack}"
    )


def _frame_of(stall: Stall) -> FrameType | None:
    return None if stall.thread is None else _current_frames().get(stall.thread)


def _place(frame: FrameType) -> str:
    """Return where a thread is: the innermost functions, up to the one that Penstock calls, which comes first."""
    lines = [_line(frame)]
    outer = frame.f_back
    while outer is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame, outer = outer, outer.f_back
        lines.append(_line(frame))
    lines = lines if len(lines) == 1 else lines[-2::-1]
    if len(lines) > _MAX_FRAMES:
        lines[1 : 1 - _MAX_FRAMES] = ["…"]
    return " > ".join(lines)


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"


def describe_block(job: Job, block: int) -> str:
    """Return which rows a block has, or which steps are merged, in words.

    Args:
        job: of a scheduler.
        block: its number; that of the merge is behind those of all blocks of rows.
    """
    step, rows = job.extent(block)
    if block >= job.blocks:
        last = None if step is None else step + max(job.steps, 1) - 1
        return "a merge" if last is None else f"the merge of {_counted('step', step or 0, last)}"
    known = "some rows" if step is None or rows is None else f"{_counted('row', *rows)} of step {step}"
    records = ""
    with Caught(Exception):  # of a sampler or a source of the user's
        records = _records(job, block)
    return f"{known}{records}"


def _records(job: Job, block: int) -> str:
    if not isinstance(job, BatchJob | SpanJob):
        return ""
    node, epochs, positions = job.places(block)
    at = list(zip(epochs.tolist(), positions.tolist(), strict=True))
    named = [describe_record(node, *each) for each in at[:_MAX_RECORDS]]
    more = f" and {len(at) - _MAX_RECORDS} more" if len(at) > _MAX_RECORDS else ""
    return f", epoch {at[0][0]}, {_counted('position', at[0][1], at[-1][1])}: {', '.join(named)}{more}"


def _counted(noun: str, first: int, last: int) -> str:
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
