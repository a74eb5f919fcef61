"""Local files: found from a path, a list or a glob, opened with a limit, indexed by offsets, and read record by record.

A `LocalFile` has the size and time that show later changes.

`OpenFile` is a descriptor. Any thread may read, and reads of one file run in parallel if the system has `pread`. A copy
in a forked child shares no file position with the original. `KeptOpen` (`_kept_open.py`) keeps open files.

`OffsetIndex` has the offsets of the records of files, such as lines of text or documents of tokens. A `Scan` finds them
once, and they are kept in a cache directory, in one file for each indexed file and kind of scan, named by a hash of
both. It begins with a line of JSON, which holds the indexed file's size and time and the checksum of the rest: the
offsets, as little-endian int64. A cache file that doesn't match in any of these is written again. It is written under
another name and renamed, so that any number of processes may write it at once, and each reads a whole one. `penstock
index` writes such files beside the data (`indexing_beside`), in a folder `.penstock`, where they are found, too.

`RecordFiles` joins both: it is the base class of the sources whose records are spans of bytes in files. A subclass
supplies the scan, and the function that parses a record's bytes.
"""

import contextlib
import errno
import glob
import hashlib
import itertools
import json
import logging
import os
import stat
import threading
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache, partial
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Final, NoReturn, Protocol, Self, SupportsIndex, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._os import local_path, this_host
from penstock._progress import Progress
from penstock.errors import ClosedError, SourceError, UsageError
from penstock.sources._kept_open import KeptOpen
from penstock.sources._mapped import map_file
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range

PathLike = str | os.PathLike[str]
_BLOCK_BYTES: Final = 4 << 20  # read together, at the rate of a disk or an object store
_HEADER_BYTES: Final = 256
_READ_BYTES: Final = 1 << 12  # an index from this size on is mapped, as a map takes no more memory
_MAX_MAPS: Final = 16_000  # of indexes; a process may have 65,530 of all kinds on Linux
_maps: Final = itertools.count()
_BESIDE: Final = ".penstock"  # a folder beside files, with their indexes
_indexed_beside: Final[ContextVar[set[str] | None]] = ContextVar("indexed_beside", default=None)
_OFFSET: Final = np.dtype("<i8")
Offsets = NDArray[np.int64]
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_COMPRESSIONS: Final = {
    "gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ",
}  # fmt: skip


def is_path(value: object) -> TypeGuard[PathLike]:
    """Return whether `value` is a path, and not a list of paths."""
    return isinstance(value, str | os.PathLike)


