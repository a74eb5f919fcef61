"""The rows of tables in files, read by blocks: the row groups of Parquet, the record batches of Arrow.

A block is the least that a format decodes at once. To read one row of a compressed block takes as long as to read all
of them, so decoded blocks are kept, and a read takes its rows block by block. A block whose values are mapped from the
file counts nothing.

The first row of each block is found once for each file, and kept in a cache directory by `OffsetIndex`, whose records
are blocks here. A copy of a source in another process gets these numbers and the names of the files. It opens the files
by itself, and the copies share the blocks that they decode.
"""

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, BinaryIO, ClassVar, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._os import local_path
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._arrow_rows import (
    NUMPY,
    Array,
    ArrowRows,
    ChosenRows,
    Value,
    can_fill_batches,
    lengths_of,
    names_of,
    need_arrow,
)
from penstock.sources._kept_blocks import KeptBlocks, Waste, check_decoded_bytes
from penstock.sources._local_files import (
    LocalFile,
    OffsetIndex,
    PathLike,
    Scan,
    default_cache,
    digest_of,
    identity_of,
    raise_source_error,
    stat_file,
)
from penstock.sources._shared_blocks import SharedBlocks
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range, dicts_of, different_names

Types = Mapping[str, Array]
"""The `pyarrow.DataType` of each column."""
Block = tuple[Sequence[Array], int]
"""Record batches, and the bytes that were allocated for them."""
_ENCRYPTED: Final = ("encrypted metadata", "Cannot decrypt")  # in pyarrow's errors, which have no class of their own


