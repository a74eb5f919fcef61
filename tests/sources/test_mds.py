"""MDS: the columns of MosaicML Streaming's shards, and errors that name file, column and byte."""

import base64
import gzip
import json
import os
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import MDS, describe_key, read_records
from penstock.sources._encoded import DamageError
from penstock.sources._mds import Column, SampleDecoder, decoder_of
from penstock.testing import assert_same
from tests.profiles import in_short

# Three samples, as Streaming 0.13 writes them: {"a": [0.0, …, n], "s": "é" * n, "y": n, "z": [n, n]} of sample n.
COLUMNS = {"a": ("ndarray", None), "s": ("str", None), "y": ("int32", 4), "z": ("ndarray:uint16:2", 4)}
WRITTEN = base64.b64decode(
    "AwAAAPgAAAAPAQAALAEAAE8BAAB7ImNvbHVtbl9lbmNvZGluZ3MiOiBbIm5kYXJyYXkiLCAic3RyIiwgImludDMyIiwgIm5kYXJyYXk6dWludDE2"
    "OjIiXSwgImNvbHVtbl9uYW1lcyI6IFsiYSIsICJzIiwgInkiLCAieiJdLCAiY29sdW1uX3NpemVzIjogW251bGwsIG51bGwsIDQsIDRdLCAiY29t"
    "cHJlc3Npb24iOiBudWxsLCAiZm9ybWF0IjogIm1kcyIsICJoYXNoZXMiOiBbXSwgInNpemVfbGltaXQiOiA2MDAsICJ2ZXJzaW9uIjogMn0HAAAA"
    "AAAAACIEAQAAAAAAAAAAAAAAAAsAAAACAAAAIgQCAAAAAAAAgD/DqQEAAAABAAEADwAAAAQAAAAiBAMAAAAAAACAPwAAAEDDqcOpAgAAAAIAAgA="
)


def shard_of(samples: Sequence[bytes]) -> bytes:
    """Return a shard of encoded samples."""
    begin = 4 * (len(samples) + 2) + 2  # the columns in the shard aren't read
    offsets = np.cumsum([begin, *map(len, samples)])
    return np.array([len(samples), *offsets], "<u4").tobytes() + b"{}" + b"".join(samples)


def write(folder: Path, columns: Mapping[str, tuple[str, int | None]], *shards: bytes, **others: Any) -> Path:
    """Write shards and their index, and return the folder; `others` are entries of each shard in the index."""
    folder.mkdir(exist_ok=True)
    described: list[dict[str, Any]] = []
    for number, content in enumerate(shards):
        (folder / f"{number}.mds").write_bytes(content)
        described.append(
            {
                "column_names": list(columns),
                "column_encodings": [encoding for encoding, _ in columns.values()],
                "column_sizes": [size for _, size in columns.values()],
                "format": "mds",
                "version": 2,
                "samples": int.from_bytes(content[:4], "little"),
                "raw_data": {"basename": f"{number}.mds", "bytes": len(content), "hashes": {}},
                "zip_data": None,
                **others,
            }
        )
    (folder / "index.json").write_text(json.dumps({"shards": described, "version": 2}))
    return folder


def one(folder: Path, encoding: str, value: bytes, size: int | None = None) -> Path:
    """Write a folder with one sample, of one column `x`, and return it."""
    head = b"" if size else struct.pack("<I", len(value))
    return write(folder, {"x": (encoding, size)}, shard_of([head + value]))


def test_files_of_streaming(tmp_path: Path) -> None:
    """The samples that Streaming writes have the values that were written."""
    expected = [
        {"a": np.arange(n + 1, dtype=np.float32), "s": "é" * n, "y": np.int32(n), "z": np.array([n, n], np.uint16)}
        for n in range(3)
    ]
    with MDS(write(tmp_path / "data", COLUMNS, WRITTEN)) as source:
        assert_same(source.read([2, 0, 1]), [expected[2], expected[0], expected[1]])
        assert describe_key(source, 1) == "key 1 (byte 271 of file '0.mds')"


