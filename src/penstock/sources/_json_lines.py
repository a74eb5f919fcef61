"""Lines of JSON in files, as a source of what they parse to."""

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, Final, NoReturn, Self, SupportsIndex

from penstock.errors import ClosedError, CorruptRecordError, SourceError
from penstock.sources._local.files import LocalFile, PathLike, find_files, raise_source_error
from penstock.sources._local.index import OffsetIndex, default_cache
from penstock.sources._local.open_files import OpenFiles
from penstock.sources._local.scans import LineScan
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range

_COUNTED_BYTES: Final = 1 << 20


class JsonLines:
    r"""One JSON value on each line of one or more files; the record of a key is the parsed value.

    Where the lines begin is found once, in one pass over the files, and kept in a cache directory until a file's size
    or time changes. Blank lines don't count; the last line needs no newline; CRLF and a UTF-8 byte order mark are
    fine. Lines are parsed by the standard library's `json`, which also takes NaN and Infinity.

    A source can be closed, by `close` or a `with` block, which closes its descriptors; dropping it does so too. Files
    must not change while they are read: one that did is a SourceError.

    Args:
        paths: a path, a glob such as `"data/**/*.jsonl"` (sorted by name), or a list of these, in its order.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. One that can't
            be written is a warning in the log, and the index stays in memory.
        progress: show progress of the first pass on stderr, if that is a terminal and it takes more than 0.5 s.

    Raises:
        UsageError: no file is named, or a folder is.
        SourceError: a file can't be read; later, when read, one that is gone or has changed.
        CorruptRecordError: when read: a line isn't JSON. It names file, line, byte and key.

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
            What the lines parse to.
        """
        checked = as_keys(keys)
        check_range(checked, len(self))
        return [self._parse(key) for key in checked.tolist()]

    def describe_key(self, key: SupportsIndex) -> str:
        """Return file and byte of a key's line, for messages."""
        number, begin, _ = self._find(as_key(key, len(self)))
        return f"byte {begin} of file {self._index.files[number].name!r}"

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files."""
        return f"json-lines-{self._described}"

    def close(self) -> None:
        """Close all descriptors; reading raises ClosedError from now on. Closing twice does nothing."""
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
            raise ClosedError(f"{self!r} was closed, and can't be read any more. Make it anew, or close it later.")
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
                f"cannot read {self._index.files[number].path!r} (key {key} of {self!r}): {error.strerror}. It was "
                "there when the source was made: put it back, or make the source anew.",
                error,
                source=repr(self),
                keys=[key],
            )
        if len(line) != end - begin:
            raise SourceError(
                f"{self._index.files[number].path!r} was cut short while it was read (key {key} of {self!r}): its line "
                f"at byte {begin} is gone. Make the source anew.",
                source=repr(self),
                keys=[key],
            )
        return line

    def _raise_corrupt(self, key: int, number: int, begin: int, error: Exception) -> NoReturn:
        path = self._index.files[number].path
        raise CorruptRecordError(
            f"a line must be one JSON value; line {_line_number(path, begin)} of {path!r} (byte {begin}, key {key} of "
            f"{self!r}) isn't: {error}. Mend or remove the line.",
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
