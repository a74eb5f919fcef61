"""Jobs: work that is cut into blocks, which workers compute, in a slot of the ring.

The thread that owns the scheduler makes and arms a job. Then each block is run once, by any worker, in any order; the
merge, if the job has one, after all blocks; then the consumer takes the result.

There are three kinds of job. A `BatchJob` has the rows of consecutive steps of an indexable dataset; workers write them
into the memory of the job where their layout is known. A `SpanJob` has positions of a block input, for a dataset read
in order: each position is an element, or none where a step leaves it out. A `CollateJob` has batches whose rows a fold
has made, and computes the steps above the folds: its blocks apply the functions of rows, if there are any, and its
merge does the rest. For processes its rows are in the spill memory of the job: one pickle for each block, or one for
the merge.
"""

import bisect
import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._graph import (
    Block,
    Context,
    Element,
    Integers,
    Node,
    Read,
    Upcoming,
    join_blocks,
    parents_of_block,
    upcoming,
)
from penstock._memory import Lease, Region
from penstock._pickles import Pickled, dump_by_value
from penstock._plan import Batches, Plan
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
from penstock._runtime._shared_values import joined
from penstock._streaming import BlockInput, CollateRun, Provenance, Rest
from penstock._tree import map_leaves
from penstock.batching import Layout, LayoutMismatchError, LeafSpec, Stack, copied, layout_of, write_rows
from penstock.errors import InternalError, UsageError, WorkerError

if TYPE_CHECKING:
    from penstock._runtime._io_prefetch import BlockRecords

BeforeRow: TypeAlias = Callable[[int, int | None], None]
"""Called with a step, counted from 0, and one of its rows before that row is computed; with None before the merge."""


@frozen
class JobFailure:
    """The reasons why a job failed in worker processes, for the consumer.

    Attributes:
        crash: the last crash, where the job crashed too many processes.
        step: the job's step that crashed, counted from 0. A process has computed each step before it.
        row: the row of that step, or the position, that crashed; None where the step as a whole did.
        is_suspect: whether any process crashed at the job, perhaps at a row after one that raises.
        complaint: the exception of the process, as text; empty where it isn't known.
        note: the complaint as bytes, or the note of a `NotedError`; empty where the job failed for another reason.
        is_passing: whether nothing raised, and the job only needs more memory, or another layout.
    """

    crash: WorkerError | None = None
    step: int = 0
    row: int | None = None
    is_suspect: bool = False
    complaint: str = ""
    note: bytes = b""
    is_passing: bool = False


NO_FAILURE = JobFailure()


class NotedError(Exception):
    """Raised by a job in a worker process, to send the consumer a reason of its own format.

    Attributes:
        note: the reason, for the consumer.
    """

    def __init__(self, note: bytes) -> None:
        super().__init__("a block failed")
        self.note = note


class Job(Protocol):
    """The work in one slot."""

    blocks: int
    has_merge: bool
    failed: bool
    """Whether a block or the merge raised; the consumer then computes the batches of the job itself, one by one."""
    failure: JobFailure
    arriving: "list[BlockRecords] | None"
    """The prefetched records of each block; None where the workers read all records."""

    @property
    def steps(self) -> int:
        """The number of batches that it makes."""
        ...

    @property
    def memory_bytes(self) -> int:
        """The bytes of leased memory that it needs; 0 where its results have memory of their own."""
        ...

    def use(self, lease: Lease) -> None:
        """Take leased memory of at least `memory_bytes`; the lease lives as long as any view of it."""
        ...

    def extent(self, block: int) -> tuple[int, tuple[int, int]] | tuple[None, None]:
        """Return a block's first step, and its first and last row, counted from the first row of that step.

        The merge is the block after all blocks of rows. None stands for what isn't known.
        """
        ...

    def run_block(self, block: int, context: Context) -> int:
        """Compute one block; return its number of rows."""
        ...

    def run_merge(self, context: Context) -> None:
        """Compute the part that needs all blocks."""
        ...


