"""The job of a DataLoader's batch: the consumer sends the indices, and each process has the dataset and functions.

Rows are elements of the dataset. There are three ways to make a batch of them:
  - `rows`: where `default_collate` would stack the elements, workers write them directly into the batch's memory.
  - `merge`: else one worker collates them when all are computed.
  - `whole`: one worker computes a batch that the dataset returns in one call, or an element that isn't batched.

Elements of tensors, arrays and numbers in plain containers become the same nested arrays without a copy, and a batch
written from them equals torch's if each fits the layout of the first. torch collates all other elements, and those that
it would refuse or convert.
"""

import operator
import pickle
import reprlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._graph import Context, Read
from penstock._memory import Lease, Region
from penstock._plan import Plan
from penstock._runtime import NO_FAILURE, BeforeRow, JobFailure, Learned
from penstock._seeds import derive, derive_block
from penstock._tree import Structure
from penstock.batching import Column, Layout, LayoutMismatchError, LeafSpec, layout_of, write_rows
from penstock.errors import InternalError
from penstock.torch._data_loader._pickling import Arrived, Sealed
from penstock.torch._data_loader._seeding import seed_all, seeded
from penstock.torch._data_loader._torch_private import collates_plainly, default_collate
from penstock.torch._data_loader._worker import StreamRequest, Work, sending_errors, streamed, work_of

if TYPE_CHECKING:
    from penstock._runtime import BlockRecords


Way: TypeAlias = Literal["rows", "merge", "whole"]  # described above
_LARGE_ROW_BYTES: Final = 1 << 16  # larger rows are written one by one: only one element is in memory beside its batch
_NO_ROW: Final = -1  # the row number that seeds a batch's collate function
_NUMBERS: Final = frozenset({int, float, bool})
_DTYPES: Final = frozenset(
    np.dtype(name) for name in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")
)
_SCALARS: Final = frozenset(dtype.type for dtype in _DTYPES)


@frozen(eq=False)
class DrawnBatch:
    """The indices of a batch, drawn from the sampler.

    Attributes:
        number: the batch's number, counted from the epoch's start.
        indices: the pickled indices.
        rows: the number of indices.
        is_list: whether they are a list, so that rows can be read separately.
    """

    number: int
    indices: bytes
    rows: int
    is_list: bool


class RowsLearned(Learned):
    """The layout and sizes learned from the rows of earlier batches."""

    row_layout: "RowLayout | None" = None


class BatchTask(NamedTuple):
    """The value from which a process makes a `BatchJob`."""

    given: DrawnBatch
    seed: int
    way: Way
    block_rows: int
    row_layout: "RowLayout | None"

    def job(self, plan: Plan) -> "BatchJob":
        """Return the job."""
        assert isinstance(plan.node, Read)
        return BatchJob(self, RowsLearned(), work_of(plan.node.source))


