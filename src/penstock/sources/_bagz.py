r"""The source of records in Bagz files; records are bytes.

A file has the records, one directly after the other, and then their limits: the end of each record in the file, as a
little-endian number of 8 bytes. The last limit is where the limits begin, so the last 8 bytes of a file show it. The
limits may be in a file of their own instead, whose name is that of the file after `limits.`. An empty file has no
records. In a compressed file, each record is a frame of zstd; an empty record is a frame, or no bytes at all.
"""

import os
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._decompress import decompressed
from penstock.sources._local_files import LocalFile, PathLike, RecordFiles, find_files, stat_file

_LIMIT: Final = np.dtype("<u8")
_LIMITS_PREFIX: Final = "limits."
_MAX_RECORD_BYTES: Final = 1 << 31
_COMPRESSED: Final = {".bagz": True, ".bag": False}
_PAST_ANY_FILE: Final = 1 << 62


class Bagz(RecordFiles):
    r"""The records of one or more Bagz files; records are bytes.

    Records of a file `.bagz` are compressed by zstd, one by one, and those of a `.bag` aren't; pass `compressed` for
    files with other names. The limits of the records are at the end of the file, or in a file `limits.NAME` beside it,
    as the writer's `limits_placement` says. The records of several files follow each other. The library `bagz` isn't
    needed; zstd is the system's.

    The first use reads the limits, and keeps them in a cache directory until a file's size or time changes. A record is
    read by one request. The format has no checksums, but a compressed record that is damaged is found by zstd.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file that is opened raises SourceError.

    Args:
        paths: a path, a glob such as `"data/train-*.bagz"` (sorted by name; files of limits are left out), or a list of
            these, in its order. What Bagz calls `train@*.bagz` is the glob `train-*.bagz`.
        compressed: whether records are compressed by zstd. Default: by the suffix, which must be the same for all.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.

    Raises:
        UsageError: `paths` has no file, or a folder; or the suffix doesn't say whether records are compressed.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file's limits are damaged or truncated; at a read, a record can't be decompressed, or has
            more than 2 GiB. The message has file, record and byte.
        ImportError: at a read, the system lacks zstd.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.bag")
        ...     _ = path.write_bytes(b"one" + b"two" + np.array([3, 6], "<u8").tobytes())
        ...     with Bagz(path, cache=folder) as source:
        ...         len(source), source[1]
        (2, b'two')
    """

    _fingerprint_prefix = "bagz"

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        compressed: bool | None = None,
        cache: PathLike | None = None,
        progress: bool = True,
    ) -> None:
        files = _without_limits(find_files(paths, "Bagz"))
        self._is_compressed = _is_compressed(files) if compressed is None else compressed
        super().__init__(files, [_BagzScan(_limits_of(file)) for file in files], cache=cache, progress=progress)

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files, and with `compressed`."""
        return f"{super().fingerprint()}{'-zstd' if self._is_compressed else ''}"

    def _parse(self, content: bytes, key: int) -> bytes:
        if not (self._is_compressed and content):
            return content
        try:
            return decompressed(content, "zstd", _MAX_RECORD_BYTES)
        except ValueError as error:
            path, begin = self._place(key)
            raise CorruptRecordError(
                f"the record at byte {begin} of {path!r} (key {key} of {self!r}) can't be decompressed: {error}. "
                "Restore the file; if it isn't compressed, pass compressed=False.",
                source=repr(self),
                keys=[key],
            ) from error


def _without_limits(files: Sequence[LocalFile]) -> list[LocalFile]:
    """Return the files that aren't the limits of others: a glob may match these, too."""
    known = {os.path.join(os.path.dirname(file.path), _LIMITS_PREFIX + file.name) for file in files}
    return [file for file in files if file.path not in known]


def _is_compressed(files: Sequence[LocalFile]) -> bool:
    found = {_COMPRESSED.get(os.path.splitext(file.name)[1]) for file in files}
    if len(found) > 1 or None in found:
        raise UsageError(
            "files of Bagz must end all in .bagz, if their records are compressed, or all in .bag; got "
            f"{files[0].name!r}{f' to {files[-1].name!r}' if len(files) > 1 else ''}. Pass compressed=True or False."
        )
    return found == {True}


def _limits_of(file: LocalFile) -> LocalFile | None:
    path = os.path.join(os.path.dirname(file.path), _LIMITS_PREFIX + file.name)
    return stat_file(path) if os.path.exists(path) else None


@frozen
class _BagzScan:
    """The scan for the records of a Bagz file: the limits at its end, or in their own file."""

    limits: LocalFile | None

    @property
    def kind(self) -> str:
        """The scan's name and version, with the file of limits."""
        return "bagz-1" if self.limits is None else f"bagz-1 {self.limits.size} {self.limits.mtime_ns}"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "indexing Bagz files"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each record, and the end of the last one.

        Raises:
            CorruptRecordError: the limits aren't those of the file.
        """
        size = stream.seek(0, os.SEEK_END)
        try:
            if self.limits is None:
                limits = _limits_at_end(stream, size)
                records_bytes = size - limits.nbytes
            else:
                with open(self.limits.path, "rb") as beside:
                    limits = _numbers(beside.read())
                records_bytes = size
            offsets = _checked(limits, records_bytes)
        except _DamageError as damage:
            raise CorruptRecordError(
                f"cannot index {stream.name!r} as a Bagz file: {damage}. The file is truncated, damaged, or of another "
                "format: restore it, or write it again."
            ) from None
        advance(size)
        return offsets


class _DamageError(Exception):
    """The reason why a file's limits are wrong."""


def _limits_at_end(stream: BinaryIO, size: int) -> NDArray[np.uint64]:
    if not size:
        return np.empty(0, _LIMIT)
    if size < _LIMIT.itemsize:
        raise _DamageError(f"it has {size} bytes, fewer than one limit")
    stream.seek(size - _LIMIT.itemsize)
    begin = int.from_bytes(stream.read(), "little")
    if begin > size - _LIMIT.itemsize:
        raise _DamageError(f"its last 8 bytes say that the limits begin at byte {begin}, and it has {size} bytes")
    stream.seek(begin)
    return _numbers(stream.read())


def _numbers(content: bytes) -> NDArray[np.uint64]:
    if len(content) % _LIMIT.itemsize:
        raise _DamageError(f"its limits have {len(content)} bytes, which is no multiple of {_LIMIT.itemsize}")
    return np.frombuffer(content, _LIMIT)


def _checked(limits: NDArray[np.uint64], records_bytes: int) -> NDArray[np.int64]:
    offsets = np.zeros(len(limits) + 1, np.int64)
    offsets[1:] = np.minimum(limits, _PAST_ANY_FILE)
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        record = int(falls[0])
        raise _DamageError(f"record {record} ends at byte {limits[record]}, before it begins at byte {offsets[record]}")
    if offsets[-1] != records_bytes:
        raise _DamageError(
            f"its records end at byte {limits[-1] if len(limits) else 0}, and have {records_bytes} bytes"
        )
    return offsets
