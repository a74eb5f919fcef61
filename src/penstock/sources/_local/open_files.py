"""Descriptors of many files, opened at the first read, with a limit on their number.

Guarantees:
  - Any thread may read; reads of one file run in parallel if the system has `pread`.
  - At most `MAX_OPEN` descriptors are kept. The least recently used one is closed for the next, but never during a
    read.
  - `close` closes them all, and so does dropping the object; after `close`, a read raises `ClosedError`.
  - A pickled copy, or that of a forked child, shares no file position with this one.
"""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import ClosedError, SourceError
from penstock.sources._local.files import LocalFile

MAX_OPEN: Final = 128


class OpenFiles:
    """Reads spans of files by their number.

    Args:
        files: the files at the time of their indexing.
    """

    def __init__(self, files: Sequence[LocalFile]) -> None:
        self._files = tuple(files)
        self._closed = False
        self._lock = threading.Lock()  # guards the two below
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()

    def read_at(self, number: int, offset: int, size: int) -> bytes:
        """Return `size` bytes of file `number` from `offset` on.

        Args:
            number: the file's number.
            offset: in bytes, not negative.
            size: in bytes.

        Returns:
            The bytes; fewer only if the file ends before.

        Raises:
            ClosedError: it was closed.
            SourceError: the file has changed since it was indexed.
        """
        return self._descriptor(number).read_at(offset, size)

    def close(self) -> None:
        """Close all descriptors. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            self._open.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "_closed": self._closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._open = OrderedDict()

    def _descriptor(self, number: int) -> "_OpenFile":
        with self._lock:
            if self._closed:
                raise ClosedError(
                    "the source was closed, and can't be read any more. Create it again, or close it later."
                )
            known = self._open.get(number)
            if known is None:
                known = self._open[number] = _OpenFile(self._files[number])
                if len(self._open) > MAX_OPEN:
                    self._open.popitem(last=False)  # closed when the last read of it ends
            else:
                self._open.move_to_end(number)
            return known


class _OpenFile:
    """One descriptor, closed with the last reference to this object."""

    __slots__ = ("__weakref__", "_descriptor", "_lock")

    def __init__(self, file: LocalFile) -> None:
        descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, descriptor)
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            raise SourceError(
                f"{file.path!r} changed since it was indexed: it had {file.size} bytes and has {status.st_size}, or "
                "was written again. Create the source again."
            )
        self._descriptor = descriptor
        self._lock = threading.Lock()  # makes seek and read one step without pread

    def read_at(self, offset: int, size: int) -> bytes:
        content = self._read_some(offset, size)
        while 0 < len(content) < size:  # the system may return fewer bytes
            more = self._read_some(offset + len(content), size - len(content))
            if not more:
                break
            content += more
        return content

    def _read_some(self, offset: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, size)
