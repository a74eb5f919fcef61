"""The source of rows in an SQLite database; records are dicts of their columns.

SQL numbers no rows: row k of a query is found by counting k rows, and without ORDER BY it may be another one each time.
So a source has two queries. The query of keys lists the rows once, in an order; the other one returns the row of one
key, which takes an index of the database to be fast. A table's name stands for both, by its `rowid`.

A connection of SQLite belongs to one thread, and mustn't be used after a fork. So each thread of each process opens its
own at its first read, read-only. A connection that a fork has copied is kept, but never used or closed.

A database changes in place. Each connection compares the state of the files with that of the first listing, and each
read compares the version that SQLite counts for the connection, so rows of two states are never mixed. A read is one
transaction: locking the file for each row would take most of the time.
"""

import contextlib
import hashlib
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import ClosedError, CorruptRecordError, SourceError, UsageError
from penstock.sources._local_files import PathLike, find_files, raise_source_error
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range

_RowKeys: TypeAlias = NDArray[np.int64] | list[Any]

_LISTED: Final = 1 << 16  # keys in one step
_HEADER_BYTES: Final = 20
_READ_VERSION: Final = 19  # the byte of the header that says how the database is read
_WITH_LOG: Final = b"\2"
_NAME: Final = re.compile(r"\w+")
_COLUMNS: Final = "SELECT name, type, pk FROM pragma_table_xinfo(?)"
_ROWIDS: Final = ("rowid", "_rowid_", "oid")
_ORDER: Final = re.compile(r"\border\s+by\b", re.IGNORECASE)


