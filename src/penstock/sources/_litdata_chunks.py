"""The chunks of LitData, which are stored in one of five ways, and the function that finds which.

  - **Items**, as `_shards` describes: their number, their offsets, and the items.
  - **Compressed items**: the same, but each item is a frame of zstd.
  - **A compressed chunk**: a file of items that is compressed as a whole.
  - **Frames**: the magic `LDFZ01`, the offsets of the items before they were compressed, a table of frames, and the
    frames of zstd, each of which has the same number of items.
  - **Rows**: an Arrow IPC file behind the offsets, and its size and the magic `LDARW01` at the end. LitData writes it
    for items that are dicts of numbers, text, bytes, lists and dicts. There are no other items then.

In the last three, a *block* of items is decoded at once: the chunk, a frame or a record batch. `Blocks` has how many
items a block has, and the function that opens one.

The tokens of items for LitData's `TokensLoader` follow each other without heads, so they can be cut into windows.
"""

import os
import struct
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, Final, NoReturn, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, SourceError
from penstock.sources._arrow import allocated_bytes
from penstock.sources._arrow_rows import PLAIN, ArrowRows, need_arrow
from penstock.sources._decompress import decompressed
from penstock.sources._encoded import DamageError
from penstock.sources._litdata_index import Chunk, Encoding
from penstock.sources._local_files import LocalFile, Scan, raise_source_error, stat_file
from penstock.sources._mapped import map_file
from penstock.sources._shards import NUMBER, NumberScan, Samples, SampleScan, head_bytes, offsets_in
from penstock.sources._table_files import check_unchanged, reading

_NOUN: Final = "LitData chunk"
_FRAMES_MAGIC: Final = b"LDFZ01\0\0"
_ROWS_MAGIC: Final = b"LDARW01\0"
_FRAMES_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sHHIII")  # magic, version, flags, items, items in a frame, frames
_FRAME: Final = np.dtype([("first", "<u4"), ("items", "<u4"), ("begin", "<u8"), ("size", "<u4"), ("decoded", "<u4")])
_TAIL: Final = struct.Struct("<I8s")  # the size of the Arrow file, and the magic
_ARROW_MAGIC: Final = b"ARROW1"
_BATCH_ROWS: Final = 256

Read: TypeAlias = Callable[[int, int], bytes]
"""Returns the bytes of the chunk's file from a place to another."""
Block: TypeAlias = Samples | ArrowRows