class TableFiles:
    """The rows of files that have the same columns, one file after the other; a subclass reads their blocks.

    Args:
        index: the files, and the first row of each of their blocks.
        types: the columns of the records.
        decoded_bytes: the bound of the decoded blocks.

    Raises:
        UsageError: the bound is negative.
    """

    _noun: ClassVar[str]  # of a block
    _fingerprint_prefix: ClassVar[str]

    def __init__(self, index: OffsetIndex, types: Types, decoded_bytes: int) -> None:
        check_decoded_bytes(decoded_bytes)
        self._files = index.files
        self._progress = index.progress
        self._names = tuple(types)
        self._first_blocks: list[int] = [0, *accumulate(index.counts)]
        starts = np.zeros(self._first_blocks[-1] + 1, np.int64)  # in rows
        np.cumsum(np.concatenate([np.diff(index[number]) for number in range(len(self._files))]), out=starts[1:])
        self._starts = starts
        self._listed_starts: list[int] = starts.tolist()
        self._length = self._listed_starts[-1]
        self._fixed_shape = all(map(can_fill_batches, types.values()))
        self._described = digest_of(self._files, _text_of(types))
        self._decoded_bytes = decoded_bytes
        identity = identity_of(self._files, f"{type(self).__name__} {_text_of(types)}")
        self._shared = SharedBlocks(self._first_blocks[-1], decoded_bytes, identity)
        self._begin()

    def _begin(self) -> None:
        """Begin without blocks, as every process does."""
        self._kept = KeptBlocks[ArrowRows](self._decoded_bytes, self._shared)
        self._waste = Waste(self._noun, self._decoded_bytes)

    def __len__(self) -> int:
        return self._length

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The key at which each block begins, and the length: int64 of shape (blocks + 1,)."""
        return self._starts

    def __getitem__(self, key: SupportsIndex) -> Record:
        number = as_key(key, self._length)
        block = bisect_right(self._listed_starts, number) - 1
        self._waste.returned += 1
        return self._rows(block)[number - self._listed_starts[block]]

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the row of each key; all rows of one block are read together.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A dict for each key.
        """
        checked = as_keys(keys)
        lists: list[list[Value]] = [[None] * len(checked) for _ in self._names]
        for chosen in self._chosen(checked):
            chosen.fill(lists)
            del chosen  # else its blocks would be in use while the next ones are opened
        return dicts_of(self._names, lists)

    @property
    def fixed_shape(self) -> bool:
        """Whether rows can be written into batches: all columns are numbers, times, equal lists of them, or strings."""
        return self._fixed_shape

    def read_into(self, keys: Sequence[int] | Keys, out: Record) -> None:
        """Write the rows of `keys` to `out`.

        Args:
            keys: in [0, length), one axis.
            out: a dict with an array for each column, of the dtype and the shape of its values, with `len(keys)` rows;
                for a column of texts or bytes a list of `len(keys)` items.

        Raises:
            UsageError: a dtype or shape differs, or a value is null.
        """
        targets = [out[name] for name in self._names]
        for chosen in self._chosen(as_keys(keys)):
            chosen.fill_into(targets)
            del chosen  # as in `read`

    def _chosen(self, keys: Keys) -> Iterator[ChosenRows]:
        """Yield the rows of keys: those of the kept blocks together, and then those of as many others as can be kept.

        In the order of the keys, blocks that are decoded now would displace kept ones that are still to be read.
        """
        check_range(keys, self._length)
        self._waste.returned += len(keys)
        if not len(keys):
            return
        order = keys.argsort()  # so that the rows of a block are read in their order in memory
        ascending = keys[order]
        blocks = self._starts.searchsorted(ascending, side="right") - 1
        rows = ascending - self._starts[blocks]
        changes = (blocks[1:] != blocks[:-1]).nonzero()[0]
        bounds = np.empty(len(changes) + 2, np.int64)
        bounds[0], bounds[-1] = 0, len(keys)
        np.add(changes, 1, out=bounds[1:-1])
        numbers: list[int] = blocks[bounds[:-1]].tolist()
        kept = self._kept.get_all(numbers)
        parts = [part for part in kept if part is not None]
        if len(parts) == len(kept):
            yield ChosenRows(self._names, parts, bounds, rows, order)
            return
        is_kept = np.array([part is not None for part in kept])
        del kept
        if parts:
            counts = np.diff(bounds)
            mask = np.repeat(is_kept, counts)
            kept_bounds = np.concatenate([[0], np.cumsum(counts[is_kept])])
            yield ChosenRows(self._names, parts, kept_bounds, rows[mask], order[mask])
            del parts
        missing: list[int] = np.flatnonzero(~is_kept).tolist()
        opened: list[tuple[int, ArrowRows]] = []
        for turn in self._kept.in_turn([numbers[place] for place in missing]):
            opened.append((missing[turn], self._rows(numbers[missing[turn]])))
            if not self._kept.has(numbers[opened[0][0]]):  # with the next ones, there would be more than are kept
                yield self._together(opened, bounds, rows, order)
                opened.clear()
        if opened:
            yield self._together(opened, bounds, rows, order)

    def _together(self, parts: list[tuple[int, ArrowRows]], bounds: Keys, rows: Keys, order: Keys) -> ChosenRows:
        """Return the rows of some blocks of a read, each given with its number among those of the read."""
        spans = [slice(*bounds[place : place + 2].tolist()) for place, _ in parts]
        ends = np.cumsum([0, *(span.stop - span.start for span in spans)])
        chosen = [np.concatenate([keys[span] for span in spans]) for keys in (rows, order)]
        return ChosenRows(self._names, [part for _, part in parts], ends, *chosen)

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the length of a column's value in every row, for `pack` and `bucket`; other columns aren't read.

        Args:
            column: the name of a column of lists, texts or bytes.

        Returns:
            int64, one axis: `len(record[column])`, and 0 for None.

        Raises:
            UsageError: there is no such column, or its values have no length.
            CorruptRecordError: a file is damaged.
        """
        if column not in self._names:
            raise UsageError(missing_column(column, self._names, repr(self)))
        blocks = (self._decode(block, (column,))[0].batches for block in range(self._first_blocks[-1]))
        return lengths_of(chain.from_iterable(blocks), column, self._length, progress=self._progress)

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the row, the block and the file of a key, for messages."""
        row = as_key(key, self._length)
        block = bisect_right(self._listed_starts, row) - 1
        number = bisect_right(self._first_blocks, block) - 1
        place = f"{self._noun} {block - self._first_blocks[number]} of file {self._files[number].name!r}"
        return f"row {row - self._listed_starts[block]} of {place}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return self.fingerprint(), identity_of(self._files, "")

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files, and with the columns."""
        return f"{self._fingerprint_prefix}-{self._described}"

    def __repr__(self) -> str:
        count = len(self._files)
        return f"{type(self).__name__}({len(self)} rows in {count} {'file' if count == 1 else 'files'})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_waste": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _read_block(self, number: int, block: int, names: Sequence[str]) -> Block:
        """Return block `block` of file `number`."""
        raise NotImplementedError

    def _rows(self, block: int) -> ArrowRows:
        known = self._kept.get(block)
        return self._kept.opened(block, self._open) if known is None else known

    def _open(self, block: int) -> tuple[ArrowRows, int]:
        rows, size = self._decode(block, self._names)
        if size:
            self._waste.add(len(rows), self)
        return rows, size

    def _decode(self, block: int, names: Sequence[str]) -> tuple[ArrowRows, int]:
        """Return the rows of a block, and the bytes that were allocated for them.

        Raises:
            CorruptRecordError: the block hasn't as many rows as the file says.
        """
        number = bisect_right(self._first_blocks, block) - 1
        file, local = self._files[number], block - self._first_blocks[number]
        check_unchanged(file)
        batches, size = self._read_block(number, local, names)
        rows = ArrowRows(batches, names, NUMPY)
        expected = self._listed_starts[block + 1] - self._listed_starts[block]
        if len(rows) != expected:
            raise CorruptRecordError(
                f"{self._noun} {local} of {file.path!r} must have {expected} rows, as its description says; it has "
                f"{len(rows)}. The file is damaged: write it again."
            )
        return rows, size


@frozen
class BlockScan:
    """The scan for the blocks of a file of rows: its offsets are the first rows of the blocks.

    Attributes:
        name: the scan's name and version.
        label: the name of the work, for progress.
        read: returns the schema of an open file, and the number of rows in each of its blocks.
        types: the columns that the file must have.
        first: the file that has them.
        allows_others: whether the file may have other columns.
    """

    name: str
    label: str
    read: Callable[[BinaryIO], tuple[Array, Sequence[int]]]
    types: Types
    first: str
    allows_others: bool

    @property
    def kind(self) -> str:
        """The scan with the columns that it has checked."""
        return f"{self.name} {digest_of((), _text_of(self.types))} {self.allows_others}"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the first row of each block, and the number of rows.

        Raises:
            UsageError: the file has other columns.
            CorruptRecordError: the file is damaged.
        """
        schema, rows = self.read(stream)
        columns = tuple(self.types) if self.allows_others else None
        check_types(self.types, self.first, types_of(schema, columns, stream.name), stream.name)
        advance(stream.seek(0, os.SEEK_END))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)])