ENCODED = [
    ("bytes", b"\0\1", b"\0\1"),
    ("jpeg", b"\xff\xd8", b"\xff\xd8"),
    ("int", struct.pack("<q", -5), -5),
    ("float16", struct.pack("<e", 0.5), np.float16(0.5)),
    ("str_int", b"-1" + b"0" * 30, -(10**30)),
    ("str_float", b"1e-3", 0.001),
    ("str_decimal", b"0.10", Decimal("0.10")),
    ("json", b'{"a": [1, null]}', {"a": [1, None]}),
    ("ndarray", b"\x22\x09" + struct.pack("<HHf", 1, 1, 2.5), np.array([[2.5]], np.float32)),
    ("ndarray:int8", b"\4\2\1\2", np.array([1, 2], np.int8)),
    ("ndarray:uint8:2,2", b"\1\2\3\4", np.array([[1, 2], [3, 4]], np.uint8)),
    ("pil", struct.pack("<III", 2, 1, 3) + b"RGB" + bytes(range(6)), np.arange(6, dtype=np.uint8).reshape(1, 2, 3)),
    ("pil", struct.pack("<III", 1, 2, 1) + b"L" + b"\7\x08", np.array([[7], [8]], np.uint8)),
    ("pil", struct.pack("<III", 9, 2, 1) + b"1\x80\x80\x40\0", np.isin(np.arange(18).reshape(2, 9), (0, 8, 10))),
    ("list[png]", struct.pack("<IIII", 0, 2, 1, 2) + b"abb", [b"a", b"bb"]),
    ("jpeg_array", struct.pack("<II", 1, 2) + b"ab", [b"ab"]),
    ("list[pil]", struct.pack("<III", 0, 1, 14) + struct.pack("<III", 1, 1, 1) + b"L\7", [np.array([[7]], np.uint8)]),
]


def test_each_encoding_has_its_value(tmp_path: Path) -> None:
    """A column of each encoding has the value that Streaming reads; images stay bytes, or are arrays of pixels."""
    for number, (encoding, content, value) in enumerate(ENCODED):
        assert_same(MDS(one(tmp_path / f"{number}", encoding, content))[0], {"x": value})


def test_a_value_that_is_none_of_its_encoding_is_named(tmp_path: Path) -> None:
    """A value that can't be decoded is a CorruptRecordError with file, byte, key, column and encoding."""
    cases: tuple[tuple[str, bytes], ...] = (
        *(("str", b"\xff"), ("int", b"\1"), ("float32", b"\1" * 5), ("str_int", b"seven"), ("str_decimal", b"x")),
        *(("json", b"["), ("json", b"[" * 100_000), ("ndarray", b""), ("ndarray", b"\7\0"), ("ndarray", b"\x08")),
        *(("ndarray", b"\x08\xff" + b"\xff" * 500), ("ndarray:int8:3", b"ab"), ("pil", b"\1")),
        ("pil", struct.pack("<III", 2, 2, 1) + b"Q" + b"abcd"),
        ("pil", struct.pack("<III", 2**32 - 1, 2**32 - 1, 1) + b"Labcd"),
        ("list[jpeg]", struct.pack("<II", 0, 2**32 - 1)),
        ("jpeg_array", struct.pack("<II", 1, 5) + b"abcd"),
    )
    for number, (encoding, content) in enumerate(cases):
        source = MDS(one(tmp_path / f"{number}", encoding, content))
        with pytest.raises(CorruptRecordError, match=r"byte 14 of '.*0.mds' \(key 0 of .* in the column 'x'") as caught:
            read_records(source, np.array([0]))
        assert caught.match(rf"has no '{encoding.replace('[', '.')[:5]}")
        assert caught.value.keys == (0,)


_PARTS: dict[str, Any] = {
    "str": st.text(max_size=5).map(str.encode),
    "bytes": st.binary(max_size=5),
    "int": st.binary(min_size=8, max_size=8),
    "float16": st.binary(min_size=2, max_size=2),
    "float32": st.binary(min_size=4, max_size=4),
    "uint8": st.binary(min_size=1, max_size=1),
    "int64": st.binary(min_size=8, max_size=8),
    "str_int": st.integers().map(lambda number: str(number).encode()),
    "json": st.integers().map(lambda number: json.dumps({"n": number}).encode()),
}


@in_short(10)
@given(data=st.data())
def test_native_code_makes_the_values_of_each_decoder(data: st.DataObject) -> None:
    """Samples, also damaged ones, have the values or the error that they have column by column."""
    encodings = data.draw(st.lists(st.sampled_from(list(_PARTS)), max_size=4))
    values = [data.draw(_PARTS[encoding]) for encoding in encodings]
    is_fixed = [data.draw(st.booleans()) for _ in values]
    sizes = [
        struct.pack("<I", len(value)) for value, fixed in zip(values, is_fixed, strict=True) if not (fixed and value)
    ]
    content = b"".join([*sizes, *values])
    places = data.draw(st.dictionaries(st.integers(0, len(content)), st.integers(0, 255), max_size=2))
    content = bytes(places.get(place, byte) for place, byte in enumerate(content))
    content = content[: len(content) - data.draw(st.sampled_from([0, 0, 1, 4]))] + data.draw(
        st.sampled_from([b"", b"1"])
    )
    columns = [
        Column(str(number), encoding, len(value) if fixed else data.draw(st.sampled_from([0, 0, 0, 0, 7, 1 << 80])))
        for number, (encoding, value, fixed) in enumerate(zip(encodings, values, is_fixed, strict=True))
    ]
    decoder = SampleDecoder(columns, [decoder_of(column.encoding) for column in columns])
    assert_same(_outcome(decoder.decode, content), _outcome(decoder.decode_each, content))


