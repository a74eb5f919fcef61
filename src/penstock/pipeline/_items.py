"""Items that don't reach the next stage: skipped by a function (SKIP), or dropped because a stage failed on them.

The problem: one broken image in a million should not end a training run, but a bug that fails on every item should, and
at once. So the user sets a limit, a number or a share of the items (`max_failures`), for the whole pipeline or for one
stage. A `FailureLimit` counts against it. Each failure becomes either a `DroppedItem`, or the `PipelineFailure` that
ends the pipeline; so no item disappears without being listed.

A share means nothing for the first few items: one failure among the first three would be 33 %. So it is checked from
the 100th item on, whenever an item fails, and once more at the end, where a short run is judged by all its items. If
several stages share a limit, the outlet checks it at the end, when all of them have ended.

Some errors end the pipeline whatever the limit is: a `FatalError` (a broken executor, a router that returns a path that
doesn't exist), since every further item would fail, too; and a BaseException that is no Exception, which is the user's
request to stop.

A listed failure keeps its exception, but not the exception's frames: a traceback refers to frames, frames refer to
their locals, and a thousand dropped items would keep a thousand decoded images alive. The text of the traceback is kept
as a note. Clearing the frames instead (`traceback.clear_frames`) was rejected: a frame that still runs can't be
cleared, and clearing closes a suspended coroutine that passed the exception on and still has work to do.

The traceback of a failure that ends a pass begins with the user's code: the pipeline's frames before it are released
(`without_own_frames`). They hold items, and some of them the exception, a reference cycle that would keep the items of
the pass alive until Python's collector runs. The frame of a user's function still refers to the frames that called it,
so these are cleared once they have ended (`clear_callers`).

Failures are counted and listed on the event loop's thread.
"""

import reprlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from fractions import Fraction
from types import FrameType
from typing import Final, TypeVar, cast

from penstock._caught import Caught, CaughtFailure, raised_by_handler
from penstock._frozen import frozen
from penstock._processes import error_text
from penstock._tree import flatten
from penstock.errors import PipelineFailure
from penstock.pipeline._tuning import MAX_LISTED, MIN_RATE_ITEMS

_NOTE: Final = "Traceback of the dropped item, whose frames were released:"
_PLAIN: Final = frozenset({int, float, bool, complex, str, bytes, bytearray, type(None)})

Error = TypeVar("Error", bound=BaseException)


class Skip(Enum):
    """The type of SKIP. None is an item like any other, so skipping needs a value of its own."""

    SKIP = "SKIP"

    def __repr__(self) -> str:
        return "penstock.pipeline.SKIP"


SKIP: Final = Skip.SKIP
"""The value that a stage's function returns to skip its item.

Example:
    >>> from penstock.pipeline import SKIP, PipelineBuilder
    >>> def odd(number):
    ...     return number if number % 2 else SKIP
    >>> with PipelineBuilder().add_source(range(6)).pipe(odd).add_sink().build(num_threads=1).auto_stop() as pipeline:
    ...     print(list(pipeline))
    [1, 3, 5]
"""


@frozen(eq=False)
class DroppedItem:
    """An item that a stage failed on, and that the pipeline dropped because `max_failures` allows it.

    Attributes:
        stage: the name of the stage.
        item: the stage's input, as a shortened `repr`.
        error: the exception that the stage raised. A note holds its traceback as text; the traceback itself is
            released, since its frames would keep the item and everything made from it alive.

    Example:
        >>> from penstock.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source([1, 0, 2]).pipe(lambda number: 2 // number, name="divide").add_sink()
        >>> with builder.build(num_threads=1, max_failures=1).auto_stop() as pipeline:
        ...     print(list(pipeline))
        ...     for dropped in pipeline.dropped():
        ...         print(dropped.stage, dropped.item, type(dropped.error).__name__)
        [2, 1]
        divide 0 ZeroDivisionError
    """

    stage: str
    item: str
    error: Exception


def size_of(item: object) -> int:
    """Return the size of an item in bytes: `nbytes` of its arrays, `sys.getsizeof` of its other leaves.

    An item that can't be taken apart, such as a list that contains itself, counts as one leaf.
    """
    if type(item) in _PLAIN:
        return sys.getsizeof(item)
    try:
        return sum(map(_leaf_size, flatten(item)[0]))
    except Exception as error:
        if raised_by_handler(error):
            raise
        return _own_size(item)


def _leaf_size(leaf: object) -> int:
    nbytes: object = None
    try:
        nbytes = getattr(leaf, "nbytes", None)
    except Exception as error:  # of a sparse tensor, for instance
        if raised_by_handler(error):
            raise
    return nbytes if isinstance(nbytes, int) else _own_size(leaf)


def _own_size(value: object) -> int:
    with Caught(Exception):
        return sys.getsizeof(value)
    return 0  # its `__sizeof__` raises


class FatalError(Exception):
    """An error that ends the pipeline with its cause, whatever the limit is: the program is at fault, not the item."""


