"""The work of batches of an indexable dataset: the rows of consecutive steps, one batch or several small ones.

Where the layout of rows is known, workers write them straight into the job's memory, and the batches are views of it.
Else the rows are elements, which the merge stacks, or passes to the user's function.

In processes, the merge of rows that are in memory copies them, since the user's function may write to them, and crash;
and rows that another process has written are in its processor's caches. So where a job has several batches, blocks have
whole batches: a process reads the rows of one into memory of its own, applies the functions above it, and writes the
results, all while they are in its caches. If a process crashes there, the job is computed in the other way, which finds
the row.
"""

import contextlib
import itertools
import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._graph import Context, Element, Read, read_into
from penstock._memory import Lease, Region
from penstock._packed_strings import PackedStrings, packed
from penstock._plan import Batches, Plan
from penstock._runtime._batches import (
    Merger,
    Rows,
    StepRange,
    Unit,
    can_be_direct,
    direct_keys,
    evaluate_rows,
    finished_batches,
    row_coordinates,
    rows_of,
    rows_of_batch,
    rows_of_step_range,
    with_masks,
    write_evaluated,
)
from penstock._runtime._jobs import BlockSize, Coordinates, Job, Learned, Shape, Work, batch_index, own_bytes
from penstock._runtime._policy import READ_BYTES
from penstock._runtime._sent_batches import SentRun, in_memory, received, send
from penstock._runtime._sent_elements import received_elements, send_elements
from penstock._tree import is_array, map_leaves, runs_code
from penstock.batching import Column, Layout, LayoutMismatchError, Stack, copied, layout_of
from penstock.errors import InternalError, UsageError
from penstock.sources import fills_packed

_PLACES_BYTES: Final = 8192  # more than what is sent of the batches of a job, beside their arrays


class BatchTask(NamedTuple):
    """The description of a `BatchWork`, for pickle: plain tuples take a tenth of the time of tuples with names."""

    first: tuple[int, int, int, int]
    """The fields of the first step's `Unit`; with the next two, those of the `StepRange`."""
    steps: int
    stride: int
    cut: tuple[int, bool, bool]
    """The fields of the `BlockSize`."""
    layout: bytes | None
    """Pickled and cached: it is the same for all but the first jobs of a loader, and slow to unpickle."""

    def work(self, plan: Plan) -> "BatchWork":
        """Return the work."""
        learned: Learned[Layout] = Learned()
        learned.layout = None if self.layout is None else _unpickled(self.layout)
        step_range = StepRange(Unit(*self.first), self.steps, self.stride)
        return BatchWork(plan, step_range, BlockSize(*self.cut), learned, in_processes=True)


@lru_cache
def _unpickled(pickled: bytes) -> Layout:
    layout: Layout = pickle.loads(pickled)
    return layout


