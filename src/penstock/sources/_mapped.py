"""Files mapped into memory, the native gather of their rows by key, and mapped arrays as values.

A file is mapped without keeping a descriptor. A `MappedArray` is the place of an array in its file, so that another
process can map it again.
"""

import mmap
import os
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._frozen import frozen
from penstock.errors import SourceError


class RowTable:
    """Rows of one size at equal strides in one or more arrays; their numbers continue from array to array.

    Args:
        pieces: uint8 arrays of one axis, C-contiguous; each has as many rows as fit whole. They are kept alive.
        row_bytes: the size of a row, at least 1.
        stride_bytes: the distance between the starts of two rows, at least 1; rows overlap if it is below `row_bytes`.

    Copies of 16 kB and more run without the GIL. Calls from several threads are safe.

    Example:
        >>> table = RowTable([np.arange(10, dtype=np.uint8)], row_bytes=4, stride_bytes=3)
        >>> out = np.empty((2, 4), np.uint8)
        >>> table.gather(np.array([2, 0]), out)
        >>> out.tolist()
        [[6, 7, 8, 9], [0, 1, 2, 3]]
    """

    __slots__ = ("native",)

    def __init__(self, pieces: Sequence[NDArray[np.uint8]], *, row_bytes: int, stride_bytes: int) -> None:
        self.native = _native.RowTable(list(pieces), row_bytes, stride_bytes)

    def __len__(self) -> int:
        return len(self.native)

    def gather(self, keys: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy the rows of `keys` into `out`.

        Args:
            keys: int64, one axis.
            out: any dtype without Python objects, C-contiguous, exactly `len(keys) * row_bytes` bytes; at least one
                axis. It must not overlap the pieces.

        Raises:
            IndexError: a key isn't in [0, len(self)); then `out` is unchanged.
        """
        self.native.gather(keys, out.view(np.uint8))

    @staticmethod
    def gather_each(
        tables: "Sequence[RowTable]", bounds: NDArray[np.int64], keys: NDArray[np.int64], out: NDArray[Any]
    ) -> None:
        """Copy rows of several tables into `out`; each call takes as long as that of one table.

        Args:
            tables: tables of rows of one size; at least one.
            bounds: int64, one axis: keys [bounds[k], bounds[k + 1]) are those of table k. It begins with 0, and ends
                with the number of keys.
            keys: as for `gather`.
            out: as for `gather`.

        Raises:
            IndexError: a key isn't one of its table.
        """
        _native.gather_rows([table.native for table in tables], bounds, keys, out.view(np.uint8))


def has_repeats(keys: NDArray[np.int64]) -> bool:
    """Return whether a key occurs more than once.

    Args:
        keys: int64, one axis.
    """
    return _native.has_repeats(keys)


def map_file(path: str) -> NDArray[np.uint8]:
    """Return the bytes of a file as a read-only uint8 array over a memory map that keeps no descriptor.

    The map keeps the size that the file has now. If the file is truncated, a later read kills the process (SIGBUS), so
    don't truncate files while they are read.

    Args:
        path: a regular file.

    Returns:
        One axis, with an element for each byte of the file.

    Raises:
        OSError: the file can't be opened or mapped; it has errno and path.
    """
    try:
        return _native.map_file(os.fsencode(path))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


@frozen
class MappedArray:
    """An array in a file: any view of a memory map, including views with gaps, transposed ones and reversed ones.

    Attributes:
        path: the file, absolute.
        file_bytes: the file's size; if it changes, so does the data.
        mtime_ns: the time of the file's last write.
        offset: the start of the array's first item in the file, in bytes.
        dtype: the array's dtype.
        shape: the array's shape.
        strides: bytes from one item to the next, along each axis.
    """

    path: str
    file_bytes: int
    mtime_ns: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def _identity_parts(self) -> object:
        """Return the file's resolved path, size and time, and the place in it: the key of a cache has them."""
        place = self.offset, self.dtype, self.shape, self.strides
        return os.path.realpath(self.path), self.file_bytes, self.mtime_ns, place

    def open(self) -> NDArray[Any]:
        """Map the file again and return the array, read-only.

        Returns:
            The array, with the same shape, dtype and strides.

        Raises:
            SourceError: the file no longer exists, or its size has changed.
        """
        try:
            buffer = map_file(self.path)
        except OSError as error:
            failure = SourceError(
                f"cannot map {self.path!r} again: {error.strerror}. An array over a memory map is sent to other "
                "processes by its file's name: don't move or remove the file."
            )
            failure.errno = error.errno
            raise failure from error
        if len(buffer) != self.file_bytes:
            raise SourceError(
                f"{self.path!r} changed its size from {self.file_bytes} to {len(buffer)} bytes since it was mapped. "
                "Create the array and the source again."
            )
        return np.ndarray(self.shape, self.dtype, buffer=buffer.data, offset=self.offset, strides=self.strides)


def find_mapped(array: NDArray[Any]) -> MappedArray | None:
    """Return the place of `array` in its file, or None if it must be sent by its bytes.

    Arrays in memory are sent by their bytes, and so are maps that another process can't repeat: those opened
    copy-on-write, whose changes aren't in the file, those without a file name, and those not opened by `np.memmap` or
    `np.load`.

    Args:
        array: any array, or view of one.

    Returns:
        A value that can be pickled.
    """
    named, mapping = _owners(array)
    if named is None or mapping is None or named.filename is None or named.mode == "c" or array.size == 0:
        return None
    # A view's `offset` is that of its map, not its own. The map begins at the multiple of the granularity before it.
    mapped_from = named.offset - named.offset % mmap.ALLOCATIONGRANULARITY
    distance = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    path = os.path.abspath(os.fspath(named.filename))
    try:
        status = os.stat(path)
    except OSError:
        return None  # removed or renamed while mapped: only the bytes can be sent
    offset = mapped_from + distance
    return MappedArray(path, status.st_size, status.st_mtime_ns, offset, array.dtype, array.shape, array.strides)


def _owners(array: NDArray[Any]) -> tuple["np.memmap[Any, Any] | None", mmap.mmap | None]:
    named: np.memmap[Any, Any] | None = None
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        if named is None and _is_memmap(owner):
            named = owner
        owner = cast("Any", getattr(cast("object", owner), "base", None))
    return named, owner


def _is_memmap(value: object) -> "TypeGuard[np.memmap[Any, Any]]":
    return isinstance(value, np.memmap)
