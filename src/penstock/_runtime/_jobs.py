"""Jobs: work that is cut into blocks of rows, which workers compute, in a slot of the ring.

The thread that owns the scheduler makes and arms a job. Then each block is run once, by any worker, in any order; the
merge, if the job has one, after all blocks; then the consumer takes the results.

One class, `Job`, cuts the rows, keeps the results, and knows the row at which a worker is. `Work` is the content of a
job, as three functions: `compute` rows, `merge` them to batches, and describe itself as a `Task`, from which another
process makes the same work. The kinds of work are:
  - `BatchWork` (`_batch_work`): consecutive steps of an indexable dataset, one batch or several small ones. Workers
    write rows into the memory of the job where their layout is known.
  - `SpanWork` (`_span_work`): positions of a block input, for a dataset read in order.
  - `CollateWork` (`_collate_work`): batches whose rows a fold has made. These rows are *given* to the job.
  - in `penstock.torch`, a batch of drawn indices.

A new kind of work is one more file. Neither the scheduler nor the worker processes ask for the kind of work.
"""

import bisect
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from penstock._caught import Caught, CaughtFailure
from penstock._frozen import frozen
from penstock._graph import DROPPED, Context, Element, Integers, Node, Upcoming, parents_of_block, upcoming
from penstock._memory import Lease, Region
from penstock._pickles import Pickled, dump_by_value
from penstock._plan import Plan
from penstock._readings import NOTED_SECONDS
from penstock._runtime._policy import MEASURED_ITEMS
from penstock._runtime._room import Room
from penstock._runtime._shared_values import joined
from penstock._tensors import is_tensor
from penstock._tree import element_bytes, is_array, leaf_bytes
from penstock.errors import WorkerError

if TYPE_CHECKING:
    from penstock._runtime._io_prefetch import BlockRecords
    from penstock.events import Event

_NOTHING: Final = object()  # after the last batch of a merge


@frozen
class JobFailure:
    """The reasons why a job failed in worker processes, for the consumer.

    Attributes:
        crash: the last crash, where the job crashed too many processes.
        batch_index: the index in the job of the batch that crashed. A process has computed each batch before it.
        row: the row of that batch, or the position, that crashed; None where the batch as a whole did.
        is_suspect: whether any process crashed at the job, perhaps at a row after one that raises. The consumer then
            computes the job row by row, since that row would crash it, too.
        complaint: the exception of the process, as text; empty where it isn't known.
        note: the complaint as bytes, or the note of a `NotedError`; empty where the job failed for another reason.
        is_passing: whether nothing raised, and the job only needs more memory, or another layout.
    """

    crash: WorkerError | None = None
    batch_index: int = 0
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


AnyLayout = TypeVar("AnyLayout")


