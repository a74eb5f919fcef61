"""The job of a DataLoader's batches: the consumer sends the indices, and each process has the dataset and functions.

Rows are elements of the dataset. There are three ways to make a batch of them:
  - `rows`: where `default_collate` would stack the elements, workers write them directly into the batch's memory.
  - `merge`: else one worker collates them when all are computed.
  - `whole`: one worker computes a batch that the dataset returns in one call, or an element that isn't batched; or a
    batch whose rows take little time, which would otherwise be sent from worker to worker.

Elements of tensors, arrays and numbers in plain containers become the same nested arrays without a copy, and a batch
written from them equals torch's if each fits the layout of the first. torch collates all other elements, and those that
it would refuse or convert.
"""

import operator
import pickle
import reprlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._graph import Context, Read
from penstock._memory import Lease, Region
from penstock._plan import Plan
from penstock._processes import pickled_for_processes
from penstock._runtime import Job, Learned, Shape, Work
from penstock._seeds import derive
from penstock._tree import Structure
from penstock.batching import (
    Column,
    Layout,
    LayoutMismatchError,
    LeafSpec,
    layout_of,
    split_leaves,
    write_column,
    write_tensors,
)
from penstock.errors import InternalError
from penstock.torch._data_loader._pickling import Arrived, Sealed
from penstock.torch._data_loader._seeding import Seed, seed_all, seeded, seeded_anew, seeded_each
from penstock.torch._data_loader._torch_private import collates_plainly, default_collate
from penstock.torch._data_loader._worker import StreamRequest, UserCode, sending_errors, streamed, user_code_of

Way: TypeAlias = Literal["rows", "merge", "whole"]  # described above
_LARGE_ROW_BYTES: Final = 1 << 16  # larger rows are written one by one: only one element is in memory beside its batch
_NO_ROW: Final = -1  # the row number that seeds a batch's collate function
_NUMBERS: Final = frozenset({int, float, bool})
_DTYPES: Final = frozenset(
    np.dtype(name) for name in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")
)
_SCALARS: Final = frozenset(dtype.type for dtype in _DTYPES)
_MAX_LEVELS: Final = 64  # of containers: a pickle of a layout that has 250 would need too deep a recursion


class DrawnBatch(NamedTuple):
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


class DrawnTask(NamedTuple):
    """The description of a `DrawnWork`, which is sent with plain tuples: pickling others takes ten times as long."""

    batches: tuple[DrawnBatch, ...]
    seed: Seed
    """The epoch's."""
    way: Way
    block_rows: int
    layout: bytes | None
    """The layout of rows, pickled and cached: it is the same for all but the first jobs, and slow to unpickle."""

    def work(self, plan: Plan) -> "DrawnWork":
        """Return the work, in a process."""
        assert isinstance(plan.node, Read)
        learned: Learned[RowLayout] = Learned()
        learned.layout = None if self.layout is None else _unpickled(self.layout)
        named = self._replace(batches=tuple(map(DrawnBatch._make, self.batches)), seed=Seed._make(self.seed))
        return DrawnWork(named, learned, user_code_of(plan.node.source))


