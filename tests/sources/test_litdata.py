"""LitData: the items of each kind of chunk, windows of tokens, and errors that name file, leaf and byte."""

import base64
import itertools
import json
import pickle
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import LitData, describe_key
from penstock.testing import assert_same

# What LitData 0.2.76 writes: chunks of three items of `whole_item`, of five of `small_item` in frames of two, of three
# rows of `row`, and of four items of tokens, which are 0 to n.
PLAIN = zlib.decompress(
    base64.b64decode(
        "eNqNkrFOwzAQhu8uIa1oQW0pEiPK3IEyIiEHFnYmpCoDDCytkDIgIhASr5PnyAPwCjxCR9i4i+3UMaZwyn92nHOS/ztHADBlfbEuCOA9Aoh5P"
        "gIdduwbobk/9NZ2Aho7+zn2WWQEu2aCEA5EU8D/A9dXl6GaD1U020MJhqzFfJbeprOHx9Uqh4EsvKTL9Gxxkr/mfWNcqo/Mt1xDGDB5ztozSl"
        "iDHybflGcUm8t1u3G8VnWFniMoPeOoo1P2qYrEQpdxKelJ0rOke0l3E7tnLJNydGA/MUVy/yNC571x86SFX1dbOc6Z49Dhdwz68LjMKMDxxqy"
        "JeoZhgGPmsSTZTQIGXaC0AZPZsa7qijrM1gpLny3p6NTFWZHQn2zpV7ZbHpF74Fv85OBv20C6DdT24R/dOOVufAOfRT9+"
    )
)
FRAMES = zlib.decompress(
    base64.b64decode(
        "eNrzcXGLMjBkYGBkYGBgBWImIGZmgAAJIDYD4iggbgHiLVBxkJoKKFsNqoYJiudBxW2A2A+IWRggZt+CiusDsQEQa2zV/6tg9hZokABYH6MII"
        "0jZ4ZWsDNbWDXsMfGNzNBjEwKr85jIysDBJgA0TgFrDeHjl4ZUyQAYbMzOIeXglO8NuFg0xu1P56QeSEo76cXeB9RqYMjI8UACq40BoBRnEAt"
        "F0eCUzgzVzgFPsAg4AcgUrJQ=="
    )
)
ROWS = zlib.decompress(
    base64.b64decode(
        "eNpjZmBgEEHDjkFB/uGGDAz/geACkC/AAAJcDDwMbAysDBxAFhAwsgD5DEAeB5BkgZIMDExAnANlrwHqByrkAZkpARVjhJrHCFV3A6jmCkQdK"
        "0hcBqqOAUpnlqTmQtgsYL4A0IUcQHewg20XgLqNkQldL8j8CrD7eICYHew+kLADA8RfP6B+BQEeBjGoz3jApjIws4Dd68AAA1xAPg/YlyC/90"
        "D9wMyAAOwMuIEEGo0uLgClNdDkNdDkLaA0G5IaZjR3MBDBZ0AKIwZonKGLMyPJsUDtPLwSBCHhB3MXDzAU2cAhJwAJO6BqEyCpghTfD9AsdEC"
        "yayimnx/wPKIFDCYfF8egcANDBgDbhD3j"
    )
)
TOKENS = zlib.decompress(base64.b64decode("eNpjYWBgkABiGSBWAWIDIHZgQABGJJoJjc0MxAAo2ADX"))
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def tree(kind: str, context: object, *children: dict[str, Any]) -> dict[str, Any]:
    """Return a node of PyTree's description of an item."""
    return {"type": f"builtins.{kind}", "context": json.dumps(context), "children_spec": list(children)}


SCALARS = ["str", "int", "float", "bool", "bytes", "pil", "int", "float", "str"]
WHOLE = {
    "data_format": ["no_header_numpy:9", "tensor", "no_header_tensor:11", "numpy", *SCALARS, *["json"] * 7],
    "data_spec": tree(
        "dict",
        ["a", "t", "v", "m", "s", "y", "f", "b", "raw", "p", "nest", "l"],
        *[LEAF] * 10,
        tree("tuple", None, LEAF, tree("list", None, LEAF, LEAF)),
        tree("dict", ["u", "i", "r", "h", "t", "mix", "d"], *[LEAF] * 7),
    ),
}
SMALL = {"data_format": ["tensor", "str"], "data_spec": tree("dict", ["t", "s"], LEAF, LEAF)}
ROW = {"data_format": ["int", "json"], "data_spec": tree("dict", ["x", "l"], LEAF, LEAF)}
TOKEN: dict[str, Any] = {"data_format": ["no_header_tensor:16"], "data_spec": LEAF, "item_loader": "TokensLoader"}


