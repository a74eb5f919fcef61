"""The stacking of arrays of one dtype and shape directly into given memory, by one thread or several.

`write_run` wraps the native writer, which copies items of exactly a column's type in one call. It never converts, and
stops at the first other item. That item may still be valid (an array of dates, a scalar among arrays); the caller
handles it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._tensors import arrays_of, is_tensor, tensor_type
from penstock._tree import is_masked
from penstock.batching._leaf import LeafError, LeafSpec, as_value, describe_kind, has_padding, kind_of, write_value
from penstock.batching._merge import new_array
from penstock.errors import UsageError

_SCALARS: Final[dict[type, tuple[np.dtype[Any], Callable[[Sequence[object], int, NDArray[Any], int], int]]]] = {
    int: (np.dtype(np.int64), _native.write_integers),
    float: (np.dtype(np.float64), _native.write_floats),
    bool: (np.dtype(np.bool_), _native.write_booleans),
}
_DLPACK_CODES: Final = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLPack's codes of types, by the kinds of NumPy's dtypes."""
_PADDED_FLOATS: Final = "gG"  # longdouble: only an array copies the unused bytes of an item


def stack_arrays(
    arrays: Sequence[NDArray[Any]] | NDArray[Any], *, out: NDArray[Any] | None = None, num_threads: int = 1
) -> NDArray[Any]:
    """Return the arrays as the rows of one array, as `np.stack(arrays)` does, but without promotion of dtypes.

    The arrays are copied without the GIL. A copy into memory that was written before is about twice as fast as a copy
    into new memory, so pass an `out` that you use again, such as an array over a slot.

    Args:
        arrays: at least one, all of one dtype and shape; or an array, whose rows are taken. An object with
            `__array__` or `__dlpack__` counts as its array. Each array that isn't C-contiguous is copied by one
            thread.
        out: the array for the result: C-contiguous, writable, of shape (rows, *the arrays' shape) and of their dtype
            with its byte order. An array may already be its own row of `out`; otherwise it must not overlap `out`.
            By default a new array.
        num_threads: the largest number of threads, the caller's included. The others are started for the call and end
            with it; each copies 4 MB or more, so a smaller copy has fewer.

    Returns:
        `out`, or a new C-contiguous array, in the byte order of the arrays. Bytes of a structure that belong to no
        field are zero.

    Raises:
        UsageError: there is no array, an array differs from row 0 in dtype or shape or holds Python objects, `out`
            has another shape or dtype, or `num_threads` isn't positive. Then some rows of `out` may have been written.

    Example:
        >>> slot = np.zeros((2, 3), np.int64)
        >>> stack_arrays([np.arange(3), np.arange(3) * 10], out=slot) is slot
        True
        >>> slot
        array([[ 0,  1,  2],
               [ 0, 10, 20]])
    """
    check_num_threads(num_threads)
    items: list[object] = list(arrays)
    if not items:
        raise UsageError("stack_arrays needs at least one array, for the dtype and shape; got none. Pass the rows.")
    spec = _spec_of(items[0], 0)
    shape = (len(items), *spec.shape)
    target = new_array(shape, spec.dtype) if out is None else check_out(out, shape, spec.dtype)
    begin = 0
    while begin < len(items):
        begin = write_run(items, begin, target, 0, num_threads=num_threads)
        if begin < len(items):
            _write_array(items[begin], begin, spec, target)
            begin += 1
    return target if out is None else out


def check_num_threads(num_threads: int) -> None:
    """Check the number of threads.

    Raises:
        UsageError: it is less than 1.
    """
    if num_threads < 1:
        raise UsageError(
            f"num_threads must be at least 1, the caller's; got num_threads={num_threads!r}. Omit it for 1."
        )


