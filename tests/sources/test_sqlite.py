"""Sqlite: rows by table or by two queries, connections of threads and processes, and databases that change."""

import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ClosedError, CorruptRecordError, SourceError, UsageError
from penstock.sources import Sqlite, describe_key, read_records

ROWS = [(3, "é", 0.5, b"\0\1"), (7, None, None, b""), (9, "", -1.0, None)]


def write(path: Path, *statements: str) -> Path:
    """Write a database with the table `t` of ROWS, execute the statements, and return its path."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT, x REAL, b BLOB)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", ROWS)
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


def test_a_table_has_its_rows_in_the_order_of_rowid(tmp_path: Path) -> None:
    """A table's name stands for all of its rows; values are those of SQLite."""
    with Sqlite(write(tmp_path / "a b.db"), "t") as source:
        expected = [dict(zip(("id", "s", "x", "b"), row, strict=True)) for row in ROWS]
        assert source.read([2, 0, 1]) == [expected[2], expected[0], expected[1]]
        assert describe_key(source, 1) == "key 1 (the row with the key 7 of file 'a b.db')"
        assert pickle.loads(pickle.dumps(source))[-1]["id"] == 9
        assert len(pickle.dumps(source)) < 700


def test_any_name_of_a_table_and_of_its_columns_is_read(tmp_path: Path) -> None:
    """A name may need quotes, and a column named rowid hides the rowid, unless it is the same or there is none."""
    path = write(
        tmp_path / "a.db",
        'CREATE TABLE "a ""b""-c" (rowid TEXT)',
        """INSERT INTO "a ""b""-c" VALUES ('z'), ('b'), ('b')""",
        "CREATE TABLE same (x, rowid INTEGER PRIMARY KEY)",
        "INSERT INTO same VALUES (0, 5), (0, 1)",
        "CREATE TABLE without (rowid TEXT PRIMARY KEY) WITHOUT ROWID",
        "INSERT INTO without VALUES ('z'), ('b')",
        "CREATE VIEW seen AS SELECT id AS rowid FROM t",
    )
    cases: dict[str, list[object]] = {
        'a "b"-c': ["z", "b", "b"], "same": [1, 5], "without": ["b", "z"], "seen": [3, 7, 9]
    }  # fmt: skip
    for name, wanted in cases.items():
        with Sqlite(path, name) as source:
            assert [source[key]["rowid"] for key in range(len(source))] == wanted


def test_two_queries_choose_rows_columns_and_order(tmp_path: Path) -> None:
    """The query of keys gives the order, and the other one the record; keys may be of any type."""
    path = write(
        tmp_path / "a.db",
        "CREATE TABLE names (name TEXT PRIMARY KEY, t_id INTEGER) WITHOUT ROWID",
        "INSERT INTO names VALUES ('b', 3), ('a', 9), ('c', 7)",
    )
    query = "SELECT name, x FROM names JOIN t ON t.id = t_id WHERE name = ?"
    with Sqlite(path, query, keys="SELECT name FROM names WHERE t_id != 7 ORDER BY name DESC") as source:
        assert source.read([0, 1]) == [{"name": "b", "x": 0.5}, {"name": "a", "x": -1.0}]
        copy = pickle.loads(pickle.dumps(source))
        assert copy[1] == source[1]
        assert copy.fingerprint() == source.fingerprint() != Sqlite(path, "t").fingerprint()
        copy.close()
    with Sqlite(path, query, keys="SELECT name FROM names WHERE 0 ORDER BY 1") as empty:
        assert empty.read([]) == []


def test_many_rows_have_the_order_of_their_keys(tmp_path: Path) -> None:
    """Keys are listed in steps; the records of more than one step keep their order."""
    path = write(tmp_path / "a.db", "CREATE TABLE n (x INTEGER)")
    with closing(sqlite3.connect(path)) as database:
        database.executemany("INSERT INTO n VALUES (?)", ((2 * number,) for number in range(70_000)))
        database.commit()
    with Sqlite(path, "n") as source:
        assert source.read([0, 65_535, 65_536, 69_999]) == [{"x": x} for x in (0, 131_070, 131_072, 139_998)]