class Sqlite:
    """Rows of an SQLite database; records are dicts from column to int, float, str, bytes or None.

    A table is read by its name: its records are all rows, in the order of their `rowid`. For other rows, columns or
    joins, pass two queries: `keys` lists the rows in their order, by a column that identifies them, and `query` returns
    the row of one such key. Row numbers aren't enough for SQL: without ORDER BY a query has no fixed order, and row k
    is found by counting k rows.

    A read takes one query for each record, which is fast if the key has an index, as `rowid` and primary keys have.
    The constructor lists the keys, and each process that reads the source lists them again: 8 bytes a row if they are
    integers. The database is opened read-only, by one connection for each thread and process.

    `close`, or the end of a `with` block, closes the connections. The database must not change while it is read: a
    changed one raises SourceError.

    Args:
        path: the database's file.
        query: a table's name; or with `keys` a SELECT with one parameter `?`, the key, that returns one row.
        keys: a SELECT whose first column has the keys, with ORDER BY.

    Raises:
        UsageError: there is no such table, a query is wrong, `keys` has no ORDER BY, or two columns have one name.
        SourceError: the file can't be opened; later, at a read, it no longer exists or has changed.
        CorruptRecordError: the file is no database; at a read, a key has no row, or more than one, or the database is
            damaged. The message has file and key.

    Example:
        >>> import pathlib, sqlite3, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.db")
        ...     database = sqlite3.connect(path)
        ...     _ = database.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT, split TEXT)")
        ...     _ = database.execute("INSERT INTO texts VALUES (1, 'a', 'train'), (5, 'b', 'test'), (9, 'c', 'train')")
        ...     database.commit()
        ...     database.close()
        ...     with Sqlite(path, "texts") as source:
        ...         print(len(source), source[1])
        ...     keys = "SELECT id FROM texts WHERE split = 'train' ORDER BY id"
        ...     with Sqlite(path, "SELECT text FROM texts WHERE id = ?", keys=keys) as source:
        ...         print(len(source), source[1])
        3 {'id': 5, 'text': 'b', 'split': 'test'}
        2 {'text': 'c'}
    """

    def __init__(self, path: PathLike, query: str, *, keys: str | None = None) -> None:
        files = find_files(path, "Sqlite")
        if len(files) > 1:
            raise UsageError(f"Sqlite reads one database; {path!r} matches {len(files)}. Concatenate the datasets.")
        self._path = files[0].path
        self._state = _state_of(self._path)
        self._closed = False
        self._lock = threading.Lock()  # guards `_opened` and `_closed`
        self._opened: list[weakref.ref[_Connection]] = []
        self._threads = threading.local()
        try:
            self._query, self._listing = self._queries_of_table(query) if keys is None else (query, _ordered(keys))
            self._keys: _RowKeys | None = self._list_keys()
            self._names = self._column_names()
        except BaseException:
            self.close()
            raise
        self._length = len(self._keys)
        self._digest = _digest_of(self._keys)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self.read(np.array([as_key(key, self._length)]))[0]

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the row of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A dict for each key.
        """
        checked = as_keys(keys)
        check_range(checked, self._length)
        connection = self._connection()
        known = self._known_keys()
        try:
            connection.begin()
            return [self._row(connection, number, _key_at(known, number)) for number in checked.tolist()]
        except _FAILURES as error:
            raise self._error_of(error, "the database can't be read") from error
        finally:
            connection.end()

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the database's file and the key of a row, for messages."""
        found: Any = self._known_keys()[as_key(key, self._length)]
        return f"the row with the key {found!s} of file {os.path.basename(self._path)!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and the file's path, size and time: the key of a cache has them."""
        return self.fingerprint(), os.path.realpath(self._path), self._state

    def fingerprint(self) -> str:
        """Return a str that changes with the file's name (without folder) and size, the queries and the keys."""
        described = f"{os.path.basename(self._path)!r} {self._state.size} {self._query!r} {self._digest}"
        return f"sqlite-{hashlib.blake2b(described.encode(), digest_size=16).hexdigest()}"

    def close(self) -> None:
        """Close all connections; from now on a read raises ClosedError. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, []
        for reference in opened:
            connection = reference()
            if connection is not None:
                connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Sqlite({self._length} rows of {os.path.basename(self._path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_path", "_state", "_query", "_listing", "_closed", "_names", "_length", "_digest")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._opened = []
        self._threads = threading.local()
        self._keys = None

    def _connection(self) -> "_Connection":
        if self._closed:
            raise ClosedError(f"{self!r} was closed, and can't be read any more. Create it again, or close it later.")
        known: _Connection | None = getattr(self._threads, "connection", None)
        if known is not None:
            if known.process == os.getpid():
                return known
            self._threads.inherited = known
        connection = _Connection(self._path, self._state)
        with self._lock:
            self._opened = [*(held for held in self._opened if held() is not None), weakref.ref(connection)]
        self._threads.connection = connection
        return connection

    def _known_keys(self) -> _RowKeys:
        # Two threads may do this at once: both list the keys, and the list of one is kept.
        keys = self._keys
        if keys is None:
            keys = self._list_keys()
            if _digest_of(keys) != self._digest:
                raise SourceError(_CHANGED.format(self._path), source=repr(self))
            self._keys = keys
        return keys

    def _queries_of_table(self, table: str) -> tuple[str, str]:
        """Return the query of one row of a table, and that of all its keys.

        Raises:
            UsageError: it is no name of a table.
        """
        try:
            columns = self._connection().handle.execute(_COLUMNS, (table,)).fetchall()
        except _FAILURES as error:
            raise self._error_of(error, f"the columns of {table!r} can't be read") from error
        if not (columns or _NAME.fullmatch(table)):
            raise UsageError(
                f"a query needs keys=, which lists the rows in an order; got {table!r} alone. Pass a table's name, or "
                "Sqlite(path, 'SELECT … WHERE id = ?', keys='SELECT id FROM … ORDER BY id')."
            )
        name = table.replace('"', '""')
        rowid = self._rowid_of(name, columns)
        return f'SELECT * FROM "{name}" WHERE {rowid} = ?', f'SELECT {rowid} FROM "{name}" ORDER BY {rowid}'

    def _rowid_of(self, table: str, columns: Sequence[tuple[str, str, int]]) -> str:
        """Return the name of a table's rowid: one of the other two of SQLite's if a column of another kind is "rowid".

        A view, or a table WITHOUT ROWID, has only its column.
        """
        has_key = [is_key > 0 for _, _, is_key in columns].count(True) == 1
        own = {name.lower() for name, kind, is_key in columns if not (has_key and is_key and kind.upper() == "INTEGER")}
        for rowid in [other for other in _ROWIDS if "rowid" in own and other not in own]:
            with contextlib.suppress(sqlite3.Error):
                first = self._connection().handle.execute(f'SELECT {rowid} FROM "{table}" LIMIT 1').fetchone()
                if first not in (None, (None,)):
                    return rowid
        return "rowid"

    def _list_keys(self) -> _RowKeys:
        parts: list[_RowKeys] = []
        try:
            cursor = self._connection().handle.execute(self._listing)
            while rows := cursor.fetchmany(_LISTED):
                keys = [row[0] for row in rows]
                if None in keys:
                    raise UsageError(
                        f"each row must have a key; {self._listing!r} of {self._path!r} returns a NULL. A view has no "
                        "rowid: pass a query of one row, and keys= with a unique column."
                    )
                parts.append(np.array(keys, np.int64) if all(type(key) is int for key in keys) else keys)
        except _FAILURES as error:
            raise self._error_of(error, f"the keys of rows can't be listed by {self._listing!r}") from error
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate([np.empty(0, np.int64), *parts])
        return [_key_at(part, number) for part in parts for number in range(len(part))]

    def _column_names(self) -> tuple[str, ...]:
        keys = self._known_keys()
        try:
            cursor = self._connection().handle.execute(self._query, (_key_at(keys, 0) if len(keys) else 0,))
        except _FAILURES as error:
            raise self._error_of(error, f"a row can't be read by {self._query!r}") from error
        names = tuple(column[0] for column in cursor.description or ())
        cursor.close()
        if not names or len(set(names)) < len(names):
            raise UsageError(
                f"a query must return columns of different names; {self._query!r} returns {list(names)}. Rename them "
                "by AS."
            )
        return names

    def _row(self, connection: "_Connection", number: int, key: object) -> Record:
        try:
            rows = connection.handle.execute(self._query, (key,)).fetchmany(2)
        except _FAILURES as error:
            translated = self._error_of(error, f"the row with the key {key!r} (key {number} of {self!r}) can't be read")
            raise translated from error
        if len(rows) != 1:
            raise CorruptRecordError(
                f"each key must have one row; the key {key!r} of {self._path!r} (key {number} of {self!r}) has "
                f"{'none' if not rows else 'more'}. Let both queries find the same rows, by a unique column.",
                source=repr(self),
                keys=[number],
            )
        return dict(zip(self._names, rows[0], strict=True))

    def _error_of(self, error: sqlite3.Error | UnicodeDecodeError, failure: str) -> Exception:
        if self._closed:  # by another thread
            return ClosedError(f"{self._path!r} was closed during a read. Close a source after its readers.")
        return _translated(error, self._path, failure)


@frozen
class _State:
    """The sizes and times of the database and of its write-ahead log, which show that the database has changed."""

    size: int
    mtime_ns: int
    log_bytes: int
    log_mtime_ns: int


class _Connection:
    """A read-only connection, closed with the last reference to this object, unless a fork has copied it."""

    def __init__(self, path: str, state: _State) -> None:
        self.process = os.getpid()
        self._path = path
        self._state = state
        self._is_immutable = not state.log_bytes and _needs_no_log(path)
        options = "mode=ro&immutable=1" if self._is_immutable else "mode=ro"
        try:
            # Another thread may close it, and a fork's child never does.
            self.handle = sqlite3.connect(
                f"{Path(path).as_uri()}?{options}", uri=True, check_same_thread=False, isolation_level=None
            )
        except _FAILURES as error:
            _state_of(path)  # if there is no file, this error says so, and that of SQLite doesn't
            raise _translated(error, path, "the database can't be opened") from error
        self._finalizer = weakref.finalize(self, _close, self.handle, self.process)
        try:
            self._version = self._current_version()
        except _FAILURES as error:
            raise _translated(error, path, "the database can't be read") from error
        if _state_of(path) != state:
            raise SourceError(_CHANGED.format(path))

    def begin(self) -> None:
        """Begin to read: the file is locked once for all rows, and they are of one state.

        Raises:
            SourceError: another connection has changed the database since this one was opened.
        """
        self.handle.execute("BEGIN")
        has_changed = self._current_version() != self._version
        if has_changed or (self._is_immutable and _state_of(self._path) != self._state):
            raise SourceError(_CHANGED.format(self._path))

    def end(self) -> None:
        """End what `begin` has begun, if it has."""
        with contextlib.suppress(sqlite3.Error):  # it was closed by another thread
            if self.handle.in_transaction:
                self.handle.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._finalizer()

    def _current_version(self) -> int:
        version: int = self.handle.execute("PRAGMA data_version").fetchone()[0]
        return version


# SQLite's message may quote bytes of a damaged schema, which the module sqlite3 then fails to decode.
_FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
_CHANGED: Final = "{!r} changed since it was listed. Copy a database that is written to, and create the source again."


def _close(handle: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        handle.close()


def _state_of(path: str) -> _State:
    try:
        status = os.stat(path)
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Restore the database.", error)
    try:
        log = os.stat(f"{os.path.realpath(path)}-wal")  # SQLite has it beside the file, not beside a link to it
    except OSError:
        return _State(status.st_size, status.st_mtime_ns, 0, 0)
    # A reader may create an empty log.
    return _State(status.st_size, status.st_mtime_ns, log.st_size, log.st_mtime_ns if log.st_size else 0)


def _needs_no_log(path: str) -> bool:
    """Return whether a database with an empty log is of the kind with one, in a folder where SQLite can't make one."""
    real = os.path.realpath(path)
    if os.access(os.path.dirname(real), os.W_OK) or os.path.exists(f"{real}-shm"):
        return False
    try:
        with open(real, "rb") as stream:
            return stream.read(_HEADER_BYTES)[_READ_VERSION:] == _WITH_LOG
    except OSError:  # SQLite raises it, too
        return False


