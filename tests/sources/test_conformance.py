"""Every source of Penstock keeps the promises that `SourceTests` checks."""

import io
import json
import sqlite3
import struct
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from penstock.sources import (
    MDS,
    Arrays,
    Bagz,
    Csv,
    Files,
    ImageFolder,
    JsonLines,
    LitData,
    Megatron,
    Range,
    Source,
    Sqlite,
    Tar,
    TFRecord,
    Tokens,
)
from penstock.testing import BlockSourceTests, SourceTests

IMAGE = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
LABEL = np.array([7, -1, 0, 3], np.int16)
WEIGHT = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
TABLE = np.arange(60, dtype=np.int32).reshape(5, 12)
DATES = np.array(["2024-01-01", "2024-02-29"], "datetime64[D]")
PAIRS = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
CONTENT = np.arange(100, dtype=np.int32).reshape(10, 10)


class WithFolder(SourceTests):
    """A suite over files: each test has a new folder with new files."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _prepare(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "data"
        self.folder.mkdir()
        self.fill()

    def fill(self) -> None:
        """Write the files."""
        raise NotImplementedError


class WithBlocks(BlockSourceTests, WithFolder):
    """A suite over files with blocks."""


class TestList(SourceTests):
    """A plain list is a source."""

    expected: Sequence[Any] = ("a", "b", "c")

    def make_source(self) -> Source:
        """Return a list."""
        return ["a", "b", "c"]


class TestRange(SourceTests):
    """Integers at equal distances."""

    expected: Sequence[Any] = (9, 6, 3, 0, -3)

    def make_source(self) -> Source:
        """Return five integers."""
        return Range(9, -6, -3)


class TestArraysOfNames(SourceTests):
    """A dict of arrays: rows of several axes, and NumPy scalars."""

    expected: Sequence[Any] = [
        {"image": IMAGE[row].copy(), "label": LABEL[row], "weight": WEIGHT[row]} for row in range(4)
    ]

    def make_source(self) -> Source:
        """Return a dict of three arrays."""
        return Arrays({"image": IMAGE.copy(), "label": LABEL, "weight": WEIGHT})


class TestArraysWithGaps(SourceTests):
    """An array that isn't contiguous is a source, too."""

    expected: Sequence[Any] = [TABLE[row, ::-2].copy() for row in range(5)]

    def make_source(self) -> Source:
        """Return a view with gaps, backwards."""
        return Arrays(TABLE[:, ::-2])


class TestArraysOfObjects(SourceTests):
    """Strings, Python objects, dates and structures."""

    expected: Sequence[Any] = [
        {"name": np.str_("x"), "object": (1, 2), "date": DATES[0], "pair": PAIRS[0]},
        {"name": np.str_("yy"), "object": None, "date": DATES[1], "pair": PAIRS[1]},
    ]

    def make_source(self) -> Source:
        """Return four arrays of unusual dtypes."""
        objects = np.empty(2, object)
        objects[0] = (1, 2)
        return Arrays({"name": np.array(["x", "yy"]), "object": objects, "date": DATES, "pair": PAIRS})


class TestArraysOfEpisodes(SourceTests):
    """Arrays of frames, and a label for each episode."""

    expected: Sequence[Any] = [{"state": IMAGE[row].copy(), "label": LABEL[row]} for row in range(4)]

    def make_source(self) -> Source:
        """Return two arrays, one of them with frames."""
        return Arrays({"state": IMAGE.copy(), "label": LABEL})


class TestMappedArrays(WithFolder):
    """Views of a memory map."""

    expected: Sequence[Any] = [{"x": CONTENT[row, 1:4].copy()} for row in (2, 4, 6, 8)]

    def fill(self) -> None:
        """Write the array with a header before it."""
        (self.folder / "a.bin").write_bytes(b"header" + CONTENT.tobytes())

    def make_source(self) -> Source:
        """Return a view of the mapped array."""
        mapped = np.memmap(self.folder / "a.bin", np.int32, "r", 6, (10, 10))
        return Arrays({"x": mapped[2::2, 1:4]})