WRONG: list[tuple[str, str | None, str]] = [
    ("SELECT * FROM t", None, "needs keys=, which lists the rows in an order; got 'SELECT . FROM t' alone"),
    ("absent", None, "no such table: absent. Correct the table's name"),
    ("names", None, "no such column: rowid. A table WITHOUT ROWID is read by its primary key, as in Sqlite"),
    ("SELECT * FROM t WHERE id = ?", "SELECT id FROM t", "keys must have ORDER BY"),
    ("SELECT * FROM t", "SELECT id FROM t ORDER BY id", "a row can't be read by .*number of bindings"),
    ("SELECT id, id FROM t WHERE id = ?", "SELECT id FROM t ORDER BY id", r"returns \['id', 'id'\]. Rename them"),
    ("DELETE FROM t WHERE id = ?", "SELECT id FROM t ORDER BY id", "readonly database"),
    ("SELECT * FROM t WHERE id = ?", "SELECT NULL FROM t ORDER BY id", "returns a NULL. A view has no rowid"),
    ("SELECT * FROM t WHERE id = ?", "SELEC id ORDER BY id", "can't be listed by 'SELEC id ORDER BY id'.*syntax"),
]


def test_a_wrong_query_is_refused(tmp_path: Path) -> None:
    """A query without an order, of another shape, or that SQLite refuses is a UsageError with a remedy."""
    path = write(tmp_path / "a.db", "CREATE TABLE names (name TEXT PRIMARY KEY) WITHOUT ROWID")
    for query, keys, reason in WRONG:
        with pytest.raises(UsageError, match=reason):
            Sqlite(path, query, keys=keys)


def test_a_key_without_one_row_is_named(tmp_path: Path) -> None:
    """A key that finds no row, or several, and a text that isn't UTF-8 are a CorruptRecordError with file and key."""
    path = write(tmp_path / "a.db", "INSERT INTO t VALUES (11, CAST(x'ff' AS TEXT), 0, NULL)")
    keys = "SELECT id FROM t ORDER BY id"
    for where, number, reason in (
        ("WHERE id = ? AND x > 0", 1, "the key 7 of '.*a.db' .key 1 of .* has none. Let both queries"),
        ("WHERE id >= ?", 0, "the key 3 of '.*a.db' .key 0 of .* has more"),
        ("WHERE id = ?", 3, "the row with the key 11 .*decode.*UTF-8"),
    ):
        with (
            Sqlite(path, f"SELECT * FROM t {where}", keys=keys) as source,
            pytest.raises(CorruptRecordError, match=reason),
        ):
            read_records(source, np.array([number]))


def test_a_database_that_was_removed_is_named(tmp_path: Path) -> None:
    """A process that opens it later says that there is no file, and advises nothing on permissions."""
    path = write(tmp_path / "a.db")
    with Sqlite(path, "t") as source:
        sent = pickle.dumps(source)
    path.unlink()
    with pytest.raises(SourceError, match=r"cannot read '.*a.db': No such file or directory. Restore the database"):
        pickle.loads(sent).read([0])


