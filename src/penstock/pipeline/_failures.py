"""What becomes of an item that a stage failed on: it ends the pipeline, or is dropped where that is allowed."""

import reprlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Final, cast

from penstock._processes._exceptions import error_text
from penstock.errors import PipelineFailure
from penstock.pipeline._items import DroppedItem

_MAX_LISTED: Final = 1_000
_PROBATION_ITEMS: Final = 100  # a rate means nothing before
_NOTE: Final = "Raised here, of which the frames were released:"


class FatalError(Exception):
    """Ends the pipeline with its cause, however many items may be dropped: the program is at fault, not the item."""


class Tolerance:
    """Counts the failures of one or more stages against what is allowed.

    Attributes:
        items: how many items were tried.
        failures: how many of them failed.
        is_shared: whether it counts for several stages.
    """

    def __init__(
        self, max_failures: int | Fraction, drop: Callable[[DroppedItem], None], *, is_shared: bool = False
    ) -> None:
        """Begin with nothing tried.

        Args:
            max_failures: how many failures are allowed: a number, -1 for any number, or a share of the items, which is
                looked at from the 100th item on, and at the end.
            drop: told of each failure that is allowed.
            is_shared: whether it is that of several stages, so that none of them can tell when all is over.
        """
        self.is_shared = is_shared
        self._most = max_failures
        self._drop = drop
        self.items = 0
        self.failures = 0
        self._last: PipelineFailure | None = None

    @property
    def is_rate(self) -> bool:
        """Whether the number of items matters."""
        return isinstance(self._most, Fraction)

    def judge(self, stage: str, item: object, error: BaseException, *, fatal: bool = False) -> None:
        """Drop an item, or raise the failure that ends the pipeline; a fatal one is never allowed.

        Raises:
            PipelineFailure: the error is one too many, or one that can't be allowed; it is the cause.
        """
        if isinstance(error, FatalError) and error.__cause__ is not None:
            error, fatal = error.__cause__, True
        failure = failure_of(stage, item, error)
        self.failures += 1
        if fatal or not isinstance(error, Exception) or self._is_too_many():
            raise failure
        self._last = failure
        self._drop(DroppedItem(stage=stage, item=failure.item, error=error))

    def verdict(self) -> PipelineFailure | None:
        """Return the last failure if, at the end of everything, the rate of failures is too high; else None."""
        if isinstance(self._most, Fraction) and self._last is not None and self.failures > self._most * self.items:
            return self._last
        return None

    def _is_too_many(self) -> bool:
        if isinstance(self._most, Fraction):
            return self.items >= _PROBATION_ITEMS and self.failures > self._most * self.items
        return 0 <= self._most < self.failures


class Dropped:
    """Lists what was dropped: the first thousand, with their tracebacks as text, and the number of all."""

    def __init__(self) -> None:
        self.count: int = 0
        self.first: list[DroppedItem] = []

    def add(self, dropped: DroppedItem) -> None:
        """Count one more."""
        self.count += 1
        if len(self.first) < _MAX_LISTED:
            _release_frames(dropped.error)
            self.first.append(dropped)


def _release_frames(error: BaseException) -> None:
    """Replace the tracebacks of an exception and of those it came from by a note with their text.

    A traceback keeps frames, and these keep their locals and those of their callers: items, images, batches. Clearing
    the frames would not do: a caller that still runs can't be cleared, and a coroutine that handed the exception on and
    waits for more would be closed.
    """
    chain = list(_chain(error))
    notes: list[str] = getattr(error, "__notes__", [])
    is_new = not any(note.startswith(_NOTE) for note in notes)  # the same exception may be raised again and again
    text = ""
    if is_new and any(each.__traceback__ is not None for each in chain):  # there is none if another process raised it
        _, text = error_text(error)
    for each in chain:
        BaseException.with_traceback(each, None)  # an exception class may forbid to set attributes
    if text:
        with suppress(Exception):
            error.add_note(f"{_NOTE}\n{text}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and what is grouped in them, each once."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                left += cast("tuple[BaseException, ...]", each.exceptions)


def failure_of(stage: str, item: object, error: BaseException) -> PipelineFailure:
    """Return the failure of a stage on an item, with the user's exception as its cause."""
    text = shortened(item)
    return _caused(f"stage {stage!r} failed on {text}: {_summary(error)}", stage, text, error)


def source_failure(stage: str, error: BaseException) -> PipelineFailure:
    """Return the failure of a source, or of whatever else was given no item."""
    return _caused(f"stage {stage!r} failed: {_summary(error)}", stage, "", error)


def shortened(item: object) -> str:
    """Return a short `repr`, whatever the item's own does."""
    with suppress(Exception):  # a broken repr must not hide the failure that it was asked for
        return reprlib.repr(item)
    return f"<{type(item).__name__} whose repr raises>"


def _summary(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _caused(message: str, stage: str, item: str, error: BaseException) -> PipelineFailure:
    failure = PipelineFailure(message, stage=stage, item=item)
    failure.__cause__ = error
    return failure
