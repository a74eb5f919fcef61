"""Every source of Penstock keeps the promises that `SourceTests` checks."""

import io
import json
import os
import sqlite3
import struct
import tarfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SourceError, UsageError
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
    read_records,
    source_length,
)
from penstock.testing import BlockSourceTests, SourceTests
from tests.profiles import in_short
from tests.sources.promises import check_source

IMAGE = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
LABEL = np.array([7, -1, 0, 3], np.int16)
WEIGHT = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
DATES = np.array(["2024-01-01", "2024-02-29"], "datetime64[D]")
PAIRS = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
CONTENT = np.arange(100, dtype=np.int32).reshape(10, 10)

Make = Callable[[], Source]
Prepare = Callable[[Path, Any], Make]
Case = tuple[Sequence[Any], Prepare]
CASES: dict[str, Case] = {}
BLOCKS: dict[str, Case] = {}
"""Sources with blocks."""


def case(records: Sequence[Any], cases: dict[str, Case] = CASES) -> Callable[[Prepare], Prepare]:
    """Check a source: the function gets an empty folder and the records, and returns what makes the source of them."""

    def add(prepare: Prepare) -> Prepare:
        cases[prepare.__name__] = records, prepare
        return prepare

    return add


@case(("a", "b", "c"))
def plain_list(_folder: Path, _: Any) -> Make:
    """A plain list is a source."""
    return lambda: ["a", "b", "c"]


@case((9, 6, 3, 0, -3))
def numbers(_folder: Path, _: Any) -> Make:
    """Integers at equal distances."""
    return lambda: Range(9, -6, -3)


@case([{"image": IMAGE[row].copy(), "label": LABEL[row], "weight": WEIGHT[row]} for row in range(4)])
def arrays_of_names(_folder: Path, _: Any) -> Make:
    """A dict of arrays: rows of several axes, and NumPy scalars."""
    return lambda: Arrays({"image": IMAGE.copy(), "label": LABEL, "weight": WEIGHT})


@case(
    [
        {"name": np.str_("x"), "object": (1, 2), "date": DATES[0], "pair": PAIRS[0]},
        {"name": np.str_("yy"), "object": None, "date": DATES[1], "pair": PAIRS[1]},
    ]
)
def arrays_of_objects(_folder: Path, _: Any) -> Make:
    """Strings, Python objects, dates and structures."""
    objects = np.empty(2, object)
    objects[0] = (1, 2)
    return lambda: Arrays({"name": np.array(["x", "yy"]), "object": objects, "date": DATES, "pair": PAIRS})


@case([{"x": CONTENT[row, 1:4].copy()} for row in (2, 4, 6, 8)])
def mapped_arrays(folder: Path, _: Any) -> Make:
    """Views of a memory map."""
    (folder / "a.bin").write_bytes(b"header" + CONTENT.tobytes())
    return lambda: Arrays({"x": np.memmap(folder / "a.bin", np.int32, "r", 6, (10, 10))[2::2, 1:4]})


@case([{"x": np.int32(7), "y": 0.5}, {"x": np.int32(8), "y": 1.5}])
def saved_arrays(folder: Path, _: Any) -> Make:
    """Members of an archive, one of them compressed."""
    np.savez_compressed(folder / "a.npz", x=np.array([7, 8], np.int32), y=np.array([0.5, 1.5]))
    return lambda: Arrays.open(folder / "a.npz")


@case([{"path": "a.txt", "bytes": b"A"}, {"path": "b/c.txt", "bytes": b""}, {"path": "b/é.txt", "bytes": b"C"}])
def files(folder: Path, records: Any) -> Make:
    """Files below a folder."""
    (folder / "b").mkdir()
    (folder / ".hidden").write_bytes(b"no")
    for record in records:
        (folder / record["path"]).write_bytes(record["bytes"])
    return lambda: Files(folder)


@case(
    [{"bytes": b"cat/1.png", "label": 0}, {"bytes": b"cat/deep/2.JPG", "label": 0}, {"bytes": b"dog/1.png", "label": 1}]
)
def image_folder(folder: Path, records: Any) -> Make:
    """Images in class folders."""
    for record in records:
        path = folder / record["bytes"].decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record["bytes"])
    return lambda: ImageFolder(folder)


@case(
    [
        np.array(window, ">u2")
        for window in ([0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9], [100, 101, 102, 103], [103, 104, 105, 106])
    ]
)
def token_windows(folder: Path, _: Any) -> Make:
    """Windows over raw and .npy files."""
    np.arange(12, dtype=">u2").tofile(folder / "a.bin")
    np.save(folder / "b.npy", np.arange(100, 107, dtype=">u2"))
    return lambda: Tokens([folder / "a.bin", folder / "b.npy"], 4, dtype=">u2", stride=3)


