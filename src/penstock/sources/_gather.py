"""The wrapper of the native gather: rows copied by key from memory, and files mapped without a descriptor."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import _native


class RowTable:
    """Rows of equal size at equal strides in one or more arrays, numbered one array after another.

    Args:
        pieces: uint8 arrays of one axis, C-contiguous; each holds as many whole rows as fit. They are kept alive.
        row_bytes: the size of a row, at least 1.
        stride_bytes: from the start of one row to that of the next, at least 1; smaller than a row if rows overlap.

    Copies of 16 kB and more run without the GIL. Calls from several threads are safe.

    Example:
        >>> table = RowTable([np.arange(10, dtype=np.uint8)], row_bytes=4, stride_bytes=3)
        >>> out = np.empty((2, 4), np.uint8)
        >>> table.gather(np.array([2, 0]), out)
        >>> out.tolist()
        [[6, 7, 8, 9], [0, 1, 2, 3]]
    """

    __slots__ = ("_table",)

    def __init__(self, pieces: Sequence[NDArray[np.uint8]], *, row_bytes: int, stride_bytes: int) -> None:
        self._table = _native.RowTable(list(pieces), row_bytes, stride_bytes)

    def __len__(self) -> int:
        return len(self._table)

    def gather(self, keys: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy the rows of `keys` into `out`.

        Args:
            keys: int64, one axis.
            out: any dtype without Python objects, C-contiguous, exactly `len(keys) * row_bytes` bytes; at least one
                axis. It must not overlap the pieces.

        Raises:
            IndexError: a key isn't in [0, len(self)); then `out` is unchanged.
        """
        self._table.gather(keys, out.view(np.uint8))


def map_file(path: str) -> NDArray[np.uint8]:
    """Return the bytes of a file as a read-only uint8 array over a memory map that keeps no descriptor.

    The map keeps the file's size at that time. A read after the file was truncated kills the process (SIGBUS), so don't
    truncate files while they are read.

    Args:
        path: a regular file.

    Returns:
        One axis, as many elements as the file has bytes.

    Raises:
        OSError: the file cannot be opened or mapped; with errno and path.
    """
    try:
        return _native.map_file(os.fsencode(path))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
