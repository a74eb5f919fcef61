"""The source of values in an LMDB database; records are bytes.

LMDB finds a value by its key, and numbers none. So a source lists the keys once, in LMDB's order, and record k is the
value of key k.

A process can open a database once only, also after a fork, and the library reports a second time as an error. So all
sources of a process share the environment of a file (`_Environments`), which is closed with the last of them. It is
opened read-only and without LMDB's lock file, which writers and readers need to work at once: so nothing of it belongs
to a thread or a process, and a forked worker reads the map of its parent. The price is that a database must not be
written to while it is read. Each read is one transaction, and compares the number of the last write with that of the
listing.
"""

import contextlib
import hashlib
import itertools
import os
import threading
import weakref
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._optional import need
from penstock._os import local_path, renewed_after_fork
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._local_files import LocalFile, PathLike, identity_of, is_missing, raise_source_error, stat_file
from penstock.sources._source import Keys, as_key, as_keys, check_range

_LISTED: Final = 1 << 16  # keys in one step
_DATABASES: Final = 126  # named ones that sources of one file may read
_SHOWN: Final = 48  # bytes of a key in messages


class Lmdb:
    """The values of an LMDB database, in the order of its keys; records are bytes.

    The constructor lists the keys, and each process that reads the source lists them again; `keys` chooses some, or
    another order, as for the images of a database that has images and labels. Values are read from the mapped file.
    `describe_key` names the key of a record.

    All sources of a process share one mapping of a file; threads and forked processes read it at once. The database is
    opened without LMDB's locks, so it must not be written to while it is read: a changed one raises SourceError. Your
    program must not open it at the same time by `lmdb.open`, which LMDB forbids.

    Args:
        path: the folder with `data.mdb`, or a file, as written with `subdir=False`.
        database: the name of a database inside. Default: the unnamed one.
        keys: the keys of the records, in their order. Default: all keys.

    Raises:
        UsageError: there is no such file, database or key; a key has several values, which a database with `dupsort`
            may have; or `database` is missing, and one of the first 126 keys is the name of a database.
        SourceError: the file can't be read; later, at a read, it no longer exists or has changed.
        CorruptRecordError: the file is none of LMDB, or truncated or damaged.
        MissingDependencyError: the package lmdb isn't installed; the extra `lmdb` installs it.

    Example:
        >>> import tempfile
        >>> import lmdb
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with lmdb.open(folder) as environment, environment.begin(write=True) as transaction:
        ...         _ = transaction.put(b"b", b"two"), transaction.put(b"a", b"one")
        ...     source = Lmdb(folder)
        ...     len(source), source[1], source.describe_key(1)
        (2, b'two', "the value of b'b' in 'data.mdb'")
    """

    def __init__(
        self, path: PathLike, *, database: str | bytes | None = None, keys: Sequence[bytes] | None = None
    ) -> None:
        self._file = _data_of(local_path(path))
        self._database = database.encode() if isinstance(database, str) else database
        self._opened: _Opened | None = _open(self._file, self._database)
        self._version = self._opened.version
        self._given = None if keys is None else _table_of(keys)
        self._table: _KeyTable | None = self._opened.listed() if self._given is None else self._given
        if self._given is not None:
            self._opened.need_keys(self._given)
        elif self._database is None:
            self._opened.need_values(self._table)
        self._opened.need_single_values(self._table)
        self._length = len(self._table)
        self._digest = self._table.digest()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: SupportsIndex) -> bytes:
        return self.read(np.array([as_key(key, self._length)]))[0]

    def read(self, keys: Sequence[int] | Keys) -> list[bytes]:
        """Return the value of each key.

        Args:
            keys: in [0, length), one axis.

        Raises:
            SourceError: the database was written to since it was listed.
            CorruptRecordError: a listed key has no value, or the file is damaged.
        """
        checked = as_keys(keys)
        check_range(checked, self._length)
        opened, table = self._environment(), self._keys()
        names = [table[number] for number in checked.tolist()]
        found = opened.values(names, self._version)
        if None in found:
            lacking = found.index(None)
            raise CorruptRecordError(
                f"{self._file.path!r} has no value for the key {_shown(names[lacking])} (key {checked[lacking]} of "
                f"{self!r}), which it listed. The file is damaged: restore it.",
                source=repr(self),
                keys=[int(checked[lacking])],
            )
        return found

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the key in the database, and the file, for messages."""
        return f"the value of {_shown(self._keys()[as_key(key, self._length)])} in {self._file.name!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return self.fingerprint(), identity_of([self._file], ""), self._version

    def fingerprint(self) -> str:
        """Return a str that changes with the file's size, the database and the keys."""
        described = f"{self._file.size} {self._database!r} {self._digest}"
        return f"lmdb-{hashlib.blake2b(described.encode(), digest_size=16).hexdigest()}"

    def __repr__(self) -> str:
        return f"Lmdb({self._length} values of {self._file.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_table": None}

    # Two threads may do these at once: both find the same, and the one of the later is kept.

    def _environment(self) -> "_Opened":
        opened = self._opened
        if opened is None:
            opened = self._opened = _open(self._file, self._database)
        return opened

    def _keys(self) -> "_KeyTable":
        table = self._table
        if table is None:
            table = self._environment().listed() if self._given is None else self._given
            if table.digest() != self._digest:
                raise SourceError(_CHANGED.format(self._file.path), source=repr(self))
            self._table = table
        return table


