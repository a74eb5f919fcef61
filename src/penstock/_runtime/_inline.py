"""Computing batches in the caller's thread.

`InlineBatches` takes the plain path: rows, merge, the steps above. It serves `batch_at`, and finds the batch and the
row of an error. `DirectBatches` is the short path, for records that are only read.
"""

from typing import Final

from penstock._graph import Context, Element
from penstock._plan._plan import Plan, Shard
from penstock._plan._program import Batches
from penstock._runtime._batches import (
    WHOLE_BATCH,
    Merger,
    StepRange,
    Unit,
    batch_around,
    direct_keys,
    evaluate_rows,
    reads_directly,
    row_coordinates,
    rows_of,
    rows_of_step_range,
    with_masks,
)
from penstock.batching import Layout, LeafSpec
from penstock.errors import InternalError

_READ_BYTES: Final = 1 << 19  # at once: half of a processor's second cache


class InlineBatches:
    """Computes the batches of an indexable dataset, one at a time."""

    def __init__(self, program: Batches, shard: Shard, context: Context) -> None:
        self._program = program
        self._shard = shard
        self._context = context
        self._merge = Merger(program, context)

    def batch(self, unit: Unit, *, careful: bool = False) -> Element:
        """Return a step's batch.

        Args:
            unit: the step.
            careful: whether one row is computed after the other, so that none behind one that raises is touched.
        """
        rows = rows_of(self._program, self._shard, unit)
        death = (
            self._context.crashing_rows.get((unit.epoch, unit.position, WHOLE_BATCH))
            if self._context.crashing_rows
            else None
        )
        if death is not None:
            return batch_around(self._program, rows, unit, death, self._context)
        size = 1 if careful else max(rows.total, 1)
        elements: list[Element] = []
        for start in range(0, rows.total, size):
            elements += evaluate_rows(self._program, [(rows, start, min(start + size, rows.total))], self._context)
        return self._merge(rows, unit, elements)


class DirectBatches:
    """Some steps' batches whose rows `reads_directly`, with no steps above: keys for all, and a few read at once.

    Attributes:
        step_range: the steps.
        at_once: so many batches lie in memory that is used again while it is still in the cache.
    """

    def __init__(self, plan: Plan, step_range: StepRange, layout: Layout) -> None:
        program, shard = plan.batches, plan.shard
        read = reads_directly(program)
        if read is None or program.above:
            raise InternalError("these rows are not read directly")
        self.step_range = step_range
        self._program = program
        self._shard = shard
        self._layout = layout
        self._read_into = read.source.read_into
        runs, self._bounds = rows_of_step_range(program, shard, step_range)
        self._keys = direct_keys(program, *row_coordinates([(rows, 0, rows.total) for rows in runs]))
        self.at_once = max(_READ_BYTES * step_range.steps // max(layout.row_bytes * self._bounds[-1], 1), 1)

    def batches(self, index: int, count: int) -> list[Element]:
        """Return the batches of `count` of the steps from `index` on, or of as many as there are."""
        bounds = self._bounds[index : index + count + 1]
        first = bounds[0]
        columns = self._layout.columns(bounds[-1] - first)
        self._read_into(self._keys[first : bounds[-1]], self._layout.batch(columns))
        batches = self._layout.batches(columns, [bound - first for bound in bounds])
        return with_masks(self._program, self._shard, self.step_range.part(index, len(batches)), batches)


def can_be_direct(layout: Layout) -> bool:
    """Return whether all leaves of a row are arrays, as sources that fill rows have them."""
    return all(isinstance(kind, LeafSpec) for kind in layout.kinds)