@frozen
class Windows:
    """The windows of the tokens of a chunk; tokens at its end that don't fill one are left out.

    Attributes:
        length: of a window, in tokens.
        token_bytes: the size of a token.
    """

    length: int
    token_bytes: int

    def offsets(self, items: NDArray[np.int64], tokens: int | None) -> NDArray[np.int64]:
        """Return the offset of each window, and the end of the last one.

        Args:
            items: the offsets of the items.
            tokens: how many tokens the chunk has, by the index.

        Raises:
            DamageError: it has another number of tokens.
        """
        begin = items.item(0)
        found, rest = divmod(items.item(-1) - begin, self.token_bytes)
        if rest or found != (found if tokens is None else tokens):
            raise DamageError(
                f"its items have {items.item(-1) - begin} bytes, and index.json says {tokens} tokens of "
                f"{self.token_bytes} bytes"
            )
        return begin + np.arange(found // self.length + 1) * (self.length * self.token_bytes)


@frozen
class Blocks:
    """The blocks of a chunk.

    Attributes:
        rows: the number of items in each but the last one.
        noun: what a block is called.
        open: returns a block, and its size in memory, by its number in the chunk.
    """

    rows: int
    noun: str
    open: Callable[[Read, int], tuple[Block, int]]


@frozen
class Layout:
    """The layout of the items in a chunk.

    Attributes:
        file: the chunk's file.
        scan: finds their offsets, or their numbers if they are decoded in blocks.
        is_compressed: whether each item is compressed by itself.
        blocks: the blocks; None if each item is read by itself.
    """

    file: LocalFile
    scan: Scan
    is_compressed: bool = False
    blocks: Blocks | None = None


def layout_of(chunk: Chunk, encoding: Encoding, windows: Windows | None) -> Layout:
    """Return how the items of a chunk are stored. It reads the first and the last bytes of the file.

    Args:
        chunk: the chunk.
        encoding: how its items are stored.
        windows: how tokens are cut; None for items.

    Raises:
        SourceError: the file can't be read, or has another size than the index says.
        CorruptRecordError: the file isn't as the index says.
        MissingDependencyError: the chunk has rows, and pyarrow isn't installed.
    """
    folder, name = os.path.split(chunk.path)
    # LitData names a decompressed chunk so, and leaves it in the folder.
    suffix = f".{encoding.compression}" if encoding.compression else ""
    path = os.path.join(folder, name.replace(f"{suffix}.bin", ".bin"))
    if path != chunk.path and not os.path.exists(path):
        return _whole(chunk, windows)
    file = stat_file(path)
    sizes = (chunk.bytes, chunk.bytes + head_bytes(chunk.items))
    if file.size not in sizes:
        raise SourceError(
            f"{path!r} must have {sizes[0]} bytes, as index.json says; it has {file.size}. It is truncated, or "
            "belongs to another index: copy it again."
        )
    head, tail = _ends_of(file)
    if windows is not None:
        return Layout(file, _WindowScan(chunk.items, chunk.tokens, windows))
    if not encoding.has_tokens and tail.endswith(_ROWS_MAGIC):
        return _rows(chunk, file, tail)
    if encoding.level == "batch":
        return _frames(chunk, file, head)
    return Layout(file, SampleScan("litdata-1", _NOUN, chunk.items), encoding.level == "sample")


def _ends_of(file: LocalFile) -> tuple[bytes, bytes]:
    try:
        with open(file.path, "rb") as stream:
            head = stream.read(_PREFIX.size)
            stream.seek(max(0, file.size - _TAIL.size))
            return head, stream.read(_TAIL.size)
    except OSError as error:
        raise_source_error(f"cannot read {file.path!r}: {error.strerror}. Check its permissions.", error)


@frozen
class _WindowScan:
    """The scan for windows of tokens: the offsets at the beginning of the file have where the tokens begin and end."""

    items: int
    tokens: int | None
    windows: Windows

    @property
    def kind(self) -> str:
        """The scan with its arguments."""
        return f"litdata-windows-1 {self.items} {self.tokens} {self.windows.length} {self.windows.token_bytes}"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return f"indexing {_NOUN}s"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each window, and the end of the last one.

        Raises:
            CorruptRecordError: the offsets or the number of tokens aren't those of the file.
        """
        offsets = SampleScan("litdata-1", _NOUN, self.items)(stream, advance)
        try:
            return self.windows.offsets(offsets, self.tokens)
        except DamageError as damage:
            _refuse(stream.name, damage)


def _whole(chunk: Chunk, windows: Windows | None) -> Layout:
    """Return the layout of a chunk that is compressed as a whole."""
    if windows is None:
        count = chunk.items
    elif chunk.tokens is None:
        _refuse(chunk.path, "index.json doesn't say how many tokens it has")
    else:
        count = chunk.tokens // windows.length
    scan = NumberScan("litdata-compressed-1", _NOUN, count)
    file = stat_file(chunk.path)
    opened = partial(_open_whole, file, chunk, windows)
    return Layout(file, scan, blocks=Blocks(max(1, count), "chunk", opened))


def _open_whole(file: LocalFile, chunk: Chunk, windows: Windows | None, read: Read, _: int) -> tuple[Samples, int]:
    content = read(0, file.size)
    most = chunk.bytes + head_bytes(chunk.items)
    whole = decompressed(content, "zstd", most)
    if len(whole) not in (chunk.bytes, most):
        raise DamageError(f"it has {len(whole)} bytes when it is decompressed, and index.json says {chunk.bytes}")
    offsets = offsets_in(whole[: head_bytes(chunk.items)], chunk.items, len(whole))
    return Samples(whole, offsets if windows is None else windows.offsets(offsets, chunk.tokens)), len(whole)


@frozen
class _FrameScan:
    """The scan of a chunk of frames: it checks the tables, and the offsets are the numbers of the items."""

    items: int

    @property
    def kind(self) -> str:
        """The scan with the number that it has checked."""
        return f"litdata-frames-1 {self.items}"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return f"indexing {_NOUN}s"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the number of each item, and how many there are.

        Raises:
            CorruptRecordError: the tables aren't those of the file.
        """
        end = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        _, _, _, *numbers = _PREFIX.unpack(stream.read(_PREFIX.size))
        items, rows, frames = cast("list[int]", numbers)
        offsets_bytes = (items + 1) * NUMBER.itemsize
        tables_bytes = offsets_bytes + frames * _FRAME.itemsize
        if items != self.items or frames != -(-items // rows) or _PREFIX.size + tables_bytes > end:
            _refuse(stream.name, f"it has {items} items in {frames} frames, and index.json says {self.items}")
        tables = stream.read(tables_bytes)
        offsets = np.frombuffer(tables, NUMBER, items + 1).astype(np.int64)
        table = np.frombuffer(tables, _FRAME, frames, offsets_bytes)
        firsts = np.arange(frames) * rows
        begins = table["begin"].astype(np.int64)
        if (
            not np.array_equal(table["first"], firsts)
            or not np.array_equal(table["items"], np.minimum(rows, items - firsts))
            or not np.array_equal(np.append(begins, end)[1:], begins + table["size"])
            or not np.array_equal(np.diff(offsets[np.append(firsts, items)]), table["decoded"])
            or bool(np.any(np.diff(offsets) < 0))
        ):
            _refuse(stream.name, f"its table of {frames} frames doesn't fit to its {items} items")
        advance(end)
        return np.arange(items + 1)


def _frames(chunk: Chunk, file: LocalFile, head: bytes) -> Layout:
    if len(head) < _PREFIX.size or not head.startswith(_FRAMES_MAGIC):
        _refuse(file.path, f"it must begin with {_FRAMES_MAGIC!r}, and begins with {head[:8]!r}")
    _, version, _, _, rows, _ = _PREFIX.unpack(head)
    if version != _FRAMES_VERSION or rows == 0:
        _refuse(file.path, f"its frames have version {version}, and {rows} items each")
    opened = partial(_open_frame, chunk.items, rows)
    return Layout(file, _FrameScan(chunk.items), blocks=Blocks(rows, "frame", opened))


def _open_frame(items: int, rows: int, read: Read, number: int) -> tuple[Samples, int]:
    table = _PREFIX.size + (items + 1) * NUMBER.itemsize + number * _FRAME.itemsize
    frame = np.frombuffer(read(table, table + _FRAME.itemsize), _FRAME)
    begin, size, decoded = (frame[name].item() for name in ("begin", "size", "decoded"))
    first, last = number * rows, min(items, (number + 1) * rows)
    place = _PREFIX.size + first * NUMBER.itemsize
    numbers = np.frombuffer(read(place, place + (last - first + 1) * NUMBER.itemsize), NUMBER).astype(np.int64)
    offsets = numbers - numbers[0]
    content = decompressed(read(begin, begin + size), "zstd", decoded)
    if offsets[-1] != len(content) or bool(np.any(np.diff(offsets) < 0)):
        raise DamageError(f"it has {len(content)} bytes when it is decompressed, and its items {offsets[-1]}")
    return Samples(content, offsets), len(content)


def _rows(chunk: Chunk, file: LocalFile, tail: bytes) -> Layout:
    need_arrow()
    size, _ = _TAIL.unpack(tail)
    end = file.size - _TAIL.size
    if size > end:
        _refuse(file.path, f"it has {file.size} bytes, and its Arrow file {size}")
    with open(file.path, "rb") as stream:
        stream.seek(end - size)
        rows = _BATCH_ROWS if stream.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC else max(1, chunk.items)
    scan = NumberScan("litdata-rows-1", _NOUN, chunk.items)
    opened = partial(_open_rows, file, (end - size, end), (chunk.items, rows))
    return Layout(file, scan, blocks=Blocks(rows, "record batch", opened))


def _open_rows(
    file: LocalFile, span: tuple[int, int], counts: tuple[int, int], _: Read, number: int
) -> tuple[ArrowRows, int]:
    pyarrow, ipc = need_arrow(), need_arrow("pyarrow.ipc")
    items, rows = counts
    check_unchanged(file)
    with reading(file.path, "rows of LitData"):
        whole = pyarrow.py_buffer(map_file(file.path))
        content = whole[span[0] : span[1]]
        if bytes(content[: len(_ARROW_MAGIC)]) == _ARROW_MAGIC:
            reader = ipc.open_file(content)
            batches = [reader.get_batch(number)] if number < reader.num_record_batches else []
        else:  # older versions of LitData have a stream here, which is read as a whole
            batches = list(ipc.open_stream(content))
        for batch in batches:
            batch.validate()
    names = batches[0].schema.names if batches else ()
    found = ArrowRows(batches, names, PLAIN)
    expected = min(rows, items - number * rows)
    if len(found) != expected:
        raise DamageError(f"it has {len(found)} rows, and index.json says {expected}")
    return found, sum(allocated_bytes(batch, whole) for batch in batches)


def _refuse(path: str, damage: object) -> NoReturn:
    raise CorruptRecordError(
        f"cannot index {path!r} as a {_NOUN}: {damage}. Restore the file, or write the dataset again."
    ) from None