class DrawnWork(Work):
    """A batch of drawn indices, or several small ones, in the consumer or, with the user's `code`, in a worker.

    Attributes:
        drawn: the indices of the first batch.
    """

    def __init__(self, task: DrawnTask, learned: "Learned[RowLayout]", code: UserCode | None = None) -> None:
        self.drawn = task.batches[0]
        self._task = task
        self._given_code = code
        self._learned = learned
        self._layout = layout = None if task.layout is None else learned.layout
        bounds = list(accumulate((batch.rows for batch in task.batches), initial=0))
        drawn_rows = bounds[-1]
        if task.way == "whole":
            bounds = [0] * len(bounds)
        row_bytes = 0 if layout is None else layout.layout.leaf_offsets(drawn_rows)[1]
        shape = Shape(
            bounds,
            [*range(0, bounds[-1], task.block_rows), bounds[-1]],
            self.drawn.number,
            has_merge=task.way != "rows",
            needs_room=task.way != "rows",
            sends_results=layout is None,
            has_whole_blocks=code is not None and code.reads_at_once,
            row_bytes=row_bytes,
            memory_bytes=row_bytes or max(int(drawn_rows * learned.merged_row_bytes), 1),
            memory_units=drawn_rows,
        )
        super().__init__(shape)
        self._columns: list[Column] = []
        self._indices: dict[int, Any] = {}  # by the index of the batch in the job
        self._seeds: dict[int, Seed] = {}  # in the same way

    def task(self) -> DrawnTask:
        batches: tuple[Any, ...] = tuple([(*each,) for each in self._task.batches])
        return self._task._replace(batches=batches, seed=cast("Any", (*self._task.seed,)))

    @property
    def batches(self) -> tuple[DrawnBatch, ...]:
        """The indices of each batch."""
        return self._task.batches

    @property
    def found_layout(self) -> "RowLayout | None":
        """The layout of the rows, if it is known now."""
        return self._learned.layout

    def use(self, memory: Lease | Region) -> None:
        """Let the rows be written into memory, which is kept as long as a view of a row exists."""
        if self._layout is not None:
            self._columns = self._layout.layout.columns(self.shape.bounds[-1], cast("memoryview", memory))

    @property
    def reads_rows(self) -> bool:
        """Whether a worker that makes whole batches reads their rows one by one."""
        return self._task.way == "whole" and self.drawn.is_list and self.drawn.rows > 0

    # -- in a process

    def compute(self, results: list[Any], start: int, stop: int, context: Context) -> None:
        """Write rows into memory if their layout is known; otherwise add their elements to the results."""
        del context
        with sending_errors():
            if self._layout is None:
                results.append(Sealed(self._elements(start, stop)))
            else:
                self._write(self._layout, start, stop)

    def _write(self, layout: "RowLayout", start: int, stop: int) -> None:
        is_large = self.shape.row_bytes > _LARGE_ROW_BYTES * self.shape.bounds[-1]
        rows = 1 if is_large and not self._code.reads_at_once else stop - start
        for row in range(start, stop, rows):
            end = min(row + rows, stop)
            layout.write(self._elements(row, end), self._columns, row, end)

    def _elements(self, start: int, stop: int) -> list[Any]:
        elements: list[Any] = []
        for step, (first, end) in enumerate(pairwise(self.shape.bounds)):
            if first < stop and start < end:
                elements += self._elements_of(step, range(max(start, first) - first, min(stop, end) - first))
        return elements

    def _elements_of(self, step: int, rows: range) -> list[Any]:
        dataset, indices = self._code.dataset, cast("list[Any]", self._open(step))
        if self._code.reads_at_once:
            found = list(seeded(self._seed(0, step), dataset.__getitems__, indices))
            if len(found) != len(indices):  # torch collates whatever comes
                raise LayoutMismatchError(0)
            return found
        read = partial(operator.getitem, dataset)
        return seeded_each(self._batch_seed(step), rows, read, [indices[row] for row in rows])

    def merge(self, parts: Sequence[list[Any]], context: Context) -> Iterator[object]:
        """Collate the elements of all blocks, or compute whole batches."""
        del context
        with sending_errors():
            elements = _gathered(parts)
        for step, (start, stop) in enumerate(pairwise(self.shape.bounds)):
            yield self._collated(step, elements[start:stop])

    def _collated(self, step: int, rows: list[Any]) -> object:
        """Return the collated batch of a step; that of a stream is pickled already."""
        with sending_errors():
            indices = self._open(step)
            if isinstance(indices, StreamRequest):
                return streamed(self._code, indices, self.drawn.number, is_repeated=self.has_crashed)
            return self._batch(step, rows)

    def pickled(self, batch: object) -> object:
        with sending_errors():
            return batch if isinstance(batch, Sealed) else Sealed(batch)

    def _batch(self, step: int, rows: list[Any]) -> object:
        collate, is_whole = self._code.collate_fn, self._task.way == "whole"
        if collate is default_collate:  # it draws no random numbers
            elements: Any = self._whole(step) if is_whole else rows
            if collates_plainly() and len(elements):
                self._learned.layout = row_layout(elements[0])
            return collate(elements)
        seed = self._seed(_NO_ROW, step)
        if is_whole:
            return seeded_anew(seed, collate, partial(self._whole, step))
        seed_all(seed)  # the function may change rows, so it can't be called again if it drew random numbers
        return collate(rows)

    def _whole(self, step: int) -> object:
        code, indices = self._code, cast("list[Any]", self._open(step))
        seed = self._seed(0, step)
        if not code.is_batched:
            return seeded(seed, partial(operator.getitem, code.dataset), indices)
        if code.reads_at_once:
            return seeded(seed, code.dataset.__getitems__, indices)
        if self.batches[step].is_list:
            return self._elements_of(step, range(len(indices)))
        return [code.dataset[index] for index in indices]

    def _seed(self, row: int, step: int) -> Seed:
        return Seed(derive(self._batch_seed(step).value, row), self._task.seed.shown)

    def _batch_seed(self, step: int) -> Seed:
        if step not in self._seeds:
            seed = self._task.seed
            self._seeds[step] = Seed(derive(seed.value, self.batches[step].number), seed.shown)
        return self._seeds[step]

    def _open(self, step: int) -> object:
        """Unpickle the indices of a batch, once, and return them."""
        if step not in self._indices:
            self._indices[step] = pickle.loads(self.batches[step].indices)
        return self._indices[step]

    @property
    def _code(self) -> UserCode:
        if self._given_code is None:
            raise InternalError("a batch can be computed only in a worker process")
        return self._given_code

    # -- in the consumer

    def index(self, row: int) -> str:
        """Return the index of a row of the first batch, as text."""
        return reprlib.repr(cast("list[Any]", self._open(0))[row])

    def made(self, merged: Sequence[Any], copied_bytes: int) -> list[Callable[[], object]]:
        """Return a function for each batch, which returns it; arrays of up to `copied_bytes` are copied.

        The function of one batch may raise, since it unpickles objects of the user's classes.

        Args:
            merged: the collated batches, as they came from a process; empty where rows are in memory.
            copied_bytes: the maximum size of the arrays that are copied.
        """
        layout, bounds = self._layout, self.shape.bounds
        if layout is None:
            return [partial(_opened, batch, copied_bytes) for batch in merged]
        if len(bounds) == 2:
            return [partial(layout.batch, self._columns, copied_bytes)]
        arrays = [column for column in self._columns if isinstance(column, np.ndarray)]
        return [partial(layout.batch, [array[a:b] for array in arrays], copied_bytes) for a, b in pairwise(bounds)]


