"""The source of samples in the shards of MosaicML Streaming (MDS); records are dicts of their columns.

A folder has an `index.json`, which lists the shards with their columns, and a file for each shard: the number of
samples, the offset of each sample and of the end (uint32 numbers), the columns once more, and the samples. A sample is
the sizes of its columns of variable size (uint32 numbers), and then the values, in the order of the columns' names. All
numbers are little-endian.

`_DECODERS` has a function for each encoding of a column. Encodings of images stay bytes, so that a map decodes them.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, BinaryIO, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._local_files import LocalFile, PathLike, RecordFiles, raise_source_error, stat_file
from penstock.sources._source import Record

_VERSION: Final = 2
_NUMBER: Final = np.dtype("<u4")
_SIZE_DTYPES: Final = ("u1", "<u2", "<u4", "<u8")  # of an array's shape, by the lowest bits before it
_VALUE_DTYPES: Final = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SCALARS: Final = frozenset(_VALUE_DTYPES.values())
_PIL_MODES: Final[Mapping[str, tuple[str, int]]] = {
    "L": ("u1", 1), "P": ("u1", 1), "LA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3), "HSV": ("u1", 3),
    "LAB": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4), "I;16": ("<u2", 1), "I": ("<i4", 1),
    "F": ("<f4", 1),
}  # fmt: skip

_Decoder: TypeAlias = Callable[[bytes], Any]


class MDS(RecordFiles):
    """The samples of a folder that MosaicML Streaming's `MDSWriter` has written; records are dicts of their columns.

    Columns have the values that Streaming reads: `int`, `str_int` and `str_float` are Python's numbers, `str_decimal`
    is a `decimal.Decimal`, `uint8` to `float64` are NumPy scalars, `ndarray` is an array, `str`, `bytes` and `json` are
    what they say. Images stay undecoded: `jpeg` and `png` are bytes, their lists (`list[jpeg]`, `jpeg_array`) are lists
    of bytes; decode them in a map. A `pil` column is the array of its pixels. Streaming isn't needed.

    A `pkl` column is refused: reading a pickle runs code that the file contains. Shards must not be compressed: a
    compressed shard has no random access. If there is a decompressed shard beside a compressed one, as Streaming
    leaves it, that is read.

    The first use reads the offsets at the beginning of each shard, and keeps them in a cache directory until a shard's
    size or time changes. A record is read by one request.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file raises SourceError.

    Args:
        root: the folder with `index.json`: `local=`, with `split=` below it, of a `StreamingDataset`.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr if that is a terminal and the scan takes more than 0.5 s.

    Raises:
        UsageError: the folder has no index, or a shard is compressed, has another format, other columns than the first
            one, or a `pkl` column.
        SourceError: a shard is missing or can't be read; later, at a read, it no longer exists or has changed.
        CorruptRecordError: the index or a shard is damaged, or they don't belong to each other; at a read, a sample
            doesn't have its columns. The message has file, and column or byte.

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

    def __init__(self, root: PathLike, *, cache: PathLike | None = None, progress: bool = True) -> None:
        folder = os.path.abspath(root)
        shards = _shards_of(folder)
        self._columns = shards[0].columns
        for shard in shards:
            if shard.columns != self._columns:
                raise UsageError(
                    f"all shards must have the same columns; {shards[0].path!r} has "
                    f"{_listed(self._columns)}, {shard.path!r} has {_listed(shard.columns)}. Read them as two sources."
                )
        self._decoders: list[_Decoder] | None = _decoders_of(self._columns, folder)
        files = [_file_of(shard) for shard in shards]
        super().__init__(files, [_MDSScan(shard.samples) for shard in shards], cache=cache, progress=progress)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_decoders": None}

    def _parse(self, content: bytes, key: int) -> Record:
        decoders = self._decoders
        if decoders is None:
            decoders = self._decoders = [_decoder_of(column.encoding) for column in self._columns]
        try:
            return _sample_of(content, self._columns, decoders)
        except _DamageError as damage:
            path, begin = self._place(key)
            raise CorruptRecordError(
                f"the sample at byte {begin} of {path!r} (key {key} of {self!r}) {damage} Restore the file, or write "
                "it again.",
                source=repr(self),
                keys=[key],
            ) from None


class _DamageError(Exception):
    """The reason why bytes aren't what the index says."""


