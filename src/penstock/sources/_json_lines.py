"""The source of lines of JSON in files; records are the parsed values."""

import json
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, SourceError
from penstock.sources._local_files import (
    BYTE_ORDER_MARK,
    PathLike,
    RecordFiles,
    compression_of,
    find_files,
    line_number,
)
from penstock.sources._source import Record

_CHUNK_BYTES: Final = 1 << 20  # small enough to stay in the processor's cache between the read and the search
_BLANKS: Final = b" \t\r"
_MAGIC_BYTES: Final = 6
_NEWLINE: Final = 10
_SPACE: Final = 32


class JsonLines(RecordFiles):
    r"""One JSON value on each line of one or more files; the record of a key is the parsed value.

    The first use scans the files for the starts of lines, and keeps these in a cache directory until a file's size or
    time changes. Blank lines are skipped; the last line needs no newline; CRLF and a UTF-8 byte order mark are allowed.
    The standard library's `json` parses the lines; it also accepts NaN and Infinity.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file that is opened raises SourceError.

    Args:
        paths: a path, a glob such as `"data/**/*.jsonl"` (sorted by name), or a list of these, in its order.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.

    Raises:
        UsageError: `paths` has no file, or a folder.
        SourceError: a file can't be read, or is compressed; later, at a read, a file no longer exists or has changed.
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

    _noun = "line"
    _fingerprint_prefix = "json-lines"

    def __init__(
        self, paths: PathLike | Sequence[PathLike], *, cache: PathLike | None = None, progress: bool = True
    ) -> None:
        files = find_files(paths, "JsonLines")
        super().__init__(files, [_LineScan()] * len(files), cache=cache, progress=progress)

    def _parse(self, content: bytes, key: int) -> Record:
        try:
            return json.loads(content.decode())
        except (ValueError, RecursionError) as error:
            path, begin = self._place(key)
            raise CorruptRecordError(
                f"a line must be one JSON value; line {line_number(path, begin)} of {path!r} (byte {begin}, key {key} "
                f"of {self!r}) isn't: {error}. Fix or remove the line.",
                source=repr(self),
                keys=[key],
            ) from error


@frozen
class _LineScan:
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
        _refuse_compressed(stream)
        position = len(BYTE_ORDER_MARK) if stream.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK else 0
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


def _refuse_compressed(stream: BinaryIO) -> None:
    name = compression_of(stream.read(_MAGIC_BYTES))
    if name:
        raise SourceError(
            f"cannot index {stream.name!r}: it is compressed by {name}, so it has no random access. Decompress it."
        )
    stream.seek(0)


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
