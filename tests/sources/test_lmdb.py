"""Lmdb: values that LMDB's library wrote, in threads and forked processes, and errors that name file and key."""

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Lmdb, describe_key
from penstock.testing import SourceTests
from tests.programs.forked import outcome
from tests.sources.promises import check_source

lmdb: Any = pytest.importorskip("lmdb")
VALUES = {b"%03d" % number: b"value %d" % number * (number % 300) for number in range(500)}


def write(path: Path, values: Mapping[bytes, bytes] = VALUES, *, database: bytes | None = None) -> Path:
    """Write a database in one file, and return its path."""
    with lmdb.open(str(path), subdir=False, map_size=1 << 24, max_dbs=2) as environment:
        handle = environment.open_db(database)
        with environment.begin(write=True, db=handle) as transaction:
            for key, value in values.items():
                transaction.put(key, value)
    return path


def test_a_folder_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    """Its database is in data.mdb."""
    write(tmp_path / "data.mdb")
    check_source(lambda: Lmdb(tmp_path), list(VALUES.values()), SourceTests)


def test_keys_and_database_choose_values(tmp_path: Path) -> None:
    """Keys give the order, and a database inside has its own; a pickled copy reads them without the content."""
    path = write(write(tmp_path / "a.mdb", {b"x": b"1"}), {b"y": b"2", b"z": b"3"}, database=b"inner")
    source = Lmdb(path, database="inner", keys=[b"z", b"y", b"z"])
    for copy in (source, pickle.loads(pickle.dumps(source))):
        assert copy.read([0, 1, 2]) == [b"3", b"2", b"3"]
    assert describe_key(source, 1) == "key 1 (the value of b'y' in 'a.mdb')"
    assert source.fingerprint() != Lmdb(path, database="inner").fingerprint()
    assert Lmdb(path, keys=[b"x"])[0] == b"1"
    with pytest.raises(UsageError, match=r"a.mdb', b'inner' is a database. Pass database='inner' .*keys= of values"):
        Lmdb(path)
    assert len(pickle.dumps(Lmdb(write(tmp_path / "b.mdb")))) < 700


def test_a_key_of_several_values_is_refused(tmp_path: Path) -> None:
    """A database with `dupsort` may have such keys, of which LMDB finds the first value only; others are read."""
    with lmdb.open(str(tmp_path), max_dbs=1) as environment:
        handle = environment.open_db(b"pairs", dupsort=True)
        with environment.begin(write=True, db=handle) as transaction:
            for key, value in ((b"a", b"1"), (b"b", b"2"), (b"b", b"3")):
                transaction.put(key, value)
    assert Lmdb(tmp_path, database="pairs", keys=[b"a"])[0] == b"1"
    for keys in (None, [b"a", b"b"]):
        with pytest.raises(UsageError, match=r"data.mdb', b'b' has 2\. Copy them .* pass keys= of others"):
            Lmdb(tmp_path, database="pairs", keys=keys)


def test_forked_workers_read_what_the_program_reads(tmp_path: Path) -> None:
    """`ps.read` takes the path, and worker processes read the map of their parent."""
    dataset = ps.read(write(tmp_path / "a.mdb"), seed=3).shuffle()
    with ps.Loader(dataset.batch(50, merge=list), num_workers=2, workers="processes") as loader:
        assert [value for batch in loader for value in batch] == list(dataset)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    """Each error has the file, the reason and the remedy."""
    good = write(tmp_path / "good.mdb").read_bytes()
    damaged = bytearray(good)
    for page in range(2, len(good) // 4096):
        damaged[page * 4096 + 10] = 0xFF  # its kind
    contents = {"empty": b"", "text": b"text" * 5000, "short": good[:20_000], "damaged": bytes(damaged)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "loop").symlink_to("loop")
    cases: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        ("none", {}, UsageError, r"/none' doesn't exist"),
        ("loop", {}, SourceError, r"/loop': Too many levels of symbolic links"),
        ("empty", {}, CorruptRecordError, r"cannot open '.*/empty' as a database of LMDB"),
        ("text", {}, CorruptRecordError, r"cannot open '.*/text' as a database of LMDB: .*not an LMDB file"),
        ("short", {}, CorruptRecordError, r"/short' has 20000 bytes, and its \d+ pages need \d+: it is truncated"),
        ("damaged", {}, CorruptRecordError, r"/damaged' can't be read as a database of LMDB: .*MDB_CORRUPTED"),
        ("good.mdb", {"database": "x"}, UsageError, r"good.mdb' has no database b'x'"),
        ("good.mdb", {"keys": [b"001", b"nine"]}, UsageError, r"has no b'nine', number 1 of keys"),
        ("good.mdb", {"keys": [b""]}, UsageError, r"has no b'', number 0 of keys"),
        ("good.mdb", {"keys": ["001"]}, UsageError, r"keys of LMDB are bytes; got '001'"),
    ]
    for path, arguments, error, reason in cases:
        with pytest.raises(error, match=reason):
            Lmdb(tmp_path / path, **arguments)
    with (
        lmdb.open(str(tmp_path / "good.mdb"), subdir=False),
        pytest.raises(UsageError, match=r"already open in this process by lmdb.open"),
    ):
        Lmdb(tmp_path / "good.mdb")


@pytest.mark.usefixtures("forked_programs")
def test_a_changed_database_is_refused(tmp_path: Path) -> None:
    """A write by another process is found at the next read, and another file by a copy that opens it."""
    source = Lmdb(write(tmp_path / "a.mdb"))
    sent = pickle.dumps(source)
    ended = outcome(f"""
        import lmdb
        with lmdb.open({str(tmp_path / "a.mdb")!r}, subdir=False) as environment:
            with environment.begin(write=True) as transaction:
                transaction.put(b"000", b"new")
    """)
    assert (ended.returncode, ended.stderr) == (0, "")
    with pytest.raises(SourceError, match=r"a.mdb' changed since it was listed"):
        source[0]
    del source
    with pytest.raises(SourceError, match=r"a.mdb' changed since it was listed"):
        pickle.loads(sent)[0]


def test_a_database_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    """A source of the path has the values of the new file, also while a source of the old one lives, which keeps it."""
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, value in zip(folders[:2], (b"old", b"new"), strict=True):
        folder.mkdir()
        write(folder / "data.mdb", {b"k": value})
    before = Lmdb(folders[0])
    folders[0].rename(folders[2])
    folders[1].rename(folders[0])
    after = Lmdb(folders[0])
    assert (before[0], after[0], pickle.loads(pickle.dumps(after))[0]) == (b"old", b"new", b"new")
    assert Lmdb(folders[2])[0] == b"old"


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_a_name_that_is_no_text_is_read(tmp_path: Path) -> None:
    """A file's name may be any bytes."""
    path = write(tmp_path / "a.mdb", {b"k": b"value"}).replace(tmp_path / os.fsdecode(b"\xff"))
    assert Lmdb(path)[0] == b"value"