def check_out(out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `out` as a plain array, after checking that a result of this shape and dtype can be written into it.

    Raises:
        UsageError: it can't.
    """
    if not _is_array(out):
        raise UsageError(f"out must be a NumPy array; got a {type(out).__qualname__}. Pass an array over its memory.")
    if out.shape != shape or out.dtype != dtype:
        raise UsageError(
            f"out must be {dtype} of shape {shape}, as the result is; got {out.dtype} of shape {out.shape}. "
            "Pass the part of it with as many rows, or omit it."
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        fault = "one that isn't C-contiguous" if out.flags.writeable else "a read-only one"
        raise UsageError(
            f"out must be a C-contiguous, writable array; got {fault}. Make it with np.empty(shape, dtype)."
        )
    return np.asarray(out)


def _is_array(given: object) -> bool:
    return not is_masked(given) and isinstance(given, np.ndarray)


def _spec_of(item: object, row: int) -> LeafSpec:
    """Return the dtype and shape of a row.

    Raises:
        UsageError: it is no array, or holds Python objects.
    """
    try:
        kind = kind_of(as_value(item))
    except LeafError as error:
        raise UsageError(
            f"every row must be an array without Python objects; row {row} is {error}. Make it an array of numbers."
        ) from None
    if not isinstance(kind, LeafSpec):
        raise UsageError(f"every row must be an array; row {row} is {describe_kind(kind)}. Pass its np.asarray(…).")
    return kind


def _write_array(item: object, row: int, spec: LeafSpec, target: NDArray[Any]) -> None:
    """Write a row that the native writer doesn't accept: it is no plain array, or has no buffer.

    Raises:
        UsageError: it differs from row 0, or overlaps the result.
    """
    found = _spec_of(item, row)
    if found != spec:
        raise UsageError(
            f"all rows must be of one dtype and shape, since nothing is promoted; row 0 is {spec} and row {row} is "
            f"{found}. Convert, crop or pad the arrays first."
        )
    value = cast("NDArray[Any]", as_value(item))
    if np.may_share_memory(value, target):
        raise UsageError(
            f"no array may overlap out, except as its own row; row {row} does. Pass a copy of it, or another out."
        )
    write_value(value, target[row, ...])


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
    if is_tensor(items[begin]):
        stopped = _write_tensors(items, begin, column, start, num_threads)
        arrays = arrays_of(items) if not stopped and set(map(type, items)) == {kind} else None
        if arrays is not None:
            items, kind = arrays, np.ndarray
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
    """Return a list of the values of each key; None if an element isn't a dict of exactly these keys in this order."""
    return _native.split_dicts(elements, keys)


def split_sequences(elements: Sequence[object], kind: type, width: int) -> list[list[object]] | None:
    """Return a list of the items at each index; None if an element doesn't have exactly this type and length."""
    return _native.split_sequences(elements, kind, width)


def write_tensors(tensors: Sequence[object], column: NDArray[Any], start: int) -> bool:
    """Write torch tensors to the rows of a column from `start` on, without making an array of each.

    Args:
        tensors: at least one, all of one type.
        column: a C-contiguous, writable array with a row for each.
        start: the row of the first one.

    Returns:
        Whether all were written: they are tensors in host memory, of the column's dtype and of the shape of its rows,
        and their values are those in their memory. If not, some rows may have been written.
    """
    return _write_tensors(tensors, 0, column, start, 1) < 0


def _write_tensors(items: Sequence[object], begin: int, column: NDArray[Any], start: int, num_threads: int) -> int:
    """Write torch tensors without making an array of each.

    Returns:
        As for `write_run`; `begin` for what only arrays can do, such as complex numbers, which may be conjugates.
    """
    kind, code = type(items[begin]), _dlpack_code(column.dtype)
    if code is None or kind is not tensor_type():
        return begin
    return _native.write_tensors(items, begin, column, start, kind, code, num_threads)


def _dlpack_code(dtype: np.dtype[Any]) -> int | None:
    return _DLPACK_CODES.get(dtype.kind) if dtype.isnative else None


def write_padded(
    items: Sequence[object], make: Callable[[list[int]], NDArray[Any] | None], fill: NDArray[Any], rank: int
) -> NDArray[Any] | None:
    """Write arrays or tensors of different lengths to the beginnings of the rows of a column, and the fill behind them.

    Args:
        items: at least one.
        make: returns the column for the lengths of the items' first axes; or None, which ends this.
        fill: an array of the items' dtype, without axes and without bytes that belong to no field.
        rank: the number of axes of an item, at least 1.

    Returns:
        The column; None if `make` returns None, or an item differs in type, dtype or the axes behind the first one.
    """
    kind, code = type(items[0]), _dlpack_code(fill.dtype)
    if not is_tensor(items[0]):
        return cast("NDArray[Any] | None", _native.pad_arrays(items, make, fill, np.memmap))
    if code is None or kind is not tensor_type():
        return None
    return cast("NDArray[Any] | None", _native.pad_tensors(items, make, fill, kind, code, rank))


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
