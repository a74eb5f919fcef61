"""The source of the rows of Zarr arrays; records are rows, or dicts with a row of each array.

The zarr package reads the metadata and decodes chunks. A single row would cost it hundreds of microseconds, so a
*block* is read as a whole: a run of rows that are whole chunks, or whole shards. `KeptBlocks` keeps the rows.

A store has no list of its chunks: one that is missing has the fill value, by the format's rule. So a change of a chunk
can't be noticed, and a process that opens the store again compares the metadata alone.
"""

import contextlib
import hashlib
import math
import os
import sys
from bisect import bisect_right
from collections.abc import Generator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._optional import need
from penstock._os import local_path
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._kept_blocks import DECODED_BYTES, KeptBlocks, Waste, check_decoded_bytes, own, rows_of_blocks
from penstock.sources._local_files import LocalFile, PathLike, identity_of, raise_source_error, stat_file
from penstock.sources._rendezvous import job_of
from penstock.sources._shared_blocks import SharedBlocks
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range, different_names

_METADATA: Final = ("zarr.json", ".zarray", ".zgroup")
_MAX_FILES: Final = 20_000  # of a store that ranks share: to look at more takes each of them longer than 0.1 s
_SHARD_BYTES: Final = 64 << 20  # the largest shard that is read as a whole

_Array: TypeAlias = Any  # a `zarr.Array`
_Rows: TypeAlias = Mapping[str, NDArray[Any]]