class TestFiles(WithFolder):
    """Files below a folder."""

    expected: Sequence[Any] = [
        {"path": "a.txt", "bytes": b"A"},
        {"path": "b/c.txt", "bytes": b""},
        {"path": "b/é.txt", "bytes": b"C"},
    ]

    def fill(self) -> None:
        """Write three files, and one that is hidden."""
        (self.folder / "b").mkdir()
        (self.folder / ".hidden").write_bytes(b"no")
        for record in self.expected:
            (self.folder / record["path"]).write_bytes(record["bytes"])

    def make_source(self) -> Source:
        """Return all of them."""
        return Files(self.folder)


class TestImageFolder(WithFolder):
    """Images in class folders."""

    expected: Sequence[Any] = [
        {"bytes": b"cat/1.png", "label": 0},
        {"bytes": b"cat/deep/2.JPG", "label": 0},
        {"bytes": b"dog/1.png", "label": 1},
    ]

    def fill(self) -> None:
        """Write two classes."""
        for record in self.expected:
            path = self.folder / record["bytes"].decode()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(record["bytes"])

    def make_source(self) -> Source:
        """Return the images."""
        return ImageFolder(self.folder)


class TestTokenWindows(WithFolder):
    """Windows over raw and .npy files."""

    expected: Sequence[Any] = [
        np.array(window, ">u2")
        for window in ([0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9], [100, 101, 102, 103], [103, 104, 105, 106])
    ]

    def fill(self) -> None:
        """Write two files."""
        np.arange(12, dtype=">u2").tofile(self.folder / "a.bin")
        np.save(self.folder / "b.npy", np.arange(100, 107, dtype=">u2"))

    def make_source(self) -> Source:
        """Return overlapping windows."""
        return Tokens([self.folder / "a.bin", self.folder / "b.npy"], 4, dtype=">u2", stride=3)


class TestFoundDocuments(WithFolder):
    """Documents that end after a separator."""

    expected: Sequence[Any] = [np.array(document, np.int32) for document in ([5, 6, 0], [0], [7], [8, 0])]

    def fill(self) -> None:
        """Write two files; the first one's last document lacks its separator."""
        np.array([5, 6, 0, 0, 7], np.int32).tofile(self.folder / "a.bin")
        np.array([8, 0], np.int32).tofile(self.folder / "b.bin")

    def make_source(self) -> Source:
        """Return the documents."""
        return Tokens(f"{self.folder}/*.bin", dtype=np.int32, separator=0)


class TestGivenDocuments(WithFolder):
    """Documents at given offsets, of which one array is memory-mapped."""

    expected: Sequence[Any] = [np.array(document, np.uint8) for document in ([1, 2], [], [3, 4, 5], [9])]

    def fill(self) -> None:
        """Write two files and the offsets of one."""
        np.array([0, 1, 2, 3, 4, 5, 6], np.uint8).tofile(self.folder / "a.bin")
        np.save(self.folder / "b.npy", np.array([9], np.uint8))
        np.save(self.folder / "offsets.npy", np.array([1, 3, 3, 6], np.uint32))

    def make_source(self) -> Source:
        """Return the documents."""
        offsets = np.load(self.folder / "offsets.npy", mmap_mode="r")
        paths = [self.folder / "a.bin", self.folder / "b.npy"]
        return Tokens(paths, dtype=np.uint8, documents=[offsets, np.array([0, 1])])