def _outcome(decode: Callable[[bytes], dict[str, Any]], content: bytes) -> dict[str, Any]:
    """Return the values of a sample with their bits and order, or the text of its error."""
    try:
        record = decode(content)
    except DamageError as damage:
        return {"damage": str(damage)}
    return {
        "order": list(record),
        "types": [type(value) for value in record.values()],
        "bits": [value.tobytes() if isinstance(value, np.generic) else value for value in record.values()],
    }


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    """Pickles, compressed shards, other formats and columns are a UsageError with the reason and a remedy."""
    folder = tmp_path / "data"
    good = shard_of([b"\1"])
    x: dict[str, tuple[str, int | None]] = {"x": ("int8", 1)}
    zipped = {"zip_data": {"basename": "0.mds.br", "bytes": 9}, "compression": "br:7"}
    with pytest.raises(UsageError, match=r"index.json; '.*' has none.*merge_index"):
        MDS(tmp_path)
    for columns, others, reason in (
        ({"x": ("pkl", None)}, {}, "a pickle runs code that the file contains; the column 'x' .*another encoding"),
        ({"x": ("video", None)}, {}, "the encoding 'video' is unknown. Known are bytes, float16"),
        ({"x": ("ndarray:int9", None)}, {}, "'ndarray:int9:' is invalid"),
        (x, {"format": "json"}, "'json'. Read JSON lines by ps.sources.JsonLines"),
        (x, {"version": 3}, "has version 3"),
    ):
        with pytest.raises(UsageError, match=reason):
            MDS(write(folder, columns, good, **others))
    write(folder, x, good, **zipped)
    assert MDS(folder)[0] == {"x": 1}  # the decompressed shard is there
    (folder / "0.mds").unlink()
    with pytest.raises(UsageError, match=r"of zstd or gzip; '.*0.mds.br' is of 'br:7'. Decompress each.*to.*0.mds'"):
        MDS(folder)
    write(folder, x, good, good)
    index = (folder / "index.json").read_text()
    (folder / "index.json").write_text(index.replace('"x"', '"y"', 1))
    with pytest.raises(UsageError, match=r"0.mds' has {'y': 'int8'}, '.*1.mds' has {'x': 'int8'}. Read them as two"):
        MDS(folder)
    (folder / "index.json").write_text('{"shards": []}')
    with pytest.raises(UsageError, match=r"at least one shard"):
        MDS(folder)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"zstd:7": zstandard.compress, "gz": gzip.compress}


def compressed(folder: Path, kind: str, *contents: bytes) -> Path:
    """Write the shards of `WRITTEN`'s columns with these compressed bytes, and return the folder."""
    write(folder, COLUMNS, *[WRITTEN] * len(contents), compression=kind)
    index = json.loads((folder / "index.json").read_text())
    for shard, content in zip(index["shards"], contents, strict=True):
        name = shard["raw_data"]["basename"]
        (folder / name).rename(folder / f"{name}.raw")
        (folder / f"{name}.z").write_bytes(content)
        shard["zip_data"] = {"basename": f"{name}.z", "bytes": len(content), "hashes": {}}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_shards_have_the_records_of_decompressed_ones(tmp_path: Path, kind: str) -> None:
    """A compressed shard is a block, decompressed as a whole; beside it, a decompressed one is read instead."""
    folder = compressed(tmp_path / "data", kind, *[COMPRESS[kind](WRITTEN)] * 3)
    expected = MDS(write(tmp_path / "raw", COLUMNS, WRITTEN, WRITTEN, WRITTEN)).read(range(9))
    (folder / "1.mds.raw").rename(folder / "1.mds")
    source = MDS(folder)
    for made in (source, MDS(folder, decoded_bytes=0), pickle.loads(pickle.dumps(source))):
        assert_same(made.read([8, 0, 4, 1, 8]), [expected[8], expected[0], expected[4], expected[1], expected[8]])
    assert source.blocks.tolist() == [0, 3, 6, 9]
    assert describe_key(source, 7) == "key 7 (sample 1 of file '2.mds.z')"


