"""TFRecord: records with checksums, Examples in every encoding, and errors that name file, record and byte."""

import gzip
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import TFRecord, describe_key, read_records
from tests.profiles import in_short

# Two Examples, as the package tfrecord 1.14 writes them.
WRITTEN = bytes.fromhex(
    "5b000000000000001b01028a0a590a0e0a056c6162656c12051a030a01070a1e0a0369647312171a150a1301ffffffffffffffffff01ac0280"
    "80808080200a160a06776569676874120c120a0a080000003f000000c00a0f0a05696d61676512060a040a02ffd8ff2273a876000000000000"
    "004e43f07d0a740a0e0a056c6162656c12051a030a01080a3f0a0369647312381a360a3478797a7b7c7d7e7f80018101820183018401850186"
    "018701880189018a018b018c018d018e018f019001910192019301940195010a120a06776569676874120812060a040000c03f0a0d0a05696d"
    "61676512040a020a00d41eb75b"
)
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 300), max_size=40)
FLOATS = st.lists(st.floats(width=32), max_size=6)
LISTS = (
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=200), max_size=3), st.booleans())
    | st.tuples(st.just("float"), FLOATS, st.booleans())
    | st.tuples(st.just("int64"), NUMBERS, st.booleans())
)


def masked(content: bytes) -> bytes:
    """Return the masked CRC-32C of bytes, by the definition."""
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 * (value & 1)
    value ^= 0xFFFFFFFF
    return (((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def record_of(payload: bytes) -> bytes:
    """Return a record with its length and checksums."""
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def write(path: Path, payloads: Sequence[bytes]) -> Path:
    """Write a TFRecord file, and return its path."""
    path.write_bytes(b"".join(map(record_of, payloads)))
    return path


def varint(value: int) -> bytes:
    """Return a number in the encoding of Protocol Buffers."""
    value %= 1 << 64
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(kind: str, values: Sequence[Any], *, packed: bool = True) -> bytes:
    """Return a Feature with a list of `kind`."""
    if kind == "bytes":
        return field(1, b"".join(field(1, value) for value in values))
    if kind == "float":
        encoded = [struct.pack("<f", value) for value in values]
        return field(2, field(1, b"".join(encoded)) if packed else b"".join(b"\x0d" + value for value in encoded))
    encoded = [varint(value) for value in values]
    return field(3, field(1, b"".join(encoded)) if packed else b"".join(b"\x08" + value for value in encoded))


def entry(name: str, content: bytes) -> bytes:
    """Return the pair of a name and an encoded Feature."""
    return field(1, field(1, name.encode()) + field(2, content))


def test_files_of_another_writer(tmp_path: Path) -> None:
    """The Examples that another package writes have the values that were written."""
    (tmp_path / "a.tfrecord").write_bytes(WRITTEN)
    with TFRecord(tmp_path / "a.tfrecord", parse="example") as source:
        first, second = source.read([0, 1])
    assert list(first) == ["label", "ids", "weight", "image"]
    assert first["ids"].tolist() == [1, -1, 300, 2**40]
    assert first["ids"].dtype == np.int64
    assert first["weight"].tolist() == [0.5, -2.0]
    assert first["weight"].dtype == np.float32
    assert (first["image"], first["label"].tolist()) == ([b"\xff\xd8"], [7])
    assert (second["ids"].tolist(), second["image"]) == ([*range(120, 150)], [b""])


@in_short(10)
@given(features=st.dictionaries(st.text(max_size=5), LISTS, max_size=4), unknown=st.sampled_from([b"", b"\x50\1"]))
def test_features_have_the_values_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, features: dict[str, tuple[str, list[Any], bool]], unknown: bytes
) -> None:
    """Lists of each kind, packed or not, are read as they were written; unknown fields are skipped."""
    encoded = b"".join(
        entry(name, unknown + feature(kind, values, packed=packed)) for name, (kind, values, packed) in features.items()
    )
    folder = tmp_path_factory.mktemp("example")
    path = write(folder / "a.tfrecord", [unknown + field(1, encoded)])
    with TFRecord(path, parse="example", cache=folder) as source:
        record = source[0]
    assert list(record) == list(features)
    for name, (kind, values, _) in features.items():
        if kind == "bytes":
            assert record[name] == values
        else:
            np.testing.assert_array_equal(
                record[name], np.array(values, "f4" if kind == "float" else "i8"), strict=True
            )


def test_messages_are_merged_as_the_encoding_demands(tmp_path: Path) -> None:
    """Of two entries with one name the last counts, lists of one kind are joined, and of two kinds the last counts."""
    twice = entry("a", feature("int64", [1])) + entry("a", feature("int64", [2]))
    mixed = feature("int64", [1, 2]) + feature("int64", [3], packed=False)
    payload = field(1, twice + entry("joined", mixed)) + field(1, entry("last", mixed + feature("bytes", [b"x"])))
    path = write(tmp_path / "a.tfrecord", [payload + field(1, entry("none", b"")), b""])
    record, empty = TFRecord(path, parse="example").read([0, 1])
    assert {name: value if isinstance(value, list | None) else value.tolist() for name, value in record.items()} == {
        "a": [2],
        "joined": [1, 2, 3],
        "last": [b"x"],
        "none": None,
    }
    assert empty == {}


TWO = record_of(b"one" * 9) + record_of(b"two")
BAD_FILES = (
    (gzip.compress(TWO), "at byte 0, record 0 is compressed by gzip.*Decompress it first, as `gunzip`"),
    (zlib.compress(TWO), "record 0 is compressed by zlib.*Decompress it first, as Python's zlib.decompress"),
    (b"RIFF" * 9, r"record 0 has a length with a wrong checksum.*it begins with b'RIFF'"),
    (TWO[:50], "at byte 43, record 1 has 7 of the 12 bytes of its length. The file is truncated"),
    (TWO[:-1], "at byte 43, record 1 needs 19 bytes, but 18 follow. The file is truncated"),
    (TWO[:44] + b"\1" + TWO[45:], "at byte 43, record 1 has a length with a wrong checksum"),
    (b"\xff" * 8 + masked(b"\xff" * 8), f"record 0 needs {2**64 + 15} bytes, but 12 follow"),
)


def test_a_bad_file_is_refused_when_it_is_indexed(tmp_path: Path) -> None:
    """A file that isn't a whole TFRecord file is a CorruptRecordError with file, record, byte and remedy."""
    for content, reason in BAD_FILES:
        (tmp_path / "bad.tfrecord").write_bytes(content)
        with pytest.raises(CorruptRecordError, match=rf"cannot index '.*bad.tfrecord' as a TFRecord file.*{reason}"):
            TFRecord(tmp_path / "bad.tfrecord")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x0a\xff", "encoding is invalid"),
        (b"\x80" * 11, "encoding is invalid"),
        (
            field(1, entry("é", field(3, b"\x0a\x1e" + b"\x80" * 30))),
            "has the feature 'é', which isn't a tf.train.Exam",
        ),
        (field(1, entry("é", field(2, field(1, b"abc")))), "has the feature 'é', which isn't a tf.train.Example"),
        (field(1, b"") + field(2, b""), "is a tf.train.SequenceExample.*Omit parse="),
    ],
)
def test_a_record_that_is_no_example_is_named(tmp_path: Path, payload: bytes, reason: str) -> None:
    """A record that can't be parsed is a CorruptRecordError with file, byte and key; its bytes can be read."""
    path = write(tmp_path / "a.tfrecord", [b"", payload])
    assert TFRecord(path).read([1]) == [payload]
    with pytest.raises(CorruptRecordError, match=r"the record at byte 16 of '.*a.tfrecord' \(key 1 of") as caught:
        read_records(TFRecord(path, parse="example"), np.array([1]))
    assert caught.match(reason)
    assert caught.value.keys == (1,)