@case([np.array(document, np.int32) for document in ([5, 6, 0], [0], [7], [8, 0])])
def found_documents(folder: Path, _: Any) -> Make:
    """Documents that end after a separator."""
    np.array([5, 6, 0, 0, 7], np.int32).tofile(folder / "a.bin")
    np.array([8, 0], np.int32).tofile(folder / "b.bin")
    return lambda: Tokens(f"{folder}/*.bin", dtype=np.int32, separator=0)


@case([np.array(document, np.uint8) for document in ([1, 2], [], [3, 4, 5], [9])])
def given_documents(folder: Path, _: Any) -> Make:
    """Documents at given offsets, of which one array is memory-mapped."""
    np.array([0, 1, 2, 3, 4, 5, 6], np.uint8).tofile(folder / "a.bin")
    np.save(folder / "b.npy", np.array([9], np.uint8))
    np.save(folder / "offsets.npy", np.array([1, 3, 3, 6], np.uint32))
    paths, offsets = [folder / "a.bin", folder / "b.npy"], folder / "offsets.npy"
    return lambda: Tokens(paths, dtype=np.uint8, documents=[np.load(offsets, mmap_mode="r"), np.array([0, 1])])


@case([np.array(document, np.uint16) for document in ([5, 6], [7])])
def megatron(folder: Path, _: Any) -> Make:
    """Documents of Megatron's files."""
    np.array([5, 6, 7], np.uint16).tofile(folder / "text.bin")
    head = b"MMIDIDX" + struct.pack("<xxQBQQ", 1, 8, 2, 3)
    (folder / "text.idx").write_bytes(head + struct.pack("<iiqqqqq", 2, 1, 0, 4, 0, 1, 2))
    return lambda: Megatron(folder / "text")


@case([{"a": 1}, [1, "é"], 3.5, None, "last"], BLOCKS)
def json_lines(folder: Path, _: Any) -> Make:
    """Lines of JSON in several files."""
    (folder / "1.jsonl").write_bytes('\ufeff{"a": 1}\n\n  \n[1, "é"]\r\n\r\n3.5'.encode())
    (folder / "2.jsonl").write_bytes(b' null \n"last"\n\n')
    return lambda: JsonLines(f"{folder}/*.jsonl")


@case(
    [
        {"__key__": "a/1", "jpg": b"one" * 400, "cls": b"1"},
        {"__key__": "a/2", "jpg": b"", "seg.png": b"two"},
        {"__key__": "é" * 120, "txt": b"long"},
    ],
    BLOCKS,
)
def tar(folder: Path, records: Any) -> Make:
    """Samples in two tar files, one of them with long names."""
    for number, part in enumerate((records[:2], records[2:])):
        with tarfile.open(folder / f"{number}.tar", "w", format=tarfile.PAX_FORMAT) as written:
            for record in part:
                for field, content in list(record.items())[1:]:
                    member = tarfile.TarInfo(f"{record['__key__']}.{field}")
                    member.size = len(content)
                    written.addfile(member, io.BytesIO(content))
    return lambda: Tar(f"{folder}/*.tar")


@case([b"a", b"", b"b"], BLOCKS)
def tfrecord(folder: Path, _: Any) -> Make:
    """Records in two TFRecord files."""
    contents = [
        "01000000000000000175de4161786ee428000000000000000029039807d8ea82a2",
        "01000000000000000175de4162d98f0c04",
    ]
    for number, content in enumerate(contents):
        (folder / f"{number}.tfrecord").write_bytes(bytes.fromhex(content))
    return lambda: TFRecord(f"{folder}/*.tfrecord")


@case([b"a" * 500, b"", b"b", b"c"], BLOCKS)
def bagz(folder: Path, records: Any) -> Make:
    """Records of a compressed file, and of one with its limits in a file of their own."""
    frames = [zstandard.compress(record) if record else b"" for record in records]
    limits = np.cumsum([len(frame) for frame in frames[:3]]).astype("<u8")
    (folder / "0.bagz").write_bytes(b"".join(frames[:3]) + limits.tobytes())
    (folder / "1.bagz").write_bytes(frames[3])
    (folder / "limits.1.bagz").write_bytes(np.array([len(frames[3])], "<u8").tobytes())
    return lambda: Bagz(f"{folder}/*.bagz")