def test_a_closed_source_cannot_be_read(tmp_path: Path) -> None:
    """Also one whose connections other threads have opened raises ClosedError."""
    source = Sqlite(write(tmp_path / "a.db"), "t")
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(source.read, [0, 1]).result() == source.read([0, 1])
    source.close()
    source.close()
    with pytest.raises(ClosedError, match=r"was closed"):
        source[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_opens_its_own_connection(tmp_path: Path) -> None:
    """A child reads by a new connection, and the parent's still works."""
    source = Sqlite(write(tmp_path / "a.db"), "t")
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sending, str(source[2]["id"]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receiving, 9) == b"9"
    os.close(receiving)
    os.close(sending)
    assert source[1]["id"] == 7
    source.close()


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_database_that_changed_is_refused(tmp_path: Path, mode: str) -> None:
    """A write of another program is a SourceError in connections of before and after, also through a log."""
    path = write(tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        with Sqlite(path, "t") as source:
            copy = pickle.loads(pickle.dumps(source))
            assert source[0]["id"] == 3
            database.execute("INSERT INTO t VALUES (20, 'new', 0, NULL)")
            database.commit()
            for reader in (source, copy):
                with pytest.raises(SourceError, match=r"a.db' changed since it was listed"):
                    reader[0]
            copy.close()
        with Sqlite(path, "t") as again:
            assert len(again) == 4


@pytest.mark.skipif(os.name == "nt", reason="on Windows, links need a right")
def test_the_log_beside_the_file_of_a_link_counts(tmp_path: Path) -> None:
    """A write that is in the log alone is found through a link in another folder, in copies as well."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links/b.db").symlink_to(write(tmp_path / "a.db"))
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        with Sqlite(tmp_path / "links/b.db", "t") as source:
            copy = pickle.loads(pickle.dumps(source))
            database.execute("UPDATE t SET x = 9 WHERE id = 3")
            database.commit()
            with pytest.raises(SourceError, match=r"b.db' changed since it was listed"):
                copy[0]


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Another file is a CorruptRecordError, a missing one a SourceError, and several ones a UsageError."""
    (tmp_path / "a.db").write_bytes(b"text " * 300)
    with pytest.raises(CorruptRecordError, match=r"a.db' is no database of SQLite, or is damaged.*Restore"):
        Sqlite(tmp_path / "a.db", "t")
    with pytest.raises(SourceError, match=r"cannot read"):
        Sqlite(tmp_path / "b.db", "t")
    write(tmp_path / "c.db")
    with pytest.raises(UsageError, match=r"reads one database; .* matches 2"):
        Sqlite(tmp_path / "*.db", "t")


def test_a_damaged_schema_is_refused(tmp_path: Path) -> None:
    """A schema with a byte that is no UTF-8, which SQLite's message quotes, is a CorruptRecordError with the file."""
    write(tmp_path / "a.db")
    content = (tmp_path / "a.db").read_bytes()
    assert b"CREATE TABLE" in content
    (tmp_path / "a.db").write_bytes(content.replace(b"CREATE TABLE", b"CREATE T\x80BLE"))
    with pytest.raises(CorruptRecordError, match=r"a.db' has names that are no UTF-8, or is damaged: .*Restore"):
        Sqlite(tmp_path / "a.db", "t")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permissions of folders")
def test_a_database_with_a_log_is_read_in_a_folder_that_cannot_be_written_to() -> None:
    """It is read if its log is gone; else the error has the remedy."""
    code = """
import os, sys
import urllib.parse  # which Python 3.13 imports for the first URI of a path: its folder may be closed to another user
from penstock.errors import SourceError
from penstock.sources import Sqlite
if not os.getuid():
    os.setuid(65534)
with Sqlite("closed.db", "t") as source:
    assert source[1]["id"] == 7
try:
    Sqlite("open.db", "t")
except SourceError as error:
    assert "write-ahead log needs a folder that can be written to: run PRAGMA journal_mode=DELETE" in str(error), error
else:
    raise AssertionError
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        closed = write(folder / "closed.db")
        with closing(sqlite3.connect(closed)) as database:
            database.execute("PRAGMA journal_mode=WAL")
        with closing(sqlite3.connect(closed)) as database:
            database.execute("INSERT INTO t VALUES (20, NULL, NULL, NULL)")
            database.commit()
            shutil.copy(closed, folder / "open.db")
            shutil.copy(f"{closed}-wal", folder / "open.db-wal")
        folder.chmod(0o555)
        run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
        folder.chmod(0o755)
    assert not run.returncode, run.stderr
