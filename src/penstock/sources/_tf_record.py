"""The source of records in TFRecord files; records are bytes, or the features of a `tf.train.Example`.

A record is a length of 8 bytes, the checksum of the length, the payload, and the checksum of the payload; all numbers
are little-endian. The scan hops from length to length, and verifies the checksum of each, so a file of another format,
or a compressed one, is refused at its first record. The checksum of a payload is verified when it is read.

An Example is a map from a name to a list of bytes, of floats or of integers, in the encoding of Protocol Buffers:

    Example  { Features features = 1; }
    Features { repeated Entry feature = 1; }        (an Entry for each pair of the map)
    Entry    { string key = 1; Feature value = 2; }
    Feature  { BytesList = 1 | FloatList = 2 | Int64List = 3 }
    …List    { repeated … value = 1; }              (numbers are packed into one field, or have a field each)

`_fields` returns the fields of one message; its callers follow the rules for parsers: fields in any order, of two
entries with one key the last, lists of one kind joined, unknown fields skipped.
"""

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._local_files import PathLike, RecordFiles, compression_of, find_files
from penstock.sources._source import Record

_LENGTH_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 4
_HEAD_BYTES: Final = _LENGTH_BYTES + _CHECKSUM_BYTES
_MASK: Final = 0xA282EAD8
_UINT32: Final = 0xFFFFFFFF
_REPORTED: Final = 1 << 12  # records between two reports of progress
_ZLIB_METHOD, _ZLIB_CHECK = 8, 31

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_WIRE_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3  # fields of a Feature
_KINDS: Final = frozenset((_BYTES_LIST, _FLOAT_LIST, _INT64_LIST))
_LONGEST_VARINT: Final = 10
_FEW_BYTES: Final = 24  # below, a loop is faster than NumPy
_UINT64: Final = (1 << 64) - 1

Parse: TypeAlias = Literal["example"] | None
_Feature: TypeAlias = NDArray[Any] | list[bytes] | None


class TFRecord(RecordFiles):
    r"""The records of one or more TFRecord files: bytes, or with `parse="example"` a dict of features.

    With `parse="example"`, a record is a `tf.train.Example`, and its features are what they hold: a list of bytes, an
    array of float32 or an array of int64, of one axis, in each case with as many values as were written. So a single
    label is an array of one element. The order of the features is that of the file. A feature that was written without
    a list is None. TensorFlow isn't needed.

    The first use hops from record to record, verifies the checksum of each length, and keeps the starts in a cache
    directory until a file's size or time changes. A record is read by one request; a read verifies the checksum of the
    content. Files must not be compressed: a compressed file has no random access.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file that is opened raises SourceError.

    Args:
        paths: a path, a glob such as `"data/train-*.tfrecord"` (sorted by name), or a list of these, in its order.
        parse: `"example"` to parse each record as a `tf.train.Example`; None for its bytes.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.

    Raises:
        UsageError: `paths` has no file, or a folder, or `parse` has another value.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file is of another format, compressed, truncated or damaged; at a read, a record's
            checksum is wrong, or it is no Example. The message has file, record and byte.

    Example:
        >>> import pathlib, tempfile
        >>> content = b"\2\0\0\0\0\0\0\0x'\x0b4hi\x13\xd6\x08V"  # length, checksum, payload, checksum
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.tfrecord")
        ...     _ = path.write_bytes(content)
        ...     with TFRecord(path, cache=folder) as source:
        ...         len(source), source[0]
        (1, b'hi')
    """

    _fingerprint_prefix = "tfrecord"

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        parse: Parse = None,
        cache: PathLike | None = None,
        progress: bool = True,
    ) -> None:
        if parse not in (None, "example"):
            raise UsageError(f"parse must be None or 'example'; got {parse!r}. Parse other messages in a map.")
        self._is_parsed = parse is not None
        files = find_files(paths, "TFRecord")
        super().__init__(files, [_TFRecordScan()] * len(files), cache=cache, progress=progress)

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files, and with `parse`."""
        return f"{super().fingerprint()}{'-example' if self._is_parsed else ''}"

    def _parse(self, content: bytes, key: int) -> Record:
        try:
            payload = _payload_of(content)
            return _example_of(payload) if self._is_parsed else payload
        except _DamageError as damage:
            path, begin = self._place(key)
            raise CorruptRecordError(
                f"the record at byte {begin} of {path!r} (key {key} of {self!r}) {damage}",
                source=repr(self),
                keys=[key],
            ) from None


class _DamageError(Exception):
    """The reason why bytes aren't a record."""


