"""The source of Parquet files; records are rows as dicts of columns."""

import os
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from penstock.sources._arrow_rows import Array, need_arrow
from penstock.sources._kept_blocks import DECODED_BYTES
from penstock.sources._local_files import PathLike, find_files
from penstock.sources._table_files import (
    Block,
    BlockScan,
    TableFiles,
    find_index,
    reading,
    types_of,
)

_FOOTERS: Final = 128  # of files, that are kept
_FORMAT: Final = "Parquet"


class Parquet(TableFiles):
    """The rows of one or more Parquet files; records are dicts with the value of each column.

    Integers, floats and booleans are NumPy scalars, timestamps, dates and durations `datetime64` and `timedelta64`,
    texts `str`, binary values `bytes`. A list of any of the numbers and times is an array, and so is a list of fixed
    size of such lists; other lists, and lists with a null in them, are lists. A struct is a dict. A null is None. Types
    without a match in NumPy are what pyarrow's `as_py` returns, such as `decimal.Decimal`.

    A row is read by decoding its row group, as Parquet has no smaller unit that pyarrow reads. The groups that were
    used last are kept, up to `decoded_bytes`. So a shuffle over files whose decoded groups fit takes about half a
    microsecond for each record, and one over larger files decodes a group for almost every record, which takes
    milliseconds. For these, pass `shuffle(blocks=True)`, write small groups, or convert the files to Arrow.

    The first use of a file reads its footer, and keeps the first row of each group in a cache directory until the
    file's size or time changes. No descriptor stays open. Files must not change while they are read: a changed file
    raises SourceError.

    Args:
        paths: a path, a glob such as `"data/*.parquet"` (sorted by name), or a list of these, in its order.
        columns: the names of the columns to read, in the order of the records. Default: all columns, which then must be
            the same in all files.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the footers take more than 0.5 s.
        decoded_bytes: how much of decoded row groups is kept, in bytes; one group is always kept. On Linux the worker
            processes of a loader, and the ranks that torchrun starts on a machine, keep them together, and decode each
            once. Default: 256 MiB, for each rank.

    Raises:
        UsageError: `paths` has no file, or a folder; a column doesn't exist, is encrypted, or differs between files.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file isn't Parquet, or is empty, truncated or damaged.
        MissingDependencyError: pyarrow isn't installed.

    Example:
        >>> import pathlib, tempfile
        >>> import pyarrow, pyarrow.parquet
        >>> table = pyarrow.table({"text": ["one", "two"], "tokens": [[1], [2, 3]], "label": [0, 1]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.parquet")
        ...     pyarrow.parquet.write_table(table, path, row_group_size=1)
        ...     source = Parquet(path, ["text", "tokens"], cache=folder)
        ...     len(source), source[1], source.describe_key(1)
        (2, {'text': 'two', 'tokens': array([2, 3])}, "row 0 of group 1 of file 'a.parquet'")
    """

    _noun = "group"
    _fingerprint_prefix = "parquet"

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        columns: Sequence[str] | None = None,
        *,
        cache: PathLike | None = None,
        progress: bool = True,
        decoded_bytes: int = DECODED_BYTES,
    ) -> None:
        need_arrow("pyarrow.parquet")
        files = find_files(paths, "Parquet")
        first = files[0].path
        with reading(first, _FORMAT), open(first, "rb") as stream:
            types = types_of(_schema_and_rows(stream)[0], columns, first)
        scan = BlockScan("parquet-1", "reading footers", _schema_and_rows, types, first, columns is not None)
        super().__init__(find_index(files, scan, cache, progress=progress), types, decoded_bytes)
        self._footers: dict[int, Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_footers": {}}

    def _read_block(self, number: int, block: int, names: Sequence[str]) -> Block:
        arrow, parquet, path = need_arrow(), need_arrow("pyarrow.parquet"), self._files[number].path
        footer = self._footers.get(number)
        with (
            reading(path, _FORMAT),
            arrow.OSFile(os.fsencode(path)) as file,  # for a path, pyarrow looks for a file system first
            parquet.ParquetFile(file, metadata=footer, pre_buffer=False, page_checksum_verification=True) as opened,
        ):
            if footer is None:
                if len(self._footers) >= _FOOTERS:
                    self._footers.clear()
                self._footers[number] = opened.metadata
            table = opened.read_row_group(block, columns=list(names), use_threads=False).select(list(names))
        return table.to_batches(), table.get_total_buffer_size()


def _schema_and_rows(stream: BinaryIO) -> tuple[Array, Sequence[int]]:
    """Return the schema of a file, and the number of rows in each of its groups."""
    with (
        reading(stream.name, _FORMAT),
        need_arrow("pyarrow.parquet").ParquetFile(stream, pre_buffer=False) as opened,
    ):
        # Not the schema that the footer converts, which has other types for UUIDs and JSON of other programs.
        schema, footer = opened.schema_arrow, opened.metadata
    return schema, [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
