"""The wrapper of the native writer, which copies items of exactly a column's type in one call.

`write_run` never converts. It stops at the first other item. That item may still be valid (an array that isn't
C-contiguous, a scalar among arrays); the caller handles it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock.batching._leaf import has_padding

_SCALARS: Final[dict[type, tuple[np.dtype[Any], Callable[[Sequence[object], int, NDArray[Any], int], int]]]] = {
    int: (np.dtype(np.int64), _native.write_integers),
    float: (np.dtype(np.float64), _native.write_floats),
    bool: (np.dtype(np.bool_), _native.write_booleans),
}

_PADDED_FLOATS: Final = "gG"  # longdouble: only an array copies the unused bytes of an item


def write_run(items: Sequence[object], begin: int, column: NDArray[Any], start: int, *, num_threads: int = 1) -> int:
    """Write items from `begin` on, while they have exactly the column's type; item i is written to row `start + i`.

    Args:
        items: a list or a tuple; it must not change during the call.
        begin: the first item to write; less than `len(items)`.
        column: a C-contiguous, writable array with a row for each item.
        start: the row of item 0.
        num_threads: the largest number of threads for a copy of many megabytes.

    Returns:
        The index of the first item that was not written, or `len(items)`.
    """
    kind = type(items[begin])
    stopped = begin
    if kind is np.ndarray or kind is np.memmap:
        if not has_padding(column.dtype):
            stopped = _native.write_arrays(items, begin, column, start, np.memmap, num_threads)
    elif kind in _SCALARS:
        dtype, write = _SCALARS[kind]
        if column.ndim == 1 and column.dtype == dtype:
            stopped = write(items, begin, column, start)
    elif kind is column.dtype.type:
        stopped = _write_numpy_scalars(items, begin, column, start)
    return len(items) if stopped < 0 else stopped


def split_dicts(elements: Sequence[object], keys: tuple[object, ...]) -> list[list[object]] | None:
    """Return the values, a list for each key; None if an element isn't exactly a dict of these keys in this order."""
    return _native.split_dicts(elements, keys)


def split_sequences(elements: Sequence[object], kind: type, width: int) -> list[list[object]] | None:
    """Return the values, a list for each place; None if an element doesn't have exactly this type and length."""
    return _native.split_sequences(elements, kind, width)


def _write_numpy_scalars(items: Sequence[object], begin: int, column: NDArray[Any], start: int) -> int:
    """Write NumPy scalars in one call if their type determines the dtype: not strings, times or structures.

    Returns:
        As for `write_run`.
    """
    dtype = column.dtype
    plain = column.ndim == 1 and dtype.kind in "biufc" and dtype.isnative and dtype.char not in _PADDED_FLOATS
    if begin or not plain or set(map(type, items)) != {dtype.type}:
        return begin
    column[start : start + len(items)] = items
    return len(items)