@case([{"x": np.int8(7)}, {"x": np.int8(8)}, {"x": np.int8(-1)}], BLOCKS)
def mds(folder: Path, _: Any) -> Make:
    """Samples in two MDS shards."""
    columns = {"column_names": ["x"], "column_encodings": ["int8"], "column_sizes": [1]}
    shards: list[dict[str, Any]] = []
    for number, values in enumerate((b"\x07\x08", b"\xff")):
        begin = 4 * (len(values) + 2)
        head = np.array([len(values), *range(begin, begin + len(values) + 1)], "<u4")
        (folder / f"{number}.mds").write_bytes(head.tobytes() + values)
        raw = {"basename": f"{number}.mds", "bytes": begin + len(values)}
        shards.append({**columns, "format": "mds", "version": 2, "samples": len(values), "raw_data": raw})
    (folder / "index.json").write_text(json.dumps({"shards": shards}))
    return lambda: MDS(folder)


@case([7, 8, -1], BLOCKS)
def lit_data(folder: Path, records: Any) -> Make:
    """Items in two chunks of LitData, one of which is compressed."""
    chunks: list[dict[str, Any]] = []
    for number, values in enumerate((records[:2], records[2:])):
        begin = 4 * (len(values) + 2)
        head = np.array([len(values), *range(begin, begin + 12 * len(values) + 1, 12)], "<u4").tobytes()
        content = head + b"".join(struct.pack("<Iq", 8, value) for value in values)
        name = f"chunk-0-{number}.{'zstd.' if number else ''}bin"
        (folder / name).write_bytes(zstandard.compress(content) if number else content)
        chunks.append({"filename": name, "chunk_size": len(values), "chunk_bytes": len(content), "dim": None})
    config = {"data_format": ["int"], "data_spec": None, "compression": "zstd", "item_loader": "PyTreeLoader"}
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return lambda: LitData(folder)


