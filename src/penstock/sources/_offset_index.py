"""The index of the offsets of records in files, which is computed once and cached, and the scans that find them.

A scan finds lines of text, or documents of tokens.

The cache directory has one file for each indexed file and kind of scan, named by a hash of both. It begins with a line
of JSON, which holds the indexed file's size and time and the checksum of the rest: the offsets, as little-endian int64.
A cache file that doesn't match in any of these is written again. It is written under another name and renamed, so that
any number of processes may write it at once, and each reads a whole one.
"""

import contextlib
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._progress import Progress
from penstock.errors import SourceError
from penstock.sources._local_files import LocalFile, raise_source_error, stat_file
from penstock.sources._mapped import map_file

_CHUNK_BYTES: Final = 1 << 20  # small enough to stay in the processor's cache between the read and the search
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r"
_NEWLINE: Final = 10
_SPACE: Final = 32
_HEADER_BYTES: Final = 256
_OFFSET: Final = np.dtype("<i8")
Offsets = NDArray[np.int64]


class Scan(Protocol):
    """A picklable function that finds the offsets of a file's records.

    It is called with an open file, and with a function to which it passes the number of bytes that it has scanned. It
    returns int64 offsets: the start of each record, and last, the end of the file. Record i is from offset i to offset
    i + 1.
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


@frozen
class LineScan:
    """The scan for lines that aren't blank, in bytes. A record ends where the next begins, so it may hold blank lines.

    A byte order mark at the beginning belongs to no line.
    """

    @property
    def kind(self) -> str:
        """The scan's name and version."""
        return "lines-1"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "indexing lines"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each line in bytes, and the file's size."""
        position = len(_BYTE_ORDER_MARK) if stream.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK else 0
        stream.seek(position)
        found: list[NDArray[np.int64]] = []
        unfinished: list[bytes] = []  # a line that continues in the next chunk; it begins at `position`
        while chunk := stream.read(_CHUNK_BYTES):
            advance(len(chunk))
            whole, newline, rest = chunk.rpartition(b"\n")
            if not newline:
                unfinished.append(chunk)
                continue
            lines = b"".join([*unfinished, whole, newline])
            found.append(_line_starts(lines) + position)
            position += len(lines)
            unfinished = [rest]
        last = b"".join(unfinished)
        if last.strip(_BLANKS):
            found.append(np.array([position], np.int64))
        return np.concatenate([*found, np.array([position + len(last)], np.int64)])


def _line_starts(lines: bytes) -> NDArray[np.int64]:
    text = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(text == _NEWLINE)
    starts = np.empty(len(ends), np.int64)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    kept = text[starts] != _NEWLINE
    for line in np.flatnonzero(kept & (text[starts] <= _SPACE)).tolist():  # rare: the line begins with a blank
        kept[line] = bool(lines[starts[line] : ends[line]].strip(_BLANKS))
    found: NDArray[np.int64] = starts[kept]
    return found


@frozen
class DocumentScan:
    """The scan for documents that end after a separator, in tokens. The last one may lack its separator.

    Attributes:
        dtype: the tokens' dtype, as `numpy.dtype.str`.
        separator: the token that ends a document.
        begin_bytes: the start of the tokens in the file.
    """

    dtype: str
    separator: int
    begin_bytes: int

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "finding documents"

    @property
    def kind(self) -> str:
        """The scan with its arguments."""
        return f"documents-1 {self.dtype} {self.separator} {self.begin_bytes}"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each document in tokens, and the number of tokens."""
        dtype = np.dtype(self.dtype)
        stream.seek(self.begin_bytes)
        found: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        position = 0
        while chunk := stream.read(_CHUNK_BYTES):
            advance(len(chunk))
            tokens = np.frombuffer(chunk, dtype, len(chunk) // dtype.itemsize)
            found.append(np.flatnonzero(tokens == self.separator).astype(np.int64) + (position + 1))
            position += len(tokens)
        offsets = np.concatenate(found)
        return offsets if offsets[-1] == position else np.append(offsets, position)


def default_cache() -> str:
    """Return the cache directory: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "penstock")


class OffsetIndex:
    """The offsets of the records in each of some files.

    Cached offsets are memory-mapped. They aren't sent to another process: that maps them itself, or scans the files
    again if its cache directory doesn't have them. Offsets that couldn't be cached are sent.

    Args:
        files: the files, with their current sizes and times.
        scans: for each file, the function that finds its offsets.
        cache: a directory; it is created if it doesn't exist. If it can't be written, a warning is logged.
        progress: show progress on a terminal.

    Raises:
        SourceError: a file can't be read, or changes while it is read.
    """

    def __init__(self, files: Sequence[LocalFile], scans: Sequence[Scan], cache: str, *, progress: bool) -> None:
        self._files = tuple(files)
        self._scans = tuple(scans)
        self._cache = cache
        self._progress = progress
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
        files = tuple(_stat_again(known) for known in self._files)
        for number, file in enumerate(files):
            if number in self._kept:
                continue
            cached = _read_cached(self._cache_path(number), _description(file, self._scans[number]))
            if cached is None:
                missing.append((number, file))
            else:
                mapped[number] = cached
        if missing:
            label, total = self._scans[0].label, sum(file.size for _, file in missing)
            with Progress(label, total, enabled=self._progress) as progress:
                for number, file in missing:
                    offsets, is_cached = self._scan(number, file, progress.advance)
                    (mapped if is_cached else self._kept)[number] = offsets
        self._check_counts(mapped)
        self._files = files
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
        except OSError as error:
            raise_source_error(f"cannot read {file.path!r}: {error.strerror}. Check its permissions.", error)
        if stat_file(file.path) != file:
            raise SourceError(
                f"{file.path!r} changed while it was being indexed. Wait until it is written, and try again."
            )
        path, description = self._cache_path(number), _description(file, scan)
        if _write_cached(path, description, offsets):
            cached = _read_cached(path, description)
            if cached is not None:
                return cached, True
        return offsets, False

    def _cache_path(self, number: int) -> str:
        name = f"{self._scans[number].kind}\0{os.path.realpath(self._files[number].path)}"
        digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=16)
        return os.path.join(self._cache, f"{digest.hexdigest()}.offsets")


def _stat_again(known: LocalFile) -> LocalFile:
    file = stat_file(known.path)
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
        content = map_file(path)
    except OSError:
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


def _write_cached(path: str, description: dict[str, str | int], offsets: Offsets) -> bool:
    payload = offsets.astype(_OFFSET, copy=False)
    header = json.dumps({**description, "count": len(payload), "crc32": zlib.crc32(payload.data)}).encode()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Not `tempfile.mkstemp`, whose module takes milliseconds to import.
        temporary = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
            error,
        )
        return False
    return True