def test_a_damaged_compressed_shard_is_named(tmp_path: Path) -> None:
    """A shard that can't be decompressed, is larger than the index says, or is another one, is a CorruptRecordError."""
    for number, (kind, content, reason) in enumerate(
        (
            ("zstd", zstandard.compress(WRITTEN)[:-1], "zstd: the input ends before"),
            ("zstd", zstandard.compress(b"\0" * (1 << 20)), "must have at most 335 bytes, and has a frame of 1048576"),
            ("gz", gzip.compress(b"\0" * (1 << 20)), "must have at most 335 bytes"),
            ("gz", WRITTEN, "gzip: the input is corrupt"),
            ("gz", gzip.compress(WRITTEN[:-1]), "it has 334 bytes when it is decompressed, and index.json says 335"),
            ("zstd", zstandard.compress(b"\1" + WRITTEN[1:]), "it has 1 samples, and index.json says 3"),
        )
    ):
        source = MDS(compressed(tmp_path / f"{number}", kind, content))
        with pytest.raises(CorruptRecordError, match=rf"'.*0.mds.z' \(for key 2 .* is damaged: .*{reason}") as caught:
            source[2]
        assert caught.value.keys == (2,)


def test_a_damaged_shard_or_index_is_refused(tmp_path: Path) -> None:
    """A shard whose offsets aren't those of the file, and an index without shards, are a CorruptRecordError."""
    good, folder = shard_of([b"\1", b"\2\2"]), tmp_path / "data"
    for content, reason in (
        (good[:11], "it has 11 bytes, too few for the offsets of 2 samples"),
        (b"\1" + good[1:], "it has 1 samples, and index.json says 2"),
        (good[:4] + b"\0" + good[5:], "its offsets, from 0 to 21, don't cover 21 bytes"),
        (good[:12] + b"\x16" + good[13:], "its offsets, from 18 to 22, don't cover 21 bytes"),
        (good[:8] + b"\x16" + good[9:], "its offsets, from 18 to 21"),
    ):
        write(folder, {"x": ("bytes", None)}, content, samples=2)
        with pytest.raises(CorruptRecordError, match=rf"cannot index '.*0.mds' as a file of MDS shards: {reason}"):
            MDS(folder)
    for index in ("", "[]", '{"shards": 3}', '{"shards": [{}]}', "[" * 100_000, '{"shards": {"a": 1}}'):
        (folder / "index.json").write_text(index)
        with pytest.raises(CorruptRecordError, match=r"index.json' is no index of MDS shards"):
            MDS(folder)


def test_an_index_of_litdata_names_its_source(tmp_path: Path) -> None:
    """The error says which source reads the folder."""
    (tmp_path / "index.json").write_text('{"chunks": [], "config": {}}')
    with pytest.raises(UsageError, match=r"index of LitData. Read it by ps.sources.LitData"):
        MDS(tmp_path)


@in_short(10)
@given(place=st.integers(0, len(WRITTEN) - 1), value=st.integers(0, 255) | st.none())
def test_a_changed_byte_gives_records_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int | None
) -> None:
    """A shard with a changed byte, or cut there, has records of its columns, or raises a SourceError."""
    folder = write(tmp_path_factory.mktemp("fuzz"), COLUMNS, WRITTEN)
    changed = WRITTEN[:place] if value is None else WRITTEN[:place] + bytes([value]) + WRITTEN[place + 1 :]
    (folder / "0.mds").write_bytes(changed)
    try:
        with MDS(folder, cache=folder, progress=False) as source:
            records = source.read(range(3))
    except SourceError:
        return
    assert all(list(record) == list(COLUMNS) for record in records)


def test_changed_files_are_refused(tmp_path: Path) -> None:
    """A shard of another size, a missing one and one that changed unnoticed are errors with the file."""
    folder = write(tmp_path / "data", COLUMNS, WRITTEN)
    path, time_ns = folder / "0.mds", (folder / "0.mds").stat().st_mtime_ns
    source = MDS(folder)
    path.write_bytes(WRITTEN[:248] + b"\xff" + WRITTEN[249:])
    os.utime(path, ns=(time_ns, time_ns))
    with pytest.raises(CorruptRecordError, match=r"byte 248 of '.*0.mds' \(key 0 .* too short for the column 'a'"):
        source[0]
    path.write_bytes(WRITTEN[:-1])
    with pytest.raises(SourceError, match=r"0.mds' must have 335 bytes, as index.json says; it has 334.*copy it again"):
        MDS(folder)
    path.unlink()
    with pytest.raises(SourceError, match=r"cannot read '.*0.mds'"):
        MDS(folder)


def test_a_copy_is_sent_by_path(tmp_path: Path) -> None:
    """A pickled source has the paths and the columns, not the index."""
    samples = [struct.pack("<I", 3) + b"%03d" % number for number in range(500)]
    sent = pickle.dumps(MDS(write(tmp_path / "data", {"x": ("str_int", None)}, shard_of(samples))))
    assert len(sent) < 1_500
    assert pickle.loads(sent)[499] == {"x": 499}
