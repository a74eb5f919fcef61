"""The source of samples in the shards of MosaicML Streaming (MDS); records are dicts of their columns.

A folder has an `index.json`, which lists the shards with their columns, and a file for each shard: the number of
samples, the offset of each sample and of the end (uint32 numbers), the columns once more, and the samples. A sample is
the sizes of its columns of variable size (uint32 numbers), and then the values, in the order of the columns' names. All
numbers are little-endian.

`_DECODERS` has a function for each encoding of a column. Encodings of images stay bytes, so that a map decodes them.
"""

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final, SupportsIndex, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._frozen import frozen
from penstock._os import local_path
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._decompress import Codec
from penstock.sources._encoded import DamageError, array_of, parts_of, pixels_of
from penstock.sources._kept_blocks import DECODED_BYTES, KeptBlocks, Waste, check_decoded_bytes
from penstock.sources._local_files import (
    LocalFile,
    PathLike,
    RecordFiles,
    Scan,
    identity_of,
    raise_source_error,
    stat_file,
)
from penstock.sources._shards import (
    NumberScan,
    Samples,
    SampleScan,
    count_in_index,
    decompressed_samples,
    text_in_index,
)
from penstock.sources._shared_blocks import SharedBlocks
from penstock.sources._source import Record, as_key

_VERSION: Final = 2
_CODECS: Final[dict[str, Codec]] = {"zstd": "zstd", "gz": "gzip"}
_SIZE_DTYPES: Final = ("u1", "<u2", "<u4", "<u8")  # of an array's shape, by the lowest bits before it
_VALUE_DTYPES: Final = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SCALARS: Final = frozenset(_VALUE_DTYPES.values())
_INTEGER: Final = struct.Struct("<q")  # of the encoding `int`
_MAX_SAMPLE_BYTES: Final = (1 << 32) - 1  # offsets have 32 bits
_UNDECODABLE: Final = (ValueError, InvalidOperation, RecursionError, DamageError)

_Decoder: TypeAlias = Callable[[bytes], Any]


