"""Local files as values: found from a path, a list of paths or a glob, with the size and time that show changes."""

import glob
import os
from collections.abc import Sequence
from typing import NoReturn, TypeGuard, cast

from penstock._frozen import frozen
from penstock.errors import SourceError, UsageError

PathLike = str | os.PathLike[str]


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