def find_index(files: Sequence[LocalFile], scan: Scan, cache: PathLike | None, *, progress: bool) -> OffsetIndex:
    """Return the first rows of the blocks of files, from the cache directory where that has them."""
    directory = default_cache() if cache is None else local_path(cache)
    return OffsetIndex(files, [scan] * len(files), directory, progress=progress)


def types_of(schema: Array, columns: Sequence[str] | None, path: str) -> Types:
    """Return the columns of a file that are read.

    Args:
        schema: the file's `pyarrow.Schema`.
        columns: the names of the columns; None for all.
        path: the file.

    Raises:
        UsageError: the file lacks a column, or two columns have one name.
    """
    names = names_of(schema, repr(path))
    wanted = names if columns is None else different_names("columns", columns)
    for name in wanted:
        if name not in names:
            raise UsageError(missing_column(name, names, repr(path)))
    if not wanted:
        raise UsageError(f"a table must have at least one column to read; {path!r}: got columns={list(wanted)}.")
    return {name: schema.field(name).type for name in wanted}


def missing_column(name: str, names: Sequence[str], owner: str) -> str:
    """Return the message for a column that a table lacks."""
    return f"there is no column {name!r} in {owner}; its columns are {', '.join(map(repr, names))}. Name one of these."


def check_types(types: Types, first: str, found: Types, path: str) -> None:
    """Check that a file has the columns of the first one.

    Args:
        types: the columns of the first file.
        first: the path of the first file.
        found: the columns of another file.
        path: the path of the other file.

    Raises:
        UsageError: a column is in one file only, or has another type.
    """
    for name in [*types, *found]:
        if types.get(name) != found.get(name):
            kinds = " and ".join(
                f"{of.get(name) or 'missing'} in {where!r}" for of, where in ((types, first), (found, path))
            )
            raise UsageError(
                f"all files must have the same columns, of the same types; column {name!r} is {kinds}. Convert one of "
                "the files, or name the columns to read, as in columns=['text']."
            )


def check_unchanged(file: LocalFile) -> None:
    """Check that a file is the one that was indexed.

    Raises:
        SourceError: it has another size or time, or doesn't exist.
    """
    now = stat_file(file.path)
    if now != file:
        raise SourceError(
            f"{file.path!r} changed since it was indexed: it had {file.size} bytes and has {now.size}, or was written "
            "again. Create the source again."
        )


@contextlib.contextmanager
def reading(path: str, kind: str) -> Generator[None]:
    """Raise pyarrow's errors as those of a file.

    Args:
        path: the file.
        kind: its format, for messages.

    Raises:
        SourceError: the system can't read the file.
        UsageError: the file is encrypted.
        CorruptRecordError: the file isn't a whole file of the format.
        MemoryError: there isn't enough memory for a block.
    """
    try:
        yield
    except (SourceError, MemoryError):
        raise
    except (need_arrow().ArrowException, OSError, UnicodeDecodeError) as error:  # a damaged footer may have any names
        if isinstance(error, OSError) and error.errno is not None:
            raise_source_error(f"cannot read {path!r}: {error}. Check the file.", error)
        if any(words in str(error) for words in _ENCRYPTED):
            raise UsageError(
                f"files of {kind} must not be encrypted, since there is no argument for the keys; {path!r} is, or a "
                "column that is read. Write it without encryption, or name columns that aren't encrypted."
            ) from error
        raise CorruptRecordError(
            f"{path!r} must be a whole file of {kind}: {' '.join(str(error).split())}. It is of another format, "
            "truncated or damaged: restore it, or write it again."
        ) from error


def _text_of(types: Types) -> str:
    return str([(name, str(kind)) for name, kind in types.items()])
