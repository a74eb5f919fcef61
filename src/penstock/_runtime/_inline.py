"""Batches of an indexable dataset, computed in the caller's thread, a few at once where they take little time."""

import itertools
import time

from penstock._caught import CaughtFailure
from penstock._decisions import DIRECT_BATCHES, INLINE_BATCHES, KNOWN_LAYOUT, decide
from penstock._graph import Context, Element
from penstock._plan import Plan
from penstock._runtime._batch_work import row_layout
from penstock._runtime._batches import (
    DirectBatches,
    InlineBatches,
    StepRange,
    can_be_direct,
    evaluate_rows,
    rows_of_step_range,
    with_masks,
    write_evaluated,
)
from penstock._runtime._chunk_sizes import InlineSizes
from penstock._runtime._jobs import Learned
from penstock._runtime._policy import INLINE_BYTES, MAX_DIRECT_ROWS
from penstock._runtime._streams import InlineStream
from penstock._streaming import Token
from penstock.batching import Layout, LayoutMismatchError, layout_of


def inline_stream(plan: Plan, step_range: StepRange, learned: Learned[Layout], context: Context) -> InlineStream:
    """Return the batches of an indexable dataset; the steps above the batch are applied when one is delivered."""
    batches = InlineBatches(plan.batches, plan.shard, context)
    more = SmallBatches(plan, step_range, learned, context, batches).more
    return InlineStream(step_range, more, batches.finished if plan.batches.above else None)


class SmallBatches:
    """Merged batches, computed in the caller's thread, a few at once.

    Where batches take little time, the rows of a few are computed and merged at once, in one piece of memory of at most
    two megabytes: otherwise the overhead of a batch of some microseconds would be several times that. Where records are
    read straight into a batch, keys are computed for many batches at once, and records are read for fewer. If one of
    several batches fails, they are computed singly, so that the batches before it are delivered first.
    """

    def __init__(
        self, plan: Plan, step_range: StepRange, learned: Learned[Layout], context: Context, batches: InlineBatches
    ) -> None:
        self._plan = plan
        self._program = plan.batches
        self._batches = batches
        self._step_range = step_range
        self._learned = learned
        self._context = context
        self._reads_directly = plan.batches.direct is not None
        self._direct: DirectBatches | None = None  # steps from `_first` on
        self._first = 0
        self._at_once = 1
        self._sizes = InlineSizes(plan, step_range.first.batch)

    def more(self, index: int) -> list[tuple[Element, Token]]:
        """Return the batches from a step on, in reverse order, as many as take little time; none at the end."""
        if index >= self._step_range.steps:
            return []
        with CaughtFailure() as caught:  # raised again where the batch is computed singly, a function's SystemExit, too
            started = time.perf_counter()
            direct = self._direct_at(index) if self._reads_directly else None
            if direct is None:
                batches, most = self._computed(index)
            else:
                batches, most = direct.batches(index - self._first, self._at_once, self._context.times), direct.at_once
            most = max(most, 1)
            at_once = min(self._sizes.next(time.perf_counter() - started, len(batches)), most)
            self._at_once = decide(INLINE_BATCHES, at_once, most)
            return [(batch, None) for batch in reversed(batches)]
        del caught  # its error's traceback would keep this frame, and so the loader
        self._direct = None
        self._at_once = 1
        return [(self._batches.merged(self._step_range.unit(index)), None)]

    def _direct_at(self, index: int) -> DirectBatches | None:
        """Return batches that start at or before a step; None while the layout of a row isn't known."""
        direct = self._direct
        if direct is not None and index < self._first + direct.step_range.steps:
            return direct
        layout = row_layout(self._program, self._learned)
        if layout is None or not can_be_direct(layout):
            return None
        most = max(MAX_DIRECT_ROWS // self._step_range.first.batch, 1)
        step_range = self._step_range.part(index, decide(DIRECT_BATCHES, most, most))
        self._direct, self._first = DirectBatches(self._plan, step_range, layout), index
        return self._direct

    def _computed(self, index: int) -> tuple[list[Element], int]:
        """Compute the next merged batches; return them, and the maximum to compute at once, by memory."""
        program, shard, learned = self._program, self._plan.shard, self._learned
        step_range = self._step_range.part(index, self._at_once)
        layout = row_layout(program, learned) if decide(KNOWN_LAYOUT, 1) else None
        runs, bounds = rows_of_step_range(program, shard, step_range)
        elements = evaluate_rows(program, [(rows, 0, rows.total) for rows in runs], self._context, late=True)
        if layout is not None:
            columns = layout.columns(bounds[-1])
            try:
                write_evaluated(program, elements, layout, columns, 0, self._context)
            except LayoutMismatchError:
                learned.is_irregular = True
            else:
                batches = with_masks(program, shard, step_range, layout.batches(columns, bounds))
                batch_bytes = layout.leaf_offsets(bounds[-1])[1] // step_range.steps
                return batches, min(INLINE_BYTES // max(batch_bytes, 1), self._sizes.most)
        elif program.stack is not None and learned.layout is None and elements:
            learned.layout = layout_of(elements[0])
        most = self._sizes.most_objects
        cut = [elements[start:stop] for start, stop in itertools.pairwise(bounds)]
        return [self._batches.merge(step_range.unit(number), rows) for number, rows in enumerate(cut)], most