class Learned:
    """Measurements of a running loader, by which work is cut. Any worker writes them; a lost update is harmless."""

    _SMOOTHING: Final = 0.2
    _PARENT_SHARE: Final = 0.5

    def __init__(self) -> None:
        self.layout: Layout | None = None
        """The layout of a row, once one is known; rows are then written straight into the job's memory."""
        self.is_irregular = False
        """Whether a row didn't fit the layout; batches are then merged from elements."""
        self.row_seconds: float | None = None
        """The time from a row's start to its end, including waits for storage and for the interpreter."""
        self.row_cpu_seconds: float | None = None
        """The processor time of a row."""
        self._seconds = self._parent_seconds = 0.0
        self.merge_seconds: float | None = None
        """The time of a batch, beyond that of its rows."""
        self.merged_row_bytes = 0.0
        """The largest memory that a row and its part of the merged batch took, where both are in shared memory."""
        self.element_bytes: int | None = None
        """The bytes of the arrays of an element that is read in order; None before the first `SpanJob` was taken."""
        self.knows_memory = False
        """Whether a job has ended in processes, so that the memory of further jobs is known."""

    def timed(self, rows: int, seconds: float, cpu_seconds: float, parent_seconds: float) -> None:
        """Record the time of a block; `parent_seconds` went into elements of which the rows are parts."""
        if rows:
            self._seconds += seconds - self._SMOOTHING * self._seconds
            self._parent_seconds += parent_seconds - self._SMOOTHING * self._parent_seconds
            self.row_seconds = self._smoothed(self.row_seconds, seconds / rows)
            self.row_cpu_seconds = self._smoothed(self.row_cpu_seconds, cpu_seconds / rows)

    @property
    def parents_take_most(self) -> bool:
        """Whether most of the time goes into elements of which rows are parts, so that workers should share none."""
        return self._parent_seconds > self._PARENT_SHARE * self._seconds

    def timed_merge(self, steps: int, seconds: float) -> None:
        """Record the time of merging some batches, including that of the steps above the batch; 0 for no merge."""
        if seconds:
            self.merge_seconds = self._smoothed(self.merge_seconds, seconds / steps)

    def sized(self, element_bytes: int) -> None:
        """Record the size of an element; 0 where there was no element."""
        self.element_bytes = element_bytes or self.element_bytes or 0

    def _smoothed(self, known: float | None, found: float) -> float:
        return found if known is None else known + self._SMOOTHING * (found - known)


class BlockSize(NamedTuple):
    """The size of a job's blocks."""

    rows: int
    """The number of rows of a block; the last may have fewer."""
    whole_parents: bool = False
    """Whether a block has all rows that are parts of its last row's parent element, and so more than `rows`."""

    def bounds(self, total: int, places: Callable[[int, int], tuple[Node, Integers, Integers]]) -> Sequence[int]:
        """Return the first row of each block, and the number of rows; at least one block.

        Args:
            total: the number of rows.
            places: returns the node of a span of rows, and their epochs and positions there.
        """
        bounds = [*range(0, max(total, 1), self.rows), total]
        if not self.whole_parents or len(bounds) == 2:
            return bounds
        parents = parents_of_block(*places(0, total))
        ends = np.append(np.flatnonzero(parents[1:] != parents[:-1]) + 1, total)
        found: list[int] = np.unique(ends[np.searchsorted(ends, bounds[1:])]).tolist()
        return [0, *found]