class Learned(Generic[AnyLayout]):
    """Measurements of a running loader, by which work is cut. Any worker writes them; a lost update is harmless.

    They are estimates for decisions. `Readings` are sums of everything, for a report.
    """

    _SMOOTHING: Final = 0.2
    _SHARE_SMOOTHING: Final = 0.05  # one block that had to wait for a processor changes no share
    _PARENT_SHARE: Final = 0.5

    def __init__(self, *, counts_all: bool = False) -> None:
        self.counts_all = counts_all
        """Whether all items of results are measured, since `memory=` is a bound; otherwise a part of long lists is."""
        self.layout: AnyLayout | None = None
        """The layout of a row, once one is known; rows are then written straight into the job's memory."""
        self.is_irregular = False
        """Whether a row didn't fit the layout; batches are then merged from elements."""
        self.row_seconds: float | None = None
        """The time of a row, including waits for storage and for the interpreter; in processes, not for a processor."""
        self.row_cpu_seconds: float | None = None
        """The processor time of a row."""
        self._seconds = self._parent_seconds = 0.0
        self.merge_seconds: float | None = None
        """The time of a batch, beyond that of its rows."""
        self.merged_row_bytes = 0.0
        """The largest memory that a row and its part of the batch took: shared memory, or that of functions."""
        self.made_row_bytes = 0.0
        """The memory that a row and its part of the batch took lately, where threads made the batch: it may fall."""
        self.batch_row_bytes = 0.0
        """The same, without the rows that a merge reads: only what is delivered."""
        self._is_merged = False
        self.element_bytes: int | None = None
        """The bytes of the arrays of an element that is read in order; None before the first span was taken."""
        self.has_crashed = False
        """Whether a process crashed at a block of whole batches; from then on, blocks are such that rows are found."""
        self.knows_memory = False
        """Whether the memory of a job was measured; that of other jobs follows from it."""

    def timed(self, rows: int, seconds: float, cpu_seconds: float, parent_seconds: float) -> None:
        """Record the time of a block; `parent_seconds` went into elements of which the rows are pieces."""
        if rows:
            self._seconds += seconds - self._SHARE_SMOOTHING * self._seconds
            self._parent_seconds += parent_seconds - self._SHARE_SMOOTHING * self._parent_seconds
            self.row_seconds = self._smoothed(self.row_seconds, seconds / rows)
            self.row_cpu_seconds = self._smoothed(self.row_cpu_seconds, cpu_seconds / rows)

    @property
    def parents_take_most(self) -> bool:
        """Whether most of the time goes into elements of which rows are pieces, so that workers should share none."""
        return self._parent_seconds > self._PARENT_SHARE * self._seconds

    def timed_merge(self, steps: int, seconds: float) -> None:
        """Record the time of merging some batches, including that of the steps above the batch; 0 for no merge."""
        if seconds:
            self.merge_seconds = self._smoothed(self.merge_seconds or None, seconds / steps)

    def merges_in_blocks(self) -> None:
        """Note that a block makes its batches itself: its time has that of their merge, which so far was apart."""
        if self.merge_seconds:
            self.merge_seconds = 0.0
            self.row_seconds = self.row_cpu_seconds = None  # of rows alone

    def took_memory(self, bytes_each: float, delivered_each: float, *, is_merged: bool) -> None:
        """Record the memory that a row and its part of the batch took; a merge has both, and more than a block."""
        self.batch_row_bytes = max(self.batch_row_bytes, delivered_each)
        known = self.merged_row_bytes if is_merged == self._is_merged else 0.0
        self.merged_row_bytes, self._is_merged = max(known, bytes_each), is_merged

    def made_in_threads(self, own_bytes: float, leased_bytes: float, *, is_merged: bool) -> None:
        """Record the memory that a row's part of a batch takes beside leased memory, where threads made the batch."""
        self.knows_memory = True
        made = own_bytes + leased_bytes if own_bytes else 0.0
        self.made_row_bytes = max(made, (self.made_row_bytes + made) / 2)  # one large batch makes a few jobs smaller
        if made:  # threads finish in any order, and a job that was begun before a row's layout changed has no results
            self.took_memory(made, own_bytes, is_merged=is_merged)

    def sized(self, element_bytes: int) -> None:
        """Record the size of an element; 0 where there was no element."""
        self.element_bytes = element_bytes or self.element_bytes or 0

    def _smoothed(self, known: float | None, found: float) -> float:
        return found if known is None else known + self._SMOOTHING * (found - known)


class Coordinates(NamedTuple):
    """The coordinates of rows: a node, their epochs and positions there, and the number of the input."""

    node: Node
    epochs: Integers
    positions: Integers
    block_input: tuple[int, ...] = ()
    """The number of the block input; empty for an indexable dataset, which has none."""


class BlockSize(NamedTuple):
    """The size of a job's blocks."""

    rows: int
    """The number of rows of a block; the last may have fewer."""
    whole_parents: bool = False
    """Whether a block has all rows that are pieces of its last row's parent element, and so more than `rows`."""
    whole_batches: bool = False
    """Whether a block has all rows of its last row's batch, and makes the batches itself, the steps above included."""

    def bounds(self, total: int, coordinates: Callable[[int, int], Coordinates]) -> Sequence[int]:
        """Return the first row of each block, and the number of rows; at least one block.

        Args:
            total: the number of rows.
            coordinates: returns the coordinates of a span of rows.
        """
        bounds = [*range(0, max(total, 1), self.rows), total]
        if not self.whole_parents or len(bounds) == 2:
            return bounds
        at = coordinates(0, total)
        parents = parents_of_block(at.node, at.epochs, at.positions)
        ends = np.append(np.flatnonzero(parents[1:] != parents[:-1]) + 1, total)
        found: list[int] = ends[np.searchsorted(ends, bounds[1:])].tolist()
        return list(dict.fromkeys([0, *found]))  # np.unique imports numpy.ma, which takes 30 ms


