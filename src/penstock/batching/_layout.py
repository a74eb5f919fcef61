"""The layout of a batch: the structure of its elements and the kind of every leaf, as a value.

One element determines the layout. From it follow the bytes of a row, the columns for blocks of rows (also over given
memory), and the batch of full columns.

Problem: stacking copies each row twice, into its own array and into the batch, and workers can't stack at once.
Solution: with a layout, the columns of a batch are allocated first, and each worker writes its rows directly into them.
An element that doesn't fit the layout falls back to plain stacking, whose errors are the definition's.
"""

import functools
import itertools
import math
import pickle
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._tree import Element, Structure, flatten, is_array, leaf_paths, unflatten
from penstock.batching._leaf import LeafKind, LeafSpec, kind_of, values_of
from penstock.batching._merge import Batch, Column, new_array

Memory: TypeAlias = bytearray | memoryview | NDArray[Any]

ALIGNMENT: Final = 64  # bytes; JAX copies arrays that are aligned to less


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
        """The layout as a pickle for other processes. Equal layouts may have different ones: keys 1 and True do."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @property
    def row_bytes(self) -> int:
        """The bytes of one row in all arrays together, without those for alignment."""
        return sum(_row_bytes(kind) for kind in self.kinds)

    def leaf_offsets(self, rows: int) -> tuple[tuple[int | None, ...], int]:
        """Return the start of each leaf's column of `rows` rows in one piece of memory, and the size of all, in bytes.

        Each array starts at a multiple of 64 bytes; leaves that are no arrays have the start None.
        """
        offsets: list[int | None] = []
        total_bytes = 0
        for kind in self.kinds:
            offsets.append(total_bytes if isinstance(kind, LeafSpec) else None)
            total_bytes += -(-rows * _row_bytes(kind) // ALIGNMENT) * ALIGNMENT
        return tuple(offsets), total_bytes

    def columns(self, rows: int, buffer: Memory | None = None) -> list[Column]:
        """Return one column for each leaf, to be filled.

        Args:
            rows: the number of rows of each column.
            buffer: writable memory for the arrays, of at least `leaf_offsets(rows)` bytes, aligned to 64; by default
                they have memory of their own. Its contents are not changed.

        Returns:
            Arrays of shape (rows, *leaf's shape); lists of `rows` times None for str and bytes; None for None.
        """
        if buffer is None:  # without the offsets, whose computation costs as much as the arrays
            return [
                new_array((rows, *kind.shape), kind.dtype) if isinstance(kind, LeafSpec) else _list_column(kind, rows)
                for kind in self.kinds
            ]
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
        UsageError: a leaf can't be in a batch; the text names its path.

    Example:
        >>> import numpy as np
        >>> layout_of({"image": np.zeros((28, 28), np.uint8), "label": 3}).row_bytes
        792
    """
    leaves, structure = flatten(element)
    return Layout(structure, tuple(kind_of(value) for value in values_of(leaves, leaf_paths(structure), 0)))


def cut(structure: Structure, columns: Sequence[Column], bounds: Sequence[int], copied_bytes: int = 0) -> list[Batch]:
    """Return several batches of a structure, as in `Layout.batches`."""
    parts = [_parts(column, bounds, copied_bytes) for column in columns]
    if structure.container is None and len(parts) == 1:
        return parts[0]  # bare arrays, the most frequent case
    return [unflatten(structure, [part[index] for part in parts]) for index in range(len(bounds) - 1)]


def copied(leaf: Column, max_bytes: int) -> Column:
    """Return a copy of an array of at most `max_bytes`, and any other column unchanged."""
    return leaf.copy() if is_array(leaf) and leaf.nbytes <= max_bytes else leaf


def _parts(column: Column, bounds: Sequence[int], copied_bytes: int) -> list[Column]:
    parts: list[Column]
    if column is None or len(bounds) == 2:
        parts = [column] * (len(bounds) - 1)
    else:
        parts = [column[start:stop] for start, stop in itertools.pairwise(bounds)]
    return [copied(part, copied_bytes) for part in parts] if copied_bytes else parts


def _list_column(kind: LeafKind, rows: int) -> Column:
    return None if kind is None else [None] * rows


def _row_bytes(kind: LeafKind) -> int:
    return math.prod(kind.shape) * kind.dtype.itemsize if isinstance(kind, LeafSpec) else 0
