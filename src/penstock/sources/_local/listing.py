"""The list of all files below a folder, in a stable order and in one block of memory.

Names are relative to the folder, with `/` between their parts, sorted by their bytes: the same on every machine and in
every locale. Names that are invalid in the file system's encoding are kept exactly (surrogateescape).
"""

import fnmatch
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from penstock.sources._local.files import raise_source_error


class NameTable(Sequence[str]):
    """A read-only sequence of strings in one block of memory, which forks share and pickle copies fast.

    Args:
        names: the results of `os.fsencode`.
    """

    __slots__ = ("_blob", "_ends")

    def __init__(self, names: Sequence[bytes]) -> None:
        self._blob = b"".join(names)
        lengths = np.fromiter(map(len, names), np.int64, len(names))
        self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return os.fsdecode(self._blob[self._ends[number] : self._ends[number + 1]])

    def __repr__(self) -> str:
        return f"<{len(self)} names>"


def list_files(root: str, keep: Callable[[str], bool]) -> list[tuple[bytes, int]]:
    """Return the files below `root` for which `keep` is true, sorted by name.

    Links are followed, except to a folder above them. Names that begin with a dot are left out, and so are entries that
    are neither files nor folders. Dangling links are left out with a warning in the log.

    Args:
        root: a folder.
        keep: returns whether to include a file, by its relative name.

    Returns:
        Relative name and size in bytes of each file.
    """
    found: list[tuple[bytes, int]] = []
    dangling: list[bytes] = []
    try:
        for name, entry in _walk(os.fsencode(root)):
            if entry.is_file():
                if keep(os.fsdecode(name)):
                    found.append((name, entry.stat().st_size))
            elif entry.is_symlink():
                dangling.append(name)
    except OSError as error:
        raise_source_error(f"cannot list the folder {root!r}: {error}. Check the path and its permissions.", error)
    if dangling:
        logging.getLogger("penstock").warning(
            "%d links below %r lead to no file and are left out, such as %r",
            len(dangling),
            root,
            os.fsdecode(min(dangling)),
        )
    found.sort()
    return found


def _walk(root: bytes) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    folders: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(b"", frozenset())]
    while folders:
        prefix, above = folders.pop()
        folder = os.path.join(root, prefix)
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                if entry.is_dir():
                    folders.append((prefix + entry.name + b"/", above | {identity}))
                else:
                    yield prefix + entry.name, entry


def list_folders(root: str) -> list[bytes]:
    """Return the names of the folders directly in `root` (with links to folders), sorted by their bytes.

    Args:
        root: a folder. Names that begin with a dot are left out.

    Returns:
        Names without `root`, encoded.
    """
    try:
        with os.scandir(os.fsencode(root)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(b"."))
    except OSError as error:
        raise_source_error(f"cannot list the folder {root!r}: {error}. Check the path and its permissions.", error)


def match_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns whether a relative name matches `pattern`.

    Args:
        pattern: parts between `/`; in a part, `*`, `?` and `[...]` as in the shell, case-sensitive; the part `**`
            matches any number of folders.

    Returns:
        True for names that match as a whole.
    """
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    if parts == ["**", "*"]:
        return lambda _: True
    return lambda name: _matches(parts, name.split("/"))


def _matches(parts: list[str], names: list[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_matches(parts[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and _matches(parts[1:], names[1:])
