"""The source of the items of LitData datasets; records are what was written.

A folder has an `index.json`, which lists the chunks and the formats of an item's leaves, and a file for each chunk.
`_litdata_index` reads the first, `_litdata_chunks` finds the bytes of an item, and `_litdata_values` makes the item.
"""

from itertools import accumulate
from typing import Any, Final, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._os import local_path
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._decompress import decompressed
from penstock.sources._encoded import DamageError
from penstock.sources._kept_blocks import DECODED_BYTES, KeptBlocks, Waste, check_decoded_bytes
from penstock.sources._litdata_chunks import Block, Blocks, Windows, layout_of
from penstock.sources._litdata_index import Encoding, parsing_index, read_index
from penstock.sources._litdata_values import Items, Tokens
from penstock.sources._local_files import PathLike, RecordFiles, identity_of
from penstock.sources._shards import Samples
from penstock.sources._shared_blocks import SharedBlocks
from penstock.sources._source import Record, as_key

_MAX_ITEM_BYTES: Final = 2**31 - 1


class LitData(RecordFiles):
    """The items of a folder that `litdata.optimize` has written; records are the items, with arrays for tensors.

    Numbers, `str`, `bytes`, lists, tuples and dicts are what was written, and tensors are arrays. Files stay undecoded:
    images, audio, video and the others of LitData's types are bytes, as is a `jpeg`; decode them in a map. A list of
    JPEGs is a list of bytes, and an image of Pillow that was no file is the array of its pixels. LitData and torch
    aren't needed.

    **Tokens**: of a dataset for `TokensLoader`, records are windows of `length` tokens, those of
    `TokensLoader(block_size=length)`: tokens at the end of a chunk that don't fill a window are left out. Without
    `length`, records are the arrays that were written, and `lengths()` has their lengths, for `pack`.

    Newer versions of LitData write dicts of numbers, text, bytes, lists and dicts alone in Arrow's format; these need
    the extra `arrow`. Pickles are refused, since reading a pickle runs code that the file contains, and so are
    encrypted chunks.

    An item that isn't compressed, or by itself, is read by one request. Otherwise items are decompressed in blocks: in
    LitData's frames of 256 items, in Arrow's batches, or chunk by chunk. Each process keeps the blocks that were used
    last, up to `decoded_bytes`, so shuffle these with `shuffle(blocks=True)`. If there is a decompressed chunk beside a
    compressed one, as LitData leaves it, that is read.

    The first use reads the offsets at the beginning of each chunk, and keeps them in a cache directory until a chunk's
    size or time changes. `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the
    source. Files must not change while they are read: a changed file that is opened raises SourceError.

    Args:
        root: the folder with `index.json`: the `output_dir` of `optimize`.
        length: tokens in a window, at least 1; only for a dataset for `TokensLoader`.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.
        decoded_bytes: how much of decompressed blocks is kept, in bytes; one block is always kept. Worker processes
            keep them together. Default: 256 MiB.

    Raises:
        UsageError: the folder has no index; its chunks are encrypted, or compressed by another program than zstd; an
            item has a pickle, or a type that can't be read; `length` is given for items that aren't tokens, or is
            longer than the tokens of any chunk.
        SourceError: a chunk is missing or can't be read; later, at a read, it no longer exists or has changed.
        CorruptRecordError: the index or a chunk is damaged, or they don't belong to each other; at a read, an item
            doesn't have its leaves, or a block can't be decompressed. The message has file, and leaf, byte or item.
        MissingDependencyError: items are in Arrow's format, and pyarrow isn't installed.
        ImportError: at a read, the system lacks zstd.

    Example:
        >>> import json, pathlib, tempfile
        >>> chunks = [{"filename": "chunk-0-0.bin", "chunk_size": 2, "chunk_bytes": 40, "dim": None}]
        >>> config = {"data_format": ["int"], "data_spec": None, "compression": None, "item_loader": "PyTreeLoader"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index = json.dumps({"chunks": chunks, "config": config})
        ...     _ = pathlib.Path(folder, "index.json").write_text(index)
        ...     numbers = np.array([2, 16, 28, 40, 8, 7, 0, 8, 9, 0], "<u4")  # the offsets; each item's size and item
        ...     _ = pathlib.Path(folder, "chunk-0-0.bin").write_bytes(numbers.tobytes())
        ...     with LitData(folder, cache=folder) as source:
        ...         source, source[1]
        (LitData(2 items in 1 file), 9)
    """

    _noun = "item"
    _fingerprint_prefix = "litdata"

    def __init__(
        self,
        root: PathLike,
        length: int | None = None,
        *,
        cache: PathLike | None = None,
        progress: bool = True,
        decoded_bytes: int = DECODED_BYTES,
    ) -> None:
        check_decoded_bytes(decoded_bytes)
        encoding, chunks = read_index(local_path(root))
        if length is not None:
            _check_length(length, encoding)
        self._encoding, self._window = encoding, length
        self._item_of: _ItemOf | None = _item_of(encoding)
        windows = (
            Windows(length, self._item_of.dtype.itemsize) if length and isinstance(self._item_of, Tokens) else None
        )
        self._layouts = [layout_of(chunk, encoding, windows) for chunk in chunks]
        self._decoded_bytes = decoded_bytes
        files, scans = [layout.file for layout in self._layouts], [layout.scan for layout in self._layouts]
        super().__init__(files, scans, cache=cache, progress=progress)
        if windows is not None and len(self) == 0:
            raise UsageError(
                f"a window must fit into a chunk; got length={length}, and no chunk of {encoding.folder!r} has as "
                "many tokens. Pass a smaller length, or none, for the items as they were written."
            )
        blocks = [
            -(-count // layout.blocks.rows) if layout.blocks else 0
            for layout, count in zip(self._layouts, self._index.counts, strict=True)
        ]
        self._first_blocks = [0, *accumulate(blocks)]  # of each chunk
        identity = identity_of(files, f"LitData {length} {encoding}")
        self._shared = SharedBlocks(self._first_blocks[-1], decoded_bytes, identity)
        self._begin()

    def _begin(self) -> None:
        """Begin without decompressed blocks, as every process does."""
        self._kept = KeptBlocks[Block](self._decoded_bytes, self._shared)
        noun = next((layout.blocks.noun for layout in self._layouts if layout.blocks), "")
        self._waste = Waste(noun, self._decoded_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_item_of": None, "_kept": None, "_waste": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each record, for `pack` and `bucket`.

        Returns:
            int64, one axis. No token is read, unless chunks are compressed.

        Raises:
            UsageError: the dataset isn't one for `TokensLoader`.
        """
        if not isinstance(item_of := _item_of(self._encoding), Tokens):
            raise UsageError(
                f"lengths are those of tokens; the items of {self._encoding.folder!r} have none. Omit them."
            )
        found = [np.empty(0, np.int64)]
        for number, layout in enumerate(self._layouts):
            offsets = self._index[number]
            if layout.blocks and len(offsets) > 1:
                block = self._block(number, layout.blocks, 0, self._ends[number] - 1)
                offsets = block.offsets if isinstance(block, Samples) else offsets
            found.append(np.diff(offsets) // item_of.dtype.itemsize)
        return np.concatenate(found)

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the file of a key's item and its byte, or its number if items are decoded in blocks, for messages."""
        number, begin, _ = self._find(as_key(key, len(self)))
        return f"{self._unit(number)} {begin} of file {self._index.files[number].name!r}"

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files, and with `length`."""
        return super().fingerprint() + (f"-{self._window}" if self._window else "")

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return super()._identity_parts(), f"{self._encoding}"

    def _unit(self, number: int) -> str:
        return "byte" if self._layouts[number].blocks is None else "item"

    def _cuts(self, number: int) -> NDArray[np.int64]:
        blocks = self._layouts[number].blocks
        return super()._cuts(number) if blocks is None else np.arange(0, self._index.counts[number], blocks.rows)

    def _far_record(self, number: int, key: int) -> Record:
        blocks = self._layouts[number].blocks
        if blocks is None:
            return super()._far_record(number, key)
        _, item, _ = self._find(key)
        self._check_open()
        self._waste.returned += 1
        place, row = divmod(item, blocks.rows)
        block = self._block(number, blocks, place, key)
        return self._parse(block[row], key) if isinstance(block, Samples) else block[row]

    def _block(self, number: int, blocks: Blocks, place: int, key: int) -> Block:
        """Return block `place` of chunk `number`, which has the item of `key`."""

        def opened(_: int) -> tuple[Block, int]:
            try:
                block, size = blocks.open(lambda begin, end: self._content(number, begin, end, key), place)
            except (ValueError, DamageError) as damage:
                where = "" if blocks.noun == "chunk" else f"{blocks.noun} {place} of "
                raise CorruptRecordError(
                    f"{where}the chunk {self._layouts[number].file.path!r} (for key {key} of {self!r}) is damaged: "
                    f"{damage}. Copy it again, or write it again.",
                    source=repr(self),
                    keys=[key],
                ) from None
            if size:
                self._waste.add(len(block), self)
            return block, size

        return self._kept.opened(self._first_blocks[number] + place, opened)

    def _parse(self, content: bytes, key: int) -> Record:
        item_of = self._item_of
        if item_of is None:
            item_of = self._item_of = _item_of(self._encoding)
        number, begin, _ = self._find(key)
        try:
            return item_of(_decompressed(content) if self._layouts[number].is_compressed else content)
        except DamageError as damage:
            raise CorruptRecordError(
                f"the item at {self._unit(number)} {begin} of {self._index.files[number].path!r} (key {key} of "
                f"{self!r}) {damage} Restore the file, or write it again.",
                source=repr(self),
                keys=[key],
            ) from None


_ItemOf: TypeAlias = Items | Tokens
"""The function from the bytes of an item, or of a window, to the record."""


def _item_of(encoding: Encoding) -> _ItemOf:
    with parsing_index(encoding.folder):
        if encoding.has_tokens:
            return Tokens(encoding.formats, encoding.folder)
        return Items(encoding.formats, encoding.tree, encoding.folder)


def _check_length(length: int, encoding: Encoding) -> None:
    if length < 1:
        raise UsageError(f"length must be at least 1; got {length}. Omit it for the items as they were written.")
    if not encoding.has_tokens:
        raise UsageError(
            f"length requires items that were written for TokensLoader; got length={length} for {encoding.folder!r}, "
            "which has others. Omit it."
        )


def _decompressed(content: bytes) -> bytes:
    try:
        return decompressed(content, "zstd", _MAX_ITEM_BYTES)
    except ValueError as error:
        raise DamageError(f"can't be decompressed: {error}.") from None
