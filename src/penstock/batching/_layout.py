"""The layout of a batch, and the writer of rows directly into the batch's columns.

A `Layout` is the structure of the elements and the kind of every leaf, as a value. It is made from one element. It
returns the bytes of a row, the columns for a number of rows, in new or in given memory, and the batch of full columns.

Problem: stacking copies each row twice, into its own array and into the batch, and one worker alone stacks a batch.
Solution: with a layout, the columns of a batch are allocated first, and each worker writes its rows directly into them.

`write_rows` accepts only elements that `stack` would put into columns of this layout, and writes the same bytes. For
any other element it raises `LayoutMismatchError`, and the caller merges the batch by `stack`. That raises the error,
unless the element is valid and only the layout differs, as with a dict whose keys are in another order.

Planned sequences (`PlannedRows`) are filled only when they are written, straight into the columns.

Any number of threads may write disjoint rows of the same columns. A large copy releases the GIL.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._caught import raised_by_handler
from penstock._frozen import frozen
from penstock._processes import pickled_for_processes
from penstock._strides import copied_with_strides
from penstock._tree import LEAF, Element, Structure, flatten, is_array, leaf_paths, unflatten, unflatten_each
from penstock.batching._leaf import LeafError, LeafKind, LeafSpec, as_value, kind_of, values_of, write_value
from penstock.batching._merge import Batch, Column, new_array, stack
from penstock.batching._packing import PlannedRows
from penstock.batching._stack_arrays import split_dicts, split_sequences, write_run
from penstock.errors import UsageError

Memory: TypeAlias = bytearray | memoryview | NDArray[Any]

ALIGNMENT: Final = 64  # bytes; JAX copies arrays that are aligned to less
_MANY: Final = 8  # bounds of batches, from which cutting all by one reshape takes less time than one slice for each


@frozen(cached=True)
class Layout:
    """The structure of the elements of a batch and the kind of each leaf, in the structure's order.

    Attributes:
        structure: the elements' structure, the order of keys included.
        kinds: for each leaf a `LeafSpec` (its column is an array), `str` or `bytes` (a list), or None (nothing).

    Example:
        >>> layout = layout_of({"label": 3, "name": "a"})
        >>> layout.batch(layout.columns(2))["name"]
        [None, None]
    """

    structure: Structure
    kinds: tuple[LeafKind, ...]

    @functools.cached_property
    def pickled(self) -> bytes:
        """The layout as a pickle for other processes. Equal layouts may differ in it, as with keys 1 and True."""
        return pickled_for_processes(self)

    @functools.cached_property
    def row_bytes(self) -> int:
        """The number of bytes of one row in all arrays together, without padding for alignment."""
        return sum(filter(None, self._leaf_bytes))

    @functools.cached_property
    def _leaf_bytes(self) -> tuple[int | None, ...]:
        """For each leaf the number of bytes of one row; None for leaves that are no arrays."""
        return tuple(
            math.prod(kind.shape) * kind.dtype.itemsize if isinstance(kind, LeafSpec) else None for kind in self.kinds
        )

    @functools.cached_property
    def lists(self) -> list[int]:
        """The numbers of the leaves whose columns are lists, of texts or bytes."""
        return [number for number, kind in enumerate(self.kinds) if not isinstance(kind, LeafSpec | None)]

    def leaf_offsets(self, rows: int) -> tuple[tuple[int | None, ...], int]:
        """Return the offset in bytes of each leaf's column of `rows` rows in one block of memory, and the block's size.

        Each array starts at a multiple of 64 bytes; leaves that are no arrays have the offset None.
        """
        offsets: list[int | None] = []
        total_bytes = 0
        for row_bytes in self._leaf_bytes:
            offsets.append(None if row_bytes is None else total_bytes)
            total_bytes += -(-rows * (row_bytes or 0) // ALIGNMENT) * ALIGNMENT
        return tuple(offsets), total_bytes

    def columns(self, rows: int, buffer: Memory | None = None) -> list[Column]:
        """Return one column for each leaf, to be filled.

        Args:
            rows: the number of rows of each column.
            buffer: writable memory for the arrays, aligned to 64 bytes, at least as large as `leaf_offsets(rows)` says.
                Its contents are not changed. By default the arrays have memory of their own.

        Returns:
            Arrays of shape (rows, *leaf's shape); lists of `rows` times None for str and bytes; None for None.
        """
        if buffer is None:  # offsets would cost as much as the arrays
            return [new_column(kind, rows) for kind in self.kinds]
        offsets, _ = self.leaf_offsets(rows)
        columns: list[Column] = []
        for kind, offset in zip(self.kinds, offsets, strict=True):
            if isinstance(kind, LeafSpec) and offset is not None:
                columns.append(np.ndarray((rows, *kind.shape), kind.dtype, buffer=buffer, offset=offset))
            else:
                columns.append(_list_column(kind, rows))
        return columns

    def batch(self, columns: Sequence[Column]) -> Batch:
        """Return the batch whose leaves are these columns, without copying them."""
        return unflatten(self.structure, columns)

    def batches(self, columns: Sequence[Column], bounds: Sequence[int], copied_bytes: int = 0) -> list[Batch]:
        """Return several batches whose rows follow each other in these columns.

        Args:
            columns: one for each leaf.
            bounds: batch i has rows [bounds[i], bounds[i + 1]).
            copied_bytes: a batch's arrays of up to this size are copied; larger ones are parts of the columns.
        """
        return cut(self.structure, columns, bounds, copied_bytes)


def layout_of(element: Element) -> Layout:
    """Return the layout of batches of elements like this one.

    Raises:
        UsageError: a batch can't hold a leaf; the text names its path.

    Example:
        >>> import numpy as np
        >>> layout_of({"image": np.zeros((28, 28), np.uint8), "label": 3}).row_bytes
        792
    """
    leaves, structure = flatten(element)
    return Layout(structure, tuple(kind_of(value) for value in values_of(leaves, leaf_paths(structure), 0)))


def cut(structure: Structure, columns: Sequence[Column], bounds: Sequence[int], copied_bytes: int = 0) -> list[Batch]:
    """Return several batches of a structure, as `Layout.batches` does."""
    rows = _rows_of_each(bounds)
    parts = [_parts(column, bounds, rows, copied_bytes) for column in columns]
    if structure.container is None and len(parts) == 1:
        return parts[0]  # bare arrays, the most frequent case
    return unflatten_each(structure, parts, len(bounds) - 1)


def copied(leaf: Column, max_bytes: int) -> Column:
    """Return a copy of an array of at most `max_bytes`, and any other column unchanged.

    The strides stay, and so do the bytes between the fields of a structured dtype and the flag for writes.
    """
    if not is_array(leaf) or leaf.nbytes > max_bytes:
        return leaf
    if leaf.dtype.names is None or leaf.dtype.hasobject:
        return copied_with_strides(leaf)
    made = _copied_bytes(leaf)
    if not leaf.flags.writeable:
        made.flags.writeable = False
    return made


def _copied_bytes(array: NDArray[Any]) -> NDArray[Any]:
    made, items = np.empty_like(array), np.dtype(f"V{array.dtype.itemsize}")
    made.view(items)[...] = array.view(items)
    return made


def _rows_of_each(bounds: Sequence[int]) -> int:
    """Return the rows of each of many batches; 0 if they differ, or are few."""
    rows = bounds[1] - bounds[0] if len(bounds) > _MANY else 0
    return rows if rows and [*bounds] == [*range(bounds[0], bounds[-1] + 1, rows)] else 0


def _parts(column: Column, bounds: Sequence[int], rows: int, copied_bytes: int) -> list[Column]:
    parts: list[Column]
    if rows and isinstance(column, np.ndarray):  # takes half of the time
        batches = column[bounds[0] : bounds[-1]].reshape(len(bounds) - 1, rows, *column.shape[1:])
        # An iterator of NumPy's ends by an error, whose text it makes: a few microseconds.
        each = itertools.islice(batches, len(batches))
        copy = np.ndarray.copy if column.dtype.names is None else _copied_bytes
        return list(map(copy, each) if batches[0].nbytes <= copied_bytes else each)
    if column is None or len(bounds) == 2:
        parts = [column] * (len(bounds) - 1)
    else:
        parts = [column[start:stop] for start, stop in itertools.pairwise(bounds)]
    return [copied(part, copied_bytes) for part in parts] if copied_bytes else parts


def new_column(kind: LeafKind, rows: int) -> Column:
    """Return the column of a leaf, to be filled: an array, a list, or None."""
    return new_array((rows, *kind.shape), kind.dtype) if isinstance(kind, LeafSpec) else _list_column(kind, rows)


def _list_column(kind: LeafKind, rows: int) -> Column:
    return None if kind is None else [None] * rows


class LayoutMismatchError(Exception):
    """An element doesn't fit the layout.

    Attributes:
        row: the lowest index of an element that doesn't fit.
    """

    def __init__(self, row: int) -> None:
        super().__init__(f"element {row} does not fit the layout")
        self.row = row


def write_rows(layout: Layout, elements: Sequence[Element], columns: Sequence[Column], start: int) -> None:
    """Write elements into rows [start, start + len(elements)) of the columns.

    Args:
        layout: the layout of the columns.
        elements: one for each row.
        columns: those of `Layout.columns`.
        start: the row of the first element.

    Raises:
        LayoutMismatchError: an element doesn't fit; some of the rows may have been written.

    Example:
        >>> layout = layout_of((1, 2.0))
        >>> columns = layout.columns(3)
        >>> write_rows(layout, [(5, 0.5)], columns, 2)
        >>> write_rows(layout, [(3, 0.1), (4, 0.3)], columns, 0)
        >>> layout.batch(columns)
        (array([3, 4, 5]), array([0.1, 0.3, 0.5]))
    """
    if isinstance(elements, PlannedRows) and _fill_rows(layout, elements, columns, start):
        return
    block = elements if isinstance(elements, (list, tuple)) else list(elements)
    if not block or _write_block(layout, block, columns, start):
        return
    for row, element in enumerate(block):
        if not _write_row(layout, element, columns, start + row):
            raise LayoutMismatchError(row)


class RowStacker:
    """Stacks batches as `stack` does, and keeps the layout for the next one, since it rarely changes.

    Example:
        >>> stacker = RowStacker()
        >>> stacker([1, 2]), stacker([3, 4, 5])
        (array([1, 2]), array([3, 4, 5]))
    """

    __slots__ = ("_layout",)

    def __init__(self) -> None:
        self._layout: Layout | None = None

    def __call__(self, elements: Sequence[Element]) -> Batch:
        """Return the result of `stack` or raise its error, in less time."""
        layout = self._layout
        if layout is not None and elements:
            columns = layout.columns(len(elements))
            try:
                write_rows(layout, elements, columns, 0)
            except LayoutMismatchError:
                pass  # the code below finds the layout of these elements
            else:
                return layout.batch(columns)
        batch = fast_stack(elements)
        self._layout = layout_of(elements[0])
        return batch


def fast_stack(elements: Sequence[Element]) -> Batch:
    """Return the result of `stack` or raise its error, in less time.

    Raises:
        UsageError: as for `stack`.

    Example:
        >>> fast_stack([{"label": 3}, {"label": 5}])
        {'label': array([3, 5])}
    """
    try:
        layout = layout_of(elements[0])
        columns = layout.columns(len(elements))
        write_rows(layout, elements, columns, 0)
    except (LayoutMismatchError, UsageError, IndexError):
        return stack(elements)
    return layout.batch(columns)


def split_leaves(structure: Structure, elements: Sequence[Element]) -> list[Sequence[Any]] | None:
    """Split elements into their leaves.

    Returns:
        The items of each leaf; None if an element doesn't have exactly this structure.

    Example:
        >>> split_leaves(layout_of((1, 2.0)).structure, [(5, 0.5), (6, 0.1)])
        [[5, 6], [0.5, 0.1]]
    """
    leaves: list[Sequence[Any]] = []
    return leaves if _split(structure, elements, leaves) else None


def write_leaves(layout: Layout, leaves: Sequence[Sequence[Any]], columns: Sequence[Column], start: int) -> bool:
    """Write leaves into the rows of the columns from `start` on.

    Args:
        layout: the layout of the columns.
        leaves: the items of each leaf, one for each row.
        columns: those of `Layout.columns`.
        start: the row of the first items.

    Returns:
        Whether all items fit the layout; if not, some of the rows may have been written.
    """
    return all(
        write_column(kind, items, column, start)
        for kind, items, column in zip(layout.kinds, leaves, columns, strict=True)
    )


def _fill_rows(layout: Layout, elements: PlannedRows, columns: Sequence[Column], start: int) -> bool:
    """Return whether planned sequences are of this layout; if they are, fill them into the rows from `start` on."""
    made, structure = elements.columns, layout.structure
    if made is None or structure.container is not dict or structure.keys != tuple(made):
        return False
    kinds = [LeafSpec(column.shape[1:], column.dtype) for column in made.values()]
    if set(structure.children) != {LEAF} or [*layout.kinds] != kinds:
        return False
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    named = zip(made, arrays, strict=True)
    elements.fill({name: column[start : start + len(elements)] for name, column in named})
    return True


def _write_block(layout: Layout, elements: Sequence[Element], columns: Sequence[Column], start: int) -> bool:
    leaves = split_leaves(layout.structure, elements)
    return leaves is not None and write_leaves(layout, leaves, columns, start)


def _write_row(layout: Layout, element: Element, columns: Sequence[Column], row: int) -> bool:
    """Return whether an element fits the layout, by a full comparison; if it does, write it."""
    try:
        leaves, structure = flatten(element)
    except UsageError:
        return False
    return structure == layout.structure and all(
        write_column(kind, [leaf], column, row)
        for kind, leaf, column in zip(layout.kinds, leaves, columns, strict=True)
    )


def _split(structure: Structure, elements: Sequence[Element], items: list[Sequence[Any]]) -> bool:
    """Return whether all elements have exactly this structure; if they have, append the items of each leaf."""
    container = structure.container
    if container is None:
        items.append(elements)
        return True
    children: Sequence[Sequence[Any]] | None
    if container is dict:
        children = split_dicts(elements, structure.keys)
    elif container is list or tuple in container.__mro__:
        children = split_sequences(elements, container, len(structure.children))
    elif set(map(type, elements)) != {container}:
        children = None
    else:
        children = [[getattr(element, str(name)) for element in elements] for name in structure.keys]
    return children is not None and all(
        _split(child, parts, items) for child, parts in zip(structure.children, children, strict=True)
    )


def write_column(kind: LeafKind, items: Sequence[Any], column: Column, start: int) -> bool:
    """Return whether all items of a leaf are of this kind; if they are, write them."""
    if kind is None:
        return all(item is None for item in items)
    if isinstance(column, list) and isinstance(kind, type):
        if set(map(type, items)) != {kind} and not all(isinstance(item, kind) for item in items):
            return False
        column[start : start + len(items)] = items
        return True
    return isinstance(column, np.ndarray) and isinstance(kind, LeafSpec) and _write_arrays(kind, items, column, start)


def _write_arrays(spec: LeafSpec, items: Sequence[Any], column: NDArray[Any], start: int) -> bool:
    begin = 0
    while begin < len(items):
        begin = write_run(items, begin, column, start)
        if begin < len(items):
            if not _write_item(spec, items[begin], column, start + begin):
                return False
            begin += 1
    return True


def _write_item(spec: LeafSpec, item: object, column: NDArray[Any], row: int) -> bool:
    try:
        value = as_value(item)
    except LeafError:
        return False
    except Exception as error:
        if raised_by_handler(error):
            raise
        return False
    if not isinstance(value, np.ndarray) or value.dtype != spec.dtype or value.shape != spec.shape:
        return False
    write_value(value, column[row, ...])
    return True