class Zarr:
    """The rows of an array, or of the arrays of a group, in a Zarr store of version 2 or 3.

    The first axis of an array counts its rows, and all arrays have the same number of rows. The records of a group are
    dicts with a row of each array, those of a single array are its rows. A row is an array, or a NumPy scalar if the
    array has one axis; texts of variable length are `str`.

    Chunks are decoded some at a time, at least 1 MiB, and those that were used last are kept, up to `decoded_bytes`.
    Chunks that have all columns of a few rows are best; of a shard up to 64 MiB, all chunks are decoded together. A
    shuffle over more than `decoded_bytes` decodes chunks for almost every record: pass `shuffle(blocks=True)`.

    A chunk that is missing has the array's fill value: that is the format's rule, so a copy that lacks files is no
    error. No descriptor stays open. A store must not change while it is read: a process that opens it again refuses
    changed metadata, but a changed chunk can't be noticed.

    Args:
        path: the folder of an array or a group.
        names: the arrays of a group, such as `["image", "train/label"]`, in the order of the records. Default: all that
            have rows, with their groups, sorted by name.
        decoded_bytes: how much of decoded chunks is kept, in bytes; one block is always kept. Worker processes keep
            them together, and so do the ranks that torchrun starts on a machine, where the store has at most 20,000
            files. Default: 256 MiB, for each rank.

    Raises:
        UsageError: the folder is no store; an array doesn't exist, or has no rows; or arrays have different numbers of
            rows.
        SourceError: the store can't be read; later, at a read, it has other metadata, or no longer exists.
        CorruptRecordError: its metadata or a chunk is damaged or truncated, or needs a codec that is missing.
        MissingDependencyError: zarr isn't installed; the extra `zarr` installs it.

    Example:
        >>> import tempfile
        >>> import zarr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     group = zarr.open_group(folder, mode="w")
        ...     _ = group.create_array("x", data=np.arange(6).reshape(2, 3))
        ...     _ = group.create_array("label", data=np.array([7, 8], np.int8))
        ...     source = Zarr(folder)
        ...     source, source[1]
        (Zarr(2 rows of 2 arrays), {'label': np.int8(8), 'x': array([3, 4, 5])})
    """

    def __init__(
        self, path: PathLike, names: Sequence[str] | None = None, *, decoded_bytes: int = DECODED_BYTES
    ) -> None:
        check_decoded_bytes(decoded_bytes)
        self._path = local_path(path)
        _check_store(self._path)
        opened = _open(self._path, names)
        self._columns = [_column_of(name, array) for name, array in opened.items()]
        counts = {name: int(array.shape[0]) for name, array in opened.items()}
        if len(set(counts.values())) > 1:
            raise UsageError(
                f"all arrays must have the same number of rows; {self._path!r} has {counts}. Name those to read, as in "
                f"names=[{next(iter(counts))!r}]."
            )
        self._length = next(iter(counts.values()))
        rows = rows_of_blocks(
            {column.chunk_rows for column in self._columns}, sum(column.row_bytes for column in self._columns)
        )
        self._blocks = np.unique(np.append(np.arange(0, max(1, self._length), rows), self._length))
        self._decoded_bytes = decoded_bytes
        self._described = f"{self._columns} {rows}"
        self._identity = "" if job_of(os.environ) is None else _identity(self._path, self._described, _MAX_FILES)
        self._shared = SharedBlocks(len(self._blocks) - 1, decoded_bytes, self._identity)
        self._begin()
        self._arrays: Mapping[str, _Array] | None = opened

    def _begin(self) -> None:
        """Begin without rows, as every process does."""
        self._kept = KeptBlocks[_Rows](self._decoded_bytes, self._shared)
        self._waste = Waste("block of chunks", self._decoded_bytes)
        self._starts: list[int] = self._blocks.tolist()
        self._arrays = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self._record(as_key(key, self._length))

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the rows of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A row, or a dict of rows, for each key.
        """
        checked = as_keys(keys)
        check_range(checked, self._length)
        records: list[Record] = [None] * len(checked)
        order: list[int] = np.argsort(checked, kind="stable").tolist()  # each block once
        for place in order:
            records[place] = self._record(checked.item(place))
        return records

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The key at which each run of rows begins that is decoded at once, and the length: int64, one axis."""
        return self._blocks

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the row and the store of a key, for messages."""
        return f"row {as_key(key, self._length)} of {os.path.basename(self._path)!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them.

        All files of the store are listed, once.
        """
        if not self._identity:
            self._identity = _identity(self._path, self._described, sys.maxsize)
        return self.fingerprint(), self._identity

    def fingerprint(self) -> str:
        """Return a str that changes with the names, dtypes and shapes of the arrays."""
        described = f"{self._length} {[column.described for column in self._columns]}"
        return f"zarr-{hashlib.blake2b(described.encode(), digest_size=16).hexdigest()}"

    def __repr__(self) -> str:
        count = len(self._columns)
        return f"Zarr({self._length} rows of {count} {'array' if count == 1 else 'arrays'})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_waste": None, "_starts": None, "_arrays": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _record(self, key: int) -> Record:
        block = bisect_right(self._starts, key) - 1
        self._waste.returned += 1
        rows = self._kept.get(block)
        if rows is None:
            rows = self._kept.opened(block, self._read_block)
        place = key - self._starts[block]
        record = {name: own(values[place]) for name, values in rows.items()}
        return record.get("", record)

    def _read_block(self, block: int) -> tuple[_Rows, int]:
        begin, end = self._starts[block], self._starts[block + 1]
        rows: dict[str, NDArray[Any]] = {}
        for name, array in self._opened().items():
            with _reading(self._path, f"rows {begin} to {end - 1} of {f'{name!r} in ' if name else ''}"):
                rows[name] = np.asarray(array[begin:end])
        self._waste.add(end - begin, self)
        return rows, sum(map(_bytes_of, rows.values()))

    def _opened(self) -> Mapping[str, _Array]:
        """Return the arrays, opened by this process.

        Raises:
            SourceError: they aren't those that were listed.
        """
        if self._arrays is None:
            _check_store(self._path)
            names = [column.name for column in self._columns]
            opened = _open(self._path, None if names == [""] else names)
            found = [_column_of(name, array) for name, array in opened.items()]
            if found != self._columns or any(array.shape[0] != self._length for array in opened.values()):
                raise SourceError(
                    f"{self._path!r} changed since it was listed: it had {self._columns}, and has {found}. Create the "
                    "source again."
                )
            self._arrays = opened
        return self._arrays


