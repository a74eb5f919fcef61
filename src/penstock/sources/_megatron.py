"""The source of Megatron's token files: `prefix.bin` has the tokens, and `prefix.idx` where documents begin.

The index is a header, and three arrays of little-endian integers:

    "MMIDIDX" and two zeros, version (8 bytes), dtype (1), number of sequences (8), number of boundaries (8)
    sizes       int32, in tokens, of each sequence
    pointers    int64, in bytes, of each sequence in the .bin
    boundaries  int64, sequence numbers: document d has the sequences from boundary d to boundary d + 1

Megatron writes sequences one after the other, so the documents of a file are spans of tokens.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._os import local_path
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._local_files import LocalFile, PathLike, identity_of, is_missing, raise_source_error, stat_file
from penstock.sources._mapped import map_file
from penstock.sources._tokens import TokenFile, Tokens

_MAGIC: Final = b"MMIDIDX\0\0"
_VERSION: Final = 1
_DTYPES: Final = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_HEADER: Final = np.dtype(
    [("magic", "S9"), ("version", "<u8"), ("dtype", "u1"), ("sequences", "<u8"), ("boundaries", "<u8")]
)


class Megatron(Tokens):
    """The documents, or windows, of files that Megatron has tokenized; records are arrays of one axis.

    The records are the documents; with `length` they are windows over all tokens of the index, as those of `Tokens`.
    The index has the dtype and the documents, so nothing is scanned. `astype` and `lengths` are those of `Tokens`.
    Megatron isn't needed.

    Args:
        prefix: the path of both files, without `.bin` and `.idx`, or a list of such paths, in its order.
        length: tokens in a window. Default: documents.
        stride: tokens from the start of one window to that of the next. Default: `length`.

    Raises:
        UsageError: the files aren't there, or have numbers that aren't integers, or no document or window.
        SourceError: a file can't be read; later, at a read, it no longer exists or has changed.
        CorruptRecordError: the index is damaged, or doesn't belong to the tokens.

    Example:
        >>> import pathlib, struct, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.array([5, 6, 7], np.uint16).tofile(pathlib.Path(folder, "text.bin"))
        ...     head = b"MMIDIDX" + struct.pack("<xxQBQQ", 1, 8, 2, 3)  # version, uint16, two sequences, three bounds
        ...     index = head + struct.pack("<iiqqqqq", 2, 1, 0, 4, 0, 1, 2)
        ...     _ = pathlib.Path(folder, "text.idx").write_bytes(index)
        ...     source = Megatron(f"{folder}/text")
        ...     len(source), source[0], source.lengths()
        (2, array([5, 6], dtype=uint16), array([2, 1]))
    """

    def __init__(
        self, prefix: PathLike | Sequence[PathLike], length: int | None = None, *, stride: int | None = None
    ) -> None:
        given = [prefix] if isinstance(prefix, str | os.PathLike) else list(prefix)
        if not given:
            raise UsageError("prefix must be a path, or a list of paths; got an empty list.")
        paths = [local_path(path) for path in given]
        indexes = _Indexes(tuple(_index_of(path) for path in paths))
        dtype, *others = dict.fromkeys(index.dtype() for index in indexes.parts)
        if others:
            raise UsageError(
                f"all token files must have one dtype; {paths[0]!r} and others have {dtype} and {others[0]}. Read them "
                "as two datasets, with astype, and join these by ps.concatenate."
            )
        documents = indexes if length is None else None
        for index in () if documents is None else documents.parts:
            if len(index.load()) < 2:  # the end alone
                raise UsageError(f"each prefix must have a document; {index.file.path!r} has none. Leave it out.")
        super().__init__([path + ".bin" for path in paths], length, dtype=dtype, stride=stride, documents=documents)

    def _cut(self, files: list[TokenFile]) -> list[TokenFile]:
        counts = [int(_index_of(file.file.path.removesuffix(".bin")).load()[-1]) for file in files]
        return [
            replace(file, count=count, is_cut=True) if count < file.count else file
            for file, count in zip(files, counts, strict=True)
        ]


def _index_of(path: str) -> "_Index":
    """Return the index of a prefix.

    Raises:
        UsageError: one of both files doesn't exist.
        CorruptRecordError: the index is damaged, or doesn't belong to the tokens.
    """
    for suffix in (".idx", ".bin"):
        if is_missing(path + suffix):
            raise UsageError(
                f"Megatron reads two files, prefix.bin and prefix.idx; {path + suffix!r} doesn't exist. Pass their "
                "path without the suffix."
            )
    index = _Index(stat_file(path + ".idx"))
    tokens = os.path.getsize(path + ".bin") // index.dtype().itemsize
    if index.load()[-1] > tokens:
        raise CorruptRecordError(
            f"{index.file.path!r} has {index.load()[-1]} tokens, and {path + '.bin'!r} {tokens}. The files don't "
            "belong to each other, or were copied in part: copy both again."
        )
    return index


@frozen
class _Indexes:
    """The indexes of all files."""

    parts: tuple["_Index", ...]

    def load(self) -> list[NDArray[np.int64]]:
        """Return the offsets of the documents of each file."""
        return [part.load() for part in self.parts]

    def _identity_parts(self) -> object:
        """Return a digest of the files' paths, sizes and times: the key of a cache has it."""
        return identity_of([part.file for part in self.parts], "")

    def fingerprint(self) -> str:
        """Return a str that changes with the files' names and sizes."""
        return " ".join(part.fingerprint() for part in self.parts)