class BatchJob:
    """The job of one batch, in the consumer or, with `work`, in a worker."""

    merges_in_worker = True
    steps = 1

    def __init__(self, task: BatchTask, learned: RowsLearned, work: Work | None = None) -> None:
        self.given = task.given
        self.failed = False
        self.failure: JobFailure = NO_FAILURE
        self.arriving: list[BlockRecords] | None = None
        self._task = task
        self._work = work
        self._learned = learned
        self.row_count = task.given.rows
        self.blocks = 1 if task.way == "whole" else max(-(-self.row_count // task.block_rows), 1)
        self.has_merge = task.way != "rows"
        self.sends_results = task.row_layout is None
        self.row_bytes = 0 if task.row_layout is None else task.row_layout.layout.leaf_offsets(self.row_count)[1]
        self.memory_bytes = self.row_bytes or max(int(self.row_count * learned.merged_row_bytes), 1)
        self._columns: list[Column] = []
        self._parts: list[Any] = [None] * self.blocks
        self._merged: Sealed | Arrived | None = None
        self._indices: Any = None

    def task(self) -> BatchTask:
        """Return the value from which a process makes this job."""
        return self._task

    @property
    def found_layout(self) -> bool:
        """Whether the layout was unknown, so that rows were not written into the batch, and is known for later jobs."""
        return self._task.row_layout is None and self._learned.row_layout is not None

    def use(self, lease: Lease | Region) -> None:
        """Let the rows be written into memory, which is kept as long as a view of a row exists."""
        if self._task.row_layout is not None:
            layout: Layout = self._task.row_layout.layout
            self._columns = layout.columns(self.row_count, cast("memoryview", lease))

    def extent(self, block: int) -> tuple[int, tuple[int, int]]:
        """Return the batch's number, and the first and last row of a block."""
        start, stop = self._bounds(block) if block < self.blocks else (0, self.row_count)
        return self.given.number, (start, stop - 1)

    def among(self, elements: object, /) -> set[tuple[int, ...]]:
        """Return an empty set: torch's elements have no positions."""
        del elements
        return set()

    def _bounds(self, block: int) -> tuple[int, int]:
        size = self.row_count if self._task.way == "whole" else self._task.block_rows
        return block * size, min((block + 1) * size, self.row_count)

    # -- in a process

    def run_block(self, block: int, context: Context, before_row: BeforeRow | None = None) -> int:
        """Compute one block."""
        del context
        if self._task.way == "whole":
            return 0
        start, stop = self._bounds(block)
        with sending_errors():
            if self._task.row_layout is None:
                self._parts[block] = Sealed(self._elements(start, stop, before_row))
            else:
                self._write(self._task.row_layout, start, stop, before_row)
        return stop - start

    def _write(self, layout: "RowLayout", start: int, stop: int, before_row: BeforeRow | None) -> None:
        work = self._here
        rows = 1 if self.row_bytes > _LARGE_ROW_BYTES * self.row_count and not work.reads_at_once else stop - start
        for row in range(start, stop, rows):
            layout.write(self._elements(row, min(row + rows, stop), before_row), self._columns, row)

    def _elements(self, start: int, stop: int, before_row: BeforeRow | None) -> list[Any]:
        self._open()
        dataset, indices, seed = self._here.dataset, self._indices, self._task.seed
        if self._here.reads_at_once:
            return list(seeded(derive(seed, start), dataset.__getitems__, indices))
        elements: list[Any] = []
        seeds: list[int] = derive_block(seed, np.arange(start, stop)).tolist()
        for row, seed_of_row in enumerate(seeds, start):
            if before_row is not None:
                before_row(0, row)
            elements.append(seeded(seed_of_row, operator.getitem, dataset, indices[row]))
        return elements

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Compute one row, and discard it."""
        del step, context
        self._open()
        seeded(derive(self._task.seed, row), operator.getitem, self._here.dataset, self._indices[row])

    def run_merge(self, context: Context, before_row: BeforeRow | None = None) -> None:
        """Collate the elements of all blocks, or compute the whole batch."""
        del context
        if before_row is not None:
            before_row(0, None)
        with sending_errors():
            collate = self._here.collate_fn
            self._open()
            if isinstance(self._indices, StreamRequest):
                repeated = before_row is not None
                self._merged = streamed(self._here, self._indices, self.given.number, is_repeated=repeated)
                return
            elements: Any = self._whole() if self._task.way == "whole" else self._gathered()
            if collate is default_collate and collates_plainly() and len(elements):
                self._learned.row_layout = row_layout(elements[0])
            if collate is not default_collate:  # `default_collate` draws no random numbers
                seed_all(derive(self._task.seed, _NO_ROW))
            self._merged = Sealed(collate(elements))

    def _whole(self) -> object:
        work, indices = self._here, self._indices
        seed = derive(self._task.seed, 0)
        if not work.is_batched:
            return seeded(seed, operator.getitem, work.dataset, indices)
        if work.reads_at_once:
            return seeded(seed, work.dataset.__getitems__, indices)
        return [work.dataset[index] for index in indices]

    def _gathered(self) -> list[Any]:
        parts, self._parts = self._parts, []
        return [element for part in parts for element in cast("list[object]", part.opened())]

    def _open(self) -> None:
        if self._indices is None:
            self._indices = pickle.loads(self.given.indices)

    @property
    def _here(self) -> Work:
        if self._work is None:
            raise InternalError("a batch can be computed only in a worker process")
        return self._work

    def elements(self, block: int) -> object:
        """Return the elements of a block, and release them."""
        part, self._parts[block] = self._parts[block], None
        return part

    def take_elements(self, block: int, elements: object, /) -> None:
        """Receive the elements of a block from another process."""
        if elements is not None:
            self._parts[block] = elements

    def merged(self) -> object:
        """Return the collated batch, and the layout learned from its rows."""
        return self._merged, self._learned.row_layout

    # -- in the consumer

    def take_merged(self, merged: object, /) -> None:
        """Receive the collated batch from a process."""
        self._merged, layout = cast("tuple[Arrived, RowLayout | None]", merged)
        self._learned.row_layout = self._learned.row_layout or layout

    def index(self, row: int) -> str:
        """Return the index of a row, as text."""
        self._open()
        return reprlib.repr(self._indices[row])

    def take(self, copied_bytes: int) -> object:
        """Return the batch; arrays of up to `copied_bytes` are copied out of the job's memory."""
        if self._task.row_layout is not None:
            return self._task.row_layout.batch(self._columns, copied_bytes)
        assert isinstance(self._merged, Arrived)
        return self._merged.opened(copied_bytes)


@frozen
class RowLayout:
    """The layout of the rows of a batch, and the types of their leaves, which must not differ, as in torch."""

    layout: Layout
    types: tuple[type, ...]

    def write(self, elements: Sequence[object], columns: list[Column], start: int) -> None:
        """Write elements into rows from `start` on.

        Raises:
            LayoutMismatchError: an element doesn't fit the layout.
        """
        plain: list[object] = []
        for row, element in enumerate(elements):
            types: list[type] = []
            found = _plain(element, types)
            if found is None or tuple(types) != self.types:
                raise LayoutMismatchError(row)
            plain.append(found[0])
        write_rows(self.layout, plain, columns, start)

    def batch(self, columns: Sequence[Column], copied_bytes: int) -> object:
        """Return the batch, with tensors over the memory of columns.

        Args:
            columns: columns with all rows written.
            copied_bytes: columns up to this size are copied, so that they don't keep the memory of the others.
        """
        from_numpy: Callable[[object], torch.Tensor] = vars(torch)["from_numpy"]
        tensors = [
            from_numpy(column.copy() if column.nbytes <= copied_bytes else column)
            for column in columns
            if isinstance(column, np.ndarray)
        ]
        return _collated(self.layout.structure, tensors[::-1])


def row_layout(element: object) -> RowLayout | None:
    """Return the layout of elements like this one; None if torch has to collate them."""
    types: list[type] = []
    found = _plain(element, types)
    if found is None:
        return None
    with Caught(Exception):
        layout = layout_of(found[0])
        if layout.row_bytes and all(isinstance(kind, LeafSpec) for kind in layout.kinds):
            return RowLayout(layout, tuple(types))
    return None


def _plain(value: object, types: list[type]) -> tuple[Any] | None:
    """Return an element with arrays in place of tensors, in a tuple; None if any part of it isn't plain.

    Args:
        value: the element.
        types: the list to which the types of its leaves are appended.
    """
    kind: type[Any] = type(value)
    given: Any = value
    types.append(kind)
    if issubclass(kind, torch.Tensor):
        return _plain_tensor(given) if kind is torch.Tensor else None
    if kind is np.ndarray:
        return (given,) if given.dtype in _DTYPES and _has_no_negative_stride(given) else None
    if kind in _NUMBERS or kind in _SCALARS:
        return (given,)
    types.pop()
    if kind is dict:
        items = _plain_items(list(given.values()), types)
        return None if items is None else (dict(zip(given, items, strict=True)),)
    if kind is list:
        items = _plain_items(given, types)
        return None if items is None else (items,)
    make: Any = getattr(kind, "_make", tuple if kind is tuple else None)
    if issubclass(kind, tuple) and make is not None and kind.__base__ in (tuple, object):
        items = _plain_items(given, types)
        return None if items is None else (make(items),)
    return None


def _plain_tensor(tensor: "torch.Tensor") -> tuple[Any] | None:
    is_plain = tensor.layout is torch.strided and not (
        tensor.requires_grad
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.device.type != "cpu"
        or tensor.dtype is torch.bfloat16
    )
    if not is_plain:
        return None
    try:
        return (tensor.numpy(),)
    except (TypeError, RuntimeError):  # a dtype that NumPy doesn't have
        return None


def _has_no_negative_stride(array: "np.ndarray[Any, Any]") -> bool:
    """Return whether torch accepts an array's strides."""
    return array.flags.c_contiguous or min(array.strides, default=0) >= 0


def _plain_items(values: Sequence[object], types: list[type]) -> list[object] | None:
    items: list[object] = []
    for value in values:
        found = _plain(value, types)
        if found is None:
            return None
        items.append(found[0])
    return items


def _collated(structure: Structure, tensors: "list[torch.Tensor]") -> object:
    """Return a batch with the structure that torch gives it, of tensors taken from the end of the list."""
    container = structure.container
    if container is None:
        return tensors.pop()
    children = [_collated(child, tensors) for child in structure.children]
    if container is dict:
        return dict(zip(structure.keys, children, strict=True))
    if container is list or container is tuple:  # torch makes a list of both
        return children
    return container(*children)
