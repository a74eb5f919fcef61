"""Computing batches here and now, in the caller's thread: no workers, no event loop, a debugger works.

Guarantees:
  - `batch` returns the batch of any step of the timeline, always in memory of its own.
  - Nothing is started, nothing has to be closed.
"""

from typing import Any

from penstock._graph._apply import Context
from penstock._graph._evaluate import with_mask
from penstock._graph._nodes import Element
from penstock._graph._seed_position import Integers
from penstock._plan._plan import Batches, Shard
from penstock._runtime._batches import (
    Rows,
    Unit,
    apply_above,
    direct_keys,
    evaluate_rows,
    merge,
    reads_directly,
    row_coordinates,
    rows_of,
)
from penstock.batching._layout import Layout, layout_of
from penstock.sources._reading import is_transient, read_records

_KEYS_AHEAD = 4096  # rows whose keys are computed at once; a few microseconds' worth


class InlineBatches:
    """Computes the batches of an indexable dataset, one at a time."""

    def __init__(self, program: Batches, shard: Shard, context: Context) -> None:
        self._program = program
        self._shard = shard
        self._context = context
        self._direct = _DirectReader(program, shard) if reads_directly(program) else None

    def batch(self, unit: Unit, units_left: int) -> Element:
        """Return a step's batch.

        Args:
            unit: the step.
            units_left: how many steps the epoch has from this one on.
        """
        rows = rows_of(self._program, self._shard, unit)
        if self._direct is None:
            return self._merged(unit, rows)
        try:
            return self._direct.batch(unit, rows, units_left, self._context)
        except Exception as error:  # noqa: BLE001 - raised below, unless reading one by one names the key, or heals it
            failure = error
        batch = self._merged(unit, rows)
        if not is_transient(failure):
            raise failure
        return batch

    def _merged(self, unit: Unit, rows: Rows) -> Element:
        elements = evaluate_rows(self._program, [(rows, 0, rows.total)], self._context)
        return merge(self._program, rows, unit, elements, self._context)


class _DirectReader:
    """Reads records straight into stacked batches, for a source that can, with keys computed ahead."""

    def __init__(self, program: Batches, shard: Shard) -> None:
        read = reads_directly(program)
        self._source: Any = None if read is None else read.source
        self._program = program
        self._shard = shard
        self._layout: Layout | None = None
        self._keys: Integers | None = None
        self._next: Unit | None = None  # the step whose keys come first in what is left of `_keys`
        self._used = 0

    def batch(self, unit: Unit, rows: Rows, units_left: int, context: Context) -> Element:
        keys = self._take_keys(unit, rows, units_left)
        layout = self._layout
        if layout is None:
            layout = self._layout = layout_of(read_records(self._source, keys[:1])[0])
        columns = layout.columns(len(keys))
        batch = layout.batch(columns)
        self._source.read_into(keys, batch)
        if self._program.batch is not None and self._program.batch.mask is not None:
            batch = with_mask(self._program.batch, batch, rows.data, rows.total)
        return apply_above(self._program, rows, unit, batch, context)

    def _take_keys(self, unit: Unit, rows: Rows, units_left: int) -> Integers:
        """Return the keys of one step's rows, from those computed ahead where the step is the one expected."""
        count = rows.total
        if self._keys is None or unit != self._next or self._used + count > len(self._keys):
            try:
                self._keys = self._compute_keys(unit, rows, units_left)
            except Exception:  # noqa: BLE001 - it may be a later step's, whose turn has not come
                self._keys = self._compute_keys(unit, rows, 1)
            self._used = 0
        start = self._used
        self._used = start + count
        self._next = unit._replace(step=unit.step + 1, position=unit.position + self._stride(unit))
        return self._keys[start : self._used]

    def _compute_keys(self, unit: Unit, rows: Rows, units_left: int) -> Integers:
        spans = [(rows, 0, rows.total)]
        for ahead in range(1, min(_KEYS_AHEAD // max(rows.total, 1), units_left)):
            later = unit._replace(step=unit.step + ahead, position=unit.position + ahead * self._stride(unit))
            other = rows_of(self._program, self._shard, later)
            spans.append((other, 0, other.total))
        return direct_keys(self._program, *row_coordinates(spans))

    def _stride(self, unit: Unit) -> int:
        return unit.batch if self._program.can_recut else 1
