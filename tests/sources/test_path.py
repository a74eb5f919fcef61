"""A path as a source: the format of a file, a glob or a folder is chosen by what is there."""

import gzip
import io
import itertools
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import SourceError, UsageError
from penstock.sources import as_source


def _tar() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        member = tarfile.TarInfo("7.txt")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))
    return written.getvalue()


def _numpy(*, is_archive: bool) -> bytes:
    written = io.BytesIO()
    if is_archive:
        np.savez(written, x=np.arange(3))
    else:
        np.save(written, np.arange(3))
    return written.getvalue()


def _database(path: Path, *tables: str) -> bytes:
    with closing(sqlite3.connect(path)) as database:
        for table in tables:
            database.execute(f"CREATE TABLE {table} (x INTEGER)")
            database.execute(f"INSERT INTO {table} VALUES (5)")
        database.commit()
    content = path.read_bytes()
    path.unlink()
    return content


TFRECORD = bytes.fromhex("01000000000000000175de4161786ee428")


def test_a_file_is_read_by_its_suffix_or_its_first_bytes(tmp_path: Path) -> None:
    """Each format is known by the suffix; those with magic bytes also under another name."""
    database = _database(tmp_path / "a", "t")
    for suffix, content, described, has_magic in (
        (".tar", _tar(), "Tar(1 records in 1 file)", True),
        (".tfrecord-00000-of-00002", TFRECORD, "TFRecord(1 records in 1 file)", False),
        (".bag", b"hi\2" + bytes(7), "Bagz(1 records in 1 file)", False),
        (".jsonl", b"[1]\n2\n", "JsonLines(2 lines in 1 file)", False),
        (".CSV", b"a,b\n1,2\n", "Csv(1 rows in 1 file)", False),
        (".tsv", b"a\tb\n1\t2\n", "Csv(1 rows in 1 file)", False),
        (".npy", _numpy(is_archive=False), "Arrays(int64[3])", True),
        (".npz", _numpy(is_archive=True), "Arrays({'x': int64[3]})", True),
        (".db", database, "Sqlite(1 rows of 'data.db')", True),
    ):
        path = tmp_path / f"data{suffix}"
        path.write_bytes(content)
        assert repr(as_source(path)) == described
        if has_magic:
            path.rename(tmp_path / "bare")
            assert repr(as_source(str(tmp_path / "bare"))) == described.replace("data.db", "bare")
    assert as_source(tmp_path / "data.tsv")[0] == {"a": "1", "b": "2"}


def test_globs_and_folders_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    """The files of a glob, and those in a folder beside others of no format, are one source in the order of names."""
    for number in (1, 0, 2):
        (tmp_path / f"{number}.jsonl").write_text(f'"{number}"\n')
    (tmp_path / "README.md").touch()
    (tmp_path / ".hidden.csv").touch()
    assert list(ps.read(tmp_path)) == list(ps.read(f"{tmp_path}/*.jsonl")) == ["0", "1", "2"]
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(UsageError, match=r"'0.jsonl' \(JsonLines\) and 'a.csv' \(Csv\). Pass a glob .*\*.csv'"):
        ps.read(tmp_path)
    (tmp_path / "a.tsv").touch()
    with pytest.raises(UsageError, match=r"'a.csv' \(Csv\) and 'a.tsv' \(Csv with tabs\). Pass a glob .*\*.tsv'"):
        ps.read(tmp_path / "a.*")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """To read one waits for its writer, and it has no records at any place."""
    os.mkfifo(tmp_path / "a.csv")
    for path in (tmp_path, tmp_path / "a.csv"):
        with pytest.raises(UsageError, match=r"a.csv' must be a regular file; it is a pipe, .*Write its content to"):
            ps.read(path)


@pytest.mark.parametrize("index", ["0.idx", "0.tar.idx"])
def test_the_index_of_a_tar_file_may_lie_beside_it(tmp_path: Path, index: str) -> None:
    """The indexes that DALI and Energon write are no files of Megatron; an index without its tar file is one."""
    with tarfile.open(tmp_path / "0.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("key.txt"))
    (tmp_path / index).write_text("v1.2 1\ntxt 512 0 key.txt\n")
    for path in (tmp_path, tmp_path / "0*"):
        assert [record["__key__"] for record in ps.read(path)] == ["key"]
    (tmp_path / "1.idx").touch()
    with pytest.raises(UsageError, match=r"'0.tar' \(Tar\) and '1.idx' \(Megatron\)"):
        ps.read(tmp_path)


def test_folders_of_images_and_shards_are_known(tmp_path: Path) -> None:
    """A folder of images, one of class folders, and one with the index of MDS are the sources of these."""
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "1.png").write_bytes(b"png")
    (tmp_path / "classes" / "cat").mkdir(parents=True)
    (tmp_path / "classes" / "cat" / "1.JPG").write_bytes(b"jpg")
    (tmp_path / "mds").mkdir()
    columns = {"column_names": ["x"], "column_encodings": ["int8"], "column_sizes": [1]}
    shard = {"raw_data": {"basename": "0", "bytes": 13}, "samples": 1, "format": "mds", "version": 2, **columns}
    (tmp_path / "mds" / "index.json").write_text(json.dumps({"shards": [shard]}))
    (tmp_path / "mds" / "0").write_bytes(np.array([1, 12, 13], "<u4").tobytes() + b"\7")
    assert ps.read(tmp_path / "flat")[0] == {"path": "1.png", "bytes": b"png"}
    assert ps.read(tmp_path / "classes")[0] == {"bytes": b"jpg", "label": 0}
    assert ps.read(tmp_path / "mds")[0] == {"x": 7}
    (tmp_path / "flat" / "metadata.csv").write_text("file,label\n1.png,5\n")
    with pytest.raises(
        UsageError, match=r"the image '1.png' beside files for Csv. Pass a glob .*\*.csv', or ps.sources"
    ):
        ps.read(tmp_path / "flat")
    assert ps.read(tmp_path / "flat" / "*.csv")[0]["label"] == "5"