class FailureLimit:
    """Counts the failures of one or more stages, and decides whether an item is dropped or the pipeline ends.

    Attributes:
        items: how many items were tried.
        failures: how many of them failed.
        is_shared: whether it counts for several stages.
    """

    def __init__(
        self, max_failures: int | Fraction, drop: Callable[[DroppedItem], None], *, is_shared: bool = False
    ) -> None:
        """Start with no item tried.

        Args:
            max_failures: how many failures are allowed: a number, -1 for any number, or a share of the items, checked
                from the 100th item on, and at the end.
            drop: called with each item that is dropped.
            is_shared: whether several stages share it, so that the end of one of them is not the end of all.
        """
        self.is_shared = is_shared
        self._max_failures = max_failures
        self._drop = drop
        self.items = 0
        self.failures = 0
        self._last: PipelineFailure | None = None

    @property
    def is_rate(self) -> bool:
        """Whether the limit depends on the number of items."""
        return isinstance(self._max_failures, Fraction)

    def drop_or_raise(self, stage: str, item: object, error: BaseException, *, is_fatal: bool = False) -> None:
        """Drop an item that a stage failed on, or raise the failure that ends the pipeline.

        Raises:
            PipelineFailure: the error exceeds the limit, or is fatal; it is the cause.
        """
        if isinstance(error, FatalError) and error.__cause__ is not None:
            error, is_fatal = error.__cause__, True
        failure = item_failure(stage, item, error)
        self.failures += 1
        if is_fatal or not isinstance(error, Exception) or self._is_exceeded():
            raise failure
        self._last = failure
        self._drop(DroppedItem(stage=stage, item=failure.item, error=error))

    def failure_at_end(self) -> PipelineFailure | None:
        """Return the last failure if the share of failures among all items is too high; None if it isn't."""
        if isinstance(self._max_failures, Fraction) and self._last is not None and self._is_rate_exceeded():
            return self._last
        return None

    def _is_exceeded(self) -> bool:
        if isinstance(self._max_failures, Fraction):
            return self.items >= MIN_RATE_ITEMS and self._is_rate_exceeded()
        return 0 <= self._max_failures < self.failures

    def _is_rate_exceeded(self) -> bool:
        return self.failures > self._max_failures * self.items


class DroppedItems:
    """The first thousand dropped items, with their tracebacks as text."""

    def __init__(self) -> None:
        self.first: list[DroppedItem] = []

    def add(self, dropped: DroppedItem) -> None:
        """List an item, if fewer than a thousand are listed."""
        if len(self.first) < MAX_LISTED:
            _release_frames(dropped.error)
            self.first.append(dropped)


def _release_frames(error: BaseException) -> None:
    """Replace the tracebacks of an exception, its causes and contexts by a note with their text."""
    chain = list(_chain(error))
    notes: object = getattr(error, "__notes__", None)  # a subclass may use the name for anything
    # The same exception may be raised for several items.
    is_new = not isinstance(notes, list) or not any(str(each).startswith(_NOTE) for each in cast("list[object]", notes))
    text = ""
    if is_new and any(each.__traceback__ is not None for each in chain):  # one from another process has none
        _, text = error_text(error)
    for each in chain:
        BaseException.with_traceback(each, None)  # a subclass may refuse to have attributes set
    if text:
        with suppress(Exception):
            error.add_note(f"{_NOTE}\n{text}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the members of groups among them, each once."""
    seen: set[int] = set()
    remaining: list[BaseException | None] = [error]
    while remaining:
        each = remaining.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            remaining += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                remaining += cast("tuple[BaseException, ...]", each.exceptions)


def item_failure(stage: str, item: object, error: BaseException) -> PipelineFailure:
    """Return the failure of a stage on an item, with the user's exception as its cause."""
    text = short_repr(item)
    return _caused(f"stage {stage!r} failed on {text}: {summary_of(error)}", stage, text, error)


def stage_failure(stage: str, error: BaseException) -> PipelineFailure:
    """Return the failure of a stage that had no item: a source, or a stage that can't start."""
    return _caused(f"stage {stage!r} failed: {summary_of(error)}", stage, "", error)


def short_repr(item: object) -> str:
    """Return a short `repr` of an item, even if its own raises."""
    with CaughtFailure():  # a broken repr must not hide the failure that is being reported
        return reprlib.repr(item)
    return f"<{type(item).__name__} whose repr raises>"


def summary_of(error: BaseException) -> str:
    """Return an exception's type and message, even if its `__str__` raises."""
    kind = type(error).__name__
    with CaughtFailure():  # a broken text must not hide the exception
        text = str(error)
        return f"{kind}: {text}" if text else kind
    return f"{kind}, whose __str__ raises"


def without_own_frames(error: Error) -> Error:
    """Return an exception, and release the frames of the pipeline at the beginning of its traceback."""
    trace = error.__traceback__
    while trace is not None and _is_own(trace.tb_frame):
        trace = trace.tb_next
    BaseException.with_traceback(error, trace)  # a subclass may refuse to have attributes set
    return error


def clear_callers(error: BaseException | None) -> None:
    """Clear those of the pipeline's frames that have called the code that raised an exception, and have ended.

    Call it when none of them is a coroutine that waits, since that would be closed. The exception's causes and contexts
    are left alone: one may be an exception that another pipeline's function has caught and kept, while that pipeline's
    coroutines wait.
    """
    trace = None if error is None else error.__traceback__
    frame = None if trace is None else trace.tb_frame
    while frame is not None:
        if _is_own(frame):
            with suppress(RuntimeError):  # it still runs
                frame.clear()
        frame = frame.f_back


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("penstock.pipeline.")


def _caused(message: str, stage: str, item: str, error: BaseException) -> PipelineFailure:
    failure = PipelineFailure(message, stage=stage, item=item)
    failure.__cause__ = without_own_frames(error)
    return failure