@frozen
class _Column:
    name: str
    encoding: str
    size: int  # 0 if it varies


@frozen
class _Shard:
    path: str
    bytes: int
    samples: int
    compressed: str  # the path of the compressed file, or ""
    compression: str
    columns: tuple[_Column, ...]


def _listed(columns: Sequence[_Column]) -> str:
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
        described = cast("list[dict[str, Any]]", index["shards"])
        shards = [_shard_of(folder, entry) for entry in described]
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, _DamageError) as error:
        raise CorruptRecordError(
            f"{path!r} is no index of MDS shards: {type(error).__name__}: {error}. Restore it, or write it again."
        ) from error
    if not shards:
        raise UsageError(f"an index must list at least one shard; {path!r} lists none. Write samples first.")
    return shards


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
        _Column(_text(name), _text(encoding), 0 if size is None else _count(size))
        for name, encoding, size in zip(names, encodings, sizes, strict=True)
    )
    raw, zipped = entry["raw_data"], entry.get("zip_data")
    return _Shard(
        path=os.path.join(folder, *_text(raw["basename"]).split("/")),
        bytes=_count(raw["bytes"]),
        samples=_count(entry["samples"]),
        compressed=os.path.join(folder, *_text(zipped["basename"]).split("/")) if zipped else "",
        compression=str(entry.get("compression")),
        columns=columns,
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise _DamageError(f"a text is {value!r}")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise _DamageError(f"a number is {value!r}")
    return value


def _file_of(shard: _Shard) -> LocalFile:
    if shard.compressed and not os.path.exists(shard.path):
        raise UsageError(
            f"shards must not be compressed; {shard.compressed!r} is, by {shard.compression}, so it has no random "
            f"access. Decompress each shard once, to the name that the index has for it, here {shard.path!r}; the "
            "index needs no change."
        )
    file = stat_file(shard.path)
    if file.size != shard.bytes:
        raise SourceError(
            f"{shard.path!r} must have {shard.bytes} bytes, as index.json says; it has {file.size}. It is truncated, "
            "or belongs to another index: copy it again."
        )
    return file


@frozen
class _MDSScan:
    """The scan for the samples of a shard: the offsets at its beginning."""

    samples: int

    @property
    def kind(self) -> str:
        """The scan's name and version."""
        return f"mds-1 {self.samples}"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "indexing MDS shards"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each sample, and the file's size.

        Raises:
            CorruptRecordError: the offsets aren't those of the file.
        """
        end = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        head = (self.samples + 2) * _NUMBER.itemsize
        if head > end:
            raise self._refused(stream, f"it has {end} bytes, too few for the offsets of {self.samples} samples")
        numbers = np.frombuffer(stream.read(head), _NUMBER)
        if numbers[0] != self.samples:
            raise self._refused(stream, f"it has {numbers[0]} samples, and index.json says {self.samples}")
        offsets = numbers[1:].astype(np.int64)
        if offsets[0] < head or offsets[-1] != end or bool(np.any(offsets[1:] < offsets[:-1])):
            raise self._refused(stream, f"its offsets, from {offsets[0]} to {offsets[-1]}, don't cover {end} bytes")
        advance(end)
        return offsets

    def _refused(self, stream: BinaryIO, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"cannot index {stream.name!r} as an MDS shard: {reason}. Restore the file, or write it again."
        )


def _sample_of(content: bytes, columns: Sequence[_Column], decoders: Sequence[_Decoder]) -> dict[str, Any]:
    varying = sum(not column.size for column in columns)
    begin = varying * _NUMBER.itemsize
    if begin > len(content):
        raise _DamageError("is too short for the sizes of its columns.")
    sizes = iter(np.frombuffer(content, _NUMBER, varying).tolist())
    record: dict[str, Any] = {}
    for column, decode in zip(columns, decoders, strict=True):
        end = begin + (column.size or next(sizes))
        if end > len(content):
            raise _DamageError(f"is too short for the column {column.name!r}.")
        value = content[begin:end]
        try:
            record[column.name] = decode(value)
        except (ValueError, InvalidOperation, RecursionError, _DamageError) as error:
            raise _DamageError(
                f"has no {column.encoding!r} in the column {column.name!r}: its {len(value)} bytes begin with "
                f"{value[:8]!r} ({error})."
            ) from None
        begin = end
    if begin != len(content):
        raise _DamageError(f"has {len(content) - begin} bytes more than its columns.")
    return record


def _decoders_of(columns: Sequence[_Column], folder: str) -> list[_Decoder]:
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
        return [_decoder_of(column.encoding) for column in columns]
    except _DamageError as damage:
        raise UsageError(f"the columns of {folder!r} are {_listed(columns)}; {damage}") from None


def _decoder_of(encoding: str) -> _Decoder:
    if encoding in _SCALARS:
        return partial(_scalar, np.dtype(encoding))
    name, _, described = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = described.partition(":")
        return _array_decoder(dtype, shape)
    known = _DECODERS.get(encoding)
    if known is None:
        raise _DamageError(
            f"the encoding {encoding!r} is unknown. Known are {', '.join(sorted({*_DECODERS, *_SCALARS, 'ndarray'}))}."
        )
    return known


def _array_decoder(dtype: str, shape: str) -> _Decoder:
    lengths = shape.split(",") if shape else []
    if (dtype and dtype not in _SCALARS) or not all(length.strip().isdecimal() for length in lengths):
        raise _DamageError(f"the encoding 'ndarray:{dtype}:{shape}' is invalid. Write them again.")
    fixed = tuple(map(int, lengths)) if lengths else None
    return partial(_array, np.dtype(dtype).newbyteorder("<") if dtype else None, fixed)


def _scalar(dtype: np.dtype[Any], value: bytes) -> np.generic:
    if len(value) != dtype.itemsize:
        raise _DamageError(f"it needs {dtype.itemsize}")
    scalar: np.generic = np.frombuffer(value, dtype.newbyteorder("<")).astype(dtype)[0]
    return scalar


def _array(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, value: bytes) -> NDArray[Any]:
    begin = 0
    if dtype is None:
        named = _VALUE_DTYPES.get(value[0]) if value else None
        if named is None:
            raise _DamageError("there is no dtype")
        dtype, begin = np.dtype(named).newbyteorder("<"), 1
    if shape is None:
        if len(value) <= begin:
            raise _DamageError("there is no shape")
        sizes, axes = np.dtype(_SIZE_DTYPES[value[begin] & 3]), value[begin] >> 2
        stop = begin + 1 + axes * sizes.itemsize
        shape = tuple(np.frombuffer(value[begin + 1 : stop], sizes).tolist())
        begin = stop
    if math.prod(shape) * dtype.itemsize != len(value) - begin:
        raise _DamageError(f"the shape is {shape}")
    return np.frombuffer(value, dtype, offset=begin).reshape(shape).astype(dtype.newbyteorder("="))


def _integer(value: bytes) -> int:
    if len(value) != np.dtype(np.int64).itemsize:
        raise _DamageError("it needs 8")
    return int.from_bytes(value, "little", signed=True)


def _parts(begin: int, value: bytes) -> list[bytes]:
    # The number of parts, at `begin`, their sizes, and the parts.
    head = begin + _NUMBER.itemsize
    count = int.from_bytes(value[begin:head], "little")
    begin = head + count * _NUMBER.itemsize
    if len(value) < begin:
        raise _DamageError("the list is too short")
    parts: list[bytes] = []
    for size in np.frombuffer(value, _NUMBER, count, head).tolist():
        parts.append(value[begin : begin + size])
        begin += size
    if begin != len(value):
        raise _DamageError("the list has another size")
    return parts


def _pixels(value: bytes) -> NDArray[Any]:
    head = 3 * _NUMBER.itemsize
    if len(value) < head:
        raise _DamageError("there is no size of an image")
    width, height, mode_bytes = np.frombuffer(value, _NUMBER, 3).tolist()
    mode = value[head : head + mode_bytes].decode()
    if mode not in _PIL_MODES:
        raise _DamageError(f"the mode {mode!r} of an image isn't among {', '.join(_PIL_MODES)}")
    dtype, channels = _PIL_MODES[mode]
    shape = (height, width) if channels == 1 else (height, width, channels)
    return _array(np.dtype(dtype), shape, value[head + mode_bytes :])


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
    "pil": _pixels,
    "jpeg_array": partial(_parts, 0),
    "jpegarray": partial(_parts, 0),
    "list[jpeg]": partial(_parts, 4),  # after four bytes that have no use yet
    "list[png]": partial(_parts, 4),
    "list[pil]": lambda value: [_pixels(part) for part in _parts(4, value)],
}
