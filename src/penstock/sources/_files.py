"""The sources of the files of a folder: all of them, or images in one folder per class.

Names are relative to the folder, with `/` between their parts, sorted by their bytes: the same on every machine and in
every locale. Names that are invalid in the file system's encoding are kept exactly (surrogateescape).
"""

import fnmatch
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, SupportsIndex, TypeAlias, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

from penstock._os import local_path
from penstock._progress import Progress, counted
from penstock.errors import UsageError
from penstock.sources._local_files import PathLike, as_list, is_path, raise_source_error, stat_file
from penstock.sources._source import as_key

IMAGE_EXTENSIONS: Final = (
    ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
_Listed: TypeAlias = tuple[bytes, int, int]  # a file's relative name, size, and time of the last write


class FileRecord(TypedDict):
    """A record of `Files`: the file's name relative to the folder, and its content."""

    path: str
    bytes: bytes


class ImageRecord(TypedDict):
    """A record of `ImageFolder`: an image file's content, undecoded, and the number of its class.

    Example:
        >>> from penstock.sources import ImageRecord
        >>> def size(record: ImageRecord) -> int:
        ...     return len(record["bytes"])
        >>> size({"bytes": b"abc", "label": 2})
        3
    """

    bytes: bytes
    label: int


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


class Files:
    """Every file below a folder; records are `{"path": name relative to the folder, "bytes": content}`.

    Files are sorted by the bytes of their names, on every machine and in every locale. Links are followed, except
    to a folder above them. Names that begin with a dot are left out. A file is opened when its record is read, and
    then closed.

    Args:
        directory: a folder; or a list of files, which keep their order and are named relative to their common folder.
        pattern: the names to include, as in `"**/*.txt"`; only with a folder. It is case-sensitive; `**` matches any
            number of folders. Default: all names.

    Raises:
        UsageError: no file matches.
        SourceError: the folder, or a file of the list, doesn't exist or can't be accessed; later, at a read, a file
            that no longer exists.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "a.txt").write_text("hello")
        ...     Files(folder, "*.txt")[0]
        {'path': 'a.txt', 'bytes': b'hello'}
    """

    def __init__(self, directory: PathLike | Sequence[PathLike], pattern: str | None = None) -> None:
        if is_path(directory):
            root = local_path(directory)
            wanted = "**/*" if pattern is None else pattern
            found = list_files(root, match_pattern(wanted))
            if not found:
                raise UsageError(
                    f"a folder must hold at least one file; in {root!r} none matches the pattern {wanted!r}. "
                    "Check the path; use `**/` before a pattern to include subfolders. Hidden files are left out."
                )
        else:
            root, found = _from_list(as_list(directory), pattern)
        self._root = root
        self._paths, self._digest, self._times = _tabulate(found)

    @property
    def paths(self) -> Sequence[str]:
        """The files' names relative to the folder, in the order of the keys."""
        return self._paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, key: SupportsIndex) -> FileRecord:
        number = as_key(key, len(self))
        path = self._paths[number]
        return {"path": path, "bytes": _read_file(self, self._root, path, number)}

    def path_of(self, key: SupportsIndex) -> str:
        """Return the absolute path of a key's file."""
        return os.path.join(self._root, self._paths[as_key(key, len(self))])

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the name of a key's file, for messages."""
        return f"file {self._paths[as_key(key, len(self))]!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, the folder, and a digest of the files' times: the key of a cache has them."""
        return self.fingerprint(), os.path.realpath(self._root), self._times

    def fingerprint(self) -> str:
        """Return a str that changes with the files' relative names, and with their sizes when the folder was listed."""
        return f"files-{self._digest}"

    def __repr__(self) -> str:
        return f"Files({self._root!r}: {len(self)} files)"