@in_short(10)
@given(content=st.binary(max_size=400) | st.tuples(st.integers(0, len(WRITTEN) - 1), st.integers(0, 255)))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes | tuple[int, int]
) -> None:
    """Random Examples are parsed or raise a SourceError, and a changed byte of a file is never read as a record."""
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "a.tfrecord"
    if isinstance(content, bytes):
        write(path, [content, field(1, content), field(1, entry("a", content))])
    else:
        place, value = content
        path.write_bytes(WRITTEN[:place] + bytes([value]) + WRITTEN[place + 1 :])
    try:
        with TFRecord(path, parse="example", cache=folder, progress=False) as source:
            records = source.read(range(len(source)))
    except SourceError:
        return
    if not isinstance(content, bytes):
        assert path.read_bytes() == WRITTEN
    assert all(value is None or isinstance(value, list | np.ndarray) for r in records for value in r.values())


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    """Content that changed unnoticed is a CorruptRecordError with file and key."""
    path = write(tmp_path / "a.tfrecord", [b"one", b"two"])
    swapped = TFRecord(path)
    assert TFRecord(path, parse="example").fingerprint() == f"{swapped.fingerprint()}-example"
    assert describe_key(swapped, 1) == "key 1 (byte 19 of file 'a.tfrecord')"
    content, time_ns = path.read_bytes(), path.stat().st_mtime_ns
    for old, new, reason in ((b"two", b"six", "wrong checksum"), (b"\3", b"\4", "its length has changed")):
        path.write_bytes(content[:19] + content[19:].replace(old, new))
        os.utime(path, ns=(time_ns, time_ns))
        assert swapped[0] == b"one"
        with pytest.raises(CorruptRecordError, match=rf"byte 19 of '.*a.tfrecord' \(key 1 of .*{reason}"):
            swapped[1]


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    """Another parser, a folder and an empty list have a message that names the source."""
    wrong: Any = "json"
    with pytest.raises(UsageError, match="parse must be None or 'example'; got 'json'"):
        TFRecord(tmp_path / "a", parse=wrong)
    assert len(TFRecord(write(tmp_path / "empty", []))) == 0