class MDS(RecordFiles):
    """The samples of a folder that MosaicML Streaming's `MDSWriter` has written; records are dicts of their columns.

    Columns have the values that Streaming reads: `int`, `str_int` and `str_float` are Python's numbers, `str_decimal`
    is a `decimal.Decimal`, `uint8` to `float64` are NumPy scalars, `ndarray` is an array, `str`, `bytes` and `json` are
    what they say. Images stay undecoded: `jpeg` and `png` are bytes, their lists (`list[jpeg]`, `jpeg_array`) are lists
    of bytes; decode them in a map. A `pil` column is the array of its pixels. Streaming isn't needed.

    A `pkl` column is refused: reading a pickle runs code that the file contains.

    A shard that is compressed by zstd or gzip is decompressed as a whole, and those that were used last are kept, up to
    `decoded_bytes`. So shuffle such shards with `shuffle(blocks=True, live=4)`, or decompress them once: if
    there is a decompressed shard beside a compressed one, as Streaming leaves it, that is read.

    The first use reads the offsets at the beginning of each shard that isn't compressed, and keeps them in a cache
    directory until a shard's size or time changes. A record of these is read by one request.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file that is opened raises SourceError.

    Args:
        root: the folder with `index.json`: `local=`, with `split=` below it, of a `StreamingDataset`.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.
        decoded_bytes: how much of decompressed shards is kept, in bytes; one shard is always kept. Worker processes
            keep them together. Default: 256 MiB.

    Raises:
        UsageError: the folder has no index, or a shard is compressed by another program, has another format, other
            columns than the first one, or a `pkl` column.
        SourceError: a shard is missing or can't be read; later, at a read, it no longer exists or has changed.
        CorruptRecordError: the index or a shard is damaged, or they don't belong to each other; at a read, a sample
            doesn't have its columns, or a shard can't be decompressed. The message has file, and column or byte.
        ImportError: at a read, the system lacks zstd.

    Example:
        >>> import json, pathlib, tempfile
        >>> columns = {"column_names": ["x"], "column_encodings": ["int8"], "column_sizes": [1]}
        >>> shard = {"raw_data": {"basename": "0.mds", "bytes": 18}, "samples": 2, "zip_data": None}
        >>> index = {"shards": [{**shard, **columns, "format": "mds", "version": 2}], "version": 2}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "index.json").write_text(json.dumps(index))
        ...     numbers = np.array([2, 16, 17, 18], "<u4")  # the number of samples, and their offsets
        ...     _ = pathlib.Path(folder, "0.mds").write_bytes(numbers.tobytes() + bytes([7, 8]))
        ...     with MDS(folder, cache=folder) as source:
        ...         source, source[1]
        (MDS(2 records in 1 file), {'x': np.int8(8)})
    """

    _fingerprint_prefix = "mds"

    def __init__(
        self,
        root: PathLike,
        *,
        cache: PathLike | None = None,
        progress: bool = True,
        decoded_bytes: int = DECODED_BYTES,
    ) -> None:
        check_decoded_bytes(decoded_bytes)
        folder = local_path(root)
        shards = _shards_of(folder)
        self._columns = shards[0].columns
        for shard in shards:
            if shard.columns != self._columns:
                raise UsageError(
                    f"all shards must have the same columns; {shards[0].path!r} has "
                    f"{_listed(self._columns)}, {shard.path!r} has {_listed(shard.columns)}. Read them as two sources."
                )
        self._decoder: SampleDecoder | None = SampleDecoder(self._columns, _decoders_of(self._columns, folder))
        self._decoded_bytes = decoded_bytes
        codecs: list[Codec | None] = [_codec_of(shard) for shard in shards]
        self._compressed = {number: shards[number] for number, codec in enumerate(codecs) if codec is not None}
        files = [_file_of(shard, codec) for shard, codec in zip(shards, codecs, strict=True)]
        blocks = len(shards) if self._compressed else 0
        self._shared = SharedBlocks(blocks, decoded_bytes, identity_of(files, "MDS"))
        self._begin()
        scans = [_scan_of(shard, codec) for shard, codec in zip(shards, codecs, strict=True)]
        super().__init__(files, scans, cache=cache, progress=progress)

    def _begin(self) -> None:
        """Begin without decompressed shards, as every process does."""
        self._kept = KeptBlocks[Samples](self._decoded_bytes, self._shared)
        self._waste = Waste("shard", self._decoded_bytes)

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return super()._identity_parts(), f"{self._columns}"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_decoder": None, "_kept": None, "_waste": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the file of a key's sample and its byte, or its number if the file is compressed, for messages."""
        number, begin, _ = self._find(as_key(key, len(self)))
        return f"{self._unit(number)} {begin} of file {self._index.files[number].name!r}"

    def _unit(self, number: int) -> str:
        return "sample" if number in self._compressed else "byte"

    def _far_record(self, number: int, key: int) -> Record:
        if number not in self._compressed:
            return super()._far_record(number, key)
        self._check_open()
        self._waste.returned += 1
        _, sample, _ = self._find(key)
        return self._parse(self._kept.opened(number, partial(self._decompress, key=key))[sample], key)

    def _decompress(self, number: int, key: int) -> tuple[Samples, int]:
        shard, file = self._compressed[number], self._index.files[number]
        content = self._content(number, 0, file.size, key)
        try:
            samples = decompressed_samples(
                content, _CODECS[shard.compression.partition(":")[0]], shard.samples, shard.bytes
            )
        except (ValueError, DamageError) as damage:
            raise CorruptRecordError(
                f"the compressed shard {file.path!r} (for key {key} of {self!r}) is damaged: {damage}. Copy it again, "
                "or write it again.",
                source=repr(self),
                keys=[key],
            ) from None
        self._waste.add(shard.samples, self)
        return samples, shard.bytes

    def _parse(self, content: bytes, key: int) -> Record:
        decoder = self._decoder
        if decoder is None:
            decoders = [decoder_of(column.encoding) for column in self._columns]
            decoder = self._decoder = SampleDecoder(self._columns, decoders)
        try:
            return decoder.decode(content)
        except DamageError as damage:
            number, begin, _ = self._find(key)
            raise CorruptRecordError(
                f"the sample at {self._unit(number)} {begin} of {self._index.files[number].path!r} (key {key} of "
                f"{self!r}) {damage} Restore the file, or write it again.",
                source=repr(self),
                keys=[key],
            ) from None