class ImageFolder:
    """Image files in one folder for each class; records are `{"bytes": undecoded content, "label": int}`.

    The folders directly in `directory` are the classes, numbered in the order of their names' bytes; images at any
    depth below them are included. Links are followed, except to a folder above them. Names that begin with a dot are
    left out.

    Args:
        directory: the folder of class folders.
        extensions: the file extensions of images, in any case.
        allow_empty: keep a class without images, with its label, instead of raising.

    Raises:
        UsageError: there is no class folder or no image, or a class is empty.
        SourceError: the folder doesn't exist or can't be listed; later, at a read, a file that no longer exists.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat", "dog"):
        ...         pathlib.Path(folder, name).mkdir()
        ...         _ = pathlib.Path(folder, name, "1.png").write_bytes(name.encode())
        ...     source = ImageFolder(folder)
        ...     source.classes, source.paths[1], source[1]
        (('cat', 'dog'), 'dog/1.png', {'bytes': b'dog', 'label': 1})
    """

    def __init__(
        self, directory: PathLike, *, extensions: Sequence[str] = IMAGE_EXTENSIONS, allow_empty: bool = False
    ) -> None:
        self._root = local_path(directory)
        endings = _endings(extensions)
        classes = list_folders(self._root)
        if not classes:
            raise UsageError(
                f"an image folder must hold one folder for each class; {self._root!r} holds none. "
                "For files without classes, use Files."
            )
        found: list[_Listed] = []
        labels: list[int] = []
        for label, name in enumerate(classes):
            folder = os.path.join(self._root, os.fsdecode(name))
            images = list_files(folder, lambda path: path.lower().endswith(endings))
            if not images and not allow_empty:
                raise UsageError(
                    f"every class must have at least one image; {folder!r} has no file that ends in "
                    f"{', '.join(endings)}. Remove the folder, pass extensions=, or allow_empty=True."
                )
            found.extend((name + b"/" + path, size, mtime_ns) for path, size, mtime_ns in images)
            labels.extend([label] * len(images))
        if not found:
            raise UsageError(
                f"an image folder must hold at least one image; no file below {self._root!r} ends in "
                f"{', '.join(endings)}. Check the path, or pass extensions=."
            )
        self._classes = tuple(os.fsdecode(name) for name in classes)
        self._labels = np.array(labels, np.int64)
        self._labels.flags.writeable = False
        self._paths, self._digest, self._times = _tabulate(found)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; a record's label is an index into them."""
        return self._classes

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of every record: int64, read-only, one axis as long as the source."""
        return self._labels

    @property
    def paths(self) -> Sequence[str]:
        """The files' names relative to the folder, in the order of the keys."""
        return self._paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, key: SupportsIndex) -> ImageRecord:
        number = as_key(key, len(self))
        return {
            "bytes": _read_file(self, self._root, self._paths[number], number),
            "label": int(self._labels[number]),
        }

    def path_of(self, key: SupportsIndex) -> str:
        """Return the absolute path of a key's file."""
        return os.path.join(self._root, self._paths[as_key(key, len(self))])

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the name of a key's file, for messages."""
        return f"file {self._paths[as_key(key, len(self))]!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, the folder, and a digest of the files' times: the key of a cache has them."""
        return self.fingerprint(), os.path.realpath(self._root), self._times

    def fingerprint(self) -> str:
        """Return a str that changes with the classes, the files' relative names, and their sizes at the listing."""
        digest = hashlib.blake2b(self._digest.encode(), digest_size=16)
        digest.update(repr(self._classes).encode())
        return f"image-folder-{digest.hexdigest()}"

    def __repr__(self) -> str:
        return f"ImageFolder({self._root!r}: {len(self)} images in {len(self._classes)} classes)"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._labels.flags.writeable = False  # pickle doesn't keep it


def _from_list(absolute: list[str], pattern: str | None) -> tuple[str, list[_Listed]]:
    if pattern is not None:
        raise UsageError(f"pattern= requires a folder; got pattern={pattern!r} and a list of files. Omit it.")
    if not absolute:
        raise UsageError("Files needs at least one file; got an empty list. Pass a folder or a list of files.")
    folders = [path for path in absolute if os.path.isdir(path)]
    if folders:
        raise UsageError(f"a list for Files must hold files; got the folder {folders[0]!r}. Pass only the folder.")
    root = os.path.commonpath([os.path.dirname(path) for path in absolute])
    names = [os.path.relpath(path, root).replace(os.sep, "/") for path in absolute]
    files = [stat_file(path) for path in absolute]
    return root, [(os.fsencode(name), file.size, file.mtime_ns) for name, file in zip(names, files, strict=True)]


def _endings(extensions: Sequence[str]) -> tuple[str, ...]:
    given = [extensions] if isinstance(extensions, str) else list(extensions)
    if not given or not all(given):
        raise UsageError(f"extensions must name at least one ending, as in ('.png',); got {extensions!r}.")
    return tuple(("." + extension.removeprefix(".")).lower() for extension in given)


def _read_file(source: Files | ImageFolder, root: str, path: str, key: int) -> bytes:
    try:
        with open(os.path.join(root, path), "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        raise_source_error(
            f"cannot read file {path!r} (key {key} of {source!r}): {error.strerror}. It existed when the source was "
            "created: restore it, or create the source again.",
            error,
            source=repr(source),
            keys=[key],
        )


def _tabulate(found: list[_Listed]) -> tuple[NameTable, str, str]:
    """Return the names, a digest of the names and sizes, and a digest of the times."""
    digest = hashlib.blake2b(f"{len(found)}".encode(), digest_size=16)
    times = hashlib.blake2b(digest_size=16)
    for name, size, mtime_ns in found:
        digest.update(b"%d %s\0" % (size, name))
        times.update(b"%d\0" % mtime_ns)
    return NameTable([name for name, _, _ in found]), digest.hexdigest(), times.hexdigest()


def list_files(root: str, keep: Callable[[str], bool]) -> list[_Listed]:
    """Return the files below `root` for which `keep` is true, sorted by name.

    Links are followed, except to a folder above them. Names that begin with a dot are left out, and so are entries that
    are neither files nor folders. Links to no file are left out, with a warning in the log.

    Args:
        root: a folder.
        keep: takes a file's relative name, and returns whether to include the file.

    Returns:
        Relative name, size in bytes, and time of the last write in nanoseconds of each file.
    """
    found: list[_Listed] = []
    dangling: list[bytes] = []
    try:
        with Progress("listing files", None, amount=counted) as progress:
            for name, entry in _walk(os.fsencode(root)):
                progress.advance(1)
                if entry.is_file():
                    if keep(os.fsdecode(name)):
                        status = entry.stat()
                        found.append((name, status.st_size, status.st_mtime_ns))
                elif entry.is_symlink():
                    dangling.append(name)
    except OSError as error:
        remedy = "Pass single files in a list" if os.path.isfile(root) else "Check the path and its permissions"
        raise_source_error(f"cannot list the folder {root!r}: {error}. {remedy}.", error)
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