def whole_item(n: int) -> dict[str, Any]:
    """Return item n of `PLAIN`."""
    return {
        "a": np.arange(n + 1, dtype=np.float32),
        "t": np.arange(2 * n, dtype=np.int16).reshape(2, n),
        "v": np.arange(n, dtype=np.uint8),
        "m": np.full((1, n), n, np.float64),
        "s": "é" * n,
        "y": n,
        "f": n / 2,
        "b": n % 2 == 0,
        "raw": b"x" * n,
        "p": np.full((2, 1, 3), n, np.uint8),
        "nest": (n, [n + 0.5, "q"]),
        "l": {
            "u": [{"k": n, "w": "x", "z": None, "f": 0.5, "b": True}] * n,
            "i": [1] * n,
            "r": [1.5] * n,
            "h": [True] * n,
            "t": ["é"] * n,
            "mix": [1, "a", None],
            "d": [{"k": [n]}],
        },
    }


def small_item(n: int) -> dict[str, Any]:
    """Return item n of `FRAMES`."""
    return {"t": np.full((1, n), n, np.int32), "s": "é" * n}


def row(n: int) -> dict[str, Any]:
    """Return row n of `ROWS`."""
    return {"x": n, "l": ["é"] * n}


def chunk_of(items: Sequence[bytes]) -> bytes:
    """Return a chunk of encoded items."""
    offsets = np.cumsum([4 * (len(items) + 2), *map(len, items)])
    return np.array([len(items), *offsets], "<u4").tobytes() + b"".join(items)


def items_of(chunk: bytes, count: int) -> list[bytes]:
    """Return the encoded items of a chunk."""
    offsets = np.frombuffer(chunk, "<u4", count + 1, 4).tolist()
    return [chunk[begin:end] for begin, end in itertools.pairwise(offsets)]


def write(folder: Path, config: dict[str, Any], *chunks: tuple[int, bytes], **others: Any) -> Path:
    """Write chunks of so many items, and their index, and return the folder; `others` describe each chunk."""
    folder.mkdir(exist_ok=True)
    described: list[dict[str, Any]] = []
    for number, (count, content) in enumerate(chunks):
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(content)
        sizes = {"chunk_size": count, "chunk_bytes": len(content), "dim": None}
        described.append({"filename": name, **sizes, **others})
    spec = json.dumps([1, config["data_spec"]])
    index = {"chunks": described, "config": {"item_loader": "PyTreeLoader", **config, "data_spec": spec}}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def encoded(n: int) -> bytes:
    """Return `small_item(n)` as LitData encodes it."""
    tensor = struct.pack(">IIII", 16, 2, 1, n) + np.full(n, n, "<i4").tobytes()
    text = ("é" * n).encode()
    return struct.pack("<II", len(tensor), len(text)) + tensor + text


SMALL_ITEMS = [small_item(n) for n in range(5)]
SMALL_CHUNK = chunk_of([encoded(n) for n in range(5)])
ZSTD = {"compression": "zstd:7"}


def test_chunks_of_litdata(tmp_path: Path) -> None:
    """The items that LitData writes have the values that were written, in every kind of chunk."""
    with LitData(write(tmp_path / "plain", WHOLE, (3, PLAIN), (3, PLAIN))) as source:
        assert_same(source.read([5, 0, 1]), [whole_item(2), whole_item(0), whole_item(1)])
        assert describe_key(source, 4) == "key 4 (byte 249 of file 'chunk-0-1.bin')"
    framed = write(tmp_path / "frames", {**SMALL, **ZSTD, "compression_level": "batch"}, (5, FRAMES), (5, FRAMES))
    for source in (LitData(framed), LitData(framed, decoded_bytes=0), pickle.loads(pickle.dumps(LitData(framed)))):
        assert_same(source.read([*range(10), 0]), [*SMALL_ITEMS, *SMALL_ITEMS, SMALL_ITEMS[0]])
        assert source.blocks.tolist() == [0, 2, 4, 5, 7, 9, 10]
        assert describe_key(source, 7) == "key 7 (item 2 of file 'chunk-0-1.bin')"
    rows = ps.read(write(tmp_path / "rows", ROW, (3, ROWS), (3, ROWS)), seed=7)
    assert_same(list(rows), [row(n) for n in range(3)] * 2)
    assert sorted(record["x"] for record in rows.shuffle(blocks=True, live=1).epoch(0)) == [0, 0, 1, 1, 2, 2]


