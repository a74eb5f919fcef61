"""The source of Arrow files, which IPC and Feather name as well; records are rows as dicts of columns.

The format of files has a list of record batches at its end, and the format of streams has none: there each message
follows the one before it. A scan finds the number of rows of each batch in either: it reads the head of each message, a
table of FlatBuffers of which one field is needed, and hops over its body. Values are read from the mapped file.

A block is a record batch of a file, or a whole stream. Only if its buffers are compressed does it take memory.
"""

import logging
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final

from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._arrow_rows import Array, need_arrow, validate_columns
from penstock.sources._kept_blocks import DECODED_BYTES
from penstock.sources._local_files import PathLike, find_files
from penstock.sources._mapped import map_file
from penstock.sources._table_files import (
    Block,
    BlockScan,
    TableFiles,
    find_index,
    reading,
    types_of,
)

_FORMAT: Final = "Arrow IPC"
_MAGIC: Final = b"ARROW1"
_FIRST_FEATHER: Final = b"FEA1"
_TAIL: Final = 10  # bytes at the end of a file: the size of the footer before them, and the magic
_BATCHES: Final = 3  # the field of a footer that lists the record batches
_BLOCK: Final = "<qi4xq"  # of such a list: the offset in the file, and the sizes of the head and of the body
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_HEADER: Final = 2  # the field of a message that has the record batch
_LENGTH: Final = 0  # the field of a record batch that has its number of rows


