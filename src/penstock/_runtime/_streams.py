"""Streams of batches: the face of the runtime for loaders, and the stream that computes inline.

A stream gives the batches from some step to the end of its epoch. `Stream` is all that a loader knows of workers.
"""

import time
from typing import Final, Protocol

from penstock._caught import Caught
from penstock._decisions import DIRECT_BATCHES, INLINE_BATCHES, KNOWN_LAYOUT, decide
from penstock._graph import Context, Element, Mix, root
from penstock._plan._plan import Plan
from penstock._runtime._batches import StepRange, Unit, reads_directly
from penstock._runtime._inline import DirectBatches, InlineBatches, can_be_direct
from penstock._runtime._jobs import BatchJob, Learned, row_layout
from penstock._streaming import Token

_CHUNK_SECONDS: Final = 0.001  # of what is computed at once; beginning it takes 20 microseconds
_MAX_CHUNK_SECONDS: Final = 0.01  # as long as computing more at once makes each so much cheaper
_GAIN: Final = 0.75
_CHUNK_BYTES: Final = 1_000_000
_MAX_UNITS: Final = 64
_ROWS_PER_PART: Final = 32  # of a mixture: a block of as many costs each row little more than one of thousands
_MAX_DIRECT_ROWS: Final = 4096  # whose keys are computed at once: about 0.1 ms


class EndOfEpoch(Exception):  # noqa: N818 - an end, not an error
    """The epoch has no more batches. Not StopIteration, which a user's function may raise too."""


class Stream(Protocol):
    """Batches in order, or as they become ready. Used by one thread at a time; `close` may be called more than once."""

    def next(self) -> tuple[Element, Token]:
        """Return the next batch and a token.

        The token of a dataset that is read in order is the one from which reading continues after the batch. That of
        others is the batch's step, or None where steps come in order.

        After an exception the stream is before the failing batch. At the end it raises EndOfEpoch.
        """
        ...

    def next_nowait(self) -> tuple[Element, Token] | None:
        """Return the next batch if it is there; None if it has to be waited for, or computed here, or failed."""
        ...

    def failing(self) -> Unit | None:
        """Return the step that `next` raised for; None where it is the first that was not delivered."""
        ...

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `next` may have become quick; None if it never waits for others."""
        ...

    def is_ready(self) -> bool:
        """Return whether `next` would return without waiting for others."""
        ...

    def close(self) -> None:
        """Stop computing ahead; delivered batches stay valid."""
        ...


class InlineStream:
    """Batches of an indexable dataset, computed in the caller's thread when they are requested.

    As long as they take no time, a few are computed at once, in one piece of memory of at most a megabyte: a batch of
    some microseconds would otherwise cost several times that in overhead. Of records that are read straight into a
    batch fewer are read at once, and the keys alone are computed for many. If one fails, it is computed singly, so that
    the batches before it are delivered first.
    """

    def __init__(self, plan: Plan, step_range: StepRange, learned: Learned, context: Context) -> None:
        program = plan.batches
        self._plan = plan
        self._program = program
        self._single = InlineBatches(program, plan.shard, context)
        self._step_range = step_range
        self._learned = learned
        self._context = context
        self._reads_directly = not program.above and reads_directly(program) is not None
        self._index = 0
        self._ready: list[Element] = []  # batches from the next one on, the last first
        self._direct: DirectBatches | None = None  # of steps from `_first` on
        self._first = 0
        self._units = 1
        self._seconds_each: dict[int, float] = {}  # of a unit, when this many were computed at once
        base = root(program.rows)
        self._is_mixture = isinstance(base, Mix)
        rows = _ROWS_PER_PART * len(base.parts) if isinstance(base, Mix) else 1
        self._wanted_units = -(-rows // max(step_range.first.batch // plan.shard.count, 1))

    def next(self) -> tuple[Element, Token]:
        index = self._index
        if index >= self._step_range.steps:
            raise EndOfEpoch
        if not self._ready:
            self._ready = self._more(index)
        batch = self._ready.pop()
        self._index = index + 1
        return batch, None

    def _more(self, index: int) -> list[Element]:
        """Return the batches of the next steps, at least one, the last first."""
        with Caught(Exception):  # raised again where it is computed singly
            return self._several(index)[::-1]
        self._direct = None
        self._units = 1
        return [self._single.batch(self._step_range.unit(index))]

    def _several(self, index: int) -> list[Element]:
        """Return the batches of the next steps, as many as take a moment."""
        started = time.perf_counter()
        direct = self._direct
        if self._reads_directly and (direct is None or index >= self._first + direct.step_range.steps):
            direct = self._direct = self._begin_direct(index)
            self._first = index
        if direct is None:
            batches, most = self._computed(index)
        else:
            batches, most = direct.batches(index - self._first, self._units), direct.at_once
        seconds = time.perf_counter() - started
        most = max(most, 1)
        self._units = decide(INLINE_BATCHES, min(self._next_units(seconds, len(batches)), most), most)
        return batches

    def _begin_direct(self, index: int) -> DirectBatches | None:
        layout = row_layout(self._program, self._learned)
        if layout is None or not can_be_direct(layout):
            return None
        most = max(_MAX_DIRECT_ROWS // self._step_range.first.batch, 1)
        step_range = self._step_range.part(index, decide(DIRECT_BATCHES, most, most))
        return DirectBatches(self._plan, step_range, layout)

    def _computed(self, index: int) -> tuple[list[Element], int]:
        """Return batches that are computed, and how many may be at once, whatever time that takes."""
        learned = self._learned if decide(KNOWN_LAYOUT, 1) else Learned()
        job = BatchJob(self._plan, self._step_range.part(index, self._units), None, learned)
        job.use(None)
        job.run_block(0, self._context)
        if job.has_merge:
            job.run_merge(self._context)
        most = _CHUNK_BYTES // max(job.memory_bytes // job.step_range.steps, 1)
        return job.batches(), min(most, max(_MAX_UNITS, self._wanted_units))

    def _next_units(self, seconds: float, units: int) -> int:
        """Return how many units to compute at once next, this many having taken these seconds."""
        each = self._seconds_each[units] = seconds / units
        if seconds * 2 < _CHUNK_SECONDS:
            return units * 2
        fewer, more = self._seconds_each.get(units // 2), self._seconds_each.get(units * 2)
        if more is not None:
            more_gain = more < _GAIN * each
        else:  # doubling gains less each time, and trying it costs a few batches; but rows of a mixture are unlike
            more_gain = self._is_mixture or fewer is None or each < _GAIN * fewer
        if seconds * 2 < _MAX_CHUNK_SECONDS and (units < self._wanted_units or more_gain):
            return units * 2  # a mixture of many parts has few rows of each, which gain nothing yet
        if seconds < _MAX_CHUNK_SECONDS and units // 2 < self._wanted_units:
            return units
        return units if seconds < _CHUNK_SECONDS or (fewer is not None and each < _GAIN * fewer) else units // 2

    def next_nowait(self) -> tuple[Element, Token] | None:
        return None

    def failing(self) -> Unit | None:
        return None

    def fileno(self) -> int | None:
        return None

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        self._index = self._step_range.steps
        self._ready = []
        self._direct = None