class BatchJob:
    """The rows of one or several consecutive steps. With a layout they are written straight into the job's memory."""

    def __init__(
        self, plan: Plan, step_range: StepRange, cut: BlockSize | None, learned: Learned, *, shared: bool = False
    ) -> None:
        """Cut some steps into blocks.

        Args:
            plan: the plan of an indexable dataset.
            step_range: the job's steps.
            cut: the size of blocks; None for a single block.
            learned: measurements of the rows.
            shared: whether processes compute the job. Rows that are merged are then in other memory than the result.
        """
        self._program = program = plan.batches
        self._shard = plan.shard
        self._learned = learned
        self.step_range = step_range
        self._runs, self._bounds = rows_of_step_range(program, plan.shard, step_range)
        self.cut = BlockSize(max(self.row_count, 1)) if cut is None else cut
        self._block_bounds = self.cut.bounds(self.row_count, self._places)
        self.blocks = len(self._block_bounds) - 1
        self.failed = False
        self.arriving: list[BlockRecords] | None = None
        self.failure = NO_FAILURE
        self.layout: Layout | None = row_layout(self._program, learned)
        if shared and self.layout is not None and not self.layout.row_bytes:
            self.layout = None  # there is nothing to write into shared memory
        kinds = () if self.layout is None else self.layout.kinds
        # Leaves that are texts, which can't be written into shared memory.
        self._lists = [number for number, kind in enumerate(kinds) if shared and not isinstance(kind, LeafSpec | None)]
        self.row_bytes = 0 if self.layout is None else self.layout.leaf_offsets(self.row_count)[1]
        self.has_merge = self.layout is None or bool(self._program.above)
        self.merges_in_worker = program.batch is not None or bool(program.above)
        self.memory_bytes = self.row_bytes
        if shared and self.has_merge:
            self.memory_bytes = max(int(self.row_count * learned.merged_row_bytes), 1) if self.merges_in_worker else 0
        self._columns: list[Any] = []  # for each leaf an array, a list, or None
        self._elements: list[list[Element]] = [[] for _ in range(self.blocks)] if self.layout is None else []
        self._results: list[Element] = []

    @property
    def steps(self) -> int:
        """The number of steps of the job."""
        return self.step_range.steps

    @property
    def row_count(self) -> int:
        """The number of rows of the job."""
        return self._bounds[-1]

    def use(self, lease: Lease | Region | None) -> None:
        """Make the columns of the rows views of leased memory, which lives as long as they do; None for new memory."""
        if self.layout is not None:
            # NumPy takes any object with the buffer protocol; its type stubs ask for names that native classes lack.
            self._columns = self.layout.columns(self.row_count, cast("memoryview | None", lease))

    def upcoming(self, block: int) -> list[Upcoming]:
        """Return the records of async sources that a block needs."""
        return list(upcoming(*self.places(block)))

    def places(self, block: int) -> tuple[Node, Integers, Integers]:
        """Return the node below the batch, and the epochs and positions there of a block's rows."""
        return self._places(*self.bounds_of(block))

    def _places(self, start: int, stop: int) -> tuple[Node, Integers, Integers]:
        return self._program.rows, *row_coordinates(self._spans(start, stop))

    def bounds_of(self, block: int) -> tuple[int, int]:
        """Return the span [start, stop) of the job's rows that a block has."""
        return self._block_bounds[block], self._block_bounds[block + 1]

    def among(self, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return those of some elements, given by epoch and position below the batch, that are rows of the job."""
        epochs, positions = row_coordinates(self._spans(0, self.row_count))
        rows: set[tuple[int, ...]] = set(zip(epochs.tolist(), positions.tolist(), strict=True))
        return rows.intersection(elements)

    def step_of(self, row: int) -> int:
        """Return the index of the job's step that a row is in."""
        return bisect.bisect_right(self._bounds, row) - 1

    def extent(self, block: int) -> tuple[int, tuple[int, int]] | tuple[None, None]:
        start, stop = self.bounds_of(block) if block < self.blocks else (0, self.row_count)
        index = min(self.step_of(start), self.step_range.steps - 1)
        first = self._bounds[index]
        return self.step_range.unit(index).step, (start - first, stop - 1 - first)

    def run_block(self, block: int, context: Context, before_row: BeforeRow | None = None) -> int:
        """Compute one block, row by row if there is a `before_row`; return its number of rows."""
        if self.arriving is not None:
            context = self.arriving[block].informed(context)
        start, stop = self.bounds_of(block)
        if self.layout is None:
            self._elements[block] = []
        if before_row is None:
            self._run_rows(block, start, stop, context)
            return stop - start
        for row in range(start, stop):
            step = self.step_of(row)
            before_row(step, row - self._bounds[step])
            self._run_rows(block, row, row + 1, context)
        return stop - start

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Compute one row of one of the job's steps, and drop the result."""
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
        """Return the job's rows [start, stop) as spans of its runs of rows."""
        if len(self._runs) == 1:
            return [(self._runs[0], start, stop)]
        spans: list[tuple[Rows, int, int]] = []
        for rows, first, end in zip(self._runs, self._bounds, self._bounds[1:], strict=False):
            if first < stop and end > start:
                spans.append((rows, max(start, first) - first, min(stop, end) - first))
        return spans

    def run_merge(self, context: Context, before_row: BeforeRow | None = None) -> None:
        """Merge the rows of each step and apply the steps above the batch; call `before_row` before each step."""
        units = [self.step_range.unit(index) for index in range(self.step_range.steps)]
        rows = [rows_of(self._program, self._shard, unit) for unit in units]
        elements = [element for part in self._elements for element in part]
        self._elements = []
        self._learn(elements)  # other processes may have computed all of them
        merge = Merger(self._program, context)
        stacked = [] if self.layout is None else self._stacked()
        results: list[Element] = []
        for index, unit in enumerate(units):
            if before_row is not None:
                before_row(index, None)
            if self.layout is None:
                result = merge(rows[index], unit, elements[self._bounds[index] : self._bounds[index + 1]])
            else:
                result = apply_above(self._program, rows[index], unit, stacked[index], context)
            results.append(result)
        self._results = results

    @property
    def sends_results(self) -> bool:
        """Whether a block's result is more than rows in the job's memory, so that a process has to send the rest."""
        return self.layout is None or bool(self._lists)

    @property
    def found_layout(self) -> bool:
        """Whether the layout of the rows was not known before this job, and is now."""
        layout = row_layout(self._program, self._learned)
        return self.layout is None and layout is not None and layout.row_bytes > 0

    def elements(self, block: int) -> list[Any] | None:
        """Return the result of a block, and release it; for rows in memory only the texts, by leaf."""
        if self.layout is not None:
            start, stop = self.bounds_of(block)
            return [self._columns[number][start:stop] for number in self._lists] or None
        elements, self._elements[block] = self._elements[block], []
        return elements

    def take_elements(self, block: int, elements: list[Any] | None) -> None:
        """Take the result of a block from another process."""
        if self.layout is None:
            self._elements[block] = elements or []
            return
        start, stop = self.bounds_of(block)
        for number, texts in zip(self._lists, elements or (), strict=False):
            self._columns[number][start:stop] = texts

    def merged(self) -> tuple[list[Element], Layout | None]:
        """Return the merged batches, and the layout of the rows, if it is known."""
        return self._results, self._learned.layout

    def take_merged(self, merged: tuple[list[Element], Layout | None]) -> None:
        """Take the merged batches from another process."""
        self._results, layout = merged
        self._learned.layout = self._learned.layout or layout

    def stacked(self) -> tuple[Element, list[int]] | None:
        """Return all rows as one batch, and the bounds of the steps in it; None where rows aren't stacked so."""
        step = self._program.batch
        if self.has_merge or self.layout is None or step is None or step.mask is not None:
            return None
        if not all(isinstance(kind, LeafSpec | None) for kind in self.layout.kinds):
            return None
        return self.layout.batch(self._columns), self._bounds

    def batches(self, copied_bytes: int = 0) -> list[Element]:
        """Return the batches of the job's steps.

        Args:
            copied_bytes: arrays of at most this size are copied out of the job's memory, so that they don't keep it.
        """
        if not self.has_merge:
            return self._stacked(copied_bytes)
        if not self._columns or not copied_bytes:
            return self._results
        return [_copied_out(batch, copied_bytes) for batch in self._results]

    def _stacked(self, copied_bytes: int = 0) -> list[Element]:
        layout = self.layout
        if layout is None:
            raise InternalError("only batches with a layout are stacked in memory")
        return with_masks(
            self._program, self._shard, self.step_range, layout.batches(self._columns, self._bounds, copied_bytes)
        )


def _copied_out(batch: Element, copied_bytes: int) -> Element:
    """Return a batch with its small arrays copied; the batch itself, if its type can't be built of other leaves."""
    with contextlib.suppress(UsageError):
        return map_leaves(lambda leaf: copied(leaf, copied_bytes), batch)
    return batch


def row_layout(program: Batches, learned: Learned) -> Layout | None:
    """Return the layout in which rows are written into a job's memory; None where they are kept as elements."""
    if program.stack is None or learned.is_irregular:
        return None
    return learned.layout


class SpanJob:
    """Consecutive positions of a block input."""

    has_merge = False
    merges_in_worker = False
    steps = 0
    memory_bytes = 0
    row_bytes = 0
    sends_results = True
    found_layout = False

    def __init__(self, block_input: BlockInput, span: range, cut: BlockSize) -> None:
        self.block_input = block_input
        self.cut = cut
        self.span = span
        self._bounds = cut.bounds(len(span), self._places)
        self.blocks = len(self._bounds) - 1
        self.failed = False
        self.failure = NO_FAILURE
        self.arriving: list[BlockRecords] | None = None
        self.parts: list[tuple[range, Block]] = [(range(0), Block([], None))] * self.blocks

    def use(self, lease: Lease | Region) -> None:
        del lease
        raise InternalError("elements have memory of their own")

    def upcoming(self, block: int) -> list[Upcoming]:
        """Return the records of async sources that a block needs."""
        return list(upcoming(*self.places(block)))

    def places(self, block: int) -> tuple[Node, Integers, Integers]:
        """Return the node of the input, and the epochs and positions there of a block's elements."""
        return self._places(self._bounds[block], self._bounds[block + 1])

    def _places(self, start: int, stop: int) -> tuple[Node, Integers, Integers]:
        positions = self.block_input.input_range.positions(self.span.start + start, self.span.start + stop)
        return self.block_input.node, np.full(len(positions), self.block_input.epoch, np.int64), positions

    def _span(self, block: int) -> range:
        return self.span[self._bounds[block] : self._bounds[block + 1]]

    @property
    def row_count(self) -> int:
        return len(self.span)

    def extent(self, block: int) -> tuple[int, tuple[int, int]] | tuple[None, None]:
        del block
        return None, None  # positions that are read in order have no steps yet

    def among(self, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return those of some elements, given as in `Context.crashing_rows`, that are positions of the job."""
        return self.block_input.among(self.span.start, self.span.stop, elements)

    def run_block(self, block: int, context: Context, before_row: BeforeRow | None = None) -> int:
        if self.arriving is not None:
            context = self.arriving[block].informed(context)
        span = self._span(block)
        if before_row is None:
            self.parts[block] = (span, self.block_input.evaluate(span.start, span.stop, context))
            return len(span)
        found: list[Block] = []
        for number in span:
            before_row(0, number - self.span.start)
            found.append(self.block_input.evaluate(number, number + 1, context))
        self.parts[block] = (span, join_blocks(found))
        return len(span)

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Compute one position, and drop the result."""
        number = self.span.start + step + row  # `step` is 0
        self.block_input.evaluate(number, number + 1, context)

    def run_merge(self, context: Context, before_row: BeforeRow | None = None) -> None:
        """Do nothing: the steps above merge."""

    def elements(self, block: int) -> object:
        (_, block_of), self.parts[block] = self.parts[block], (range(0), Block([], None))
        return tuple(block_of)

    def take_elements(self, block: int, elements: tuple[list[Element], Integers | None, int]) -> None:
        self.parts[block] = self._span(block), Block(*elements)

    def merged(self) -> object:
        raise InternalError("a job of positions has no merge")

    def take_merged(self, merged: object) -> None:
        del merged
        raise InternalError("a job of positions has no merge")


class Given(NamedTuple):
    """The content of a batch."""

    content: Element
    """The rows; or the batch as it comes from below, where rows are stacked there."""
    provenance: Provenance
    """The provenance of the rows, as `CollateRun.result` takes it."""


class Cut(NamedTuple):
    """The batches and blocks of a job.

    Attributes:
        firsts: the provenance of the first row of each batch.
        bounds: the first row of each batch, and the end of the last batch; all 0 where no function takes rows.
        block_rows: the number of rows of a block.
        ends_in_rest: whether the rows of the last batch are a rest, which makes no batch.
        places: the spans of the spill memory with the given content of each block, or of the merge without rows.
    """

    firsts: Provenance
    bounds: tuple[int, ...]
    block_rows: int
    ends_in_rest: bool
    places: tuple[slice, ...] = ()


class CollateTask(NamedTuple):
    """The description of a `CollateJob` for a process, which then takes the given content."""

    cut: Cut

    def job(self, plan: Plan) -> "CollateJob":
        """Return the job."""
        return CollateJob(collate_run(plan), self.cut, Learned())


class CollateJob:
    """Consecutive batches, whose rows or content a fold has made."""

    has_merge = True
    merges_in_worker = True
    row_bytes = 0
    sends_results = True
    found_layout = False

    def __init__(self, run: CollateRun, cut: Cut, learned: Learned, given: Sequence[Given] = ()) -> None:
        """Describe a job.

        Args:
            run: the steps above the folds.
            cut: the batches and blocks.
            learned: measurements of the batches.
            given: the content of each batch; empty where `take_given` brings it.
        """
        self.cut = cut
        self.steps = len(cut.firsts)
        self.blocks = max(-(-cut.bounds[-1] // cut.block_rows), 1)
        self.failed = False
        self.failure: JobFailure = NO_FAILURE
        self.arriving: list[BlockRecords] | None = None
        self.memory_bytes = 0
        self._run = run
        self._learned = learned
        self._pickled: Pickled | None = None
        self._given: list[Element] = [each.content for each in given]
        self._blocks: list[tuple[list[Element], Provenance]] = []
        if self.has_rows and given:
            rows = list(itertools.chain.from_iterable(self._given))
            provenance = np.concatenate([each.provenance for each in given])
            spans = [slice(*self._bounds_of(block)) for block in range(self.blocks)]
            self._given, self._blocks = [], [(rows[span], provenance[span]) for span in spans]
        self._rows: list[list[Element]] = [[] for _ in range(self.blocks)]
        self._results: list[Element] = []

    @property
    def has_rows(self) -> bool:
        """Whether functions take single rows."""
        return self.cut.bounds[-1] > 0

    def pack(self) -> bool:
        """Pickle the given content for processes; return whether that was possible."""
        self.memory_bytes = max(int(self.row_count * self._learned.merged_row_bytes), 1)
        parts: list[object] = [*self._blocks] if self.has_rows else [self._given]
        with Caught(Exception) as caught:
            self._pickled, places = joined(list(map(dump_by_value, parts)))
            self.cut = self.cut._replace(places=tuple(places))
        self._given, self._blocks = [], []
        if caught.error is not None:  # the worker reports it, and the consumer computes the batch
            why = f"the rows of a batch can't be sent to a worker process: {caught.error}"
            self._pickled, (place,) = joined([dump_by_value(why)])
            self.cut = self.cut._replace(places=(place,) * len(parts))
        return caught.error is None

    def take_pickled(self) -> "Pickled | None":
        """Return the pickled content, for processes, and release it."""
        parcel, self._pickled = self._pickled, None
        return parcel

    @property
    def row_count(self) -> int:
        """The number of batches: memory is planned for whole batches."""
        return self.steps

    def use(self, lease: Lease | Region) -> None:
        """Do nothing: the merge writes the batches into the memory."""

    def extent(self, block: int) -> tuple[None, None]:
        """Return None: positions that are read in order have no steps yet."""
        del block
        return None, None

    def among(self, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return nothing: no row is computed from a position."""
        del elements
        return set()

    def _bounds_of(self, block: int) -> tuple[int, int]:
        start = block * self.cut.block_rows
        return start, min(start + self.cut.block_rows, self.cut.bounds[-1])

    def run_block(self, block: int, context: Context, before_row: BeforeRow | None = None) -> int:
        """Apply the functions of rows to one block, singly if there is a `before_row`; return its number of rows."""
        if not self.has_rows:
            return 0
        rows, provenance = self._blocks[block]
        made = self._rows[block] = []
        if before_row is None:
            self._run.rows_into(made, rows, provenance, context)
            return len(rows)
        start, _ = self._bounds_of(block)
        for index in range(len(rows)):
            step = self._step_of(start + index)
            before_row(step, start + index - self.cut.bounds[step])
            self._run.rows_into(made, rows[index : index + 1], provenance[index : index + 1], context)
        return len(rows)

    def _step_of(self, row: int) -> int:
        return bisect.bisect_right(self.cut.bounds, row) - 1

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Apply the functions of rows to one row of one of the job's steps, and drop the result."""
        number = self.cut.bounds[step] + row
        block, index = divmod(number, self.cut.block_rows)
        rows, provenance = self._blocks[block]
        self._run.rows_into([], rows[index : index + 1], provenance[index : index + 1], context)

    def take_given(self, block: int, given: "tuple[list[Element], Provenance] | list[Element] | str") -> None:
        """Take the content of a block or of the merge, which another process has given to the job.

        Raises:
            UsageError: the content could not be sent.
        """
        if isinstance(given, str):
            raise UsageError(given)
        if isinstance(given, tuple):
            self._blocks = [([], given[1][:0])] * self.blocks
            self._blocks[block] = given
        else:
            self._given = given

    def run_merge(self, context: Context, before_row: BeforeRow | None = None) -> None:
        """Make the batches; where a function of a row has failed, only those before that row."""
        self._results = []
        for step, content in enumerate(self._contents()):
            if before_row is not None:
                before_row(step, None)
            self._results.append(self._run.merged(content, self.cut.firsts[step : step + 1], context))

    def _contents(self) -> list[Element]:
        """Return the rows of each batch, and release them."""
        if not self.has_rows:
            given, self._given = self._given, []
            return given
        rows: list[Element] = []
        for block, made in enumerate(self._rows):
            rows += made
            start, stop = self._bounds_of(block)
            if len(made) < stop - start:
                break
        self._rows, self._blocks = [], []
        whole = self.cut.bounds[: self._step_of(len(rows)) + 1]
        contents = [rows[start:stop] for start, stop in itertools.pairwise(whole)]
        if self.cut.ends_in_rest and len(contents) == self.steps:
            contents[-1] = Rest(contents[-1])
        return contents

    def elements(self, block: int) -> list[Element]:
        """Return the results of a block's rows, and release them."""
        rows, self._rows[block], self._blocks = self._rows[block], [], []
        return rows

    def take_elements(self, block: int, elements: list[Element], /) -> None:
        """Take the results of a block's rows from another process."""
        self._rows[block] = elements

    def merged(self) -> list[Element]:
        """Return the batches."""
        return self._results

    def take_merged(self, merged: list[Element]) -> None:
        """Take the batches from another process."""
        self._results = merged

    def batches(self) -> list[Element]:
        """Return the batches, of which some may be DROPPED, and release them; only those before one that failed."""
        results, self._results = self._results, []
        return results

    def task(self) -> CollateTask:
        """Return the description of the job."""
        return CollateTask(self.cut)


def collate_run(plan: Plan) -> CollateRun:
    """Return the steps above the folds of a plan, as this rank computes them."""
    collate = plan.program.collate
    if collate is None:
        raise InternalError("this plan has no steps above the folds")
    return CollateRun(collate, plan.batch_size // plan.shard.count, plan.streaming.input_refs)