class Shape(NamedTuple):
    """The rows of a job, and the memory for them.

    Attributes:
        bounds: the first row of each batch, and the end of the last one; all 0 where only the merge computes.
        block_bounds: the first row of each block, and the number of rows; without rows there is no block.
        first_step: the step of the first batch; None where steps aren't known yet, since elements are read in order.
        has_merge: whether batches are merged once all blocks are computed.
        sends_results: whether a block's result is more than rows in the job's memory, so that a process sends the rest.
        needs_room: whether processes make what is delivered in a room: leased memory of a size that isn't known in
            advance, for merged batches, or elements without a batch.
        has_whole_blocks: whether a block is computed as a whole, also after a crash, and never row by row.
        ends_at_crash: whether the first crash of a process ends the job, which is then computed in another way.
        row_bytes: the bytes of the rows, where they are written straight into memory; else 0.
        memory_bytes: the bytes of leased memory that the job needs; 0 where its results have memory of their own.
        memory_units: the number of rows, or of batches, by which the memory of merged batches is measured.
        batch_units: the number of them that a full batch has.
    """

    bounds: Sequence[int]
    block_bounds: Sequence[int]
    first_step: int | None = None
    has_merge: bool = False
    sends_results: bool = False
    needs_room: bool = False
    has_whole_blocks: bool = False
    ends_at_crash: bool = False
    row_bytes: int = 0
    memory_bytes: int = 0
    memory_units: int = 1
    batch_units: int = 1

    @property
    def delivers_blocks(self) -> bool:
        """Whether what blocks of processes make in a room is delivered; otherwise the merge makes that."""
        return self.needs_room and not self.has_merge

    @property
    def makes_own(self) -> bool:
        """Whether threads make what is delivered in memory of its own: merged batches, or elements without a batch."""
        return self.has_merge or (self.first_step is not None and not self.row_bytes)


class Task(Protocol):
    """The description of a job's work: a small value that is pickled for worker processes."""

    def work(self, plan: Plan, /) -> "Work":
        """Return the work, in a process that has the plan."""
        ...


class Work(ABC):
    """The content of a job: what to compute for its rows, and how to make batches of the results.

    Attributes:
        shape: the rows of the job, and the memory for them; constant.
        given: the content that a fold has given for each block, by its number; the merge is the block after all others.
        has_crashed: whether the merge has crashed another process.
        room: the memory for results, in a worker process that delivers them; None elsewhere.
    """

    shape: Shape
    given: dict[int, Any]
    has_crashed = False
    room: Room | None = None

    def __init__(self, shape: Shape, given: dict[int, Any] | None = None) -> None:
        self.shape = shape
        self.given = {} if given is None else given

    @abstractmethod
    def compute(self, results: list[Any], start: int, stop: int, context: Context) -> None:
        """Compute the job's rows [start, stop), at least one and all of one block; add their results to a list.

        Args:
            results: a list for the process that merges, or the consumer; it may stay empty where rows are in memory.
                After an error it has the results of the rows before, where these are needed.
            start: the first row, counted from the first row of the job.
            stop: the end of the rows.
            context: of the calling thread.
        """

    def merge(self, parts: Sequence[list[Any]], context: Context) -> Iterator[Any]:
        """Yield the batches of all steps, each computed when it is requested.

        Args:
            parts: the results of each block.
            context: of the calling thread.
        """
        del parts, context
        return iter(())

    def pickled(self, batch: object) -> object:
        """Return what is pickled of a merged batch that can't be written in place: by default the batch itself."""
        return batch

    @abstractmethod
    def task(self) -> Task:
        """Return the description of this work."""

    def own_bytes(self, batch: Element, most_items: int) -> int:
        """Return how much memory, beside leased memory, threads take for batches like this one.

        Args:
            batch: a batch that a thread has made.
            most_items: how many items of a list are looked at.
        """
        return own_bytes(batch, most_items)

    def use(self, memory: Lease | Region) -> None:
        """Write rows into leased memory from now on; the lease lives as long as any view of it."""
        del memory

    def coordinates(self, start: int, stop: int) -> Coordinates | None:
        """Return the coordinates of the rows [start, stop); None where rows aren't computed from these."""
        del start, stop
        return None

    @property
    def found_layout(self) -> object:
        """The layout of the rows, if it is known now."""
        return None


class Unsendable(NamedTuple):
    """Takes the place of given content that can't be sent to a worker process."""

    why: str


BeforeRow = Callable[[int, int | None], None]
"""Called with the index of a batch in the job and one of its rows before that row is computed; with None before the
merge."""
AnyWork = TypeVar("AnyWork", bound=Work, covariant=True)


