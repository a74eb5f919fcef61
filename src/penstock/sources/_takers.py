"""Columns of record batches of which many values are read at once: their memory, and native code over it.

A *taker* has the memory of a column in all batches of a block. Where processes share a block, only this memory is
written there. To make the takers of Arrow's arrays again would take each process as long as to read a hundred values.
"""

import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._optional import need
from penstock.sources._mapped import RowTable

Array = Any  # one of pyarrow's objects
_Values: TypeAlias = NDArray[Any]
_Memory: TypeAlias = tuple[pickle.PickleBuffer, tuple[int, ...], str]
"""An array's memory, for a pickle of protocol 5, with its shape and dtype."""
Piece: TypeAlias = tuple[_Values, _Values, _Values | None, int]
"""The offsets of some texts or bytes, their content, their validity or None, and the number of the first one's bit."""


class Strings(_native.Strings):
    """The texts or bytes of a column that has offsets.

    Args:
        pieces: those of each batch.
        is_text: whether they are texts, not bytes.
    """

    def __init__(self, pieces: Sequence[Piece], *, is_text: bool) -> None:
        super().__init__(cast("list[tuple[object, ...]]", pieces), is_text)
        self.pieces = pieces
        self._is_text = is_text

    @property
    def sent(self) -> "Sent":
        """The object for another process."""
        pieces = [
            (_memory_of(offsets), _memory_of(content), None if validity is None else _memory_of(validity), first_bit)
            for offsets, content, validity, first_bit in self.pieces
        ]
        return pieces, self._is_text, True


class Numbers:
    """The numbers or times of a column without nulls in all batches, or lists of one length of them.

    Args:
        wholes: the values of each batch.
        is_plain: whether values are Python's, not NumPy's.

    Attributes:
        table: their memory.
    """

    __slots__ = ("_is_plain", "_none", "table", "wholes")

    def __init__(self, wholes: Sequence[_Values], *, is_plain: bool) -> None:
        self.wholes = wholes
        self._is_plain = is_plain
        self._none = wholes[0][:0].copy()
        size = wholes[0][0].nbytes
        pieces = [whole.reshape(-1).view(np.uint8) for whole in wholes]
        self.table = RowTable(pieces, row_bytes=size, stride_bytes=size)

    @property
    def sent(self) -> "Sent":
        """The object for another process."""
        return list(map(_memory_of, self.wholes)), self._is_plain, False

    def empty(self, rows: int) -> _Values:
        """Return an array for the values of some rows."""
        return np.empty((rows, *self._none.shape[1:]), self._none.dtype)

    def listed(self, values: _Values) -> list[Any]:
        """Return the values of some rows as those of records."""
        if self._is_plain:
            found: list[Any] = values.tolist()
            return found
        # A row of an array is a view, which would keep all rows, and share them with another record.
        return list(values) if values.ndim == 1 else list(map(np.ndarray.copy, values))


Sent: TypeAlias = tuple[list[Any], bool, bool]
"""A taker as plain values, with the memory of its arrays, which are pickled in less time than an object of a class."""
Taker: TypeAlias = Strings | Numbers
"""The values of a column in all batches, of which many are read at once: texts or bytes, or numbers."""


def _memory_of(array: _Values) -> _Memory:
    memory: Any = array.reshape(-1).view(np.uint8)
    return pickle.PickleBuffer(memory), array.shape, array.dtype.str


def _over(memory: _Memory) -> _Values:
    buffer, shape, dtype = memory
    return np.ndarray(shape, dtype, cast("memoryview", buffer))


def sent(takers: Sequence[Taker | None]) -> list[Sent]:
    """Return the takers of columns, each of which has one, for another process."""
    return [taker.sent for taker in takers if taker is not None]


def received(taken: Sent) -> Taker:
    """Return a taker that another process has sent."""
    parts, flag, are_strings = taken
    if not are_strings:
        return Numbers(list(map(_over, parts)), is_plain=flag)
    made: list[Piece] = [
        (_over(offsets), _over(content), None if validity is None else _over(validity), first_bit)
        for offsets, content, validity, first_bit in parts
    ]
    return Strings(made, is_text=flag)


def arrays_of(taker: Taker, kind: Array) -> list[Array]:
    """Return the arrays that a taker was made of, one for each batch, over its memory.

    Args:
        taker: of arrays without an offset.
        kind: their `pyarrow.DataType`, which is no type of an extension.
    """
    if isinstance(taker, Numbers):
        return [_number_array(whole, kind) for whole in taker.wholes]
    return [
        _array(kind, len(offsets) - 1, validity, offsets, content) for offsets, content, validity, _ in taker.pieces
    ]


def _number_array(values: _Values, kind: Array) -> Array:
    if need("pyarrow.types", "pyarrow", extra="arrow").is_fixed_size_list(kind):
        items = _number_array(values.reshape(-1, *values.shape[2:]), kind.value_type)
        return _array(kind, len(values), None, children=[items])
    return _array(kind, len(values), None, values.view(np.uint8))


def _array(kind: Array, rows: int, *buffers: _Values | None, children: list[Array] | None = None) -> Array:
    arrow: Array = need("pyarrow", "pyarrow", extra="arrow")
    made = [None if buffer is None else arrow.py_buffer(buffer) for buffer in buffers]
    return arrow.Array.from_buffers(kind, rows, made, children=children)