@frozen
class _Index:
    """An index, as it was when the source was created.

    Attributes:
        file: the `.idx`.
    """

    file: LocalFile

    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the tokens."""
        return np.dtype(_DTYPES[int(self._header(self._content())["dtype"])])

    def load(self) -> NDArray[np.int64]:
        """Return the offsets of documents in tokens, and the end.

        Raises:
            CorruptRecordError: the index is damaged.
        """
        content = self._content()
        header = self._header(content)
        count, size = int(header["sequences"]), np.dtype(_DTYPES[int(header["dtype"])]).itemsize
        begin = _HEADER.itemsize
        sizes = content[begin : begin + 4 * count].view("<i4").astype(np.int64)
        pointers = content[begin + 4 * count : begin + 12 * count].view("<i8")
        ends = begin + 12 * count
        boundaries = content[ends : ends + 8 * int(header["boundaries"])].view("<i8")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        if bool(np.any(sizes < 0)) or not np.array_equal(pointers, offsets[:-1] * size):
            raise self._damaged("its sequences don't follow each other")
        if boundaries[0] != 0 or boundaries[-1] != count or bool(np.any(np.diff(boundaries) < 0)):
            raise self._damaged("its documents don't cover all sequences")
        documents: NDArray[np.int64] = offsets[boundaries]
        return documents

    def fingerprint(self) -> str:
        """Return a str that changes with the file's name and size."""
        return f"megatron {self.file.name!r} {self.file.size}"

    def _content(self) -> NDArray[np.uint8]:
        path = self.file.path
        if stat_file(path) != self.file:
            raise SourceError(f"{path!r} changed since the source was created. Create it again.")
        try:
            return map_file(path)
        except OSError as error:
            raise_source_error(f"cannot map {path!r}: {error.strerror}. Check its permissions.", error)

    def _header(self, content: NDArray[np.uint8]) -> np.void:
        if len(content) < _HEADER.itemsize:
            raise self._damaged("it has no header")
        header: np.void = content[: _HEADER.itemsize].view(_HEADER)[0]
        if bytes(content[: len(_MAGIC)]) != _MAGIC or header["version"] != _VERSION:
            raise self._damaged(f"it begins with {bytes(content[:17])!r}, not with 'MMIDIDX' and version {_VERSION}")
        if int(header["dtype"]) not in _DTYPES:
            raise UsageError(
                f"tokens must be integers; {self.file.path!r} has numbers of the code {header['dtype']}. Write others."
            )
        if header["boundaries"] < 1 or len(content) < (
            _HEADER.itemsize + 12 * int(header["sequences"]) + 8 * int(header["boundaries"])
        ):
            raise self._damaged(
                f"it has {len(content)} bytes, too few for {header['sequences']} sequences and {header['boundaries']} "
                "boundaries"
            )
        return header

    def _damaged(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"cannot read {self.file.path!r} as an index of Megatron: {reason}. Restore the file, or write it again."
        )