class Job(Generic[AnyWork]):
    """The work in one slot, cut into blocks of rows, and its results.

    Args:
        work: the content.
        keeps_errors: whether an exception in a worker thread is kept for the consumer, and doesn't stop the merge of
            the batches before it.

    Attributes:
        steps: the number of batches that it makes.
        blocks: the number of blocks.
        failed: whether a block or the merge raised; the consumer then computes the batches of the job, one by one.
        failure: the reasons, where processes compute.
        arriving: the prefetched records of each block; None where the workers read all records.
        waited_elsewhere: returns how long worker processes have waited for records that they had requested, and how
            long they have computed.
        events: what happened in worker processes; the consumer records it when it has the job.
        parts: the results of each block that `Work.compute` has added.
        results: the merged batches.
    """

    def __init__(self, work: AnyWork, *, keeps_errors: bool = False) -> None:
        self.work = work
        shape = work.shape
        self.steps = len(shape.bounds) - 1
        self.blocks = len(shape.block_bounds) - 1
        self.has_merge = shape.has_merge
        self.memory_bytes = shape.memory_bytes
        self.failed = False
        self.failure = NO_FAILURE
        self.arriving: list[BlockRecords] | None = None
        self.waited_elsewhere: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        self.events: list[Event] = []
        self.parts: list[list[Any]] = [[] for _ in range(self.blocks)]
        self.results: list[Any] = []
        self._keeps_errors = keeps_errors
        self._errors: dict[int, BaseException] = {}  # by block
        self._packed: tuple[Pickled, dict[int, slice]] | None = None

    @property
    def awaited(self) -> bool:
        """Whether its workers waited for records that had been requested for longer than they computed."""
        waited, computed = self.waited_elsewhere()
        for records in self.arriving or ():
            waited, computed = waited + records.waited_seconds, computed + records.computed_seconds
        return waited > max(computed, NOTED_SECONDS)

    # -- its rows

    @property
    def row_count(self) -> int:
        """The number of rows of the job."""
        return self.work.shape.bounds[-1]

    def bounds_of(self, block: int) -> tuple[int, int]:
        """Return the span [start, stop) of the job's rows that a block has; all rows for the merge."""
        if block == self.blocks:
            return 0, self.row_count
        bounds = self.work.shape.block_bounds
        return bounds[block], bounds[block + 1]

    def extent(self, block: int) -> tuple[int | None, tuple[int, int] | None]:
        """Return a block's first step, and its first and last row, counted from the first row of that step.

        The merge is the block after all blocks of rows. None stands for what isn't known.
        """
        first_step = self.work.shape.first_step
        if first_step is None:
            return None, None
        start, stop = self.bounds_of(block)
        bounds = self.work.shape.bounds
        index = min(batch_index(bounds, start), self.steps - 1)
        first = bounds[index]
        return first_step + index, (start - first, stop - 1 - first) if start < stop else None

    def coordinates(self, block: int) -> Coordinates | None:
        """Return the coordinates of a block's rows; None where rows aren't computed from these."""
        return self.work.coordinates(*self.bounds_of(block))

    def upcoming(self, block: int) -> list[Upcoming]:
        """Return the records of async sources that a block needs."""
        at = self.coordinates(block)
        return [] if at is None else list(upcoming(at.node, at.epochs, at.positions))

    def among(self, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return those of some elements, given as in `Context.crashing_rows`, that are rows of the job."""
        at = self.coordinates(self.blocks)
        if at is None:
            return set()
        rows = zip(at.epochs.tolist(), at.positions.tolist(), strict=True)
        return {(*each, *at.block_input) for each in rows}.intersection(elements)

    # -- in a worker

    def run_block(
        self,
        block: int,
        context: Context,
        before_row: BeforeRow | None = None,
        learned: Learned[Any] | None = None,
    ) -> int:
        """Compute one block, row by row if there is a `before_row`; return its number of rows.

        A thread records the memory of the job's results in `learned`.
        """
        if self.arriving is None:
            rows = self._run_block(block, context, before_row)
        else:
            records = self.arriving[block]
            context, began = records.context_with_records(context), time.perf_counter()
            try:
                rows = self._run_block(block, context, before_row)
            finally:
                records.computed_seconds = time.perf_counter() - began
        if learned is not None and block == 0 and not self.has_merge:
            self._measure(self.parts[0], learned)
        return rows

    def _run_block(self, block: int, context: Context, before_row: BeforeRow | None) -> int:
        start, stop = self.bounds_of(block)
        results = self.parts[block] = []
        if before_row is None or self.work.shape.has_whole_blocks:
            if start < stop:
                self.work.compute(results, start, stop, context)
            return stop - start
        bounds = self.work.shape.bounds
        for row in range(start, stop):
            index = batch_index(bounds, row)
            before_row(index, row - bounds[index])
            self.work.compute(results, row, row + 1, context)
        return stop - start

    def try_row(self, index: int, row: int, context: Context) -> None:
        """Compute one row of the batch with an index in the job, and drop the result."""
        number = self.work.shape.bounds[index] + row
        self.work.compute([], number, number + 1, context)

    def run_merge(
        self,
        context: Context,
        before_row: BeforeRow | None = None,
        keep: Callable[[Any], None] | None = None,
        learned: Learned[Any] | None = None,
    ) -> None:
        """Make the batches of the results of all blocks; call `before_row` before each batch, and `keep` with each.

        By default they are kept as the job's results. A thread records their memory in `learned`.
        """
        self.work.has_crashed = before_row is not None
        batches = self.work.merge(self.parts, context)
        self.parts, self.results = [], []
        if keep is None:
            keep = self.results.append
        for index in range(self.steps):
            if before_row is not None:
                before_row(index, None)
            batch = next(batches, _NOTHING)
            if batch is _NOTHING:
                break
            keep(batch)
            del batch  # so that the memory of its arrays can become the next one's
        if learned is not None:
            self._measure(self.results, learned)

    def _measure(self, made: list[Any], learned: Learned[Any]) -> None:
        """Record the memory of the first batch that a thread has made; not of all, since that takes a while."""
        shape = self.work.shape
        leased = shape.row_bytes / max(shape.memory_units, 1)
        if not (self.has_merge or shape.sends_results):  # rows were written into leased memory
            learned.made_in_threads(0, leased, is_merged=False)
        batch = next((each for each in made if each is not DROPPED), DROPPED) if shape.makes_own else DROPPED
        if batch is not DROPPED:
            own = self.work.own_bytes(batch, sys.maxsize if learned.counts_all else MEASURED_ITEMS) / shape.batch_units
            learned.made_in_threads(own, leased, is_merged=self.has_merge)

    def fail(self, block: int, error: BaseException) -> None:
        """Record an exception of a block or of the merge, in a worker thread."""
        if self._keeps_errors:
            self._errors[block] = error
        else:
            self.failed = True

    # -- content that a fold has given, on its way to a process

    def pack(self) -> bool:
        """Pickle the given content for processes, and release it; return whether that was possible."""
        given, self.work.given = self.work.given, {}
        with CaughtFailure() as caught:
            pickled, places = joined([dump_by_value(content) for content in given.values()])
            self._packed = pickled, dict(zip(given, places, strict=True))
        if caught.error is None:
            return True
        # The worker reports it, and the consumer computes the batch.
        why = Unsendable(f"the rows of a batch can't be sent to a worker process: {caught.taken()}")
        pickled, (place,) = joined([dump_by_value(why)])
        self._packed = pickled, dict.fromkeys(given, place)
        return False

    @property
    def packed(self) -> tuple[Pickled, dict[int, slice]]:
        """The pickled content, and its place for each block; nothing where none is given."""
        return self._packed or (Pickled(0, []), {})

    def release_packed(self) -> None:
        """Release the pickled content, since processes have it."""
        self._packed = None

    # -- in the consumer

    def take_error(self) -> BaseException | None:
        """Return the kept exception of the first batch that has no result, if there is one, and release all."""
        errors, self._errors = self._errors, {}
        # The merge has only batches before a row that failed.
        return errors.get(self.blocks, errors[min(errors)]) if errors else None

    def take_results(self) -> list[Any]:
        """Return the merged batches, and release them; where one has failed, perhaps only those before it."""
        results, self.results = self.results, []
        return results


def own_bytes(batch: Element, most_items: int, leased: Iterable[Any] = ()) -> int:
    """Return about how large a batch is, without its arrays in the memory of leased ones; 0 if it can't be measured."""
    with Caught(Exception):  # an object of the user's may have any attributes, or refer to itself
        starts = [(_address(each), each.nbytes) for each in leased if is_array(each) and each.nbytes]
        if not starts:
            return element_bytes(batch, most_items=most_items)
        first, end = min(starts)[0], max(start + size for start, size in starts)  # all columns are in one region

        def size_of(leaf: object) -> int:
            return 0 if first <= _address(leaf) < end else leaf_bytes(leaf)

        return element_bytes(batch, size_of, most_items)
    return 0


def _address(leaf: object) -> int:
    """Return the place of an array or a tensor in memory; -1 for other leaves."""
    if is_tensor(leaf):
        return int(cast("Any", leaf).data_ptr())
    return int(leaf.__array_interface__["data"][0]) if is_array(leaf) else -1


def batch_index(bounds: Sequence[int], row: int) -> int:
    """Return the index of the batch that a row is in, by the first row of each batch and the end of the last one."""
    return bisect.bisect_right(bounds, row) - 1
