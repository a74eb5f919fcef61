"""Computing one batch here and now, in the caller's thread, by the plain path: rows, merge, the steps above.

This is what answers `batch_at`, and what finds the batch and the row to which an error belongs.
"""

from penstock._graph._apply import Context
from penstock._graph._nodes import Element
from penstock._plan._plan import Batches, Shard
from penstock._runtime._batches import Merger, Unit, evaluate_rows, rows_of


class InlineBatches:
    """Computes the batches of an indexable dataset, one at a time."""

    def __init__(self, program: Batches, shard: Shard, context: Context) -> None:
        self._program = program
        self._shard = shard
        self._context = context
        self._merge = Merger(program, context)

    def batch(self, unit: Unit) -> Element:
        """Return a step's batch."""
        rows = rows_of(self._program, self._shard, unit)
        elements = evaluate_rows(self._program, [(rows, 0, rows.total)], self._context)
        return self._merge(rows, unit, elements)
