"""Jobs: the rows of some steps, cut into blocks that workers compute into a slot's memory.

The thread that owns the scheduler makes and arms a job. Then each block is run once, by any worker, in any order; the
merge, if it has one, after all blocks; then the consumer takes the result.
"""

import bisect
import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import numpy as np

from penstock._graph import Context, Element, Integers, Node, Read, Upcoming, upcoming
from penstock._memory import Lease, Region
from penstock._plan._plan import Plan
from penstock._plan._program import Batches
from penstock._runtime._batches import (
    Merger,
    Rows,
    StepRange,
    apply_above,
    direct_keys,
    evaluate_rows,
    reads_directly,
    row_coordinates,
    rows_of,
    rows_of_step_range,
    with_masks,
)
from penstock._runtime._job_failure import NO_FAILURE, JobFailure
from penstock._tree import map_leaves
from penstock.batching import Layout, LayoutMismatchError, LeafSpec, Stack, copied, layout_of, write_rows
from penstock.errors import InternalError, UsageError

if TYPE_CHECKING:
    from penstock._runtime._io_prefetch import BlockRecords


ComeTo: TypeAlias = Callable[[int, int | None], None]
"""Told of each step, counted from 0, and row of it before that is computed; of None before all rows together are."""


class Job(Protocol):
    """One slot's work."""

    blocks: int
    has_merge: bool
    failed: bool
    """Whether a block or the merge raised; the consumer then computes the job's content itself, one by one."""
    failure: JobFailure
    arriving: "list[BlockRecords] | None"
    """The records of each block, where sources are read ahead."""

    @property
    def steps(self) -> int:
        """How many batches it makes."""
        ...

    @property
    def memory_bytes(self) -> int:
        """How much memory it needs; 0 where what it computes has memory of its own."""
        ...

    def use(self, lease: Lease) -> None:
        """Take memory lent to it, at least `memory_bytes` of it; the lease lives as long as any view of it."""
        ...

    def extent(self, block: int) -> tuple[int, tuple[int, int]] | tuple[None, None]:
        """Return the number of a block's first step, and the block's first and last row, counted from that step's."""
        ...

    def run_block(self, block: int, context: Context) -> int:
        """Compute one block; return how many rows it has."""
        ...

    def run_merge(self, context: Context) -> None:
        """Compute what needs all blocks."""
        ...


class Learned:
    """Facts that a loader learns while it runs, to cut work well. Any worker writes them; a lost update is harmless."""

    _SMOOTHING: Final = 0.2

    def __init__(self) -> None:
        self.layout: Layout | None = None
        """The layout of a row, once one was seen; rows are then written straight into the job's memory."""
        self.is_irregular = False
        """Whether rows were met that don't fit the layout; batches are then merged from elements."""
        self.row_seconds: float | None = None
        """The time from a row's start to its end, waiting for storage or for the interpreter included."""
        self.row_cpu_seconds: float | None = None
        """The processor's time for a row."""
        self.merge_seconds: float | None = None
        """The time for a batch, beyond that for its rows."""
        self.merged_row_bytes = 0.0
        """The most memory that a row, and its part of what is merged, took where both lie in shared memory."""
        self.element_bytes: int | None = None
        """The bytes of the arrays of an element that was read in order, once a job of these was taken."""
        self.has_concluded = False
        """Whether a job came to its end in processes, so that it is known how much memory the others take."""

    def timed(self, rows: int, seconds: float, cpu_seconds: float) -> None:
        """Take the time of a block into account."""
        if rows:
            self.row_seconds = self._smoothed(self.row_seconds, seconds / rows)
            self.row_cpu_seconds = self._smoothed(self.row_cpu_seconds, cpu_seconds / rows)

    def timed_merge(self, steps: int, seconds: float) -> None:
        """Take the time of merging some steps into account, that of the steps above the batch included; 0 for none."""
        if seconds:
            self.merge_seconds = self._smoothed(self.merge_seconds, seconds / steps)

    def sized(self, element_bytes: int) -> None:
        """Take the size of an element into account; 0 where there was none."""
        self.element_bytes = element_bytes or self.element_bytes or 0

    def _smoothed(self, known: float | None, found: float) -> float:
        return found if known is None else known + self._SMOOTHING * (found - known)