_CHANGED: Final = "{!r} changed since it was listed. Copy a database that is written to, and create the source again."


@frozen
class _KeyTable:
    """Keys, one after the other, and the end of each; a list of bytes takes five times the memory."""

    content: bytes
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> bytes:
        return self.content[int(self.ends[number - 1]) if number else 0 : int(self.ends[number])]

    def digest(self) -> str:
        digest = hashlib.blake2b(self.content, digest_size=16)
        digest.update(self.ends.tobytes())
        return digest.hexdigest()


def _table_of(keys: Iterable[object]) -> _KeyTable:
    remaining = iter(keys)
    parts: list[bytes] = []
    lengths: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    while listed := [_checked_key(key) for key in itertools.islice(remaining, _LISTED)]:
        parts.append(b"".join(listed))
        lengths.append(np.array([len(key) for key in listed], np.int64))
    return _KeyTable(b"".join(parts), np.cumsum(np.concatenate(lengths)))


def _checked_key(key: object) -> bytes:
    if not isinstance(key, bytes):
        raise UsageError(f"keys of LMDB are bytes; got {key!r}. Encode it, as in key.encode().")
    return key


def _shown(key: bytes) -> str:
    return repr(key) if len(key) <= _SHOWN else f"{key[:_SHOWN]!r}…"


class _Environment:
    """An opened file; all sources of the process share it."""

    def __init__(self, file: LocalFile) -> None:
        if stat_file(file.path) != file:
            raise SourceError(_CHANGED.format(file.path))
        lmdb = need("lmdb", "lmdb", extra="lmdb")
        try:
            self.handle: Any = lmdb.open(
                os.fsencode(file.path),
                subdir=False,
                readonly=True,
                lock=False,
                readahead=False,
                max_dbs=_DATABASES,
            )
            pages = self.handle.info()["last_pgno"] + 1
            expected = pages * self.handle.stat()["psize"]
        except (lmdb.Error, OSError) as error:
            if "already open" in str(error):
                raise UsageError(
                    f"{file.path!r} is already open in this process by lmdb.open, which LMDB allows once. Close that "
                    "environment first; if sources of a file that was replaced have it open, drop these."
                ) from error
            raise CorruptRecordError(
                f"cannot open {file.path!r} as a database of LMDB: {error}. Restore the file, or read it by another "
                "source."
            ) from error
        if file.size < expected:
            raise CorruptRecordError(
                f"{file.path!r} has {file.size} bytes, and its {pages} pages need {expected}: it is truncated. Copy it "
                "again completely."
            )