class Arrow(TableFiles):
    """The rows of one or more Arrow IPC files, streams or Feather files; records are dicts of columns.

    Values are those of `Parquet`: NumPy's for numbers and times, arrays for lists of them, `str`, `bytes`, lists and
    dicts, and None for null. The cache files of Hugging Face's datasets are streams.

    Files are mapped into memory, and the values of a record are read where they lie, in any order, in about a
    microsecond. Compressed files have no such access, since each record batch must be decompressed: the batches that
    were used last are kept, up to `decoded_bytes`. Feather files are compressed by default. A compressed stream is
    decompressed as a whole.

    The first use of a file walks through the heads of its messages, and keeps the first row of each batch in a cache
    directory until the file's size or time changes. No descriptor stays open. Files must not change while they are
    read: a changed file raises SourceError.

    Args:
        paths: a path, a glob such as `"data/*.arrow"` (sorted by name), or a list of these, in its order.
        columns: the names of the columns to read, in the order of the records. Default: all columns, which then must be
            the same in all files.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.
        decoded_bytes: how much of decompressed batches is kept, in bytes; one batch is always kept. On Linux the worker
            processes of a loader, and the ranks that torchrun starts on a machine, keep them together, and decompress
            each once. Default: 256 MiB, for each rank.

    Raises:
        UsageError: `paths` has no file, or a folder; a file has version 1 of Feather; a column doesn't exist; a column
            differs between files.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file isn't Arrow IPC, or is empty, truncated or damaged.
        MissingDependencyError: pyarrow isn't installed.

    Example:
        >>> import pathlib, tempfile
        >>> import pyarrow, pyarrow.feather
        >>> table = pyarrow.table({"text": ["one", "two"], "tokens": [[1], [2, 3]], "label": [0, 1]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.arrow")
        ...     pyarrow.feather.write_feather(table, path, compression="uncompressed")
        ...     source = Arrow(path, ["text", "tokens"], cache=folder)
        ...     len(source), source[1], source.describe_key(1)
        (2, {'text': 'two', 'tokens': array([2, 3])}, "row 1 of batch 0 of file 'a.arrow'")
    """

    _noun = "batch"
    _fingerprint_prefix = "arrow"

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        columns: Sequence[str] | None = None,
        *,
        cache: PathLike | None = None,
        progress: bool = True,
        decoded_bytes: int = DECODED_BYTES,
    ) -> None:
        need_arrow()
        files = find_files(paths, "Arrow")
        first = files[0].path
        with reading(first, _FORMAT):
            types = types_of(_open(_map(first)).schema, columns, first)
        scan = BlockScan("arrow-1", "indexing Arrow files", _schema_and_rows, types, first, columns is not None)
        super().__init__(find_index(files, scan, cache, progress=progress), types, decoded_bytes)
        self._mapped: dict[int, Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_mapped": {}}

    def _read_block(self, number: int, block: int, names: Sequence[str]) -> Block:
        path = self._files[number].path
        with reading(path, _FORMAT):
            # Two threads may map a file at once: the map of one is kept.
            content = self._mapped.setdefault(number, self._mapped.get(number) or _map(path))
            reader = _open(content)  # of this thread alone, since a reader isn't safe for several
            batches = [reader.get_batch(block)] if _is_file(content) else list(reader)
            chosen = [batch.select(list(names)) for batch in batches]
            for batch in chosen:
                validate_columns(batch)
        return chosen, sum(allocated_bytes(batch, content) for batch in chosen)


def _map(path: str) -> Array:
    """Return the content of a file as a `pyarrow.Buffer`.

    Raises:
        UsageError: the file has Feather's first version, which is no Arrow IPC.
    """
    content = need_arrow().py_buffer(map_file(path))
    if bytes(content[: len(_FIRST_FEATHER)]) == _FIRST_FEATHER:
        raise UsageError(
            f"Feather files must have version 2, which is Arrow IPC; {path!r} has version 1. Write it again, as in "
            "feather.write_feather(feather.read_table(path), path)."
        )
    return content


def _open(content: Array) -> Array:
    """Return pyarrow's reader of a file or a stream."""
    ipc = need_arrow("pyarrow.ipc")
    return ipc.open_file(content) if _is_file(content) else ipc.open_stream(content)


def _is_file(content: Array) -> bool:
    return bytes(content[: len(_MAGIC)]) == _MAGIC


def allocated_bytes(batch: Array, content: Array) -> int:
    """Return the bytes of the buffers of a batch that aren't parts of the mapped file."""
    begin, end = content.address, content.address + content.size
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    return sum(buffer.size for buffer in buffers if not begin <= buffer.address < end)


def _schema_and_rows(stream: BinaryIO) -> tuple[Array, Sequence[int]]:
    """Return the schema of a file, and the number of rows in each of its blocks; a stream is one block.

    Raises:
        CorruptRecordError: the file has fewer batches than its end says, or bytes after its stream.
    """
    path = stream.name
    with reading(path, _FORMAT):
        content = _map(path)
        reader = _open(content)
        schema, is_file = reader.schema, _is_file(content)
        following = need_arrow().BufferReader(content)
        messages = _listed(content) if is_file else _messages(following)
        rows = [_rows_of(bytes(message.metadata)) for message in messages if message.type == "record batch"]
        read_bytes = following.tell()
    if is_file:
        if len(rows) != reader.num_record_batches:
            raise CorruptRecordError(
                f"{path!r} must have the {reader.num_record_batches} record batches that its end lists; it has "
                f"{len(rows)}. The file is damaged: write it again."
            )
        return schema, rows
    if read_bytes < content.size:
        raise CorruptRecordError(
            f"a file must end with its Arrow stream; {path!r} has {content.size - read_bytes} bytes after it, such as "
            "another stream. Write each stream to a file of its own, and pass these as a list."
        )
    if bytes(content[-len(_END) :]) != _END:
        logging.getLogger("penstock").warning(
            "the Arrow stream %r has no end mark, so it may be truncated between two messages", path
        )
    return schema, [sum(rows)]


def _listed(content: Array) -> Iterator[Array]:
    """Yield the messages of the record batches that the end of a file lists; others may have no length before them."""
    messages = need_arrow().BufferReader(content)
    size = _integer(bytes(content[-_TAIL:]), 0)
    footer = bytes(content[-_TAIL - size : -_TAIL])
    field = _field(footer, _integer(footer, 0), _BATCHES)
    begin = field + _integer(footer, field)
    blocks = footer[begin + 4 :][: _integer(footer, begin) * struct.calcsize(_BLOCK)] if field else b""
    for offset, _, _ in struct.iter_unpack(_BLOCK, blocks):
        messages.seek(offset)
        yield from islice(_messages(messages), 1)


def _messages(stream: Array) -> Array:
    """Return the messages that follow each other from the place of a stream on."""
    return need_arrow("pyarrow.ipc").MessageReader.open_stream(stream)


def _rows_of(message: bytes) -> int:
    """Return the number of rows that the head of a record batch says."""
    header = _field(message, _integer(message, 0), _HEADER)
    length = _field(message, header + _integer(message, header), _LENGTH)
    rows: int = struct.unpack_from("<q", message, length)[0] if length else 0
    return rows


def _field(message: bytes, table: int, number: int) -> int:
    """Return the place of a field in a table of FlatBuffers, or 0 if the table doesn't have it."""
    entries = table - _integer(message, table)
    entry = 4 + 2 * number
    size: int = struct.unpack_from("<H", message, entries)[0]
    offset: int = struct.unpack_from("<H", message, entries + entry)[0] if entry < size else 0
    return table + offset if offset else 0


def _integer(message: bytes, place: int) -> int:
    value: int = struct.unpack_from("<i", message, place)[0]
    return value
