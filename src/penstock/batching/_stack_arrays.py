"""Arrays of one dtype and shape become one array, written straight into given memory, by one thread or several."""

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
    """Return the arrays as the rows of one array: what `np.stack(arrays)` holds, but nothing is ever promoted.

    The arrays are copied without the GIL. Memory that was written before takes a copy about twice as fast as new
    memory, so give `out` where it can be used again, such as an array over a slot.

    Args:
        arrays: at least one, all of one dtype and shape; or an array, whose rows are taken. What exports an array by
            `__array__` or `__dlpack__` counts as that array. Those whose memory isn't C-contiguous are copied by
            NumPy, one after another.
        out: where they are written: C-contiguous, writable, of shape (rows, *the arrays' shape) and of their dtype,
            byte order included. An array may be its own row of `out` already, and may overlap nothing else of it. A
            new array by default.
        num_threads: how many threads may share the copy, the caller's among them. The others are started for the call
            and end with it; each gets 4 MB or more, so a smaller copy has fewer.

    Returns:
        `out`, or a new C-contiguous array, in the byte order of the arrays. Bytes of a structure that belong to no
        field are zero.

    Raises:
        UsageError: there is no array, an array differs from row 0 in dtype or shape or holds Python objects, `out`
            doesn't fit, or `num_threads` isn't positive. Some rows of `out` may have been written then.

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
        raise UsageError("stack_arrays needs at least one array, to tell the dtype and shape; got none. Give the rows.")
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
    """Raise unless there is a thread to do the work.

    Raises:
        UsageError: it is less than 1.
    """
    if num_threads < 1:
        raise UsageError(
            f"num_threads must be at least 1, the caller's; got num_threads={num_threads!r}. Leave it out for 1."
        )


def check_out(out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `out` as a plain array if it is one to write results of this shape and dtype into.

    Raises:
        UsageError: it isn't.
    """
    if not _is_array(out):
        raise UsageError(f"out must be a NumPy array; got a {type(out).__qualname__}. Give an array over its memory.")
    if out.shape != shape or out.dtype != dtype:
        raise UsageError(
            f"out must be {dtype} of shape {shape}, as the result is; got {out.dtype} of shape {out.shape}. "
            "Give the part of it with as many rows, or leave it out."
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        fault = "one whose memory isn't in order" if out.flags.writeable else "a read-only one"
        raise UsageError(
            f"out must be a C-contiguous, writable array; got {fault}. Make it with np.empty(shape, dtype)."
        )
    return np.asarray(out)


def _is_array(given: object) -> bool:
    return isinstance(given, np.ndarray) and not isinstance(given, np.ma.MaskedArray)


def _spec_of(item: object, row: int) -> LeafSpec:
    """Return what a row is.

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
        raise UsageError(f"every row must be an array; row {row} is {describe_kind(kind)}. Give its np.asarray(…).")
    return kind


def _write_array(item: object, row: int, spec: LeafSpec, target: NDArray[Any]) -> None:
    """Write a row that the native writer doesn't take: it is no plain array, or its memory isn't in order.

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
            f"no array may overlap out, but for being its own row; row {row} does. Give a copy of it, or another out."
        )
    if has_padding(spec.dtype):
        target[row : row + 1].view(np.uint8)[...] = 0
    target[row, ...] = value