DrawnJob: TypeAlias = Job[DrawnWork]


def _opened(batch: object, copied_bytes: int) -> object:
    return batch.opened(copied_bytes) if isinstance(batch, Arrived) else batch


def _gathered(parts: Sequence[list[Any]]) -> list[Any]:
    return [element for part in chain.from_iterable(parts) for element in part.opened()]


@frozen(cached=True)
class RowLayout:
    """The layout of the rows of a batch, and the types of their leaves, which must not differ, as in torch."""

    layout: Layout
    types: tuple[type, ...]

    @cached_property
    def pickled(self) -> bytes:
        """The layout as a pickle for workers."""
        return pickled_for_processes(self)

    def write(self, elements: Sequence[object], columns: list[Column], start: int, stop: int) -> None:
        """Write elements into the rows from `start` to `stop`.

        Raises:
            LayoutMismatchError: an element doesn't fit the layout, or there are more or fewer than rows.
        """
        leaves = split_leaves(self.layout.structure, elements) if len(elements) == stop - start else None
        if leaves is None:
            raise LayoutMismatchError(0)
        for kind, spec, items, column in zip(self.types, self.layout.kinds, leaves, columns, strict=True):
            if set(map(type, items)) != {kind}:
                raise LayoutMismatchError(0)
            if kind is torch.Tensor and isinstance(column, np.ndarray) and write_tensors(items, column, start):
                continue  # nearly always: to look at each tensor takes ten times as long
            plain = _plain_items_of(kind, items)
            if plain is None or not write_column(spec, plain, column, start):
                raise LayoutMismatchError(0)

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


@lru_cache
def _unpickled(pickled: bytes) -> RowLayout:
    layout: RowLayout = pickle.loads(pickled)
    return layout


def _plain_items_of(kind: type, items: Sequence[Any]) -> Sequence[Any] | None:
    """Return the items of a leaf, which are of its type, with arrays in place of tensors; None if one isn't plain."""
    if kind is torch.Tensor:
        plain = [array for item in items for array in _plain_tensor(item) or ()]
        return plain if len(plain) == len(items) else None
    if kind is np.ndarray:
        strided = [item for item in items if not item.flags.c_contiguous]
        return items if all(map(_has_no_negative_stride, strided)) else None
    return items


def row_layout(element: object) -> RowLayout | None:
    """Return the layout of elements like this one; None if torch has to collate them."""
    types: list[type] = []
    found = _plain(element, types, _MAX_LEVELS)
    if found is None:
        return None
    with Caught(Exception):
        layout = layout_of(found[0])
        if layout.row_bytes and all(isinstance(kind, LeafSpec) for kind in layout.kinds):
            return RowLayout(layout, tuple(types))
    return None


def _plain(value: object, types: list[type], levels: int) -> tuple[Any] | None:
    """Return an element with arrays in place of tensors, in a tuple; None if any part of it isn't plain.

    Args:
        value: the element.
        types: the list to which the types of its leaves are appended.
        levels: the number of containers that may be within each other.
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
        items = _plain_items(list(given.values()), types, levels)
        return None if items is None else (dict(zip(given, items, strict=True)),)
    if kind is list:
        items = _plain_items(given, types, levels)
        return None if items is None else (items,)
    make: Any = getattr(kind, "_make", tuple if kind is tuple else None)
    if issubclass(kind, tuple) and make is not None and kind.__base__ in (tuple, object):
        items = _plain_items(given, types, levels)
        return None if items is None else (make(items),)
    return None


def _plain_tensor(tensor: "torch.Tensor") -> tuple[Any] | None:
    is_plain = tensor.layout is torch.strided and not (
        tensor.requires_grad
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or not tensor.is_cpu
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


def _plain_items(values: Sequence[object], types: list[type], levels: int) -> list[object] | None:
    items: list[object] = []
    for value in values:
        found = _plain(value, types, levels - 1) if levels else None
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