def _masked(bytes_: bytes) -> int:
    # As the format defines it, so that the checksum of bytes with a checksum inside stays useful.
    checksum = _native.crc32c(bytes_)
    return ((checksum >> 15 | checksum << 17) + _MASK) & _UINT32


def _payload_of(content: bytes) -> bytes:
    payload = content[_HEAD_BYTES:-_CHECKSUM_BYTES]
    if int.from_bytes(content[:_LENGTH_BYTES], "little") != len(payload):
        raise _DamageError(
            "doesn't match the index: its length has changed. Restore the file, or write it under another name."
        )
    if _masked(payload) != int.from_bytes(content[-_CHECKSUM_BYTES:], "little"):
        raise _DamageError("has a wrong checksum: its content is damaged. Restore the file, or write it again.")
    return payload


@frozen
class _TFRecordScan:
    """The scan for the records of a TFRecord file: its offsets are those of their lengths."""

    @property
    def kind(self) -> str:
        """The scan's name and version."""
        return "tfrecord-1"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "indexing TFRecord files"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each record, and the file's size.

        Raises:
            CorruptRecordError: the file isn't a whole TFRecord file.
        """
        end = stream.seek(0, 2)
        offsets = [0]
        reported = 0
        while (begin := offsets[-1]) < end:
            stream.seek(begin)
            head = stream.read(_HEAD_BYTES)
            try:
                offsets.append(_end_of(head, begin, end))
            except _DamageError as damage:
                raise CorruptRecordError(
                    f"cannot index {stream.name!r} as a TFRecord file: at byte {begin}, record {len(offsets) - 1} "
                    f"{damage}"
                ) from None
            if len(offsets) % _REPORTED == 0:
                advance(begin - reported)
                reported = begin
        advance(end - reported)
        return np.array(offsets, np.int64)


def _end_of(head: bytes, begin: int, end: int) -> int:
    if len(head) < _HEAD_BYTES:
        raise _DamageError(
            f"has {len(head)} of the {_HEAD_BYTES} bytes of its length. The file is truncated: write it again."
        )
    length = head[:_LENGTH_BYTES]
    if _masked(length) != int.from_bytes(head[_LENGTH_BYTES:], "little"):
        raise _DamageError(_not_a_length(head) if begin == 0 else "has a length with a wrong checksum. " + _RESTORE)
    following = begin + _HEAD_BYTES + int.from_bytes(length, "little") + _CHECKSUM_BYTES
    if following > end:
        raise _DamageError(
            f"needs {following - begin} bytes, but {end - begin} follow. The file is truncated: write it again."
        )
    return following


_RESTORE: Final = "The file is damaged: restore it, or write it again."


def _not_a_length(head: bytes) -> str:
    is_gzip = compression_of(head) == "gzip"
    if is_gzip or (head[0] & 0xF == _ZLIB_METHOD and int.from_bytes(head[:2], "big") % _ZLIB_CHECK == 0):
        return (
            f"is compressed by {'gzip' if is_gzip else 'zlib'}, so the file has no random access. Decompress it first, "
            + ("as `gunzip` does." if is_gzip else "as Python's zlib.decompress does.")
        )
    return (
        f"has a length with a wrong checksum. The file is of another format, or damaged; it begins with {head[:4]!r}."
    )


def _fields(message: bytes) -> list[tuple[int, int, Any]]:
    """Return number, wire type and value of each field of a message; a value is an int, or bytes.

    Raises:
        _DamageError: the message isn't valid.
    """
    found: list[tuple[int, int, Any]] = []
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        wire = tag & 7
        if wire == _VARINT:
            value, position = _varint(message, position)
            found.append((tag >> 3, wire, value))
            continue
        if wire == _BYTES:
            size, position = _varint(message, position)
        else:
            size = _WIRE_BYTES.get(wire, -1)
        if tag >> 3 == 0 or not 0 <= size <= end - position:
            raise _DamageError(_NO_EXAMPLE)
        found.append((tag >> 3, wire, message[position : position + size]))
        position += size
    return found


_NO_EXAMPLE: Final = (
    "isn't a tf.train.Example: its encoding is invalid. Omit parse=, and parse the record's bytes in a map."
)


def _varint(message: bytes, position: int) -> tuple[int, int]:
    if position < len(message) and (first := message[position]) < 0x80:  # most are of one byte
        return first, position + 1
    value = shift = 0
    for byte in message[position : position + _LONGEST_VARINT]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # the last one
            return value & _UINT64, position + shift // 7
    raise _DamageError(_NO_EXAMPLE)


def _example_of(payload: bytes) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for number, wire, features in _fields(payload):
        if number == 2 and wire == _BYTES:
            raise _DamageError(
                "is a tf.train.SequenceExample, or another message; only Examples are parsed. Omit parse=, and parse "
                "the record's bytes in a map."
            )
        if (number, wire) == (1, _BYTES):
            for entry_number, entry_wire, entry in _fields(features):
                if (entry_number, entry_wire) == (1, _BYTES):
                    name, feature = _entry_of(entry)
                    record[name] = feature
    return record


def _entry_of(entry: bytes) -> tuple[str, _Feature]:
    name = b""
    parts: list[bytes] = []
    for number, wire, value in _fields(entry):
        if (number, wire) == (1, _BYTES):
            name = value
        elif (number, wire) == (2, _BYTES):
            parts.append(value)
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise _DamageError(_NO_EXAMPLE) from None
    try:
        return text, _feature_of(_join(parts))
    except _DamageError as damage:
        raise _DamageError(f"has the feature {text!r}, which {damage}") from None


def _feature_of(feature: bytes) -> _Feature:
    kind = 0
    parts: list[bytes] = []
    for number, wire, value in _fields(feature):
        if number in _KINDS and wire == _BYTES:
            if number != kind:
                kind, parts = number, []  # only the last kind counts
            parts.append(value)
    if kind == 0:
        return None
    joined = _join(parts)
    if kind == _BYTES_LIST:
        return [value for number, wire, value in _fields(joined) if (number, wire) == (1, _BYTES)]
    if kind == _FLOAT_LIST:
        return _floats_of(joined)
    return _integers_of(joined)


def _join(parts: list[bytes]) -> bytes:
    # Joined encodings are those of the joined messages.
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _floats_of(message: bytes) -> NDArray[Any]:
    values = [value for number, wire, value in _fields(message) if number == 1 and wire in (_BYTES, _FIXED32)]
    joined = _join(values)
    if len(joined) % 4:
        raise _DamageError(_NO_EXAMPLE)
    return np.frombuffer(joined, "<f4").astype(np.float32)


def _integers_of(message: bytes) -> NDArray[Any]:
    parts: list[NDArray[Any]] = []
    single: list[int] = []  # values that have a field each
    for number, wire, value in _fields(message):
        if (number, wire) == (1, _VARINT):
            single.append(value)
        elif (number, wire) == (1, _BYTES):
            parts += [np.array(single, np.uint64), _varints(value)] if single else [_varints(value)]
            single = []
    if single or not parts:
        parts.append(np.array(single, np.uint64))
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)).view(np.int64)


def _varints(packed: bytes) -> NDArray[Any]:
    if len(packed) < _FEW_BYTES:
        values: list[int] = []
        position = 0
        while position < len(packed):
            value, position = _varint(packed, position)
            values.append(value)
        return np.array(values, np.uint64)
    encoded = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(encoded < 0x80)
    if len(ends) == len(encoded):
        return encoded.astype(np.uint64)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    sizes = ends - starts + 1
    if not len(ends) or ends[-1] != len(encoded) - 1 or sizes.max() > _LONGEST_VARINT:
        raise _DamageError(_NO_EXAMPLE)
    shifts = (np.arange(len(encoded)) - np.repeat(starts, sizes)).astype(np.uint64) * np.uint64(7)
    bits = (encoded & np.uint8(0x7F)).astype(np.uint64) << shifts
    return np.bitwise_or.reduceat(bits, starts)