class TestMegatron(WithFolder):
    """Documents of Megatron's files."""

    expected: Sequence[Any] = [np.array(document, np.uint16) for document in ([5, 6], [7])]

    def fill(self) -> None:
        """Write the tokens and their index."""
        np.array([5, 6, 7], np.uint16).tofile(self.folder / "text.bin")
        head = b"MMIDIDX" + struct.pack("<xxQBQQ", 1, 8, 2, 3)
        (self.folder / "text.idx").write_bytes(head + struct.pack("<iiqqqqq", 2, 1, 0, 4, 0, 1, 2))

    def make_source(self) -> Source:
        """Return the documents."""
        return Megatron(self.folder / "text")


class TestJsonLines(WithBlocks):
    """Lines of JSON in several files."""

    expected: Sequence[Any] = [{"a": 1}, [1, "é"], 3.5, None, "last"]

    def fill(self) -> None:
        """Write two files with blank lines, CRLF and no newline at the end."""
        (self.folder / "1.jsonl").write_bytes('\ufeff{"a": 1}\n\n  \n[1, "é"]\r\n\r\n3.5'.encode())
        (self.folder / "2.jsonl").write_bytes(b' null \n"last"\n\n')

    def make_source(self) -> Source:
        """Return the lines."""
        return JsonLines(f"{self.folder}/*.jsonl")


class TestUncachedJsonLines(TestJsonLines):
    """Lines of JSON whose index can't be kept in a cache."""

    def make_source(self) -> Source:
        """Return the lines, with a file where the cache should be."""
        blocked = self.folder / "file"
        blocked.touch()
        return JsonLines(f"{self.folder}/*.jsonl", cache=blocked / "cache")


class TestTar(WithBlocks):
    """Samples in two tar files, one of them with long names."""

    expected: Sequence[Any] = [
        {"__key__": "a/1", "jpg": b"one" * 400, "cls": b"1"},
        {"__key__": "a/2", "jpg": b"", "seg.png": b"two"},
        {"__key__": "é" * 120, "txt": b"long"},
    ]

    def fill(self) -> None:
        """Write the files."""
        for number, records in enumerate((self.expected[:2], self.expected[2:])):
            with tarfile.open(self.folder / f"{number}.tar", "w", format=tarfile.PAX_FORMAT) as tar:
                for record in records:
                    for field, content in list(record.items())[1:]:
                        member = tarfile.TarInfo(f"{record['__key__']}.{field}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))

    def make_source(self) -> Source:
        """Return the samples."""
        return Tar(f"{self.folder}/*.tar")


class TestTFRecord(WithBlocks):
    """Records in two TFRecord files."""

    expected: Sequence[Any] = [b"a", b"", b"b"]

    def fill(self) -> None:
        """Write the files."""
        contents = [
            "01000000000000000175de4161786ee428000000000000000029039807d8ea82a2",
            "01000000000000000175de4162d98f0c04",
        ]
        for number, content in enumerate(contents):
            (self.folder / f"{number}.tfrecord").write_bytes(bytes.fromhex(content))

    def make_source(self) -> Source:
        """Return the records."""
        return TFRecord(f"{self.folder}/*.tfrecord")


class TestBagz(WithBlocks):
    """Records of a compressed file, and of one with its limits in a file of their own."""

    expected: Sequence[Any] = [b"a" * 500, b"", b"b", b"c"]

    def fill(self) -> None:
        """Write the files."""
        frames = [zstandard.compress(record) if record else b"" for record in self.expected]
        limits = np.cumsum([len(frame) for frame in frames[:3]]).astype("<u8")
        (self.folder / "0.bagz").write_bytes(b"".join(frames[:3]) + limits.tobytes())
        (self.folder / "1.bagz").write_bytes(frames[3])
        (self.folder / "limits.1.bagz").write_bytes(np.array([len(frames[3])], "<u8").tobytes())

    def make_source(self) -> Source:
        """Return the records; the glob matches the limits, too."""
        return Bagz(f"{self.folder}/*.bagz")


class TestMDS(WithBlocks):
    """Samples in two MDS shards."""

    expected: Sequence[Any] = [{"x": np.int8(7)}, {"x": np.int8(8)}, {"x": np.int8(-1)}]

    def fill(self) -> None:
        """Write the shards and their index."""
        columns = {"column_names": ["x"], "column_encodings": ["int8"], "column_sizes": [1]}
        shards: list[dict[str, Any]] = []
        for number, values in enumerate((b"\x07\x08", b"\xff")):
            begin = 4 * (len(values) + 2)
            head = np.array([len(values), *range(begin, begin + len(values) + 1)], "<u4")
            (self.folder / f"{number}.mds").write_bytes(head.tobytes() + values)
            raw = {"basename": f"{number}.mds", "bytes": begin + len(values)}
            shards.append({**columns, "format": "mds", "version": 2, "samples": len(values), "raw_data": raw})
        (self.folder / "index.json").write_text(json.dumps({"shards": shards}))

    def make_source(self) -> Source:
        """Return the samples."""
        return MDS(self.folder)


class TestLitData(WithBlocks):
    """Items in two chunks of LitData, one of which is compressed."""

    expected: Sequence[Any] = [7, 8, -1]

    def fill(self) -> None:
        """Write the chunks and their index."""
        chunks: list[dict[str, Any]] = []
        for number, values in enumerate((self.expected[:2], self.expected[2:])):
            begin = 4 * (len(values) + 2)
            head = np.array([len(values), *range(begin, begin + 12 * len(values) + 1, 12)], "<u4").tobytes()
            content = head + b"".join(struct.pack("<Iq", 8, value) for value in values)
            name = f"chunk-0-{number}.{'zstd.' if number else ''}bin"
            (self.folder / name).write_bytes(zstandard.compress(content) if number else content)
            chunks.append({"filename": name, "chunk_size": len(values), "chunk_bytes": len(content), "dim": None})
        config = {"data_format": ["int"], "data_spec": None, "compression": "zstd", "item_loader": "PyTreeLoader"}
        (self.folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))

    def make_source(self) -> Source:
        """Return the items."""
        return LitData(self.folder)