@frozen
class Column:
    """A column of samples.

    Attributes:
        name: its name.
        encoding: the form of its values.
        size: in bytes; 0 if it varies.
    """

    name: str
    encoding: str
    size: int


@frozen
class _Shard:
    path: str
    bytes: int
    samples: int
    compressed: str  # the path of the compressed file, or ""
    compressed_bytes: int
    compression: str
    columns: tuple[Column, ...]


def _listed(columns: Sequence[Column]) -> str:
    return "{" + ", ".join(f"{column.name!r}: {column.encoding!r}" for column in columns) + "}"


def _shards_of(folder: str) -> list[_Shard]:
    path = os.path.join(folder, "index.json")
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"MDS reads a folder with an index.json; {folder!r} has none. Pass the folder of one split; if several "
            "writers have filled its folders, merge their indices with streaming.base.util.merge_index first."
        ) from error
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check its permissions.", error)
    try:
        index = json.loads(content)
        shards = [_shard_of(folder, entry) for entry in _described(folder, index)]
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DamageError) as error:
        raise CorruptRecordError(
            f"{path!r} is no index of MDS shards: {type(error).__name__}: {error}. Restore it, or write it again."
        ) from error
    if not shards:
        raise UsageError(f"an index must list at least one shard; {path!r} lists none. Write samples first.")
    return shards


def _described(folder: str, index: dict[str, Any]) -> list[dict[str, Any]]:
    if "chunks" in index and "shards" not in index:
        raise UsageError(f"{folder!r} has an index of LitData. Read it by ps.sources.LitData.")
    return cast("list[dict[str, Any]]", index["shards"])


def _shard_of(folder: str, entry: dict[str, Any]) -> _Shard:
    kind, version = entry["format"], entry["version"]
    if kind != "mds":
        raise UsageError(
            f"MDS reads shards of the format 'mds'; {folder!r} has {kind!r}. Read JSON lines by ps.sources.JsonLines, "
            "and CSV by ps.sources.Csv."
        )
    if version != _VERSION:
        raise UsageError(
            f"MDS reads version {_VERSION} of the format; {folder!r} has version {version!r}. Write it again "
            "with a newer version of Streaming."
        )
    names, encodings, sizes = entry["column_names"], entry["column_encodings"], entry["column_sizes"]
    columns = tuple(
        Column(text_in_index(name), text_in_index(encoding), 0 if size is None else count_in_index(size))
        for name, encoding, size in zip(names, encodings, sizes, strict=True)
    )
    raw, zipped = entry["raw_data"], entry.get("zip_data")
    return _Shard(
        path=os.path.join(folder, *text_in_index(raw["basename"]).split("/")),
        bytes=count_in_index(raw["bytes"]),
        samples=count_in_index(entry["samples"]),
        compressed=os.path.join(folder, *text_in_index(zipped["basename"]).split("/")) if zipped else "",
        compressed_bytes=count_in_index(zipped["bytes"]) if zipped else 0,
        compression=str(entry.get("compression")),
        columns=columns,
    )


def _codec_of(shard: _Shard) -> Codec | None:
    """Return the codec of a shard that must be decompressed.

    Raises:
        UsageError: there is no such codec here.
    """
    if not shard.compressed or os.path.exists(shard.path):
        return None
    codec = _CODECS.get(shard.compression.partition(":")[0])
    if codec is None:
        raise UsageError(
            f"compressed shards must be of {' or '.join(_CODECS.values())}; {shard.compressed!r} is of "
            f"{shard.compression!r}. Decompress each shard once, to the name that the index has for it, here "
            f"{shard.path!r}; the index needs no change."
        )
    return codec