def test_compressed_items_and_chunks_have_the_same_items(tmp_path: Path) -> None:
    """Items may be compressed by themselves, or with their chunk; a decompressed chunk beside it is read instead."""
    items = chunk_of([zstandard.compress(item) for item in items_of(SMALL_CHUNK, 5)])
    source = LitData(write(tmp_path / "items", {**SMALL, **ZSTD, "compression_level": "sample"}, (5, items)))
    assert_same(source.read(range(5)), SMALL_ITEMS)
    folder = write(tmp_path / "whole", {**SMALL, **ZSTD}, (5, SMALL_CHUNK), (5, SMALL_CHUNK))
    for number in range(2):
        (folder / f"chunk-0-{number}.zstd:7.bin").write_bytes(zstandard.compress(SMALL_CHUNK))
    index = folder / "index.json"
    index.write_text(index.read_text().replace(".bin", ".zstd:7.bin"))
    (folder / "chunk-0-0.bin").unlink()
    source = LitData(folder)
    assert_same(source.read(range(10)), SMALL_ITEMS * 2)
    assert source.blocks.tolist() == [0, 5, 10]
    assert [describe_key(source, key) for key in (4, 6)] == [
        "key 4 (item 4 of file 'chunk-0-0.zstd:7.bin')",
        "key 6 (byte 52 of file 'chunk-0-1.bin')",
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_tokens_are_windows_or_items(tmp_path: Path, *, compressed: bool) -> None:
    """Windows cross items, but no chunks, and drop what doesn't fill one; without a length, items are read."""
    folder = write(tmp_path / "data", TOKEN, (4, TOKENS), (4, TOKENS), dim=10)
    if compressed:
        index = json.loads((folder / "index.json").read_text())
        index["config"]["compression"] = "zstd"
        for chunk in index["chunks"]:
            path = folder / chunk["filename"]
            chunk["filename"] = path.stem + ".zstd.bin"
            (folder / chunk["filename"]).write_bytes(zstandard.compress(path.read_bytes()))
            path.unlink()
        (folder / "index.json").write_text(json.dumps(index))
    windows = LitData(folder, 4)
    assert_same(windows.read(range(4)), [np.array(w, np.int32) for w in ([0, 0, 1, 0], [1, 2, 0, 1])] * 2)
    items = LitData(folder)
    assert_same(items.read(range(8)), [np.arange(n, dtype=np.int32) for n in (1, 2, 3, 4)] * 2)
    assert items.lengths().tolist() == [1, 2, 3, 4] * 2
    assert windows.lengths().tolist() == [4] * 4
    assert items.fingerprint() != windows.fingerprint() != LitData(folder, 5).fingerprint()
    with pytest.raises(UsageError, match=r"got length=11, and no chunk of '.*data' has as many tokens"):
        LitData(folder, 11)


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    """Pickles, encryption, other compressions and types, and a length without tokens are a UsageError with a remedy."""
    folder = tmp_path / "data"
    named = tree("dict", ["a"], {**LEAF, "type": "my.Class"})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data_format": ["tensor", "pickle"]}, r"a pickle runs code .* the leaf item\['s'\] of '.*data' is one"),
        ({"data_format": ["tensor", "mine"]}, r"item\['s'\] of '.*' has 'mine', of a serializer of your own"),
        ({"data_format": ["tensor", "no_header_tensor:10"]}, r"item\['s'\] of '.*' has the dtype number '10'"),
        ({"data_format": ["tensor"], "data_spec": named}, r"item\['a'\] of '.*' has the type 'my.Class'"),
        ({"compression": "gzip"}, "compressed items must be of zstd; '.*' has 'gzip'"),
        ({"encryption": {"algorithm": "fernet", "level": "chunk"}}, "are encrypted"),
        ({"item_loader": "ParquetLoader"}, r"are Parquet files. Read them by ps.sources.Parquet"),
        ({"item_loader": "Own"}, "of PyTreeLoader or TokensLoader; '.*' has those of 'Own'"),
        (
            {"item_loader": "TokensLoader"},
            r"tokens must be arrays or tensors of one axis; '.*' has \('tensor', 'str'\)",
        ),
    ]
    for changed, reason in cases:
        with pytest.raises(UsageError, match=reason):
            LitData(write(folder, {**SMALL, **changed}, (5, SMALL_CHUNK)))
    write(folder, SMALL, (5, SMALL_CHUNK))
    for length, reason in ((3, "written for TokensLoader; got length=3"), (0, "length must be at least 1; got 0")):
        with pytest.raises(UsageError, match=reason):
            LitData(folder, length)
    with pytest.raises(UsageError, match="lengths are those of tokens"):
        LitData(folder).lengths()
    with pytest.raises(UsageError, match=r"index.json; '.*' has none. Pass the output_dir"):
        LitData(tmp_path)
    with pytest.raises(UsageError, match="at least one chunk"):
        LitData(write(folder, SMALL))
    (folder / "index.json").write_text('{"shards": []}')
    with pytest.raises(UsageError, match=r"index of MosaicML Streaming. Read it by ps.sources.MDS"):
        LitData(folder)


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    """An index that lists no chunks, or describes no item, is a CorruptRecordError with the file."""
    chunk = '{"filename": "a", "chunk_size": 1, "chunk_bytes": 1}'
    for index in (
        *("", "[]", "[" * 100_000, '{"chunks": [], "config": 3}', '{"chunks": [{}], "config": {"data_format": []}}'),
        f'{{"chunks": [{chunk}], "config": {{"data_format": []}}}}',
        f'{{"chunks": [{chunk}], "config": {{"data_format": ["int"], "data_spec": "[1]"}}}}',
    ):
        (tmp_path / "index.json").write_text(index)
        with pytest.raises(CorruptRecordError, match=r"index.json' is no index of LitData"):
            LitData(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    """A chunk of another size, another chunk, an item, a frame and a row that is damaged: errors with the place."""
    batch, sample = {**SMALL, **ZSTD, "compression_level": "batch"}, {**SMALL, **ZSTD, "compression_level": "sample"}
    changed = bytearray(FRAMES)
    changed[-1] ^= 1
    no_text = encoded(1)[:-1] + b"\xff"
    cases: list[tuple[dict[str, Any], int, bytes, str]] = [
        (SMALL, 4, SMALL_CHUNK, r"cannot index '.*0.bin' as a file of LitData chunks: it has 5 samples, and .* says 4"),
        (batch, 5, SMALL_CHUNK, r"cannot index '.*0.bin' as a LitData chunk: it must begin with b'LDFZ01"),
        (batch, 4, FRAMES, r"it has 5 items in 3 frames, and index.json says 4"),
        (batch, 5, FRAMES + b"x", r"its table of 3 frames doesn't fit to its 5 items"),
        (batch, 5, bytes(changed), r"frame 2 of the chunk '.*0.bin' \(for key 4 of .* is damaged: zstd"),
        (ROW, 4, ROWS, r"record batch 0 of the chunk '.*0.bin' .* it has 3 rows, and index.json says 4"),
        (ROW, 3, ROWS[:300] + b"\xff" * 200 + ROWS[500:], r"0.bin' must be a whole file of rows of LitData"),
        (sample, 1, chunk_of([b"x"]), r"item at byte 12 of '.*0.bin' \(key 0 of .* can't be decompressed: zstd"),
        (SMALL, 1, chunk_of([no_text]), r"byte 12 of '.*0.bin' .* has no 'str' in the leaf item\['s'\]: its 2 bytes"),
        (SMALL, 1, chunk_of([encoded(1)[:-1]]), r"is too short for the leaf item\['s'\]"),
        (SMALL, 1, chunk_of([encoded(1) + b"x"]), "has 1 bytes more than its leaves"),
    ]
    for config, count, content, reason in cases:
        with (
            pytest.raises(CorruptRecordError, match=reason),
            LitData(write(tmp_path / "data", config, (count, content))) as source,
        ):
            source[-1]
    folder = write(tmp_path / "tokens", TOKEN, (4, TOKENS), dim=11)
    with pytest.raises(CorruptRecordError, match=r"its items have 40 bytes, and index.json says 11 tokens of 4 bytes"):
        LitData(folder, 4)
    (folder / "chunk-0-0.bin").write_bytes(TOKENS[:-1])
    with pytest.raises(SourceError, match=r"0.bin' must have 64 bytes, as index.json says; it has 63"):
        LitData(folder)
