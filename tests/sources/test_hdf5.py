"""HDF5: datasets of every layout have the rows that h5py has, and errors name file, dataset and rows."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import HDF5
from penstock.testing import assert_same
from tests.sources.promises import check_source

h5py: Any = pytest.importorskip("h5py")

IMAGES = np.arange(70 * 6, dtype=np.uint8).reshape(70, 2, 3)
LABELS = np.arange(70, dtype=">i2")
TEXTS = ["é" * (number % 5) for number in range(70)]
RAGGED = [np.arange(number % 4, dtype=np.int32) for number in range(70)]
FLAGS = LABELS % 3 == 0
RECORDS = [
    {
        "chunked": IMAGES[key],
        "codes": np.bytes_(b"%d" % key),
        "flags": FLAGS[key],
        "group/images": IMAGES[key],
        "group/labels": LABELS[key],
        "ragged": RAGGED[key],
        "texts": TEXTS[key],
    }
    for key in range(70)
]


def write(path: Path, part: slice) -> None:
    """Write a file with a dataset of every layout, after a user block of 512 bytes."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file["group/images"] = IMAGES[part]
        file["group/labels"] = LABELS[part]
        file["flags"] = FLAGS[part]
        file["codes"] = np.array([b"%d" % key for key in range(70)])[part]
        file.create_dataset("chunked", data=IMAGES[part], chunks=(8, 2, 3), compression="gzip", shuffle=True)
        file.create_dataset("texts", data=TEXTS[part], dtype=h5py.string_dtype())
        ragged = file.create_dataset("ragged", (len(RAGGED[part]),), h5py.vlen_dtype(np.int32))
        for row, values in enumerate(RAGGED[part]):
            ragged[row] = values
        file["no rows"] = 3.5


@pytest.mark.parametrize("decoded_bytes", [1 << 30, 0])
def test_two_files_keep_the_promises_of_a_source(tmp_path: Path, decoded_bytes: int) -> None:
    """If all blocks are kept, and if one is."""
    write(tmp_path / "0.h5", slice(0, 40))
    write(tmp_path / "1.h5", slice(40, 70))
    check_source(lambda: HDF5(f"{tmp_path}/*.h5", decoded_bytes=decoded_bytes), RECORDS)


def test_blocks_are_whole_chunks(tmp_path: Path) -> None:
    """A block has whole chunks of at least 1 MiB; each is decoded once by a shuffle by blocks."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((5_000, 128), np.float64), chunks=(300, 128), compression="lzf")
        file.create_dataset("y", data=np.arange(5_000), chunks=(200,))
    source = HDF5(tmp_path / "a.h5", ["y", "x"])
    assert source.blocks.tolist() == [0, 900, 1_800, 2_700, 3_600, 4_500, 5_000]
    (tmp_path / "bare").write_bytes((tmp_path / "a.h5").read_bytes())
    assert ps.read(tmp_path / "bare")[7]["y"] == 7  # known by its first bytes
    dataset = ps.read(tmp_path / "a.h5", seed=7).shuffle(blocks=True, live=2, rows=2)
    assert sorted(record["y"] for record in dataset) == list(range(5_000))
    assert list(source[7]) == ["y", "x"]
    assert source.describe_key(7) == "row 7 of file 'a.h5'"


@pytest.mark.parametrize("kind", ["virtual", "linked", "external"])
def test_another_file_with_values_counts_as_a_file(tmp_path: Path, kind: str) -> None:
    """A changed one raises SourceError and changes the identity, and a missing one raises SourceError."""
    other = tmp_path / "other.h5"

    def write_other(first: int) -> None:
        values = np.arange(first, first + 4)
        if kind == "external":
            values.tofile(other)
        else:
            with h5py.File(other, "w") as file:
                file["x"] = values
        os.utime(other, ns=(first, first))

    def cached() -> list[int]:
        dataset = ps.read(HDF5(tmp_path / "a.h5", ["x"])).cache(tmp_path / "cache")
        return [int(record["x"]) for record in dataset]

    write_other(1)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if kind == "virtual":
            layout = h5py.VirtualLayout((4,), "i8")
            layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
            file.create_virtual_dataset("x", layout)
        elif kind == "linked":
            file["x"] = h5py.ExternalLink("other.h5", "x")
        else:
            file.create_dataset("x", (4,), "i8", external=[(str(other), 0, 32)])
    assert cached() == [1, 2, 3, 4]
    source = HDF5(tmp_path / "a.h5", ["x"])
    write_other(5)
    with pytest.raises(SourceError, match=r"other.h5' changed since it was indexed"):
        source[0]
    assert cached() == [5, 6, 7, 8]
    other.unlink()
    with pytest.raises((SourceError, UsageError)):
        HDF5(tmp_path / "a.h5", ["x"])


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    """The error says that the text is wrong, and not the file or a plug-in."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (1,), h5py.string_dtype("ascii"))[0] = b"\xff"
    with pytest.raises(
        CorruptRecordError, match=r"rows 0 to 0 of '.*a.h5' must have texts in UTF-8: .*Write them again"
    ):
        HDF5(tmp_path / "a.h5")[0]