def _file_of(shard: _Shard, codec: Codec | None) -> LocalFile:
    file = stat_file(shard.path if codec is None else shard.compressed)
    expected = shard.bytes if codec is None else shard.compressed_bytes
    if file.size != expected:
        raise SourceError(
            f"{file.path!r} must have {expected} bytes, as index.json says; it has {file.size}. It is truncated, or "
            "belongs to another index: copy it again."
        )
    return file


def _scan_of(shard: _Shard, codec: Codec | None) -> Scan:
    if codec is None:
        return SampleScan("mds-1", "MDS shard", shard.samples)
    return NumberScan("mds-compressed-1", "MDS shard", shard.samples)


class SampleDecoder:
    """The decoders of a folder's columns, and the layout of the sizes at the beginning of a sample.

    Native code makes the values of most columns, and the bytes of the others. If a sample hasn't these columns, it is
    decoded once more, column by column, for the error.
    """

    def __init__(self, columns: Sequence[Column], decoders: Sequence[_Decoder]) -> None:
        varying = [column.name for column in columns if not column.size]
        places = {name: place for place, name in enumerate(varying)}
        self._columns = [
            (column.name, column.size, places.get(column.name, 0), decode)
            for column, decode in zip(columns, decoders, strict=True)
        ]
        self._encodings = {column.name: column.encoding for column in columns}
        self._sizes = struct.Struct(f"<{len(varying)}I")
        self._fixed_bytes = self._sizes.size + sum(column.size for column in columns)
        kinds = [_kind_of(column) for column in columns]
        self._others = [
            (column.name, decode)
            for column, decode, kind in zip(columns, decoders, kinds, strict=True)
            if kind == "bytes" and decode is not bytes
        ]
        self._native = _native.SampleRecords(list(map(_described_column, columns, kinds)))

    def decode(self, content: bytes) -> dict[str, Any]:
        """Return the values of a sample.

        Raises:
            DamageError: it doesn't have the columns.
        """
        record = self._native.record(content)
        if record is None:
            return self.decode_each(content)
        try:
            for name, decode in self._others:
                record[name] = decode(record[name])
        except _UNDECODABLE:
            return self.decode_each(content)
        return record

    def decode_each(self, content: bytes) -> dict[str, Any]:
        """Return the values of a sample, column by column.

        Raises:
            DamageError: it doesn't have the columns.
        """
        begin = self._sizes.size
        if begin > len(content):
            raise DamageError("is too short for the sizes of its columns.")
        sizes = self._sizes.unpack_from(content)
        if self._fixed_bytes + sum(sizes) != len(content):
            raise self._differing(sizes, len(content))
        record: dict[str, Any] = {}
        name, value = "", b""
        try:
            for name, size, place, decode in self._columns:
                end = begin + (size or sizes[place])
                value = content[begin:end]
                record[name] = decode(value)
                begin = end
        except _UNDECODABLE as error:
            raise DamageError(
                f"has no {self._encodings[name]!r} in the column {name!r}: its {len(value)} bytes begin with "
                f"{value[:8]!r} ({error})."
            ) from None
        return record

    def _differing(self, sizes: Sequence[int], length: int) -> DamageError:
        """Return the error for a sample of another length than its columns have."""
        end = self._sizes.size
        for name, size, place, _ in self._columns:
            end += size or sizes[place]
            if end > length:
                return DamageError(f"is too short for the column {name!r}.")
        return DamageError(f"has {length - end} bytes more than its columns.")


def _described_column(column: Column, kind: str) -> tuple[str, int, str, object]:
    # No sample has as many bytes as the limit, so that none has a column of more.
    size = min(column.size, _MAX_SAMPLE_BYTES)
    return column.name, size, kind, np.zeros(1, column.encoding) if kind == "scalar" else None


def _kind_of(column: Column) -> str:
    """Return the kind of a column's values for native code: it makes bytes for a function of `_DECODERS`."""
    if column.encoding == "str":
        return "text"
    if column.encoding == "int" and column.size == _INTEGER.size:
        return "integer"
    if column.encoding in _SCALARS and column.size == np.dtype(column.encoding).itemsize:
        return "scalar"
    return "bytes"


