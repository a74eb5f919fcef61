"""Stacking of arrays of one dtype and shape directly into given memory, by one thread or several."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batching._leaf import LeafError, LeafSpec, as_value, describe_kind, has_padding, kind_of
from penstock.batching._merge import new_array
from penstock.batching._stack import write_run
from penstock.errors import UsageError


def stack_arrays(
    arrays: Sequence[NDArray[Any]] | NDArray[Any], *, out: NDArray[Any] | None = None, num_threads: int = 1
) -> NDArray[Any]:
    """Return the arrays as the rows of one array, as `np.stack(arrays)` does, but without promotion of dtypes.

    The arrays are copied without the GIL. A copy into memory that was written before is about twice as fast as one into
    new memory, so pass `out` if it can be used again, such as an array over a slot.

    Args:
        arrays: at least one, all of one dtype and shape; or an array, whose rows are taken. An object with
            `__array__` or `__dlpack__` counts as its array. NumPy copies arrays that aren't C-contiguous, one after
            another.
        out: the array for the result: C-contiguous, writable, of shape (rows, *the arrays' shape) and of their dtype
            with its byte order. An array may be its own row of `out` already, and must not overlap `out` otherwise. A
            new array by default.
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
    """Return `out` as a plain array, if a result of this shape and dtype can be written into it.

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
    return isinstance(given, np.ndarray) and not isinstance(given, np.ma.MaskedArray)


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
    """Write a row that the native writer doesn't accept: it is no plain array, or isn't C-contiguous.

    Raises:
        UsageError: it differs from row 0, or overlaps the result.
    """
    found = _spec_of(item, row)
    if found != spec:
        raise UsageError(
            f"all rows must be of one dtype and shape, since nothing is promoted; row 0 is {spec} and row {row} is "
            f"{found}. Convert, crop or pad the arrays first."
        )
    value = as_value(item)
    if np.may_share_memory(value, target):
        raise UsageError(
            f"no array may overlap out, except as its own row; row {row} does. Pass a copy of it, or another out."
        )
    if has_padding(spec.dtype):
        target[row : row + 1].view(np.uint8)[...] = 0
    target[row, ...] = value