class BatchJob:
    """The rows of one or several consecutive steps. With a layout they are written straight into the job's memory."""

    def __init__(
        self, plan: Plan, step_range: StepRange, block_rows: int | None, learned: Learned, *, shared: bool = False
    ) -> None:
        """Cut some steps.

        Args:
            plan: of an indexable dataset.
            step_range: the job's steps.
            block_rows: how many rows a block has; None for a single block.
            learned: what is known of the rows.
            shared: whether processes compute it. What is merged then lies apart from what comes of it.
        """
        self._program = program = plan.batches
        self._shard = plan.shard
        self._learned = learned
        self.step_range = step_range
        self._runs, self._bounds = rows_of_step_range(program, plan.shard, step_range)
        self.block_rows: int = max(self.row_count, 1) if block_rows is None else block_rows
        self.blocks = max(-(-self.row_count // self.block_rows), 1)
        self.failed = False
        self.arriving: list[BlockRecords] | None = None
        self.failure = NO_FAILURE
        self.layout: Layout | None = row_layout(self._program, learned)
        if shared and self.layout is not None and not self.layout.row_bytes:
            self.layout = None  # there is nothing to write into shared memory
        kinds = () if self.layout is None else self.layout.kinds
        # Texts, which lie in no shared memory.
        self._lists = [number for number, kind in enumerate(kinds) if shared and not isinstance(kind, LeafSpec | None)]
        self.row_bytes = 0 if self.layout is None else self.layout.leaf_offsets(self.row_count)[1]
        self.has_merge = self.layout is None or bool(self._program.above)
        self.joins = program.batch is not None or bool(program.above)
        self.memory_bytes = self.row_bytes
        if shared and self.has_merge:
            self.memory_bytes = max(int(self.row_count * learned.merged_row_bytes), 1) if self.joins else 0
        self._columns: list[Any] = []  # one for each leaf: an array, a list, or None
        self._elements: list[list[Element]] = [[] for _ in range(self.blocks)] if self.layout is None else []
        self._results: list[Element] = []

    @property
    def steps(self) -> int:
        """How many steps the job has."""
        return self.step_range.steps

    @property
    def row_count(self) -> int:
        """How many rows the job has."""
        return self._bounds[-1]

    def use(self, lease: Lease | Region | None) -> None:
        """Lay the rows' columns over leased memory, which lives as long as a view of them; None for its own memory."""
        if self.layout is not None:
            # NumPy takes any object with the buffer protocol; its type stubs ask for names that native classes lack.
            self._columns = self.layout.columns(self.row_count, cast("memoryview | None", lease))

    def upcoming(self, block: int) -> list[Upcoming]:
        """Return which records of async sources a block needs."""
        return list(upcoming(*self.places(block)))

    def places(self, block: int) -> tuple[Node, Integers, Integers]:
        """Return a block's rows, as the node below the batch, and their epochs and positions there."""
        return self._program.rows, *row_coordinates(self._spans(*self.bounds_of(block)))

    def bounds_of(self, block: int) -> tuple[int, int]:
        """Return which of the job's rows a block has: from the first up to, and without, the last."""
        start = block * self.block_rows
        return start, min(start + self.block_rows, self.row_count)

    def among(self, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return which of some elements, by epoch and position below the batch, are rows of the job."""
        epochs, positions = row_coordinates(self._spans(0, self.row_count))
        rows: set[tuple[int, ...]] = set(zip(epochs.tolist(), positions.tolist(), strict=True))
        return rows.intersection(elements)

    def step_of(self, row: int) -> int:
        """Return in which of the job's steps, counted from 0, a row is."""
        return bisect.bisect_right(self._bounds, row) - 1

    def extent(self, block: int) -> tuple[int, tuple[int, int]] | tuple[None, None]:
        start, stop = self.bounds_of(block) if block < self.blocks else (0, self.row_count)
        index = min(self.step_of(start), self.step_range.steps - 1)
        first = self._bounds[index]
        return self.step_range.unit(index).step, (start - first, stop - 1 - first)

    def run_block(self, block: int, context: Context, come_to: ComeTo | None = None) -> int:
        """Compute one block, row by row if there is a `come_to`; return how many rows it has."""
        if self.arriving is not None:
            context = self.arriving[block].informed(context)
        start, stop = self.bounds_of(block)
        if self.layout is None:
            self._elements[block] = []
        if come_to is None:
            self._run_rows(block, start, stop, context)
            return stop - start
        for row in range(start, stop):
            step = self.step_of(row)
            come_to(step, row - self._bounds[step])
            self._run_rows(block, row, row + 1, context)
        return stop - start

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Compute one row of one of the job's steps, for nothing."""
        number = self._bounds[step] + row
        evaluate_rows(self._program, self._spans(number, number + 1), context)

    def _run_rows(self, block: int, start: int, stop: int, context: Context) -> None:
        spans = self._spans(start, stop)
        read = reads_directly(self._program)
        if self.layout is None:
            elements = evaluate_rows(self._program, spans, context)
            self._elements[block] += elements
            self._learn(elements)
        elif read is not None and all(isinstance(column, np.ndarray) for column in self._columns):
            self._read_directly(read, self.layout, spans, start, stop)
        else:
            try:
                write_rows(self.layout, evaluate_rows(self._program, spans, context), self._columns, start)
            except LayoutMismatchError:
                self._learned.is_irregular = True
                raise

    def _learn(self, elements: list[Element]) -> None:
        if self._learned.layout is None and elements and isinstance(self._merge, Stack):
            self._learned.layout = layout_of(elements[0])

    def _read_directly(
        self, read: Read, layout: Layout, spans: list[tuple[Rows, int, int]], start: int, stop: int
    ) -> None:
        keys = direct_keys(self._program, *row_coordinates(spans))
        out = layout.batch([column if column is None else column[start:stop] for column in self._columns])
        read.source.read_into(keys, out)

    @property
    def _merge(self) -> object:
        return None if self._program.batch is None else self._program.batch.merge

    def _spans(self, start: int, stop: int) -> list[tuple[Rows, int, int]]:
        """Return which rows of which runs are the job's rows [start, stop)."""
        if len(self._runs) == 1:
            return [(self._runs[0], start, stop)]
        spans: list[tuple[Rows, int, int]] = []
        for rows, first, end in zip(self._runs, self._bounds, self._bounds[1:], strict=False):
            if first < stop and end > start:
                spans.append((rows, max(start, first) - first, min(stop, end) - first))
        return spans

    def run_merge(self, context: Context, come_to: ComeTo | None = None) -> None:
        """Compute what needs all blocks, and tell `come_to` of each step before it."""
        units = [self.step_range.unit(index) for index in range(self.step_range.steps)]
        rows = [rows_of(self._program, self._shard, unit) for unit in units]
        elements = [element for part in self._elements for element in part]
        self._elements = []
        self._learn(elements)  # which may all be other processes'
        merge = Merger(self._program, context)
        stacked = [] if self.layout is None else self._stacked()
        results: list[Element] = []
        for index, unit in enumerate(units):
            if come_to is not None:
                come_to(index, None)
            if self.layout is None:
                result = merge(rows[index], unit, elements[self._bounds[index] : self._bounds[index + 1]])
            else:
                result = apply_above(self._program, rows[index], unit, stacked[index], context)
            results.append(result)
        self._results = results

    @property
    def hands_on(self) -> bool:
        """Whether what a block computed is more than what lies in memory given to the job."""
        return self.layout is None or bool(self._lists)

    @property
    def was_first(self) -> bool:
        """Whether the job's rows are elements since their layout was not known, and those of later jobs are not."""
        layout = row_layout(self._program, self._learned)
        return self.layout is None and layout is not None and layout.row_bytes > 0

    def elements(self, block: int) -> list[Any] | None:
        """Return the result of a block, and release it; of rows in memory the texts alone, by leaves."""
        if self.layout is not None:
            start, stop = self.bounds_of(block)
            return [self._columns[number][start:stop] for number in self._lists] or None
        elements, self._elements[block] = self._elements[block], []
        return elements

    def take_elements(self, block: int, elements: list[Any] | None) -> None:
        """Take what another process computed of a block."""
        if self.layout is None:
            self._elements[block] = elements or []
            return
        start, stop = self.bounds_of(block)
        for number, texts in zip(self._lists, elements or (), strict=False):
            self._columns[number][start:stop] = texts

    def merged(self) -> tuple[list[Element], Layout | None]:
        """Return what the merge made, and the layout of the rows, if one was seen."""
        return self._results, self._learned.layout

    def take_merged(self, merged: tuple[list[Element], Layout | None]) -> None:
        """Take what another process merged."""
        self._results, layout = merged
        self._learned.layout = self._learned.layout or layout

    def stacked(self) -> tuple[Element, list[int]] | None:
        """Return all rows as one batch, and where each step's begin and end in it; None where they lie otherwise."""
        step = self._program.batch
        if self.has_merge or self.layout is None or step is None or step.mask is not None:
            return None
        if not all(isinstance(kind, LeafSpec | None) for kind in self.layout.kinds):
            return None
        return self.layout.batch(self._columns), self._bounds

    def batches(self, copied_bytes: int = 0) -> list[Element]:
        """Return the batches of the job's steps.

        Args:
            copied_bytes: arrays up to this size are copied out of the job's memory, so that they don't keep it.
        """
        if not self.has_merge:
            return self._stacked(copied_bytes)
        if not self._columns or not copied_bytes:
            return self._results
        return [_copied_out(batch, copied_bytes) for batch in self._results]

    def _stacked(self, copied_bytes: int = 0) -> list[Element]:
        layout = self.layout
        if layout is None:
            raise InternalError("only batches with a layout lie stacked in memory")
        return with_masks(
            self._program, self._shard, self.step_range, layout.batches(self._columns, self._bounds, copied_bytes)
        )


def _copied_out(batch: Element, copied_bytes: int) -> Element:
    """Return a batch with its small arrays copied; the batch itself, of a type that can't be made again with others."""
    with contextlib.suppress(UsageError):
        return map_leaves(lambda leaf: copied(leaf, copied_bytes), batch)
    return batch


def row_layout(program: Batches, learned: Learned) -> Layout | None:
    """Return the layout in which rows are written into their slot; None where they are kept as elements."""
    if program.stack is None or learned.is_irregular:
        return None
    return learned.layout