class _Environments:
    """The environments of this process, by device and inode: a file that was replaced is another one at the same path.

    The lock keeps two threads from opening one file twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: weakref.WeakValueDictionary[tuple[int, int], _Environment] = weakref.WeakValueDictionary()
        renewed_after_fork(self)

    def renew_after_fork(self) -> None:
        self._lock = threading.Lock()

    def of(self, file: LocalFile) -> _Environment:
        with self._lock:
            try:
                status = os.stat(file.path)
            except OSError as error:
                raise_source_error(f"cannot read {file.path!r}: {error.strerror}. Restore the database.", error)
            identity = status.st_dev, status.st_ino
            known = self._living.get(identity)
            if known is None:
                known = self._living[identity] = _Environment(file)
            return known


_environments: Final = _Environments()


@frozen
class _Opened:
    """A database of an environment.

    Attributes:
        environment: the environment, held as long as this.
        database: LMDB's handle.
        version: the number of the last write.
        path: the file.
    """

    environment: _Environment
    database: Any
    version: int
    path: str

    def listed(self) -> _KeyTable:
        """Return all keys, each as often as it has values."""
        with _reading(self.path), self.environment.handle.begin(db=self.database) as transaction:
            return _table_of(transaction.cursor().iternext(keys=True, values=False))

    def need_keys(self, table: _KeyTable) -> None:
        """Check that each key has a value.

        Raises:
            UsageError: one has none.
        """
        with _reading(self.path), self.environment.handle.begin(db=self.database, buffers=True) as transaction:
            for number in range(len(table)):
                if not table[number] or transaction.get(table[number]) is None:
                    raise UsageError(
                        f"each of keys must be in the database; {self.path!r} has no {_shown(table[number])}, number "
                        f"{number} of keys. Leave it out, or name the database= that has it."
                    )

    def need_values(self, table: _KeyTable) -> None:
        """Check that the first keys of the unnamed database are none of databases inside, which it lists, too.

        Raises:
            UsageError: one is.
        """
        lmdb = need("lmdb", "lmdb", extra="lmdb")
        for number in range(min(len(table), _DATABASES)):
            with contextlib.suppress(lmdb.Error):  # it has a value
                self.environment.handle.open_db(table[number], create=False)
                raise UsageError(
                    f"records must be values; in {self.path!r}, {_shown(table[number])} is a database. Pass "
                    f"database={table[number].decode(errors='replace')!r} to read it, or keys= of values."
                )

    def need_single_values(self, table: _KeyTable) -> None:
        """Check that each key has one value.

        Raises:
            UsageError: one has more.
        """
        with _reading(self.path), self.environment.handle.begin(db=self.database) as transaction:
            if not self.database.flags(transaction)["dupsort"]:
                return
            cursor = transaction.cursor()
            for number in range(len(table)):
                if cursor.set_key(table[number]) and cursor.count() > 1:
                    raise UsageError(
                        f"each key must have one value; in {self.path!r}, {_shown(table[number])} has "
                        f"{cursor.count()}. Copy them to a database with a key for each, or pass keys= of others."
                    )

    def values(self, names: Sequence[bytes], version: int) -> list[Any]:
        """Return the value of each key, None for one that isn't there.

        Raises:
            SourceError: the database was written to.
        """
        with _reading(self.path), self.environment.handle.begin(db=self.database) as transaction:
            if transaction.id() != version:
                raise SourceError(_CHANGED.format(self.path))
            return list(map(transaction.get, names))


def _open(file: LocalFile, database: bytes | None) -> _Opened:
    lmdb = need("lmdb", "lmdb", extra="lmdb")
    environment = _environments.of(file)
    with _reading(file.path):
        try:
            handle = environment.handle.open_db(database, create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise UsageError(
                f"{file.path!r} has no database {database!r}: {error}. Pass the name that it was written with."
            ) from error
        with environment.handle.begin() as transaction:
            return _Opened(environment, handle, int(transaction.id()), file.path)


@contextlib.contextmanager
def _reading(path: str) -> Generator[None]:
    """Raise the errors of LMDB as those of a file.

    Raises:
        SourceError: the file grew beyond the map of this process.
        CorruptRecordError: LMDB can't read the file.
    """
    lmdb = need("lmdb", "lmdb", extra="lmdb")
    try:
        yield
    except lmdb.MapResizedError as error:
        raise SourceError(_CHANGED.format(path)) from error
    except lmdb.Error as error:
        raise CorruptRecordError(
            f"{path!r} can't be read as a database of LMDB: {error}. It is damaged: restore the file."
        ) from error


def _data_of(path: str) -> LocalFile:
    """Return the file of a database.

    Raises:
        UsageError: there is none.
    """
    data = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    if is_missing(data):
        raise UsageError(f"Lmdb reads a folder with data.mdb, or such a file; {data!r} doesn't exist. Check the path.")
    return stat_file(os.path.realpath(data))
