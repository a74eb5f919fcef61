"""Zarr: arrays of both versions have the rows that zarr has, and errors name store, array and rows."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Zarr
from penstock.testing import assert_same
from tests.sources.promises import check_source

zarr: Any = pytest.importorskip("zarr")
pytestmark = pytest.mark.usefixtures("started_zarr")

ROWS = 40
IMAGES = np.arange(ROWS * 6, dtype=np.uint8).reshape(ROWS, 2, 3)
LABELS = np.arange(ROWS, dtype=np.int16)
TEXTS = ["é" * (number % 5) for number in range(ROWS)]
RECORDS = [
    {"images": IMAGES[key], "shards": IMAGES[key], "texts": TEXTS[key], "train/labels": LABELS[key]}
    for key in range(ROWS)
]


def write(path: Path, version: int) -> None:
    """Write a group with arrays of every kind, one of them in a group inside."""
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    group.create_array("images", data=IMAGES, chunks=(8, 1, 3))
    group.create_array("train/labels", data=LABELS, chunks=(30,), compressors=None)
    shards = {"shards": (16, 2, 3)} if version > 2 else {}
    group.create_array("shards", data=IMAGES, chunks=(4, 2, 3), **shards)
    texts = group.create_array("texts", shape=(ROWS,), dtype=str, chunks=(20,))
    texts[:] = np.array(TEXTS)
    group.create_array("no rows", shape=(), dtype="i4")


def test_groups_keep_the_promises_of_a_source(tmp_path: Path) -> None:
    """In both versions, also a single array, and a group of which one block is kept."""
    for version in (2, 3):
        write(tmp_path / f"{version}", version)
    check_source(lambda: Zarr(tmp_path / "3"), RECORDS)
    check_source(lambda: Zarr(tmp_path / "2", decoded_bytes=0), RECORDS)
    check_source(lambda: Zarr(tmp_path / "3" / "train" / "labels"), list(LABELS))


def test_rows_of_structured_arrays_are_read(tmp_path: Path) -> None:
    """A record of named numbers is a value of NumPy."""
    boxes = np.array([(number, number / 2) for number in range(20)], [("label", "i4"), ("size", "<f8")])
    zarr.create_array(str(tmp_path / "boxes"), data=boxes, chunks=(6,), zarr_format=2)
    source = pickle.loads(pickle.dumps(Zarr(tmp_path / "boxes")))
    assert_same(source.read(range(20)), list(boxes))


def test_blocks_are_whole_chunks_or_shards(tmp_path: Path) -> None:
    """A block has whole chunks of at least 1 MiB, or whole shards; each is decoded once by a shuffle by blocks."""
    group = zarr.open_group(str(tmp_path), mode="w")
    group.create_array("x", data=np.zeros((5_000, 128)), chunks=(300, 128))
    group.create_array("y", data=np.arange(5_000), chunks=(200,))
    group.create_array("z", data=np.zeros((5_000, 128)), chunks=(100, 128), shards=(2_000, 128))
    source = Zarr(tmp_path, ["y", "x"])
    assert source.blocks.tolist() == [0, 900, 1_800, 2_700, 3_600, 4_500, 5_000]
    assert Zarr(tmp_path, ["z"]).blocks.tolist() == [0, 2_000, 4_000, 5_000]
    dataset = ps.read(source, seed=7).shuffle(blocks=True, live=2, rows=2)
    assert sorted(record["y"] for record in dataset) == list(range(5_000))
    assert list(source[7]) == ["y", "x"]
    assert source.describe_key(7) == f"row 7 of {tmp_path.name!r}"


def test_a_path_is_read(tmp_path: Path) -> None:
    """`ps.read` knows a store by its metadata, whatever its name; a missing chunk has the fill value."""
    for version in (2, 3):
        array = zarr.create_array(
            str(tmp_path / f"{version}"), shape=(3,), dtype="i8", chunks=(2,), fill_value=5, zarr_format=version
        )
        array[:2] = [1, 2]
        assert_same(list(ps.read(tmp_path / f"{version}")), [np.int64(1), np.int64(2), np.int64(5)])


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    """Folders of another format, names of no array, and arrays that don't match are a UsageError with a remedy."""
    group = zarr.open_group(str(tmp_path / "a"), mode="w")
    group["x"], group["y"] = np.arange(3), np.arange(4)
    group.create_array("scalar", shape=(), dtype="i4")
    zarr.open_group(str(tmp_path / "empty"), mode="w")
    cases: list[tuple[str, list[str] | str | None, str]] = [
        ("a", "xy", r"names must be a sequence of names.*got names='xy'"),
        ("a", ["x", "x"], r"names must be different names; got 'x' twice"),
        ("a", ["z"], r"a' has no such 'z'. Name arrays"),
        ("a", ["scalar"], r"has no such 'scalar'"),
        ("a", None, r"same number of rows; '.*a' has {'x': 3, 'y': 4}. Name those to read, as in names=\['x'\]"),
        ("a/x", ["x"], r"names are those of a group's arrays; '.*x' is a single array"),
        ("empty", None, r"must have an array with rows; '.*empty' has none"),
        ("", None, r"a Zarr store has one of zarr.json, .zarray, .zgroup; '.*' has none"),
    ]
    for path, names, reason in cases:
        with pytest.raises(UsageError, match=reason):
            Zarr(tmp_path / path, names)
    with pytest.raises(UsageError, match="decoded_bytes must be at least 0"):
        Zarr(tmp_path / "a", ["x"], decoded_bytes=-1)
    with pytest.raises(SourceError, match=r"cannot list '.*absent'"):
        Zarr(tmp_path / "absent")


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_damaged_stores_are_named(tmp_path: Path, compressors: str | None) -> None:
    """Damaged metadata and truncated chunks are a CorruptRecordError with store, array and rows."""
    group = zarr.open_group(str(tmp_path), mode="w")
    group.create_array("x", data=np.arange(300_000), chunks=(150_000,), compressors=compressors)
    chunk, metadata = tmp_path / "x" / "c" / "1", tmp_path / "x" / "zarr.json"
    source = Zarr(tmp_path)
    chunk.write_bytes(chunk.read_bytes()[:-7])
    assert source[5] == {"x": 5}
    with pytest.raises(CorruptRecordError, match=r"rows 150000 to 299999 of 'x' in '.*' can't be read as Zarr: "):
        source[-1]
    content = metadata.read_text()
    for bad in ("{", content.replace('"int64"', '"int65"'), content.replace('"bytes"', '"bytez"')):
        metadata.write_text(bad)
        with pytest.raises(CorruptRecordError, match=r"can't be read as Zarr: .*truncated or damaged"):
            Zarr(tmp_path, ["x"])


def test_changed_metadata_is_refused_by_a_copy(tmp_path: Path) -> None:
    """A copy in another process compares the arrays that it opens with those that were listed."""
    zarr.create_array(str(tmp_path), data=np.arange(3), chunks=(2,))
    state = Zarr(tmp_path).__getstate__()
    copy = Zarr.__new__(Zarr)
    copy.__setstate__(state)
    assert copy[2] == 2
    zarr.create_array(str(tmp_path), data=np.arange(4), chunks=(2,), overwrite=True)
    copy.__setstate__(state)
    with pytest.raises(SourceError, match=r"changed since it was listed"):
        copy[2]