def test_contiguous_datasets_have_the_values_of_h5py(tmp_path: Path) -> None:
    """Datasets before their first write, and types that differ in the file from those in memory, are read by h5py."""
    padded = h5py.h5t.C_S1.copy()
    padded.set_size(5)
    padded.set_strpad(h5py.h5t.STR_SPACEPAD)
    short = h5py.h5t.STD_I16LE.copy()
    short.set_precision(12)
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file.create_dataset("unwritten", (3,), "i4", fillvalue=7)
        file.create_dataset("empty", (3, 0), "i4")
        for name, kind, values in (("text", padded, np.array([b"cat  "] * 3)), ("number", short, np.full(3, -5, "i2"))):
            dataset = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((3,)))
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=padded if name == "text" else None)
    expected = {"empty": np.zeros(0, "i4"), "number": np.int16(-5), "text": np.bytes_(b"cat"), "unwritten": np.int32(7)}
    assert_same(HDF5(tmp_path / "a.h5")[1], expected)


@pytest.mark.parametrize("chunks", [None, (2, 1)])
def test_values_of_an_array_type_are_arrays(tmp_path: Path, chunks: tuple[int, int] | None) -> None:
    """The axes of a value follow those of the row, whether or not the dataset has chunks; files must have one type."""
    points = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    for name, dtype in (("a.h5", "(3,)f4"), ("b.h5", "(3,)i4")):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", (4, 2), dtype, chunks=chunks)[...] = points
    source = HDF5(tmp_path / "a.h5")
    assert_same(source.read([1, 3]), [{"x": points[1]}, {"x": points[3]}])
    with pytest.raises(UsageError, match=r"a.h5' has 'x': float32\[2, 3\], '.*b.h5' has 'x': int32\[2, 3\]"):
        HDF5(tmp_path / "*.h5")


def test_a_record_shares_nothing_with_the_next_read(tmp_path: Path) -> None:
    """A change of a row of fields, or of an array within a row of arrays, doesn't change what is read next."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        boxes = np.array([(1, 2.5)] * 3, [("label", "i4"), ("size", "f8")])
        file.create_dataset("boxes", data=boxes, chunks=(2,))
        ragged = file.create_dataset("ragged", (3, 2), h5py.vlen_dtype(np.int32))
        ragged[1, 0] = [4, 5]
    source = HDF5(tmp_path / "a.h5")
    record = source[1]
    record["boxes"]["label"], record["ragged"][0][0] = 7, 7
    again = source[1]
    assert again["boxes"].item() == (1, 2.5)
    assert again["ragged"][0].tolist() == [4, 5]


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    """Names of no dataset, datasets that don't match, and files that don't match are a UsageError with a remedy."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["scalar"] = np.arange(3), np.arange(4), 5
        file.create_dataset("reference", (3,), h5py.ref_dtype)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.arange(3.0)
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    for paths, names, reason in (
        ("a.h5", "xy", r"names must be a sequence of names.*got names='xy'"),
        ("a.h5", ["x", "x"], r"names must be different names; got 'x' twice"),
        ("a.h5", ["z"], r"a.h5' has no such 'z'. It has 'reference', 'x', 'y'"),
        ("a.h5", ["scalar"], r"has no such 'scalar'"),
        ("a.h5", ["reference"], r"references can't be read; 'reference' of"),
        ("a.h5", None, r"same number of rows; '.*a.h5' has {'reference': 3, 'x': 3, 'y': 4}. Name those"),
        ("[ab].h5", ["x"], r"a.h5' has 'x': int64, '.*b.h5' has 'x': float64. Name the datasets"),
        ("empty.h5", None, r"must have a dataset with rows; '.*empty.h5' has none"),
        ("*.none", None, "must match at least one file"),
    ):
        with pytest.raises(UsageError, match=reason):
            HDF5(tmp_path / paths, names)
    with pytest.raises(UsageError, match="decoded_bytes must be at least 0"):
        HDF5(tmp_path / "b.h5", decoded_bytes=-1)


def test_damaged_and_changed_files_are_named(tmp_path: Path) -> None:
    """A file of another format, a truncated one, damaged chunks and a changed file are errors with the file."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100_000), chunks=(1_000,), fletcher32=True)
        offset = file["x"].id.get_chunk_info(3).byte_offset
    content = path.read_bytes()
    for bad in (b"", b"text", content[: len(content) // 2]):
        path.write_bytes(bad)
        with pytest.raises(CorruptRecordError, match=r"a.h5' can't be read as HDF5: .*truncated or damaged"):
            HDF5(path)
    path.write_bytes(content[: offset + 9] + b"\xff" + content[offset + 10 :])
    with pytest.raises(CorruptRecordError, match=r"rows 0 to 99999 of '.*a.h5' can't be read as HDF5"):
        HDF5(path)[5]
    source = HDF5(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"a.h5' changed since it was indexed"):
        source[0]
    with pytest.raises(SourceError, match=r"cannot read '.*absent.h5'"):
        HDF5(tmp_path / "absent.h5")


def test_processes_share_chunks_beside_contiguous_datasets(tmp_path: Path) -> None:
    """A copy of the source gets the chunks that the original has decoded, and maps the contiguous dataset."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["label"] = np.arange(4_000)
        file.create_dataset("x", data=np.arange(4_000), chunks=(4_000,))
        offset = file["x"].id.get_chunk_info(0).byte_offset
    source = HDF5(path)
    copy = pickle.loads(pickle.dumps(source))
    assert_same(source[3], {"label": np.int64(3), "x": np.int64(3)})
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(bytes(4_000 * 8))  # a process that decodes the chunk again gets zeros
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert_same(copy[3], {"label": np.int64(3), "x": np.int64(3)})