@case([{"a": 1, "b": "x,\ny"}, {"a": 2, "b": ""}, {"a": 3, "b": "é"}], BLOCKS)
def csv(folder: Path, _: Any) -> Make:
    """Rows of two CSV files, with quoted newlines."""
    (folder / "1.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n1,"x,\ny"\r\n\r\n2,')
    (folder / "2.csv").write_bytes('a,b\n3,"é"\n'.encode())
    return lambda: Csv(f"{folder}/*.csv", {"a": int})


@case([{"id": 2, "text": "a"}, {"id": 5, "text": None}])
def sqlite(folder: Path, records: Any) -> Make:
    """Rows of a table."""
    with closing(sqlite3.connect(folder / "a.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [tuple(row.values()) for row in records])
        database.commit()
    return lambda: Sqlite(folder / "a.db", "t")


@pytest.mark.parametrize("name", [*CASES, *BLOCKS])
def test_each_source_keeps_the_promises_of_its_suite(name: str, tmp_path: Path) -> None:
    """They hold for every source, over files and over objects in memory."""
    records, prepare = (CASES | BLOCKS)[name]
    (tmp_path / "data").mkdir()
    check_source(prepare(tmp_path / "data", records), records, BlockSourceTests if name in BLOCKS else SourceTests)


FUZZED = [*BLOCKS, "files", "token_windows", "found_documents", "megatron", "sqlite", "saved_arrays"]


@pytest.mark.filterwarnings("ignore")  # NumPy's, of a file that it can read in spite of the change
@pytest.mark.parametrize("name", FUZZED)
@in_short(10)
@given(at=st.integers(0, 1 << 20), value=st.integers(0, 255) | st.none(), late=st.booleans())
def test_a_changed_byte_gives_records_or_an_error(
    name: str, tmp_path_factory: pytest.TempPathFactory, *, at: int, value: int | None, late: bool
) -> None:
    """If a byte is changed, also unnoticed after indexing, or a file ends, records or an error of Penstock come."""
    records, prepare = (CASES | BLOCKS)[name]
    folder = tmp_path_factory.mktemp("changed")
    make = prepare(folder, records)
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    path = found[at % len(found)]
    content, time_ns = path.read_bytes(), path.stat().st_mtime_ns
    place = at // len(found) % (len(content) + 1)
    changed = content[:place] if value is None else (content[:place] + bytes([value]) + content[place + 1 :])
    try:
        source = make() if late and len(changed) == len(content) else None
        path.write_bytes(changed)
        os.utime(path, ns=(time_ns, time_ns))
        source = make() if source is None else source
        assert len(read_records(source, np.arange(source_length(source)))) == source_length(source)
    except (SourceError, UsageError):
        pass


def test_wrong_blocks_fail() -> None:
    """Blocks that don't cover the keys fail the suite with the rule."""

    class Pages(list[int]):
        blocks: Any

    class Suite(BlockSourceTests):
        expected = (5, 6, 7)
        source = Pages(expected)

        def make_source(self) -> Source:
            return self.source

    cases: list[tuple[Any, str]] = [
        *(([0, 2.0, 3], "must be int64"), ([[0, 3]], "must have one axis"), ([3], "a begin and an end")),
        *(([1, 3], "must begin with 0"), ([0, 2], "must end with the length"), ([0, 2, 1, 3], "must never decrease")),
    ]
    for blocks, reason in cases:
        Suite.source.blocks = np.array(blocks)
        with pytest.raises(AssertionError, match=reason):
            Suite().test_blocks_cover_the_keys()


class Pairs:
    """Keys below 6, each as a record of two numbers and the key."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> Any:
        if not 0 <= key < len(self):
            raise IndexError(key)
        return self.record(int(key))

    def record(self, key: int) -> Any:
        """Return a new record."""
        return {"pair": np.full(2, key), "key": key}


class Partial(Pairs):
    """Takes for granted that the rows to fill are zero."""

    def read_into(self, keys: Any, out: Any) -> None:
        """Fill the rows whose key isn't 0."""
        out["pair"][keys > 0] = keys[keys > 0, None]
        out["key"][:] = keys


class Replaces(Pairs):
    """Replaces an array instead of filling it."""

    def read_into(self, keys: Any, out: Any) -> None:
        """Fill one of the arrays."""
        out["pair"] = np.stack([keys, keys], 1)
        out["key"][:] = keys


class Reuses(Pairs):
    """Reads into one buffer for each thread."""

    buffers = threading.local()

    def read(self, keys: Any) -> Any:
        """Return rows of the buffer."""
        buffer = self.buffers.__dict__.setdefault("rows", np.zeros((500, 2), np.int64))
        buffer[: len(keys)] = keys[:, None]
        return [{"pair": buffer[row], "key": int(key)} for row, key in enumerate(keys)]


class Keeps(Pairs):
    """Returns a dict again that it returned before."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def record(self, key: int) -> Any:
        """Return the dict of the key."""
        return self.kept.setdefault(key, {"pair": super().record(key)["pair"].tolist(), "key": key})


class Views(Pairs):
    """Returns views of its memory, but for key 0."""

    rows = np.arange(6).repeat(2).reshape(6, 2)

    def __init__(self) -> None:
        self.rows = self.rows.copy()

    def record(self, key: int) -> Any:
        """Return a row."""
        return {"pair": self.rows[key] if key else self.rows[key].copy(), "key": key}


class Sorts(Pairs):
    """Returns many records in another order."""

    def read(self, keys: Any) -> Any:
        """Return the records of the keys, or of the sorted ones."""
        return [self[key] for key in (keys if len(keys) < 20 else np.sort(keys))]


def _suite(source: type[Pairs]) -> SourceTests:
    class Suite(SourceTests):
        expected = tuple(source().record(key) for key in range(6))

        def make_source(self) -> object:
            return source()

    return Suite()


@pytest.mark.parametrize(
    ("source", "test"),
    [
        (Partial, "test_read_into_fills_what_read_returns"),
        (Replaces, "test_read_into_fills_what_read_returns"),
        (Reuses, "test_records_stay_as_they_are_at_later_reads"),
        (Keeps, "test_records_are_independent_of_the_source"),
        (Views, "test_records_are_independent_of_the_source"),
        (Sorts, "test_records_come_in_the_order_of_the_keys"),
    ],
)
def test_a_faulty_source_fails(source: type[Pairs], test: str) -> None:
    """Each of these faults gives wrong batches in a loader."""
    with pytest.raises(AssertionError, match=r"must equal|must fill out\['pair'\], and not replace it"):
        getattr(_suite(source), test)()


class OfNaN(Pairs):
    """Records of NaN alone and in arrays, of NumPy's objects too."""

    def record(self, key: int) -> Any:
        """Return a new record."""
        array = np.array([key, np.nan])
        return {"array": array, "nan": float("nan"), "objects": array.astype(object), "pair": array.view("f8,f8")}


@dataclass
class Sample:
    """A record that is a dataclass."""

    pair: Any
    date: Any


class OfSamples(Pairs):
    """Records that are dataclasses with arrays."""

    def record(self, key: int) -> Any:
        """Return a new record."""
        return Sample(np.full(2, key), np.array(["NaT", "2024-02-29"], "M8[D]"))


class OfTensors(Pairs):
    """Records with tensors of torch."""

    def record(self, key: int) -> Any:
        """Return a new record."""
        torch: Any = pytest.importorskip("torch")
        return {"tensor": torch.tensor([key, float("nan")])}


class Awaited(Pairs):
    """A source whose `read` is a coroutine function."""

    async def read(self, keys: Any) -> Any:
        """Return the records."""
        return [self[key] for key in keys]


@pytest.mark.parametrize("source", [Awaited, OfNaN, OfSamples, OfTensors])
def test_a_correct_source_passes(source: type[Pairs]) -> None:
    """Whatever its records hold, and if its `read` is awaited."""
    check_source(source, [source().record(key) for key in range(6)], SourceTests)
