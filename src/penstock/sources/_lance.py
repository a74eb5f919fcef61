"""The source of the rows of a Lance dataset; records are dicts of columns.

Lance finds rows by their numbers. A row by itself costs it hundreds of microseconds, and one of many some
microseconds, so `read` asks for all its keys at once, and nothing is kept.

The library has threads that a fork doesn't copy, so a forked child opens the dataset by itself. Worker processes of a
loader are forked before the dataset is opened.
"""

import hashlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._optional import need
from penstock._os import renewed_after_fork
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._arrow_rows import NUMPY, ArrowRows, lengths_of, names_of
from penstock.sources._local_files import PathLike
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range

_Opened: TypeAlias = Any  # a `lance.LanceDataset`

_BLOCK_ROWS: Final = 1024


class Lance:
    """The rows of one version of a Lance dataset; records are dicts with the value of each column.

    Values are those of `penstock.sources.Parquet`. Rows that were deleted have no key. The source reads the version
    that was the latest when it was made, also in worker processes, and whatever is written meanwhile.

    Lance reads many rows at once far faster than one: use batches of some hundred rows, or `shuffle(blocks=True)`,
    whose blocks are runs of 1,024 rows of a fragment, as they are stored.

    Args:
        path: the folder of the dataset, or another URI that Lance takes.
        version: the version to read, from 1. Default: the latest.
        columns: the names of the columns to read, in the order of the records. Default: all columns.

    Raises:
        UsageError: there is no such dataset, version or column.
        SourceError: the dataset can't be read; later, at a read, files were removed.
        MissingDependencyError: the package pylance isn't installed; the extra `lance` installs it.

    Example:
        >>> import tempfile
        >>> import lance, pyarrow
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = lance.write_dataset(pyarrow.table({"text": ["one", "two"]}), f"{folder}/a.lance")
        ...     source = Lance(f"{folder}/a.lance")
        ...     len(source), source[1], source.describe_key(1)
        (2, {'text': 'two'}, "row 1 of version 1 of 'a.lance'")
    """

    def __init__(self, path: PathLike, *, version: int | None = None, columns: Sequence[str] | None = None) -> None:
        given = os.fspath(path)
        self._uri = given if "://" in given else os.path.abspath(given)
        self._name = os.path.basename(self._uri.rstrip("/"))
        opened = _open(self._uri, version)
        self._version: int = opened.version
        self._columns = _checked(columns, names_of(opened.schema, f"the dataset {self._uri!r}"), self._uri)
        fragments = opened.get_fragments()
        self._blocks = _blocks_of([fragment.count_rows() for fragment in fragments])
        self._digest = _digest_of(opened, fragments, self._columns)
        self._opened: _Opened = opened
        renewed_after_fork(self)

    def renew_after_fork(self) -> None:
        """Begin without an opened dataset."""
        self._opened = None

    def __len__(self) -> int:
        return int(self._blocks[-1])

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self.read(np.array([as_key(key, len(self))]))[0]

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the row of each key, by one request to Lance.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A dict for each key.

        Raises:
            CorruptRecordError: Lance can't read the rows.
        """
        checked = as_keys(keys)
        check_range(checked, len(self))
        wanted: list[int] = checked.tolist()
        if not wanted:
            return []
        try:
            table = self._dataset().take(wanted, columns=list(self._columns))
        except (OSError, ValueError) as error:
            raise CorruptRecordError(
                f"rows of {self._uri!r}, version {self._version}, can't be read: {error}. Files of it are damaged, or "
                "were removed by cleaning up old versions: restore them, or read a later version.",
                source=repr(self),
                keys=wanted,
            ) from error
        return ArrowRows(table.to_batches(), self._columns, NUMPY).take(range(len(wanted)))

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the length of a column's value in every row, and 0 for None; only that column is read.

        Args:
            column: the name of a column of lists, texts or bytes.

        Returns:
            int64, one axis.

        Raises:
            UsageError: there is no such column, or its values have no length.
        """
        (name,) = _checked([column], self._columns, self._uri)
        return lengths_of(self._dataset().to_batches(columns=[name]), name, len(self))

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The key at which each run of up to 1,024 rows of a fragment begins, and the length: int64, one axis."""
        return self._blocks

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the row, the version and the dataset, for messages."""
        return f"row {as_key(key, len(self))} of version {self._version} of {self._name!r}"

    def fingerprint(self) -> str:
        """Return a str that changes with the files of the version, its deleted rows and the columns."""
        return f"lance-{self._digest}"

    def __repr__(self) -> str:
        return f"Lance({len(self)} rows of {self._name!r}, version {self._version})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        renewed_after_fork(self)

    def _dataset(self) -> _Opened:
        opened = self._opened
        if opened is None:  # two threads may open it at once, and the dataset of the later is kept
            opened = self._opened = _open(self._uri, self._version)
        return opened


def _lance() -> ModuleType:
    return need("lance", "pylance", extra="lance")


def _open(uri: str, version: int | None) -> _Opened:
    try:
        return _lance().dataset(uri, version=version)
    except ValueError as error:
        wanted = "" if version is None else f", version {version},"
        raise UsageError(
            f"Lance reads the folder of a dataset; {uri!r}{wanted} can't be found: {error}. Check the path and the "
            "version."
        ) from error
    except OSError as error:
        raise SourceError(f"cannot open the Lance dataset {uri!r}: {error}. Check its files.") from error


def _checked(columns: Sequence[str] | None, known: tuple[str, ...], uri: str) -> tuple[str, ...]:
    """Return the columns to read; Lance itself ends in a panic for an unknown one.

    Raises:
        UsageError: one is unknown.
    """
    if columns is None:
        return known
    for name in columns:
        if name not in known:
            raise UsageError(
                f"columns must be those of the dataset; {uri!r} has no {name!r}. It has {', '.join(map(repr, known))}."
            )
    return tuple(columns)


def _blocks_of(counts: Sequence[int]) -> NDArray[np.int64]:
    begin, bounds = 0, [np.zeros(1, np.int64)]
    for count in counts:
        if count:
            bounds.append(np.append(np.arange(0, count, _BLOCK_ROWS)[1:], count) + begin)
            begin += count
    return np.concatenate(bounds)


def _digest_of(opened: _Opened, fragments: Sequence[Any], columns: Sequence[str]) -> str:
    """Return a digest of the names of all files, which are unique, of the deleted rows, and of the columns."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(str([(name, str(opened.schema.field(name).type)) for name in columns]).encode())
    for fragment in fragments:
        files = [file.path for file in fragment.data_files()]
        digest.update(f"{files} {fragment.deletion_file()} {fragment.count_rows()}\n".encode())
    return digest.hexdigest()
