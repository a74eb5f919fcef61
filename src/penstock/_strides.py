"""Exact copies of arrays: the items of an array in one piece, and new arrays with its strides and all of its bytes.

Some functions depend on the strides: a sum of equal values may have other last bits if these are in another order in
memory, and `ravel(order="K")` has another order. So an array that a dataset copies, keeps or sends has its strides
again where a function may follow. An array in C order needs nothing of this. One whose memory is mostly gaps, such as a
column of a large table, loses them: a copy with these gaps may be larger than the machine's memory.
"""

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALL: Final = slice(None)
_BACKWARDS: Final = slice(None, None, -1)
_FIRST: Final = slice(1)
_MAX_SPREAD: Final = 2  # times the bytes of the items


def whole_items(array: "NDArray[Any]") -> "NDArray[Any]":
    """Return a view of an array whose copies have all of its bytes; the array itself, if any copy has.

    NumPy before 2.5 leaves out the bytes between fields, so a copy would have what was in its memory before.
    """
    if array.dtype.names is None or array.dtype.hasobject:
        return array
    return array.view(np.dtype((np.void, array.itemsize)))


def in_one_piece(array: "NDArray[Any]") -> "NDArray[np.uint8]":
    """Return the bytes of an array's items in the order of its memory, repeated ones once; a view if it has no gaps.

    They are read-only if the array is.
    """
    items = _in_memory_order(whole_items(array))
    raw: NDArray[np.uint8] = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
    raw.flags.writeable = array.flags.writeable
    return raw


def with_strides(
    raw: "NDArray[np.uint8]", dtype: "np.dtype[Any]", shape: tuple[int, ...], strides: tuple[int, ...]
) -> "NDArray[Any]":
    """Return an array with strides, of bytes from `in_one_piece`: over these if it has no gaps.

    It is read-only if they are.

    Example:
        >>> array = np.arange(6).reshape(2, 3).T
        >>> with_strides(in_one_piece(array), array.dtype, array.shape, array.strides).strides == array.strides
        True
    """
    if _has_no_gaps(dtype, shape, strides):
        start, _ = span_of(dtype, shape, strides)
        return np.ndarray(shape, dtype, raw, start, strides)
    made = _new(dtype, shape, strides)
    _fill(made, raw)
    made.flags.writeable = raw.flags.writeable
    return made


def is_spread(memory_bytes: int, item_bytes: int) -> bool:
    """Return whether most of some memory is gaps between the items."""
    return memory_bytes > _MAX_SPREAD * item_bytes


def without_wide_gaps(array: "NDArray[Any]") -> "NDArray[Any]":
    """Return an array, or a copy without gaps if its memory is mostly gaps; it is read-only if the array is.

    Example:
        >>> table = np.zeros((1000, 10))
        >>> without_wide_gaps(table[:, :5]).strides, without_wide_gaps(table[:, 0]).strides
        ((80, 8), (8,))
    """
    if not array.size or not is_spread(span_of(array.dtype, array.shape, array.strides)[1], array.nbytes):
        return array
    made = copied_items(array)
    made.flags.writeable = array.flags.writeable
    return made


def span_of(dtype: "np.dtype[Any]", shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the place of the first item in the memory of an array, which isn't empty, and the size of this memory."""
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return -sum(each for each in reach if each < 0), dtype.itemsize + sum(map(abs, reach))


def new_memory(size_bytes: int) -> "NDArray[np.uint8]":
    """Return memory for arrays that share it."""
    return np.zeros(size_bytes, np.uint8)


def written_into(
    memory: "NDArray[np.uint8]",
    start: int,
    raw: "NDArray[np.uint8]",
    dtype: "np.dtype[Any]",
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> "NDArray[Any]":
    """Return an array with strides over memory, of bytes from `in_one_piece`, whose first item is at `start`."""
    array: NDArray[Any] = np.ndarray(shape, dtype, memory, start, strides)
    _fill(array, raw)
    array.flags.writeable = raw.flags.writeable
    return array


def viewed_as(array: "NDArray[Any]", kind: "type[NDArray[Any]]") -> "NDArray[Any]":
    """Return a view of an array as one of a subclass."""
    return array.view(kind)


def row_of(array: "NDArray[Any]") -> object:
    """Return the only item of a structured array without axes, which is a view of its memory."""
    return array[()]


def row_over(content: bytes | bytearray, dtype: "np.dtype[Any]") -> object:
    """Return a row of an array of structures as a view of memory, which can be written to if it is a bytearray."""
    return np.ndarray((), dtype, content)[()]


def copied_items(array: "NDArray[Any]", order: Literal["C", "F", "K"] = "K") -> "NDArray[Any]":
    """Return a copy of an array without gaps, with the bytes between the fields of its items."""
    items = whole_items(array) if type(array) is np.ndarray else array  # a subclass may have more than items
    made = items.copy(order)
    return made if items is array else made.view(array.dtype)


def copied_rows(column: "NDArray[Any]") -> "list[NDArray[Any]]":
    """Return copies of the rows of an array, of which there is at least one, with their strides."""
    first = column[0]
    flags = first.flags
    is_plain = type(first) is np.ndarray and first.dtype.names is None and flags.writeable and flags.forc
    if is_plain and first.copy("K").strides == first.strides:  # nearly always, and three times as fast
        return [row.copy("K") for row in column]
    return list(map(copied_with_strides, column))


def copied_with_strides(array: "NDArray[Any]") -> "NDArray[Any]":
    """Return a copy of an array with its strides, which is read-only if the array is.

    The copy of an array of objects, of a subclass, and of an array that is mostly gaps, has no gaps.
    """
    flags = array.flags
    if not flags.forc and (compact := without_wide_gaps(array)) is not array:
        return compact
    is_plain = type(array) is np.ndarray and not array.dtype.hasobject
    made = copied_items(array) if flags.forc or not is_plain else None
    if made is None or (made.strides != array.strides and made.size and is_plain):  # those of single items may differ
        made = _new(array.dtype, array.shape, array.strides)
        _in_memory_order(whole_items(made))[...] = _in_memory_order(whole_items(array))
    if not flags.writeable:
        made.flags.writeable = False
    return made


def _in_memory_order(array: "NDArray[Any]") -> "NDArray[Any]":
    """Return a view of an array without repetitions, whose strides fall from axis to axis and aren't negative."""
    parts = [_BACKWARDS if stride < 0 else _ALL if stride else _FIRST for stride in array.strides]
    forwards = array[(*parts, ...)]
    return forwards.transpose(sorted(range(forwards.ndim), key=lambda axis: -forwards.strides[axis]))


def _has_no_gaps(dtype: "np.dtype[Any]", shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the items of an array, which isn't empty, fill its memory, each in a place of its own."""
    filled = dtype.itemsize
    for stride, length in sorted(zip(map(abs, strides), shape, strict=True)):
        if length != 1 and stride:
            if stride != filled:
                return False
            filled *= length
    return filled > 0


def _fill(array: "NDArray[Any]", raw: "NDArray[np.uint8]") -> None:
    ordered = _in_memory_order(whole_items(array))
    ordered[...] = raw.view(ordered.dtype).reshape(ordered.shape)


def _new(dtype: "np.dtype[Any]", shape: tuple[int, ...], strides: tuple[int, ...]) -> "NDArray[Any]":
    if 0 in shape:  # has no memory, whatever its strides
        return np.empty(shape, dtype)
    start, size = span_of(dtype, shape, strides)
    return np.ndarray(shape, dtype, np.empty(size, np.uint8), start, strides)