class TestCsv(WithBlocks):
    """Rows of two CSV files, with quoted newlines."""

    expected: Sequence[Any] = [{"a": 1, "b": "x,\ny"}, {"a": 2, "b": ""}, {"a": 3, "b": "é"}]

    def fill(self) -> None:
        """Write the files."""
        (self.folder / "1.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n1,"x,\ny"\r\n\r\n2,')
        (self.folder / "2.csv").write_bytes('a,b\n3,"é"\n'.encode())

    def make_source(self) -> Source:
        """Return the rows."""
        return Csv(f"{self.folder}/*.csv", {"a": int})


class TestSqlite(WithFolder):
    """Rows of a table."""

    expected: Sequence[Any] = [{"id": 2, "text": "a"}, {"id": 5, "text": None}]

    def fill(self) -> None:
        """Write the database."""
        with closing(sqlite3.connect(self.folder / "a.db")) as database:
            database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
            database.executemany("INSERT INTO t VALUES (?, ?)", [tuple(row.values()) for row in self.expected])
            database.commit()

    def make_source(self) -> Source:
        """Return the rows."""
        return Sqlite(self.folder / "a.db", "t")


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([0, 2.0, 3], "must be int64"),
        ([[0, 3]], "must have one axis"),
        ([3], "a begin and an end"),
        ([1, 3], "must begin with 0"),
        ([0, 2], "must end with the length"),
        ([0, 2, 1, 3], "must never decrease"),
    ],
)
def test_wrong_blocks_fail(blocks: Any, reason: str) -> None:
    """Blocks that don't cover the keys fail the suite with the rule."""

    class Pages(list[int]):
        blocks: Any

    class Suite(BlockSourceTests):
        expected = (5, 6, 7)

        def make_source(self) -> Source:
            source = Pages(self.expected)
            source.blocks = np.array(blocks)
            return source

    with pytest.raises(AssertionError, match=reason):
        Suite().test_blocks_cover_the_keys()
