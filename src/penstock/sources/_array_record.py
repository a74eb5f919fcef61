"""The source of records in ArrayRecord files; records are bytes.

A file has its records in groups, each compressed as one; the library `array_record` finds and decompresses them. Grain
and Marin write groups of one record, so that each can be read alone. Older files have groups of up to 65,536 records,
of which the library decompresses one for each read: there a group is a *block*, read once and kept by `KeptBlocks`.

The library's readers may be used by several threads at once. Each has a descriptor, so `KeptOpen` keeps few of them.
A forked child opens its own.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from types import ModuleType
from typing import Any, Final, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._optional import need
from penstock._os import renewed_after_fork
from penstock.errors import CorruptRecordError
from penstock.sources._kept_blocks import DECODED_BYTES, KeptBlocks, Waste, check_decoded_bytes, rows_of_blocks
from penstock.sources._kept_open import KeptOpen
from penstock.sources._local_files import (
    LocalFile,
    PathLike,
    digest_of,
    find_files,
    identity_of,
    raise_source_error,
)
from penstock.sources._shared_blocks import SharedBlocks
from penstock.sources._source import Keys, as_key, as_keys, check_range
from penstock.sources._table_files import check_unchanged

_Reader: TypeAlias = Any  # an `ArrayRecordReader`

_MAX_READERS: Final = 64  # of a source that are open at once, in a process; each has the places of all records
_GROUP_SIZE: Final = re.compile(r"\bgroup_size:(\d+)")
_OPTIONS: Final = "readahead_buffer_size:0"  # reads are by key


class ArrayRecord:
    """The records of one or more ArrayRecord files, the format of Grain and TFDS; records are bytes.

    The constructor opens each file for the number of its records. How they are stored is the writer's choice: with
    `group_size:1` a record is read by itself, in some microseconds. In larger groups, the default of old writers, a
    group is decompressed as a whole, and those that were used last are kept, up to `decoded_bytes`. A shuffle over more
    than that decompresses a group for almost every record: pass `shuffle(blocks=True)`, or write the files again.

    The records of several files follow each other. Files must not change while they are read: a changed file that is
    opened again raises SourceError.

    Args:
        paths: a path, a glob such as `"data/train.array_record*"` (sorted by name), or a list of these, in its order.
        decoded_bytes: how much of groups with several records is kept, in bytes; one group is always kept. Worker
            processes keep them together. Default: 256 MiB.

    Raises:
        UsageError: `paths` has no file, or a folder.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file isn't ArrayRecord, or is truncated; at a read, a record is damaged, as its checksum
            shows. The message has file and record.
        MissingDependencyError: the package array_record isn't installed; the extra `array-record` installs it.

    Example:
        >>> import pathlib, tempfile
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.array_record")
        ...     writer = ArrayRecordWriter(str(path), "group_size:1")
        ...     _ = writer.write(b"one"), writer.write(b"two")
        ...     writer.close()
        ...     source = ArrayRecord(path)
        ...     source, source[1]
        (ArrayRecord(2 records in 1 file), b'two')
    """

    def __init__(self, paths: PathLike | Sequence[PathLike], *, decoded_bytes: int = DECODED_BYTES) -> None:
        check_decoded_bytes(decoded_bytes)
        self._files = find_files(paths, "ArrayRecord")
        self._layouts = [_layout_of(file) for file in self._files]
        self._ends = list(accumulate(layout.records for layout in self._layouts))
        self._blocks = _blocks_of(self._files, self._layouts)
        self._decoded_bytes = decoded_bytes
        self._shared = SharedBlocks(len(self._blocks) - 1, decoded_bytes, identity_of(self._files, "ArrayRecord"))
        self._begin()

    def _begin(self) -> None:
        """Begin without records and readers, as every process does."""
        self._kept = KeptBlocks[list[bytes]](self._decoded_bytes, self._shared)
        self._waste = Waste("group", self._decoded_bytes)
        self._readers = _Readers()
        self._starts: list[int] = self._blocks.tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, key: SupportsIndex) -> bytes:
        found = as_key(key, len(self))
        return self._read_file(bisect_right(self._ends, found), [found])[0]

    def read(self, keys: Sequence[int] | Keys) -> list[bytes]:
        """Return the record of each key.

        Args:
            keys: in [0, length), one axis.

        Raises:
            CorruptRecordError: a record is damaged.
            SourceError: a file was removed or changed.
        """
        checked = as_keys(keys)
        check_range(checked, len(self))
        records: list[bytes] = [b""] * len(checked)
        order: list[int] = np.argsort(checked, kind="stable").tolist()  # each file, and each group, once
        given: list[int] = checked.tolist()
        for number, places in groupby(order, lambda place: bisect_right(self._ends, given[place])):
            chosen = list(places)
            found = self._read_file(number, [given[place] for place in chosen])
            for place, record in zip(chosen, found, strict=True):
                records[place] = record
        return records

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The keys at which groups begin, or, of groups of one record, each 1 MiB of them; last, the length: int64."""
        return self._blocks

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the record's number in its file, and the file, for messages."""
        found = as_key(key, len(self))
        number = bisect_right(self._ends, found)
        return f"record {found - self._first(number)} of file {self._files[number].name!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return self.fingerprint(), identity_of(self._files, "")

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files."""
        return f"array_record-{digest_of(self._files)}"

    def __repr__(self) -> str:
        count = len(self._files)
        return f"ArrayRecord({len(self)} records in {count} {'file' if count == 1 else 'files'})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_waste": None, "_readers": None, "_starts": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _first(self, number: int) -> int:
        """Return the key of a file's first record."""
        return self._ends[number - 1] if number else 0

    def _read_file(self, number: int, keys: list[int]) -> list[bytes]:
        if self._layouts[number].group_size == 1:
            return self._decoded(number, keys)
        return [self._record(key) for key in keys]

    def _record(self, key: int) -> bytes:
        block = bisect_right(self._starts, key) - 1
        self._waste.returned += 1
        records = self._kept.get(block)
        if records is None:
            records = self._kept.opened(block, self._read_block)
        return records[key - self._starts[block]]

    def _read_block(self, block: int) -> tuple[list[bytes], int]:
        begin, end = self._starts[block], self._starts[block + 1]
        records = self._decoded(bisect_right(self._ends, begin), range(begin, end))
        self._waste.add(end - begin, self)
        return records, sum(map(len, records))

    def _open_file(self, number: int) -> _Reader:
        return _open(self._files[number])

    def _decoded(self, number: int, keys: Sequence[int]) -> list[bytes]:
        """Return records of one file, which the library decompresses."""
        first = self._first(number)
        reader = self._readers.opened(number, self._open_file)
        try:
            return _records_at(reader, [key - first for key in keys])
        except RuntimeError as error:
            for key in keys:
                self._check(reader, number, key)
            raise self._damage(number, keys, error) from error

    def _check(self, reader: _Reader, number: int, key: int) -> None:
        """Raise an error if a record can't be read."""
        try:
            _records_at(reader, [key - self._first(number)])
        except RuntimeError as error:
            raise self._damage(number, [key], error) from error

    def _damage(self, number: int, keys: Sequence[int], error: RuntimeError) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self.describe_key(keys[0])} (key {keys[0]} of {self!r}) can't be decompressed: {error}. Restore the "
            f"file {self._files[number].path!r}.",
            source=repr(self),
            keys=list(keys),
        )