def _ordered(keys: str) -> str:
    if not _ORDER.search(keys):
        raise UsageError(
            f"keys must have ORDER BY: without it, SQL has no fixed order of rows; got {keys!r}. Order it by the key."
        )
    return keys


def _translated(error: sqlite3.Error | UnicodeDecodeError, path: str, failure: str) -> Exception:
    if isinstance(error, UnicodeDecodeError):
        return CorruptRecordError(f"{path!r} has names that are no UTF-8, or is damaged: {error}. Restore the file.")
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return CorruptRecordError(f"{path!r} is no database of SQLite, or is damaged: {error}. Restore the file.")
    if "decode" in str(error):
        return CorruptRecordError(f"{failure} from {path!r}: {error}. Store texts in UTF-8, or cast them AS BLOB.")
    if str(error).removeprefix("no such column: ") in _ROWIDS:
        return UsageError(
            f"{failure} from {path!r}: {error}. A table WITHOUT ROWID is read by its primary key, as in Sqlite(path, "
            "'SELECT * FROM … WHERE id = ?', keys='SELECT id FROM … ORDER BY id')."
        )
    if code in (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY):
        return UsageError(f"{failure} from {path!r}: {error}. Correct the table's name or the query.")
    remedy = "Check the file's permissions, and that no program locks it."
    real = os.path.realpath(path)
    if os.path.exists(f"{real}-wal") and not os.access(os.path.dirname(real), os.W_OK):
        remedy = (
            "Its write-ahead log needs a folder that can be written to: run PRAGMA journal_mode=DELETE on the "
            "database, or copy it and its log elsewhere."
        )
    return SourceError(f"{failure} from {path!r}: {error}. {remedy}")


def only_table(path: str) -> str:
    """Return the name of a database's one table.

    Args:
        path: the database's file.

    Raises:
        UsageError: it has none, or several.
    """
    keys = "SELECT rowid FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name"
    with Sqlite(path, "SELECT name FROM sqlite_master WHERE rowid = ?", keys=keys) as tables:
        names = [table["name"] for table in tables.read(range(len(tables)))]
    if len(names) != 1:
        raise UsageError(
            f"a database that is read by its path must have one table; {path!r} has {names}. Name one, as in "
            "ps.read(ps.sources.Sqlite(path, 'table'))."
        )
    return str(names[0])


def _key_at(keys: _RowKeys, number: int) -> object:
    return keys.item(number) if isinstance(keys, np.ndarray) else keys[number]


def _digest_of(keys: _RowKeys) -> str:
    content = keys.tobytes() if isinstance(keys, np.ndarray) else repr(keys).encode("utf-8", "surrogatepass")
    return f"{len(keys)}-{hashlib.blake2b(content, digest_size=16).hexdigest()}"
