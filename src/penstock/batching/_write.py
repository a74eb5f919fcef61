"""The writer of rows, a block of elements at a time, directly into the columns of a batch.

`write_rows` accepts exactly the elements that `stack` would put into columns of this layout, and writes the same bytes.
For any other element it raises `LayoutMismatchError`, and the caller merges the batch by `stack`, which raises the
error, or none: an element with its keys in another order is valid, but doesn't fit the layout.

Any number of threads may write disjoint rows of the same columns. A large copy releases the GIL.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._caught import raised_by_handler
from penstock._tree import Element, Structure, flatten
from penstock.batching._layout import Layout, layout_of
from penstock.batching._leaf import LeafError, LeafKind, LeafSpec, as_value, has_padding
from penstock.batching._merge import Batch, Column, stack
from penstock.batching._stack import split_dicts, split_sequences, write_run
from penstock.errors import UsageError


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
        """Return the result of `stack`, or raise its error, but faster."""
        layout = self._layout
        if layout is not None and elements:
            columns = layout.columns(len(elements))
            try:
                write_rows(layout, elements, columns, 0)
            except LayoutMismatchError:
                pass  # the code below computes the layout of these elements
            else:
                return layout.batch(columns)
        batch = fast_stack(elements)
        self._layout = layout_of(elements[0])
        return batch


def fast_stack(elements: Sequence[Element]) -> Batch:
    """Return the result of `stack`, or raise its error, but faster.

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


def _write_block(layout: Layout, elements: Sequence[Element], columns: Sequence[Column], start: int) -> bool:
    items: list[Sequence[Any]] = []
    if not _split(layout.structure, elements, items):
        return False
    return all(
        _write_column(kind, items_of_leaf, column, start)
        for kind, items_of_leaf, column in zip(layout.kinds, items, columns, strict=True)
    )


def _write_row(layout: Layout, element: Element, columns: Sequence[Column], row: int) -> bool:
    """Return whether an element fits the layout, by a full comparison, and write it if so."""
    try:
        leaves, structure = flatten(element)
    except UsageError:
        return False
    return structure == layout.structure and all(
        _write_column(kind, [leaf], column, row)
        for kind, leaf, column in zip(layout.kinds, leaves, columns, strict=True)
    )


def _split(structure: Structure, elements: Sequence[Element], items: list[Sequence[Any]]) -> bool:
    """Return whether all elements have exactly this structure, and append the items of each leaf if so."""
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


def _write_column(kind: LeafKind, items: Sequence[Any], column: Column, start: int) -> bool:
    """Return whether all items of a leaf are of this kind, and write them if so."""
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
    if has_padding(column.dtype):
        column[row : row + 1].view(np.uint8)[...] = 0
    column[row, ...] = value
    return True