class _Layout(NamedTuple):
    """The number of records of a file, and of those in a group."""

    records: int
    group_size: int


def _module() -> ModuleType:
    return need("array_record.python.array_record_module", "array_record", extra="array-record")


def _open(file: LocalFile) -> _Reader:
    check_unchanged(file)
    reader = _module().ArrayRecordReader(file.path, _OPTIONS)
    if not reader.ok():
        try:
            os.close(os.open(file.path, os.O_RDONLY))
        except OSError as error:  # the system's reason, which the library keeps to itself
            raise_source_error(
                f"cannot read {file.path!r}: {error.strerror}. Restore the file, or raise the limit of open files "
                "(ulimit -n).",
                error,
            )
        raise CorruptRecordError(
            f"{file.path!r} can't be read as ArrayRecord. It is of another format, truncated or damaged, or its writer "
            "wasn't closed: restore it, or write it again."
        )
    return reader


def _records_at(reader: _Reader, records: list[int]) -> list[bytes]:
    found: list[bytes] = reader.read(records)
    return found


def _layout_of(file: LocalFile) -> _Layout:
    reader = _open(file)
    found = _GROUP_SIZE.search(reader.writer_options_string() or "")
    return _Layout(int(reader.num_records()), int(found[1]) if found else 1)


def _blocks_of(files: Sequence[LocalFile], layouts: Sequence[_Layout]) -> NDArray[np.int64]:
    begin, bounds = 0, [np.zeros(1, np.int64)]
    for file, layout in zip(files, layouts, strict=True):
        if layout.records:
            row_bytes = max(1, file.size // layout.records)
            size = layout.group_size if layout.group_size > 1 else rows_of_blocks({1}, row_bytes)
            bounds.append(np.append(np.arange(0, layout.records, size)[1:], layout.records) + begin)
            begin += layout.records
    return np.concatenate(bounds)


class _Readers(KeptOpen[_Reader]):
    """The open readers of a source's files in this process. One that is let go is closed when no thread reads by it."""

    def __init__(self) -> None:
        super().__init__(most=_MAX_READERS)
        renewed_after_fork(self)

    def renew_after_fork(self) -> None:
        """Begin without readers."""
        self.clear()