@frozen
class _Column:
    """An array of the store.

    Attributes:
        name: with its groups; "" for the only array of a store.
        dtype: of its values in memory, as text.
        value_bytes: the size of a value.
        shape: of a row.
        chunk_rows: the rows of a chunk, or of a shard that is read as a whole.
    """

    name: str
    dtype: str
    value_bytes: int
    shape: tuple[int, ...]
    chunk_rows: int

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes, at least 1."""
        return max(1, math.prod(self.shape) * self.value_bytes)

    @property
    def described(self) -> str:
        """The name, the dtype and the row."""
        return f"{self.name!r}: {self.dtype}{list(self.shape)}"


def _zarr() -> ModuleType:
    return need("zarr", "zarr", extra="zarr")


def _identity(path: str, described: str, most: int) -> str:
    """Return a digest of the paths, sizes and times of a store's files; "" where there are more than `most`."""
    files: list[LocalFile] = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        if len(files) + len(names) > most:
            return ""
        files += [stat_file(os.path.join(folder, name)) for name in sorted(names)]
    return identity_of(files, f"Zarr {described}")


def _check_store(path: str) -> None:
    try:
        found = os.listdir(path)
    except OSError as error:
        raise_source_error(f"cannot list {path!r}: {error.strerror}. Pass the folder of a Zarr store.", error)
    if not is_zarr(found):
        raise UsageError(
            f"a Zarr store has one of {', '.join(_METADATA)}; {path!r} has none. Pass the folder of an array or of a "
            "group."
        )


def is_zarr(names: Sequence[str]) -> bool:
    """Return whether a folder with files of these names is a Zarr store."""
    return any(name in names for name in _METADATA)


@contextlib.contextmanager
def _reading(path: str, what: str) -> Generator[None]:
    """Raise the errors of zarr and of the system as those of a store.

    Raises:
        UsageError: as it was raised.
        SourceError: the system can't read the store.
        CorruptRecordError: zarr can't.
    """
    try:
        yield
    except (SourceError, UsageError):
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise_source_error(f"cannot read {path!r}: {error}. Check the store.", error)
        raise CorruptRecordError(
            f"{what}{path!r} can't be read as Zarr: {' '.join(str(error).split())}. The store is truncated or damaged, "
            "or needs a codec that isn't installed: restore it, or write it again."
        ) from error


def _open(path: str, names: Sequence[str] | None) -> dict[str, _Array]:
    """Return the arrays of a store by name; a single array has the name "".

    Raises:
        UsageError: an array doesn't exist or has no rows, or there is none.
    """
    zarr = _zarr()
    with _reading(path, ""):
        opened = zarr.open(path, mode="r")
        if isinstance(opened, zarr.Array):
            if names is not None:
                raise UsageError(f"names are those of a group's arrays; {path!r} is a single array. Omit names.")
            found: dict[str, _Array] = {"": opened}
        elif names is None:
            found = {
                name: member
                for name, member in sorted(opened.members(max_depth=None))
                if isinstance(member, zarr.Array) and member.shape
            }
        else:
            found = {name: opened.get(name) for name in different_names("names", names)}
        for name, array in found.items():
            if not (isinstance(array, zarr.Array) and array.shape):
                raise UsageError(f"arrays must have rows; {path!r} has no such {name!r}. Name arrays that it has.")
        if not found:
            raise UsageError(f"a group must have an array with rows; {path!r} has none. Pass another store.")
    return found


def _column_of(name: str, array: _Array) -> _Column:
    shape = tuple(map(int, array.shape[1:]))
    dtype = np.dtype(array.dtype)
    rows = int(array.chunks[0])
    if array.shards is not None and math.prod(array.shards) * dtype.itemsize <= _SHARD_BYTES:
        rows = int(array.shards[0])
    return _Column(name, str(dtype) if dtype.kind != "T" else "T", dtype.itemsize, shape, max(1, rows))


def _bytes_of(values: NDArray[Any]) -> int:
    """Return the size of rows in memory; of texts, that of their content."""
    if values.dtype.kind not in "OT":
        return values.nbytes
    held: list[str] = values.ravel().tolist()
    return values.nbytes + sum(map(len, held))
