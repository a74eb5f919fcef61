"""Local files: found from a path, a list or a glob, with the size and time that show changes; and their descriptors.

`OpenFiles` opens files at the first read, with a limit on their number. Its guarantees:
  - Any thread may read; reads of one file run in parallel if the system has `pread`.
  - At most `MAX_OPEN` descriptors are kept. The least recently used one is closed to open another, but never during a
    read.
  - `close` closes them all, and so does dropping the object; after `close`, a read raises `ClosedError`.
  - A pickled copy, and a copy in a forked child, shares no file position with the original.
"""

import glob
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NoReturn, TypeGuard, cast

from penstock._frozen import frozen
from penstock.errors import ClosedError, SourceError, UsageError

PathLike = str | os.PathLike[str]
MAX_OPEN: Final = 128  # descriptors of an `OpenFiles`


def is_path(value: object) -> TypeGuard[PathLike]:
    """Return whether `value` is a path, and not a list of paths."""
    return isinstance(value, str | os.PathLike)


def as_list(paths: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the absolute form of a path, or of each path of a list."""
    return [os.path.abspath(path) for path in ([paths] if is_path(paths) else cast("Sequence[PathLike]", paths))]


@frozen
class LocalFile:
    """A file, with its size and time at one moment.

    Attributes:
        path: absolute.
        size: in bytes.
        mtime_ns: the time of its last write, in nanoseconds.
    """

    path: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return os.path.basename(self.path)


def stat_file(path: str) -> LocalFile:
    """Return a file with its size and time now.

    Args:
        path: a regular file, absolute.

    Raises:
        SourceError: it can't be accessed.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check the path.", error)
    return LocalFile(path, status.st_size, status.st_mtime_ns)


def find_files(paths: PathLike | Sequence[PathLike], owner: str) -> list[LocalFile]:
    """Return the files of `paths`: those of a list in its order, those of a glob sorted by name.

    Args:
        paths: a path, a glob (`**` includes subfolders), or a list of these. An existing path is no glob.
        owner: the calling class, for messages.

    Returns:
        At least one file.

    Raises:
        UsageError: the list is empty, a glob matches no file, or a path is a folder.
        SourceError: a file doesn't exist.
    """
    given = as_list(paths)
    if not given:
        raise UsageError(f"{owner} needs at least one file; got an empty list. Pass a path, a list of paths or a glob.")
    return [stat_file(path) for pattern in given for path in _expand(pattern, owner)]


def _expand(path: str, owner: str) -> list[str]:
    if os.path.isdir(path):
        raise UsageError(
            f"{owner} reads files; got the folder {path!r}. Name its files, as in {os.path.join(path, '*')!r}."
        )
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    matches = sorted((match for match in glob.glob(path, recursive=True) if os.path.isfile(match)), key=os.fsencode)
    if not matches:
        raise UsageError(
            f"a glob must match at least one file; {path!r} matches none. Check the folder and the extension."
        )
    return matches


def raise_source_error(message: str, cause: OSError, *, source: str = "", keys: Sequence[int] = ()) -> NoReturn:
    """Raise a `SourceError` that keeps the errno of its cause.

    Args:
        message: the failure, and the remedy.
        cause: the error of the system.
        source: the `repr` of the source.
        keys: the requested keys.

    Raises:
        SourceError: always.
    """
    failure = SourceError(message, source=source, keys=keys)
    failure.errno = cause.errno
    raise failure from cause


class OpenFiles:
    """Reads spans of files by their number.

    Args:
        files: the files at the time of their indexing.
    """

    def __init__(self, files: Sequence[LocalFile]) -> None:
        self._files = tuple(files)
        self._closed = False
        self._lock = threading.Lock()  # guards `_closed` and `_open`
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
                    self._open.popitem(last=False)  # it is closed when its last read ends
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