def _decoders_of(columns: Sequence[Column], folder: str) -> list[_Decoder]:
    names = [column.name for column in columns]
    if not names or len(set(names)) < len(names):
        raise CorruptRecordError(f"the columns of {folder!r} must have different names; got {names}. Write it again.")
    for column in columns:
        if column.encoding == "pkl":
            raise UsageError(
                f"pickled columns can't be read: a pickle runs code that the file contains; the column "
                f"{column.name!r} of {folder!r} is one. Write it again with another encoding, such as 'json', "
                "'ndarray' or 'bytes'."
            )
    try:
        return [decoder_of(column.encoding) for column in columns]
    except DamageError as damage:
        raise UsageError(f"the columns of {folder!r} are {_listed(columns)}; {damage}") from None


def decoder_of(encoding: str) -> _Decoder:
    """Return the function that makes a value of an encoding of its bytes.

    Raises:
        DamageError: the encoding is unknown.
    """
    if encoding in _SCALARS:
        return partial(_scalar, np.dtype(encoding).newbyteorder("<"))
    name, _, described = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = described.partition(":")
        return _array_decoder(dtype, shape)
    known = _DECODERS.get(encoding)
    if known is None:
        raise DamageError(
            f"the encoding {encoding!r} is unknown. Known are {', '.join(sorted({*_DECODERS, *_SCALARS, 'ndarray'}))}."
        )
    return known


def _array_decoder(dtype: str, shape: str) -> _Decoder:
    lengths = shape.split(",") if shape else []
    if (dtype and dtype not in _SCALARS) or not all(length.strip().isdecimal() for length in lengths):
        raise DamageError(f"the encoding 'ndarray:{dtype}:{shape}' is invalid. Write them again.")
    fixed = tuple(map(int, lengths)) if lengths else None
    return partial(_array, np.dtype(dtype).newbyteorder("<") if dtype else None, fixed)


def _scalar(dtype: np.dtype[Any], value: bytes) -> np.generic:
    if len(value) != dtype.itemsize:
        raise DamageError(f"it needs {dtype.itemsize}")
    scalar: np.generic = np.frombuffer(value, dtype)[0]
    return scalar


def _array(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, value: bytes) -> NDArray[Any]:
    begin = 0
    if dtype is None:
        named = _VALUE_DTYPES.get(value[0]) if value else None
        if named is None:
            raise DamageError("there is no dtype")
        dtype, begin = np.dtype(named).newbyteorder("<"), 1
    if shape is None:
        if len(value) <= begin:
            raise DamageError("there is no shape")
        sizes, axes = np.dtype(_SIZE_DTYPES[value[begin] & 3]), value[begin] >> 2
        stop = begin + 1 + axes * sizes.itemsize
        shape = tuple(np.frombuffer(value[begin + 1 : stop], sizes).tolist())
        begin = stop
    return array_of(value, dtype, shape, begin)


def _integer(value: bytes) -> int:
    if len(value) != _INTEGER.size:
        raise DamageError(f"it needs {_INTEGER.size}")
    integer: int = _INTEGER.unpack(value)[0]
    return integer


_DECODERS: Final[Mapping[str, _Decoder]] = {
    "bytes": bytes,
    "jpeg": bytes,
    "png": bytes,
    "str": bytes.decode,
    "int": _integer,
    "str_int": lambda value: int(value.decode()),
    "str_float": lambda value: float(value.decode()),
    "str_decimal": lambda value: Decimal(value.decode()),
    "json": json.loads,
    "pil": pixels_of,
    "jpeg_array": partial(parts_of, 0),
    "jpegarray": partial(parts_of, 0),
    "list[jpeg]": partial(parts_of, 4),  # after four bytes that have no use yet
    "list[png]": partial(parts_of, 4),
    "list[pil]": lambda value: [pixels_of(part) for part in parts_of(4, value)],
}
