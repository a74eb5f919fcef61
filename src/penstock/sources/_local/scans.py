"""Scans of a file for the offsets of its records: lines of text, or documents of tokens."""

from collections.abc import Callable
from typing import BinaryIO, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen

_CHUNK_BYTES: Final = 1 << 20  # small enough to stay in the processor's cache between the read and the search
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r"
_NEWLINE: Final = 10
_SPACE: Final = 32


class Scan(Protocol):
    """A picklable function that finds the offsets of a file's records.

    Called with an open file and a function that takes the number of bytes done, it returns int64 offsets: the start of
    each record, and last, the end of the file. Record i spans offset i to offset i + 1.
    """

    @property
    def kind(self) -> str:
        """The scan's name and version, for the cache: a scan with other offsets needs another kind."""
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
    """The scan for lines that aren't blank, in bytes. A record ends at the next one, so it may hold blank lines.

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