class BatchWork(Work):
    """The rows of one or several consecutive steps. With a layout they are written straight into the job's memory."""

    def __init__(
        self, plan: Plan, step_range: StepRange, cut: BlockSize, learned: Learned[Layout], *, in_processes: bool = False
    ) -> None:
        """Cut some steps into blocks.

        Args:
            plan: the plan of an indexable dataset.
            step_range: the job's steps.
            cut: the size of blocks.
            learned: measurements of the rows.
            in_processes: whether processes compute the job. Rows that are merged are then in other memory than the
                result.
        """
        self._program = program = plan.batches
        self._shard = plan.shard
        self._learned = learned
        self._in_processes = in_processes
        self.step_range = step_range
        self._cut = cut
        self._runs, self._bounds = rows_of_step_range(program, plan.shard, step_range)
        layout = row_layout(program, learned)
        if in_processes and layout is not None and not layout.row_bytes:
            layout = None  # there is nothing to write into shared memory
        self.layout = layout
        rows = self._bounds[-1]
        makes_batches = self._makes_batches = (
            cut.whole_batches and in_processes and (layout is not None or program.has_own_merge)
        )
        row_bytes = memory_bytes = 0 if layout is None or makes_batches else layout.leaf_offsets(rows)[1]
        has_merge = not makes_batches and (bool(program.above) or (layout is None and program.batch is not None))
        needs_room = in_processes and (makes_batches or has_merge or program.batch is None)
        if needs_room:
            memory_bytes = max(int(rows * learned.merged_row_bytes), 1)
        if makes_batches and layout is None:  # no other process has the rows
            memory_bytes = int(rows * learned.batch_row_bytes) + _PLACES_BYTES
        # Leaves that are texts, which can't be written into shared memory.
        self._lists = layout.lists if layout is not None and in_processes and not makes_batches else []
        shape = Shape(
            self._bounds,
            _whole_batches(cut.rows, self._bounds) if makes_batches else cut.bounds(rows, self.coordinates),
            step_range.first.step,
            has_merge=has_merge,
            sends_results=layout is None or makes_batches or bool(self._lists),
            needs_room=needs_room,
            has_whole_blocks=makes_batches,
            ends_at_crash=makes_batches,
            row_bytes=row_bytes,
            memory_bytes=memory_bytes,
            memory_units=rows,
            batch_units=rows_of_batch(plan),
        )
        super().__init__(shape)
        self._memory: Lease | Region | None = None  # of results, in the consumer
        # For each leaf an array, a list, or None.
        self._columns: list[Any] = [] if layout is None or row_bytes or makes_batches else layout.columns(rows)

    def task(self) -> BatchTask:
        (step, epoch, position, batch), steps, stride, _ = self.step_range
        rows, whole_parents, whole_batches = self._cut
        return BatchTask(
            (step, epoch, position, batch),
            steps,
            stride,
            (rows, whole_parents, whole_batches),
            None if self.layout is None else self.layout.pickled,
        )

    def use(self, memory: Lease | Region) -> None:
        """Make the columns of the rows, or the batches, views of leased memory, which lives as long as they do."""
        if self.shape.delivers_blocks:
            self._memory = memory
        elif self.layout is not None:
            # NumPy takes any object with the buffer protocol; its type stubs ask for names that native classes lack.
            self._columns = self.layout.columns(self._bounds[-1], cast("memoryview", memory))

    def own_bytes(self, batch: Element, most_items: int) -> int:
        # Of a layout that was just found, further rows are leased.
        is_leased = not self._program.above and row_layout(self._program, self._learned) is not None
        return 0 if is_leased else own_bytes(batch, most_items, self._columns)

    def coordinates(self, start: int, stop: int) -> Coordinates:
        return Coordinates(self._program.rows, *row_coordinates(self._spans(start, stop)))

    def compute(self, results: list[Any], start: int, stop: int, context: Context) -> None:
        """Write rows into memory; add the elements to the results if the layout isn't known, else the texts."""
        if self._makes_batches:
            results += self._sent(start, stop, context)
        elif self.layout is None and self.room is not None:
            results += send_elements(lambda: evaluate_rows(self._program, self._spans(start, stop), context), self.room)
        elif self.layout is None:
            results += evaluate_rows(self._program, self._spans(start, stop), context)
            self._learn(results)
        elif not self._lists:
            self._fill(self._columns, start, range(start, stop), context)
        else:
            columns = self._part(start, stop)
            self._fill(columns, 0, range(start, stop), context)
            results.append((start, [packed(columns[number]) for number in self._lists]))

    def _part(self, start: int, stop: int) -> list[Any]:
        """Return the columns of some of the job's rows in a process; those of texts are new, and packed if possible."""
        layout, read = self.layout, self._program.direct
        columns = [None if column is None else column[start:stop] for column in self._columns]
        if layout is not None and read is not None and can_be_direct(layout) and fills_packed(read.source):
            for number in self._lists:
                columns[number] = PackedStrings(stop - start, layout.kinds[number] is str)
        return columns

    def _fill(self, columns: list[Any], at: int, rows: range, context: Context) -> None:
        """Write some of the job's rows into columns, from the column's row `at` on."""
        layout, read, spans = self.layout, self._program.direct, self._spans(rows.start, rows.stop)
        if layout is None:
            raise InternalError("rows are written in a layout")
        try:
            if read is None or not can_be_direct(layout):
                elements = evaluate_rows(self._program, spans, context, late=True)
                write_evaluated(self._program, elements, layout, columns, at, context)
                return
            parts = [column if len(column) == len(rows) else column[at : at + len(rows)] for column in columns]
            self._read_into(read, layout.batch(parts), spans, context)
            for column, part in zip(columns, parts, strict=True):
                if part is not column and isinstance(column, list):  # whose part is a copy
                    column[at : at + len(rows)] = part
        except LayoutMismatchError:
            self._learned.is_irregular = True
            raise

    def _read_into(self, read: Read, out: Element, spans: list[tuple[Rows, int, int]], context: Context) -> None:
        """Read some of the job's rows into columns, of which `out` is made.

        Raises:
            LayoutMismatchError: the source can't write them there, as a column that was of numbers has a null.
        """
        epochs, positions = row_coordinates(spans)
        context.times.start(len(positions))
        try:
            read_into(read, direct_keys(self._program, epochs, positions), out, context.times)
        except UsageError as refused:
            raise LayoutMismatchError(0) from refused

    def _sent(self, start: int, stop: int, context: Context) -> list[SentRun]:
        """Make the batches of a block, with the steps above applied, in the room for them; return what is sent."""
        if self.room is None:
            raise InternalError("a worker process that makes batches has room for them")
        first, end = batch_index(self._bounds, start), batch_index(self._bounds, stop - 1) + 1
        steps = self.step_range.part(first, end - first)
        merged = itertools.chain.from_iterable(self._read(*part, context) for part in self._read_at_once(first, end))
        made = finished_batches(self._program, self._shard, steps, merged, context)
        return send(made, steps.steps, self.room)

    def _read_at_once(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Divide some of the job's steps, so that the rows of a part are in the processor's caches; one step at least.

        Memory of a part's size is free again when the next part is read, if the functions don't keep it.
        """
        room_bytes = 0 if self.room is None else len(self.room.memory)
        row_bytes = room_bytes / max(self._bounds[-1], 1) if self.layout is None else self.layout.row_bytes
        bounds, most = self._bounds, max(int(READ_BYTES / max(row_bytes, 1)), 1)
        while first < end:
            part_end = min(max(batch_index(bounds, bounds[first] + most), first + 1), end)
            yield first, part_end
            first = part_end

    def _read(self, first: int, end: int, context: Context) -> Iterable[Element]:
        """Return the merged batches of some of the job's steps, in memory of their own."""
        start, stop, layout = self._bounds[first], self._bounds[end], self.layout
        if layout is None:
            return self._merged(first, evaluate_rows(self._program, self._spans(start, stop), context), context)
        columns = layout.columns(stop - start)
        self._fill(columns, 0, range(start, stop), context)
        batches = layout.batches(columns, [bound - start for bound in self._bounds[first : end + 1]])
        context.times.lap(self._program.batch, 0)
        return with_masks(self._program, self._shard, self.step_range.part(first, end - first), batches)

    def _learn(self, elements: list[Element]) -> None:
        step = self._program.batch
        if self._learned.layout is None and elements and step is not None and isinstance(step.value.merge, Stack):
            self._learned.layout = layout_of(elements[0])

    def _spans(self, start: int, stop: int) -> list[tuple[Rows, int, int]]:
        """Return the job's rows [start, stop) as spans of its runs of rows."""
        if len(self._runs) == 1:
            return [(self._runs[0], start, stop)]
        spans: list[tuple[Rows, int, int]] = []
        for rows, first, end in zip(self._runs, self._bounds, self._bounds[1:], strict=False):
            if first < stop and end > start:
                spans.append((rows, max(start, first) - first, min(stop, end) - first))
        return spans

    def merge(self, parts: Sequence[list[Any]], context: Context) -> Iterator[Element]:
        """Merge the rows of each step, and apply the steps above the batch."""
        context.times.start(0)
        if self.layout is None:
            elements = list(itertools.chain.from_iterable(parts))
            self._learn(elements)  # other processes may have computed all of them
            merged = self._merged(0, elements, context)
            yield from finished_batches(self._program, self._shard, self.step_range, merged, context)
            return
        batches = self._stacked(parts)
        context.times.lap(self._program.batch, 0)
        # Rows of processes are in shared memory: a function may write to them, and crash.
        own = (map_leaves(_copy, batch) for batch in batches) if self._in_processes else batches
        yield from finished_batches(self._program, self._shard, self.step_range, own, context)

    def _merged(self, first: int, elements: list[Element], context: Context) -> Iterator[Element]:
        """Yield the merged batches of the job's steps from `first` on, as far as there are elements for them."""
        merger, begin = Merger(self._program, context), self._bounds[first]
        for index in range(first, batch_index(self._bounds, begin + len(elements) - 1) + 1):
            rows = rows_of(self._program, self._shard, self.step_range.unit(index))
            yield merger.merged(rows, elements[self._bounds[index] - begin : self._bounds[index + 1] - begin])

    @property
    def found_layout(self) -> Layout | None:
        """The layout of the rows, if it is known now."""
        return self._learned.layout

    def stacked(self, parts: Sequence[list[Any]], *, is_provided: bool) -> tuple[Element, list[int] | bytes] | None:
        """Return all batches in one element, and what divides it, as `Stream.next_stacked` does.

        Args:
            parts: the results of all blocks.
            is_provided: whether the consumer has provided the memory, and can deliver it without a copy. Batches that
                workers made lie in it with gaps, so that a copy of all of it would be far larger than they are.
        """
        if is_provided and self._makes_batches and self._memory is not None:
            return in_memory([*itertools.chain.from_iterable(parts)], cast("Lease", self._memory))
        step = self._program.batch
        has_mask = step is not None and step.value.mask is not None
        if self.shape.has_merge or self._makes_batches or self.layout is None or step is None or has_mask:
            return None
        if self.layout.lists:
            return None
        if runs_code(self.layout.structure):  # for each batch, not for all rows
            return None
        return self.layout.batch(self._columns), self._bounds

    def batches(self, parts: Sequence[list[Any]], merged: list[Element], copied_bytes: int = 0) -> list[Element]:
        """Return the batches of the job's steps, for the consumer.

        Args:
            parts: the results of all blocks.
            merged: the merged batches, if the job has a merge.
            copied_bytes: arrays of at most this size are copied out of the job's memory, so that they don't keep it.
        """
        if self.shape.has_merge:
            return [_copied_out(batch, copied_bytes) for batch in merged] if self._columns and copied_bytes else merged
        # Without a batch, each step has one row, which is delivered as it is.
        results = itertools.chain.from_iterable(parts)
        if self.shape.delivers_blocks:
            memory, self._memory = self._memory, None  # so that small batches, which are copied, don't keep it
            receive = received if self._makes_batches else received_elements
            return list(receive(results, cast("Lease", memory), copied_bytes))
        if self.layout is None:
            return list(results)
        return self._stacked(parts, copied_bytes)

    def _stacked(self, parts: Sequence[list[Any]], copied_bytes: int = 0) -> list[Element]:
        layout = self.layout
        if layout is None:
            raise InternalError("only batches with a layout are stacked in memory")
        for start, lists in itertools.chain.from_iterable(parts if self._lists else ()):
            for number, texts in zip(self._lists, lists, strict=True):
                self._columns[number][start : start + len(texts)] = texts
        batches = layout.batches(self._columns, self._bounds, copied_bytes)
        return with_masks(self._program, self._shard, self.step_range, batches)


BatchJob: TypeAlias = Job[BatchWork]


def _whole_batches(rows: int, bounds: Sequence[int]) -> Sequence[int]:
    """Return the bounds of blocks that have about so many rows, and whole batches."""
    ends = np.array(bounds[1:])
    wanted = [*range(rows, bounds[-1], rows), bounds[-1]]
    found: list[int] = ends[np.searchsorted(ends, wanted)].tolist()
    return list(dict.fromkeys([0, *found]))  # np.unique imports numpy.ma, which takes 30 ms


def _copied_out(batch: Element, copied_bytes: int) -> Element:
    """Return a batch with its small arrays copied; the batch itself, if its type can't be built of other leaves.

    An array that is there twice is one array in the copy, too.
    """
    copies: dict[int, Column] = {}

    def copy(leaf: Column) -> Column:
        found = copies.get(id(leaf))
        if found is None:
            found = copies[id(leaf)] = copied(leaf, copied_bytes)
        return found

    arrays = _named_arrays(batch)
    if arrays is not None:  # the usual form; what follows takes longer
        return {name: copy(array) for name, array in arrays.items()}
    with contextlib.suppress(UsageError):
        return map_leaves(copy, batch)
    return batch


def _named_arrays(batch: object) -> dict[object, NDArray[Any]] | None:
    """Return a batch that is a dict of arrays; None for others."""
    if type(batch) is not dict:
        return None
    leaves = cast("dict[object, Any]", batch)
    return leaves if all(type(leaf) is np.ndarray for leaf in leaves.values()) else None


def _copy(leaf: object) -> object:
    return leaf.copy() if is_array(leaf) else leaf


def row_layout(program: Batches, learned: Learned[Layout]) -> Layout | None:
    """Return the layout in which rows are written into a job's memory; None where they are kept as elements."""
    if program.stack is None or learned.is_irregular:
        return None
    return learned.layout
