"""Bytes that identify plain values: numbers, texts, small arrays, and lists, tuples and dicts of these.

They are made by `pickle`, since it visits the values in a small part of the time that Python's code takes.
"""

import contextlib
import io
import pickle
from typing import Any, Final, TypeAlias, cast

import numpy as np

from penstock.sources import find_mapped

_MAX_BYTES: Final = 1 << 20  # of an array
_NOT_BY_VALUE: Final = b"cbuiltins\n"  # in a pickle of protocol 3: a set, whose order depends on the process
_SCALARS: Final = tuple({np.dtype(code).type for code in "?bBhHiIlLqQefdgFD"})
_Reduced: TypeAlias = Any  # as `Pickler.reducer_override` has it


class _NotPlainError(Exception):
    """A value isn't plain."""


class _PlainPickler(pickle.Pickler):
    """Pickles numbers, texts, small arrays, and lists, tuples and dicts of these, by value; refuses all others."""

    def reducer_override(self, value: object) -> _Reduced:
        if value is _array:
            return NotImplemented  # it is pickled by name
        if type(value) not in (np.ndarray, *_SCALARS):
            raise _NotPlainError
        array = cast("Any", value)
        if array.nbytes > _MAX_BYTES or array.dtype.hasobject or array.dtype.names or find_mapped(array) is not None:
            raise _NotPlainError
        return _array, (type(value).__name__, array.dtype.str, array.shape, array.tobytes())


def _array() -> None:
    """Stand for an array in a pickle."""


def plain_bytes(values: list[object]) -> bytes | None:
    """Return bytes that identify values, the same in every process.

    Args:
        values: any values.

    Returns:
        None if one of them isn't plain.

    Example:
        >>> plain_bytes([1, "a"]) == plain_bytes([1, "b"]), plain_bytes([{1, 2}])
        (False, None)
    """
    content = io.BytesIO()
    pickler = _PlainPickler(content, 3)
    pickler.fast = True  # no references, which would show whether equal values are one object
    with contextlib.suppress(_NotPlainError, ValueError, RecursionError):  # a list that contains itself
        pickler.dump(values)
        found = content.getvalue()
        return None if _NOT_BY_VALUE in found else found
    return None