def as_list(paths: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the absolute form of a path, or of each path of a list.

    Raises:
        UsageError: it is neither, or a set, whose order differs from run to run.
    """
    if is_path(paths):
        return [local_path(paths)]
    known = cast("object", paths)
    given: Iterator[PathLike] | None = None
    if not isinstance(known, bytes | set | frozenset):
        with contextlib.suppress(TypeError):
            given = iter(cast("Iterable[PathLike]", known))
    if given is None:
        raise UsageError(
            f"paths must be a path or a list of paths; got {known!r:.200}. Pass a str or a pathlib.Path, or sort a set "
            "to a list."
        )
    return [local_path(path) for path in given]


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
        UsageError: it is a pipe, a socket or a device.
        SourceError: it can't be accessed.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. {_remedy(path, 'Check the path.')}", error)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise UsageError(
            f"{path!r} must be a regular file; it is a pipe, a socket or a device. Write its content to a file first."
        )
    return LocalFile(path, status.st_size, status.st_mtime_ns)


def _remedy(path: str, usual: str) -> str:
    """Return what to do about a path without a file; shells and other libraries expand some of them."""
    if "{" in path:
        return "Braces aren't expanded: pass a glob, such as 'train-*.tar', or a list, as in ps.sources.Tar(paths)."
    if f"{os.sep}~" in path:
        return "~ isn't expanded: pass os.path.expanduser(path)."
    return "It is a link: restore what it leads to, or remove it." if os.path.islink(path) else usual


def is_missing(path: str) -> bool:
    """Return whether there is no such file.

    Raises:
        SourceError: a folder can't be accessed, so nobody knows.
    """
    try:
        stat_file(path)
    except SourceError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
            raise
        return True
    return False


def find_files(paths: PathLike | Sequence[PathLike], owner: str) -> list[LocalFile]:
    """Return the files of `paths`: those of a list in its order, those of a glob sorted by name.

    Args:
        paths: a path, a glob (`**` includes subfolders), or a list of these. An existing path is no glob.
        owner: the calling class, for messages.

    Returns:
        At least one file.

    Raises:
        UsageError: the list is empty, a glob matches no file, or a path is a folder or another thing than a file.
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
    # A file that can't be accessed, such as a link to nothing, isn't left out: `stat_file` raises its error.
    matches = sorted((match for match in glob.glob(path, recursive=True) if not os.path.isdir(match)), key=os.fsencode)
    if not matches:
        raise UsageError(
            f"a glob must match at least one file; {path!r} matches none. "
            + _remedy(path, "Check the folder and the extension.")
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


class OpenFile:
    """One descriptor, closed with the last reference to this object.

    Args:
        file: the file at the time of its indexing.

    Attributes:
        read_some: returns a number of bytes at an offset, or fewer.

    Raises:
        SourceError: the file has changed since it was indexed.
    """

    __slots__ = ("__weakref__", "read_some")

    def __init__(self, file: LocalFile) -> None:
        descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, descriptor)
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            raise SourceError(
                f"{file.path!r} changed since it was indexed: it had {file.size} bytes and has {status.st_size}, or "
                "was written again. Create the source again."
            )
        self.read_some: Callable[[int, int], bytes] = (
            partial(os.pread, descriptor)
            if hasattr(os, "pread")
            else partial(_seek_and_read, descriptor, threading.Lock())
        )

    def read(self, offset: int, size: int) -> bytes:
        """Return a number of bytes at an offset; fewer only if the file ends before."""
        content = self.read_some(size, offset)
        while 0 < len(content) < size:  # the system may return fewer bytes
            more = self.read_some(size - len(content), offset + len(content))
            if not more:
                break
            content += more
        return content


def _seek_and_read(descriptor: int, lock: threading.Lock, size: int, offset: int) -> bytes:
    with lock:  # makes both one step
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


def compression_of(begin: bytes) -> str:
    """Return the name of the format in which a file is compressed, or "".

    Args:
        begin: the first bytes of the file, at least 6 if it has them.
    """
    return next((name for name, magic in _COMPRESSIONS.items() if begin.startswith(magic)), "")


def line_number(path: str, begin: int) -> int:
    """Return the number of the line that begins at a byte of a file, from 1 on, for messages."""
    lines = 1
    with open(path, "rb") as stream:
        while begin > 0 and (chunk := stream.read(min(begin, 1 << 20))):
            lines += chunk.count(b"\n")
            begin -= len(chunk)
    return lines


class Scan(Protocol):
    """A picklable function that finds the offsets of a file's records.

    It is called with an open file, and with a function to which it passes the number of bytes that it has scanned. It
    returns int64 offsets: the start of each record, and last, the end of the file. Record i is from offset i to offset
    i + 1. It raises a SourceError for a file that has another format; the path is `stream.name`.
    """

    @property
    def kind(self) -> str:
        """The scan's name and version, for the cache: a scan that finds other offsets must have another kind."""
        ...

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        ...

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offsets."""
        ...


def default_cache() -> str:
    """Return the cache directory: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`."""
    home = os.path.expanduser("~")
    # A user without a home has no cache, instead of a folder named "~" in the working directory.
    usual = os.devnull if home == "~" else os.path.join(home, ".cache")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or usual, "penstock")


class OffsetIndex:
    """The offsets of the records in each of some files.

    Cached offsets are memory-mapped, unless they are few. They aren't sent to another process: that reads them itself,
    or scans the files again if its cache directory doesn't have them. Offsets that couldn't be cached are sent. A file
    that was written again is refused; on another host, one with as many bytes and records is taken for a copy, whatever
    its time.

    Args:
        files: the files, with their current sizes and times.
        scans: for each file, the function that finds its offsets.
        cache: a directory; it is created if it doesn't exist. If it can't be written, a warning is logged.
        progress: show progress on a terminal.

    Attributes:
        progress: the argument.

    Raises:
        SourceError: a file can't be read, or changes while it is read.
    """

    def __init__(self, files: Sequence[LocalFile], scans: Sequence[Scan], cache: str, *, progress: bool) -> None:
        self._files = tuple(files)
        self._scans = tuple(scans)
        self._cache = cache
        self.progress = progress
        self._host = this_host()
        self._kept: dict[int, Offsets] = {}  # by file: offsets that couldn't be cached
        self._mapped: dict[int, Offsets] | None = None
        self._counts: tuple[int, ...] = ()
        self._counts = tuple(len(self[number]) - 1 for number in range(len(self._files)))

    @property
    def files(self) -> tuple[LocalFile, ...]:
        """The files, with their sizes and times when this process indexed them or read their index."""
        if self._mapped is None:
            self._mapped = self._load()
        return self._files

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of records in each file."""
        return self._counts

    def identity(self) -> str:
        """Return a digest of the files' paths, sizes and times, and of the scans."""
        return identity_of(self.files, " ".join(scan.kind for scan in self._scans))

    def __getitem__(self, number: int) -> Offsets:
        """Return the offsets in file `number`: one for each record, and the end."""
        mapped = self._mapped
        if mapped is None:
            mapped = self._mapped = self._load()
        kept = self._kept.get(number)
        return mapped[number] if kept is None else kept

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    def _load(self) -> dict[int, Offsets]:
        mapped: dict[int, Offsets] = {}
        missing: list[tuple[int, LocalFile]] = []
        is_here = self._host == this_host()
        files = tuple(_stat_again(known, is_here=is_here) for known in self._files)
        for number, file in enumerate(files):
            if number in self._kept:
                continue
            description = _description(file, self._scans[number])
            found = (_read_cached(path, description) for path in self._places(number))
            cached = next((offsets for offsets in found if offsets is not None), None)
            if cached is None:
                missing.append((number, file))
            else:
                mapped[number] = cached
        if missing:
            label, total = self._scans[0].label, sum(file.size for _, file in missing)
            with Progress(label, total, enabled=self.progress) as progress:
                for number, file in missing:
                    offsets, is_cached = self._scan(number, file, progress.advance)
                    (mapped if is_cached else self._kept)[number] = offsets
        self._check_counts(mapped)
        self._files = files
        indexed = _indexed_beside.get()
        if indexed is not None:
            indexed.update(file.path for file in files)
        return mapped

    def _check_counts(self, mapped: dict[int, Offsets]) -> None:
        for number, known in enumerate(self._counts):  # empty while the constructor runs
            if number in mapped and len(mapped[number]) - 1 != known:
                raise SourceError(
                    f"{self._files[number].path!r} changed since it was indexed: it had {known} records and has "
                    f"{len(mapped[number]) - 1}. Create the source again."
                )

    def _scan(self, number: int, file: LocalFile, advance: Callable[[int], None]) -> tuple[Offsets, bool]:
        scan = self._scans[number]
        try:
            with open(file.path, "rb") as stream:
                offsets = scan(stream, advance)
        except SourceError:
            raise
        except OSError as error:
            raise_source_error(f"cannot read {file.path!r}: {error.strerror}. Check its permissions.", error)
        if stat_file(file.path) != file:
            raise SourceError(
                f"{file.path!r} changed while it was being indexed. Wait until it is written, and try again."
            )
        path, description = self._places(number)[0], _description(file, scan)
        if _write_cached(path, description, offsets):
            cached = _read_cached(path, description)
            if cached is not None:
                return cached, True
        if _indexed_beside.get() is not None:
            raise SourceError(f"cannot write the index of {file.path!r} beside it. Check the folder's permissions.")
        return offsets, False

    def _places(self, number: int) -> list[str]:
        """Return where the offsets of a file may be; a scan writes them to the first."""
        scan, file = self._scans[number], self._files[number]
        beside = os.path.join(os.path.dirname(file.path), _BESIDE, _index_name(scan, file.name))
        cached = os.path.join(self._cache, _index_name(scan, os.path.realpath(file.path)))
        return [cached, beside] if _indexed_beside.get() is None else [beside]


def _index_name(scan: Scan, file: str) -> str:
    name = f"{scan.kind}\0{file}".encode(errors="surrogateescape")
    return f"{hashlib.blake2b(name, digest_size=16).hexdigest()}.offsets"


@contextlib.contextmanager
def indexing_beside() -> Generator[set[str]]:
    """Make sources that are created here write their indexes beside their files, for all machines that read these.

    Yields:
        A set to which each source adds the paths of its files, once they are indexed.
    """
    indexed: set[str] = set()
    token = _indexed_beside.set(indexed)
    try:
        yield indexed
    finally:
        _indexed_beside.reset(token)


def _stat_again(known: LocalFile, *, is_here: bool) -> LocalFile:
    """Return a file with its time now.

    Raises:
        SourceError: its size has changed, or, on the host where it was indexed, its time.
    """
    file = stat_file(known.path)
    if is_here and file.size == known.size and file != known:
        raise SourceError(f"{known.path!r} was written again since it was indexed. Create the source again.")
    if file.size != known.size:
        raise SourceError(
            f"{known.path!r} changed its size from {known.size} to {file.size} bytes since it was indexed. "
            "Create the source again."
        )
    return file


def _description(file: LocalFile, scan: Scan) -> dict[str, str | int]:
    return {"kind": scan.kind, "size": file.size, "mtime_ns": file.mtime_ns}


def _read_cached(path: str, description: dict[str, str | int]) -> Offsets | None:
    try:
        content = _read_or_map(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        logging.getLogger("penstock").warning(
            "an index isn't used, as it can't be read (%s). Check its permissions, or delete it.", str(error)
        )
        return None
    payload = content[_HEADER_BYTES:]
    expected = {**description, "count": len(payload) // _OFFSET.itemsize, "crc32": zlib.crc32(payload.data)}
    try:
        header: object = json.loads(bytes(content[:_HEADER_BYTES]))
    except ValueError:
        return None
    if header != expected or len(payload) % _OFFSET.itemsize or len(payload) == 0:
        return None
    return payload.view(_OFFSET).astype(np.int64, copy=False)


def _read_or_map(path: str) -> NDArray[np.uint8]:
    """Return the bytes of a file: mapped, since processes share these, or in memory if they are few, or maps many."""
    with open(path, "rb", buffering=0) as stream:
        begin = stream.read(_READ_BYTES)
    if len(begin) < _READ_BYTES:
        return np.frombuffer(begin, np.uint8)
    return map_file(path) if next(_maps) < _MAX_MAPS else np.fromfile(path, np.uint8)


def _write_cached(path: str, description: dict[str, str | int], offsets: Offsets) -> bool:
    payload = offsets.astype(_OFFSET, copy=False)
    header = json.dumps({**description, "count": len(payload), "crc32": zlib.crc32(payload.data)}).encode()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Not `tempfile.mkstemp`, whose module takes milliseconds to import.
        temporary = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(header.ljust(_HEADER_BYTES - 1) + b"\n")
                stream.write(payload.data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        logging.getLogger("penstock").warning(
            "an index can't be written to the cache (%s), so the next run computes it again. "
            "Pass another cache= or set XDG_CACHE_HOME.",
            str(error),  # a handler that keeps the error would keep open what its frames have
        )
        return False
    return True


class RecordFiles:
    """The records of indexed files, one after the other; a subclass parses them.

    It finds a key's bytes, opens files at the first read, and raises the errors of files that changed. Copies in other
    processes open the files again.

    Args:
        files: the files, in the order of their keys.
        scans: for each file, the scan that finds its records.
        cache: the directory for the index; None for the default one.
        progress: show progress on a terminal.
    """

    _noun: ClassVar[str] = "record"
    _fingerprint_prefix: ClassVar[str]

    def __init__(
        self, files: Sequence[LocalFile], scans: Sequence[Scan], *, cache: PathLike | None, progress: bool
    ) -> None:
        directory = default_cache() if cache is None else local_path(cache)
        self._index = OffsetIndex(files, scans, directory, progress=progress)
        self._ends = list(itertools.accumulate(self._index.counts))
        self._starts = [0, *self._ends]
        self._length = self._ends[-1]
        self._offsets: dict[int, memoryview[int]] = {}  # by file, once a record of it was read
        # By file, once a record of it was read, if it stays open: its first key, its offsets, and the open file.
        self._at_hand: dict[int, tuple[int, memoryview[int], OpenFile]] = {}
        self._open: KeptOpen[OpenFile] | None = None
        self._closed = False
        self._described = digest_of(files)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self._record(as_key(key, self._length))

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the record of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            The parsed records.
        """
        checked = as_keys(keys)
        check_range(checked, self._length)
        return [self._record(key) for key in checked.tolist()]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The keys at which runs of about 4 MiB in one file begin, and, last, the length: int64, one axis."""
        bounds = [np.zeros(1, np.int64)]
        for number, (end, count) in enumerate(zip(self._ends, self._index.counts, strict=True)):
            bounds.append(np.append(self._cuts(number), count) + (end - count))
        return np.unique(np.concatenate(bounds))

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the file and the byte of a key's record, for messages."""
        number, begin, _ = self._find(as_key(key, self._length))
        return f"byte {begin} of file {self._index.files[number].name!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return self.fingerprint(), self._index.identity()

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files."""
        return f"{self._fingerprint_prefix}-{self._described}"

    def close(self) -> None:
        """Close all descriptors; from now on a read raises ClosedError. Closing twice does nothing."""
        self._closed = True
        self._at_hand.clear()
        if self._open is not None:
            self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        count = len(self._ends)
        return f"{type(self).__name__}({len(self)} {self._noun}s in {count} {'file' if count == 1 else 'files'})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_offsets": {}, "_at_hand": {}}

    def _parse(self, content: bytes, key: int) -> Record:
        """Return the record of `key`, whose bytes are `content`."""
        raise NotImplementedError

    def _cuts(self, number: int) -> NDArray[np.int64]:
        """Return the records of file `number` before which a block ends, counted from the file's first one."""
        offsets = self._index[number]
        cuts: NDArray[np.int64] = offsets.searchsorted(np.arange(offsets.item(0), offsets.item(-1), _BLOCK_BYTES)[1:])
        return cuts

    def _place(self, key: int) -> tuple[str, int]:
        """Return the path of a key's file, and the start of its record in bytes, for messages."""
        number, begin, _ = self._find(key)
        return self._index.files[number].path, begin

    def _find(self, key: int) -> tuple[int, int, int]:
        number = bisect_right(self._ends, key)
        offsets = self._offsets.get(number)
        if offsets is None:  # an item of a memoryview takes half of the time of an array's
            offsets = self._offsets[number] = memoryview(self._index[number].data)
        local = key - self._starts[number]
        return number, offsets[local], offsets[local + 1]

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed, and can't be read any more. Create it again, or close it later.")

    def _record(self, key: int) -> Record:
        # A function for each of its steps would take a third of the time of all of it.
        number = bisect_right(self._ends, key)
        at_hand = self._at_hand.get(number)
        if at_hand is None:
            return self._far_record(number, key)
        first, offsets, file = at_hand
        local = key - first
        begin = offsets[local]
        size = offsets[local + 1] - begin
        try:
            content = file.read_some(size, begin)
        except OSError:
            return self._far_record(number, key)
        if len(content) != size:
            return self._far_record(number, key)
        return self._parse(content, key)

    def _far_record(self, number: int, key: int) -> Record:
        """Return a record of a file that isn't at hand, or whose read has failed; it raises the errors of all reads."""
        _, begin, end = self._find(key)
        content = self._content(number, begin, end, key)
        file = None if self._open is None else self._open.get(number)
        if file is not None:
            self._at_hand[number] = (self._starts[number], self._offsets[number], file)
            if self._open is None or self._open.get(number) is not file:  # another thread has let go of it
                self._at_hand.pop(number, None)
        return self._parse(content, key)

    def _open_file(self, number: int) -> OpenFile:
        return OpenFile(self._index.files[number])

    def _content(self, number: int, begin: int, end: int, key: int) -> bytes:
        """Return the bytes of the record of `key`, which is from `begin` to `end` in file `number`.

        Raises:
            SourceError: the file can't be read, or has changed.
        """
        self._check_open()
        kept = self._open
        if kept is None:
            kept = self._open = KeptOpen(self._at_hand)
        try:
            file = kept.opened(number, self._open_file)
            if self._closed:  # by another thread, since the check
                kept.clear()
            content = file.read(begin, end - begin)
        except SourceError:
            raise
        except OSError as error:
            raise_source_error(
                f"cannot read {self._index.files[number].path!r} (key {key} of {self!r}): {error.strerror}. It "
                "existed when the source was created: restore it, or create the source again.",
                error,
                source=repr(self),
                keys=[key],
            )
        if len(content) != end - begin:
            raise SourceError(
                f"{self._index.files[number].path!r} was truncated while it was read (key {key} of {self!r}): its "
                f"{self._noun} at byte {begin} is missing. Create the source again.",
                source=repr(self),
                keys=[key],
            )
        return content


def digest_of(files: Sequence[LocalFile], described: str = "") -> str:
    """Return a digest of the names (without folders) and sizes of files, and of a text that describes the source."""
    digest = hashlib.blake2b(f"{described}\n".encode() if described else b"", digest_size=16)
    for file in files:
        digest.update(f"{file.name!r} {file.size}\n".encode())
    return digest.hexdigest()


def identity_of(files: Sequence[LocalFile], described: str) -> str:
    """Return a digest of the paths, sizes and times of files, and of a text that describes what is read of them.

    Links in the names of folders are resolved, once for each folder.
    """
    digest = hashlib.blake2b(described.encode(), digest_size=16)
    resolved = cache(os.path.realpath)
    for file in files:
        folder, name = os.path.split(file.path)
        digest.update(f"\n{resolved(folder)!r} {name!r} {file.size} {file.mtime_ns}".encode())
    return digest.hexdigest()
