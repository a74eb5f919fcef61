"""A memory-mapped array as a value: its place in its file, so that another process can map it again."""

import mmap
import os
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import SourceError
from penstock.sources._gather import map_file


@frozen
class MappedArray:
    """An array in a file: any view of a memory map, also one with gaps, transposed or reversed.

    Attributes:
        path: the file, absolute.
        file_bytes: the file's size; another size means other data.
        offset: the start of the array's first item in the file, in bytes.
        dtype: the array's dtype.
        shape: the array's shape.
        strides: bytes from one item to the next, along each axis.
    """

    path: str
    file_bytes: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

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

    That is the case for arrays in memory, and for maps that another process can't repeat: those that were opened
    copy-on-write (their changes aren't in the file), without a file name, or not by `np.memmap` or `np.load`.

    Args:
        array: any array; a view of an `np.memmap` is in its file, too.

    Returns:
        A value that can be pickled.
    """
    named, mapping = _owners(array)
    if named is None or mapping is None or named.filename is None or named.mode == "c" or array.size == 0:
        return None
    # Every view has the offset of its map, not its own. The map begins at the multiple of the granularity before that.
    mapped_from = named.offset - named.offset % mmap.ALLOCATIONGRANULARITY
    distance = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    path = os.path.abspath(os.fspath(named.filename))
    try:
        file_bytes = os.stat(path).st_size
    except OSError:
        return None  # removed or renamed while mapped: only the bytes can be sent
    return MappedArray(path, file_bytes, mapped_from + distance, array.dtype, array.shape, array.strides)


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
