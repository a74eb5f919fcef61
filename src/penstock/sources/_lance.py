"""The source of the rows of a Lance dataset; records are dicts of columns.

Lance finds rows by their numbers. A row by itself costs it hundreds of microseconds, and one of many some
microseconds, so `read` asks for all its keys at once, and nothing is kept.

The library has threads that a fork doesn't copy, so a forked child opens the dataset by itself (`_Version`). Worker
processes of a loader are forked before the dataset is opened.
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
from penstock.sources._arrow_rows import NUMPY, ArrowRows, lengths_of
from penstock.sources._local_files import PathLike
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range
from penstock.sources._table_files import Types, missing_column, types_of

_Opened: TypeAlias = Any  # a `lance.LanceDataset`

_BLOCK_ROWS: Final = 1024


class Lance:
    """The rows of one version of a Lance dataset; records are dicts with the value of each column.

    Values are those of `penstock.sources.Parquet`. Rows that were deleted have no key. The source reads the version
    that was the latest when it was made, also in worker processes, and whatever is written meanwhile.

    Lance reads many rows at once far faster than one: use batches of some hundred rows, or `shuffle(blocks=True)`,
    whose blocks are runs of 1,024 rows of a fragment, as they are stored.

    Columns that Lance keeps as blobs are refused, since it returns their places instead of their bytes. A value of its
    type bfloat16 is two bytes.

    Args:
        path: the folder of the dataset, or another URI that Lance takes.
        version: the version to read, from 1. Default: the latest.
        columns: the names of the columns to read, in the order of the records. Default: all columns.

    Raises:
        UsageError: there is no such dataset, version or column, or Lance can't return the values of a column.
        SourceError: the dataset can't be read; later, in another process, another one is at the path.
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
        if version is not None and version < 1:
            raise UsageError(f"version must be at least 1; got {version!r}. Omit it for the latest.")
        opened = _open(self._uri, version)
        self._version: int = opened.version
        types = types_of(opened.schema, columns, self._uri)
        self._columns = tuple(types)
        _need_values(opened, types, self._uri)
        fragments = opened.get_fragments()
        self._blocks = _blocks_of([fragment.count_rows() for fragment in fragments])
        described = str([(name, str(kind)) for name, kind in types.items()])
        self._digest = _digest_of(fragments, described)
        self._dataset = _Version(self._uri, self._version, described, self._digest, opened)

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
            SourceError: another dataset is at the path.
        """
        checked = as_keys(keys)
        check_range(checked, len(self))
        wanted: list[int] = checked.tolist()
        if not wanted:
            return []
        opened = self._dataset.get()
        try:
            table = opened.take(wanted, columns=list(self._columns))
        except (OSError, ValueError) as error:
            raise CorruptRecordError(
                f"rows of {self._uri!r}, version {self._version}, can't be read: {error}. Files of it are damaged, or "
                "were removed by cleaning up old versions: restore them, or read a later version.",
                source=repr(self),
                keys=wanted,
            ) from error
        return ArrowRows(table.to_batches(), self._columns, NUMPY).take(np.arange(len(wanted)))

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the length of a column's value in every row, and 0 for None; only that column is read.

        Args:
            column: the name of a column of lists, texts or bytes.

        Returns:
            int64, one axis.

        Raises:
            UsageError: there is no such column, or its values have no length.
        """
        if column not in self._columns:
            raise UsageError(missing_column(column, self._columns, repr(self._uri)))
        return lengths_of(self._dataset.get().to_batches(columns=[column]), column, len(self))

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


class _Version:
    """Owns the opened dataset of a version in this process, which is opened when it is first needed.

    Another dataset at the same path has other files, and so another digest.
    """

    def __init__(self, uri: str, version: int, described: str, digest: str, opened: _Opened = None) -> None:
        self._uri = uri
        self._version = version
        self._described = described
        self._digest = digest
        self._opened = opened
        renewed_after_fork(self)

    def __reduce__(self) -> tuple[type["_Version"], tuple[str, int, str, str]]:
        return _Version, (self._uri, self._version, self._described, self._digest)

    def renew_after_fork(self) -> None:
        """Begin without an opened dataset."""
        self._opened = None

    def get(self) -> _Opened:
        """Return the opened dataset.

        Raises:
            SourceError: it isn't the one with which the source was made.
        """
        opened = self._opened
        if opened is None:  # two threads may open it at once, and the dataset of the later is kept
            opened = _open(self._uri, self._version)
            if _digest_of(opened.get_fragments(), self._described) != self._digest:
                raise SourceError(
                    f"version {self._version} of the Lance dataset {self._uri!r} must have the files that it had when "
                    "the source was created; it has others. The dataset was written again: create the source again."
                )
            self._opened = opened
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


def _blocks_of(counts: Sequence[int]) -> NDArray[np.int64]:
    begin, bounds = 0, [np.zeros(1, np.int64)]
    for count in counts:
        if count:
            bounds.append(np.append(np.arange(0, count, _BLOCK_ROWS)[1:], count) + begin)
            begin += count
    return np.concatenate(bounds)


def _need_values(opened: _Opened, types: Types, uri: str) -> None:
    """Check that Lance returns the values of all columns: it has names that it can't look up, and blobs.

    Raises:
        UsageError: it doesn't.
    """
    for name in types:
        if not name or "`" in name:
            raise UsageError(
                f"Lance must be able to look up a column by its name; {name!r} in {uri!r} is empty or has a backtick. "
                "Name the other columns, as in columns=['text'], or write the dataset with another name."
            )
    for field in opened.scanner(columns=list(types)).projected_schema:
        if field.type != types[field.name]:
            raise UsageError(
                f"columns must not be blobs, of which Lance returns places instead of bytes; {field.name!r} in {uri!r} "
                "is one, or has one inside. Name the other columns, as in columns=['text'], and call take_blobs of "
                "Lance's dataset in a map; or write the column as binary."
            )


def _digest_of(fragments: Sequence[Any], described: str) -> str:
    """Return a digest of the described columns, of the names of all files, which are unique, and of deleted rows."""
    digest = hashlib.blake2b(described.encode(), digest_size=16)
    for fragment in fragments:
        files = [file.path for file in fragment.data_files()]
        digest.update(f"{files} {fragment.deletion_file()} {fragment.count_rows()}\n".encode())
    return digest.hexdigest()
