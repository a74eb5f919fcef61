"""The source of lines of JSON in files; records are the parsed values."""

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, Final, NoReturn, Self, SupportsIndex

from penstock.errors import ClosedError, CorruptRecordError, SourceError
from penstock.sources._local_files import (
    LineScan,
    LocalFile,
    OffsetIndex,
    OpenFiles,
    PathLike,
    default_cache,
    find_files,
    raise_source_error,
)
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range

_COUNTED_BYTES: Final = 1 << 20


class JsonLines:
    r"""One JSON value on each line of one or more files; the record of a key is the parsed value.

    The first use scans the files for the starts of lines, and keeps these in a cache directory until a file's size or
    time changes. Blank lines are skipped; the last line needs no newline; CRLF and a UTF-8 byte order mark are allowed.
    The standard library's `json` parses the lines; it also accepts NaN and Infinity.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file raises SourceError.

    Args:
        paths: a path, a glob such as `"data/**/*.jsonl"` (sorted by name), or a list of these, in its order.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr if that is a terminal and the scan takes more than 0.5 s.

    Raises:
        UsageError: `paths` has no file, or a folder.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: at a read, a line isn't JSON. The message has file, line, byte and key.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.jsonl")
        ...     _ = path.write_text('{"text": "one"}\n\n{"text": "two"}\n')
        ...     with JsonLines(path, cache=folder) as source:
        ...         len(source), source[1]
        (2, {'text': 'two'})
    """

    def __init__(
        self, paths: PathLike | Sequence[PathLike], *, cache: PathLike | None = None, progress: bool = True
    ) -> None:
        files = find_files(paths, "JsonLines")
        directory = default_cache() if cache is None else os.path.abspath(cache)
        self._index = OffsetIndex(files, [LineScan()] * len(files), directory, progress=progress)
        self._ends = list(accumulate(self._index.counts))
        self._open: OpenFiles | None = None
        self._closed = False
        self._described = _describe(files)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self._parse(as_key(key, len(self)))

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the parsed line of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            The parsed values.
        """
        checked = as_keys(keys)
        check_range(checked, len(self))
        return [self._parse(key) for key in checked.tolist()]

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the file and the byte of a key's line, for messages."""
        number, begin, _ = self._find(as_key(key, len(self)))
        return f"byte {begin} of file {self._index.files[number].name!r}"

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files."""
        return f"json-lines-{self._described}"

    def close(self) -> None:
        """Close all descriptors; from now on a read raises ClosedError. Closing twice does nothing."""
        self._closed = True
        if self._open is not None:
            self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        count = len(self._index.counts)
        return f"JsonLines({len(self)} lines in {count} {'file' if count == 1 else 'files'})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def _find(self, key: int) -> tuple[int, int, int]:
        number = bisect_right(self._ends, key)
        local = key - (self._ends[number - 1] if number else 0)
        offsets = self._index[number]
        return number, int(offsets[local]), int(offsets[local + 1])

    def _parse(self, key: int) -> Record:
        if self._closed:
            raise ClosedError(f"{self!r} was closed, and can't be read any more. Create it again, or close it later.")
        number, begin, end = self._find(key)
        line = self._read(key, number, begin, end)
        try:
            return json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            self._raise_corrupt(key, number, begin, error)

    def _read(self, key: int, number: int, begin: int, end: int) -> bytes:
        opened = self._open
        if opened is None:
            opened = self._open = OpenFiles(self._index.files)
        try:
            line = opened.read_at(number, begin, end - begin)
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
        if len(line) != end - begin:
            raise SourceError(
                f"{self._index.files[number].path!r} was truncated while it was read (key {key} of {self!r}): its line "
                f"at byte {begin} is missing. Create the source again.",
                source=repr(self),
                keys=[key],
            )
        return line

    def _raise_corrupt(self, key: int, number: int, begin: int, error: Exception) -> NoReturn:
        path = self._index.files[number].path
        raise CorruptRecordError(
            f"a line must be one JSON value; line {_line_number(path, begin)} of {path!r} (byte {begin}, key {key} of "
            f"{self!r}) isn't: {error}. Fix or remove the line.",
            source=repr(self),
            keys=[key],
        ) from error


def _describe(files: Sequence[LocalFile]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.name!r} {file.size}\n".encode())
    return digest.hexdigest()


def _line_number(path: str, begin: int) -> int:
    lines = 1
    with open(path, "rb") as stream:
        while begin > 0 and (chunk := stream.read(min(begin, _COUNTED_BYTES))):
            lines += chunk.count(b"\n")
            begin -= len(chunk)
    return lines