def test_a_folder_leaves_nothing_out_in_silence(tmp_path: Path) -> None:
    """Compressed files, and class folders of images beside a table, are a UsageError with both and a remedy."""
    for name in ("classes/cat/1.png", "classes/labels.csv", "mixed/a.csv", "mixed/b.csv.gz", "tars/a.tar.zst"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"a\n1\n")
    for folder, reason in (
        ("classes", r"the image 'cat.1.png' beside files for Csv. Pass a glob .*\*.csv', or .*ImageFolder"),
        (
            "mixed",
            r"has 'b.csv.gz', which is compressed. Decompress it first, move it elsewhere, or pass a glob .*\*.csv'",
        ),
        ("tars", r"has 'a.tar.zst', which is compressed. Decompress it first"),
    ):
        with pytest.raises(UsageError, match=reason):
            ps.read(tmp_path / folder)
    assert len(ps.read(tmp_path / "mixed" / "*.csv")) == 1
    with pytest.raises(UsageError, match=r"got 'a.x00b.csv'. Pass a str .* none of them null"):
        ps.read("a\0b.csv")


USES: list[Callable[[str], object]] = [
    ps.read,
    ps.sources.Arrays.open,
    ps.sources.Files,
    ps.sources.ImageFolder,
    ps.sources.LitData,
    ps.sources.MDS,
    ps.sources.Megatron,
    ps.sources.Tar,
    lambda path: ps.sources.Csv(__file__, cache=path),
    ps.range(3).cache,
    lambda path: ps.range(3).filter(bool, index=path),
    lambda path: ps.write(ps.range(3), path, "jsonl"),
]


def test_paths_that_are_none_of_this_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL is no folder `s3:`, and `~` no folder of this name: no source reads them, and nothing makes them."""
    monkeypatch.chdir(tmp_path)
    for use, path in itertools.product(USES, ("s3://bucket/train", "~/train")):
        with pytest.raises(UsageError, match=f"must be the path of a local file or folder; got '{path}'"):
            use(path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    """Files and folders of no known format are a UsageError with what is there, what is known, and a remedy."""
    (tmp_path / "a.bin").write_bytes(b"\1\2\3")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"1\n"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "two.db").write_bytes(_database(tmp_path / "a", "t", "u"))
    (tmp_path / "none.db").write_bytes(_database(tmp_path / "a"))
    for path, reason in (
        (
            "a.bin",
            r"a.bin' is unknown: it begins with b'.x01.x02.x03'. Known are files that end in .*, .npy, .*Tokens.*Files",
        ),
        ("b.jsonl.gz", "b.jsonl.gz' is compressed by gzip, .*Decompress it first"),
        ("empty", "the folder '.*empty' is unknown: it has no files. Known are"),
        ("two.db", r"must have one table; '.*two.db' has \['t', 'u'\]. Name one"),
        ("*.none", "must match at least one file; .* Check the folder and the extension"),
        ("~/*.none", r"must match at least one file; .* pass os.path.expanduser\(path\)"),
    ):
        with pytest.raises(UsageError, match=reason):
            ps.read(tmp_path / path)
    with pytest.raises(SourceError, match=r"No such file or directory. Braces aren't expanded: pass a glob"):
        ps.read(tmp_path / "train-{0..2}.tar")
    with pytest.raises(UsageError, match=r"a local file or folder; got 's3://bucket/a.tar'.*read-from-a-server"):
        ps.read("s3://bucket/a.tar")
    (tmp_path / "two.npy").write_bytes(_numpy(is_archive=False))
    (tmp_path / "one.npy").write_bytes(_numpy(is_archive=False))
    with pytest.raises(UsageError, match=r"must be one file; got 2, .*Read each"):
        ps.read(f"{tmp_path}/*.npy")
    with pytest.raises(SourceError, match=r"cannot read '.*absent'"):
        ps.read(tmp_path / "absent")
