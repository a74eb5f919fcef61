"""The source of the rows of datasets in HDF5 files; records are dicts with a row of each dataset.

A dataset is contiguous or chunked. A contiguous one is a range of bytes of the file, so it is mapped, and h5py is used
for its place alone. A chunked one, which may be compressed, is read by h5py, in *blocks*: runs of rows that are whole
chunks. h5py has one lock for the whole process, and a file that is open must not be used after a fork. So a block is
read as a whole, the file is closed again, and `KeptBlocks` keeps the rows.
"""

import contextlib
import glob
import math
import os
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from types import ModuleType
from typing import Any, SupportsIndex, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._optional import need
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._kept_blocks import DECODED_BYTES, KeptBlocks, Waste, check_decoded_bytes, own, rows_of_blocks
from penstock.sources._local_files import (
    LocalFile,
    PathLike,
    digest_of,
    find_files,
    identity_of,
    raise_source_error,
    stat_file,
)
from penstock.sources._mapped import map_file
from penstock.sources._shared_blocks import SharedBlocks
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range, different_names
from penstock.sources._table_files import check_unchanged

_Opened: TypeAlias = Any  # an `h5py.File`
_Dataset: TypeAlias = Any  # an `h5py.Dataset`
_Rows: TypeAlias = Mapping[str, NDArray[Any]]
_Columns: TypeAlias = Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]]


class HDF5:
    """The rows of datasets in one or more HDF5 files; records are dicts with a row of each dataset.

    The first axis of a dataset counts its rows, and all datasets of a file have the same number of rows. A row is an
    array, or a NumPy scalar if the dataset has one axis. Texts of variable length are `str`, by UTF-8, those of fixed
    length are `numpy.bytes_`, and other values of variable length are arrays.

    Contiguous datasets, which `create_dataset` makes without `chunks` and `compression`, are mapped: a row costs a few
    microseconds, in any order. Chunked ones are decoded by h5py, some chunks at a time, and those that were used last
    are kept, up to `decoded_bytes`. A shuffle over more than that decodes chunks for almost every record: pass
    `shuffle(blocks=True)`, or store the dataset without chunks. h5py decodes in one thread of a process at a time, so
    use worker processes for compressed files.

    No descriptor stays open. Files must not change while they are read: a changed file raises SourceError. So does a
    missing or changed file of a virtual dataset, an external link or external storage, which counts as a file of the
    source. A dataset that several hard links name has one of these names by default; `names` may use any.

    Args:
        paths: a path, a glob such as `"data/*.h5"` (sorted by name), or a list of these, in its order.
        names: the datasets, such as `["image", "train/label"]`, in the order of the records. Default: all that have
            rows, with their groups, sorted by name.
        decoded_bytes: how much of decoded chunks is kept, in bytes; one block is always kept. Worker processes keep
            them together. Default: 256 MiB.

    Raises:
        UsageError: `paths` has no file, or a folder; a dataset doesn't exist, or has no rows; datasets of one file have
            different numbers of rows; or files have different datasets.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file isn't HDF5, or is truncated or damaged, or a filter that it needs is missing.
        MissingDependencyError: h5py isn't installed; the extra `hdf5` installs it.

    Example:
        >>> import pathlib, tempfile
        >>> import h5py
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.h5")
        ...     with h5py.File(path, "w") as file:
        ...         file["x"] = np.arange(6).reshape(2, 3)
        ...         file["label"] = np.array([7, 8], np.int8)
        ...     source = HDF5(path)
        ...     source, source[1]
        (HDF5(2 rows in 1 file), {'label': np.int8(8), 'x': array([3, 4, 5])})
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        names: Sequence[str] | None = None,
        *,
        decoded_bytes: int = DECODED_BYTES,
    ) -> None:
        check_decoded_bytes(decoded_bytes)
        self._files = find_files(paths, "HDF5")
        self._layouts = [_layout_of(file.path, names) for file in self._files]
        first = self._layouts[0]
        for file, layout in zip(self._files, self._layouts, strict=True):
            if layout.columns != first.columns:
                raise UsageError(
                    f"all files must have the same datasets; {self._files[0].path!r} has {first.described}, "
                    f"{file.path!r} has {layout.described}. Name the datasets to read, or read the files as two "
                    "sources."
                )
        self._ends = list(accumulate(layout.rows for layout in self._layouts))
        self._blocks = _blocks_of(self._layouts)
        self._decoded_bytes = decoded_bytes
        is_read = any(place.offset is None for layout in self._layouts for place in layout.places)
        self._others = [other for layout in self._layouts for other in layout.others]
        identity = identity_of([*self._files, *self._others], f"HDF5 {first.described}")
        self._shared = SharedBlocks(len(self._blocks) - 1 if is_read else 0, decoded_bytes, identity)
        self._begin()

    def _begin(self) -> None:
        """Begin without rows, as every process does."""
        self._kept = KeptBlocks[_Rows](self._decoded_bytes, self._shared)
        self._waste = Waste("block of chunks", self._decoded_bytes)
        self._maps: dict[int, _Rows] = {}
        self._starts: list[int] = self._blocks.tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self._record(as_key(key, len(self)))

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the rows of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A dict for each key.
        """
        checked = as_keys(keys)
        check_range(checked, len(self))
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
        """Return the row and the file of a key, for messages."""
        number, row = self._find(as_key(key, len(self)))
        return f"row {row} of file {self._files[number].name!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return self.fingerprint(), identity_of([*self._files, *self._others], "")

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files, and with the datasets."""
        columns = self._layouts[0].columns
        # An array type counts as its number of bytes: it always did, and states have the fingerprint.
        counted = [(name, np.dtype(dtype.str) if dtype.shape else dtype, shape) for name, dtype, shape in columns]
        return f"hdf5-{digest_of([*self._files, *self._others], _described(counted))}"

    def __repr__(self) -> str:
        count = len(self._files)
        return f"HDF5({len(self)} rows in {count} {'file' if count == 1 else 'files'})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_waste": None, "_maps": None, "_starts": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _find(self, key: int) -> tuple[int, int]:
        number = bisect_right(self._ends, key)
        return number, key - (self._ends[number - 1] if number else 0)

    def _record(self, key: int) -> Record:
        block = bisect_right(self._starts, key) - 1
        self._waste.returned += 1
        rows = self._kept.get(block)
        if rows is None:
            rows = self._kept.opened(block, self._read_block)
        place = key - self._starts[block]
        number, row = self._find(key)
        mapped = self._mapped(number)  # is in no block: processes share it already, and a block would copy it
        return {
            name: own(mapped[name][row] if name in mapped else rows[name][place])
            for name in self._layouts[number].names
        }

    def _read_block(self, block: int) -> tuple[_Rows, int]:
        number, begin = self._find(self._starts[block])
        end = begin + self._starts[block + 1] - self._starts[block]
        file, read = self._files[number], self._layouts[number].read
        for other in (file, *self._layouts[number].others):
            check_unchanged(other)
        rows: dict[str, NDArray[Any]] = {}
        if read:
            with _reading(file.path, f"rows {begin} to {end - 1} of "), _h5py().File(file.path, "r") as opened:
                rows = {place.name: _read(opened, place, begin, end) for place in read}
            self._waste.add(end - begin, self)
        return rows, sum(map(_bytes_of, rows.values()))

    def _mapped(self, number: int) -> _Rows:
        """Return all rows of the datasets of a file that are mapped."""
        known = self._maps.get(number)
        if known is None:
            file, layout = self._files[number], self._layouts[number]
            places = [place for place in layout.places if place.offset is not None]
            if places:
                check_unchanged(file)
            with _reading(file.path, ""):
                mapped = map_file(file.path) if places else np.empty(0, np.uint8)
            known = self._maps[number] = {place.name: _cut(mapped, place, layout.rows) for place in places}
        return known


@frozen
class _Place:
    """A dataset in a file.

    Attributes:
        name: with its groups.
        dtype: of its values in memory; of an array type, with the axes of a value.
        shape: of a row, without these.
        is_text: whether values are decoded as str.
        offset: the byte at which it begins if it is contiguous, else None.
        chunk_rows: the rows of a chunk; 0 if it has no chunks.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_text: bool
    offset: int | None
    chunk_rows: int

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes, at least 1."""
        return max(1, math.prod(self.shape) * self.dtype.itemsize)


@frozen(cached=True)
class _Layout:
    """The datasets of a file, which have the same number of rows.

    Attributes:
        rows: their number.
        places: of the datasets.
        others: the other files that have values of the datasets.
    """

    rows: int
    places: tuple[_Place, ...]
    others: tuple[LocalFile, ...]

    @property
    def columns(self) -> _Columns:
        """Name, dtype and row of each dataset."""
        return [(place.name, place.dtype, place.shape) for place in self.places]

    @property
    def described(self) -> str:
        """The datasets, for messages."""
        return _described([(name, dtype.base, (*shape, *dtype.shape)) for name, dtype, shape in self.columns])

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of the datasets."""
        return [place.name for place in self.places]

    @cached_property
    def read(self) -> Sequence[_Place]:
        """The datasets that h5py reads, as they aren't mapped."""
        return [place for place in self.places if place.offset is None]

    @property
    def block_rows(self) -> int:
        """The number of rows to read at once."""
        read = self.read or self.places
        return rows_of_blocks({max(1, place.chunk_rows) for place in read}, sum(place.row_bytes for place in read))


def _described(columns: _Columns) -> str:
    return ", ".join(f"{name!r}: {dtype}{list(shape) if shape else ''}" for name, dtype, shape in columns)


def _h5py() -> ModuleType:
    return need("h5py", "h5py", extra="hdf5")


@contextlib.contextmanager
def _reading(path: str, what: str) -> Generator[None]:
    """Raise the errors of h5py and of the system as those of a file.

    Raises:
        UsageError: as it was raised.
        SourceError: the system can't read the file.
        CorruptRecordError: h5py can't.
    """
    try:
        yield
    except (SourceError, UsageError):
        raise
    except UnicodeDecodeError as error:
        raise CorruptRecordError(
            f"{what}{path!r} must have texts in UTF-8: {error}. Write them again, or store them as bytes of "
            "fixed length."
        ) from error
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise_source_error(f"cannot read {path!r}: {error.strerror or error}. Check the file.", error)
        raise CorruptRecordError(
            f"{what}{path!r} can't be read as HDF5: {error}. The file is of another format, truncated or damaged, or "
            "its compression needs a plug-in: restore it, write it again, or import hdf5plugin."
        ) from error


def _layout_of(path: str, names: Sequence[str] | None) -> _Layout:
    h5py = _h5py()
    wanted = None if names is None else different_names("names", names)
    with _reading(path, ""), h5py.File(path, "r") as opened:
        found = _datasets_in(opened) if wanted is None else {name: opened.get(name) for name in wanted}
        for name, dataset in found.items():
            if not (isinstance(dataset, h5py.Dataset) and dataset.shape):
                known = ", ".join(map(repr, _datasets_in(opened))) or "none"
                raise UsageError(
                    f"names must be those of datasets with rows; {path!r} has no such {name!r}. It has {known}."
                )
        if not found:
            raise UsageError(f"a file must have a dataset with rows; {path!r} has none. Pass another file.")
        counts = {name: int(dataset.shape[0]) for name, dataset in found.items()}
        if len(set(counts.values())) > 1:
            raise UsageError(
                f"all datasets must have the same number of rows; {path!r} has {counts}. Name those to read, as in "
                f"names=[{next(iter(counts))!r}]."
            )
        size = os.path.getsize(path)
        places = tuple(_place_of(name, dataset, path, size) for name, dataset in found.items())
        others = {other for dataset in found.values() for other in _others_of(dataset, path)}
    return _Layout(next(iter(counts.values())), places, tuple(map(stat_file, sorted(others))))


def _others_of(dataset: _Dataset, path: str) -> Iterator[str]:
    """Yield the other files that have values of a dataset: by a link, by external storage, or of a virtual dataset."""
    own_file = os.path.abspath(dataset.file.filename)
    if own_file != path:
        yield own_file
    for name, *_ in dataset.external or ():
        yield os.path.abspath(name)
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        other: str = source.file_name
        if other != ".":
            beside = os.path.join(os.path.dirname(own_file), other)
            found = beside if os.path.exists(beside) else os.path.abspath(other)
            # `%b` stands for the number of a file, of which there may be any number.
            yield from glob.glob(glob.escape(beside).replace("%b", "*")) if "%b" in other else [found]


def _datasets_in(opened: _Opened) -> dict[str, _Dataset]:
    """Return the datasets that have rows, below all groups, sorted by name."""
    found: dict[str, _Dataset] = {}

    def add(name: str, item: _Dataset) -> None:
        if isinstance(item, _h5py().Dataset) and item.shape:
            found[name] = item

    opened.visititems(add)
    return dict(sorted(found.items()))


def _place_of(name: str, dataset: _Dataset, path: str, size: int) -> _Place:
    h5py = _h5py()
    dtype: np.dtype[Any] = dataset.dtype
    if h5py.check_ref_dtype(dtype) is not None:
        raise UsageError(f"references can't be read; {name!r} of {path!r} is a dataset of them. Name other datasets.")
    string = h5py.check_string_dtype(dtype)
    is_text = string is not None and string.length is None
    chunks: tuple[int, ...] | None = dataset.chunks
    is_structured = dtype.names is not None or dtype.hasobject or bool(dtype.shape)
    place = _Place(
        name,
        np.dtype(object) if is_text else dtype if is_structured else np.dtype(dtype.str),
        tuple(map(int, dataset.shape[1:])),
        is_text,
        _offset_of(dataset, path),
        chunks[0] if chunks else 0,
    )
    if place.offset is not None and place.offset + place.row_bytes * dataset.shape[0] > size:
        raise CorruptRecordError(f"{path!r} ends within the dataset {name!r}. It is truncated: copy it again.")
    return place


def _offset_of(dataset: _Dataset, path: str) -> int | None:
    """Return the byte at which the values of a dataset begin, if they are in the file as they are in memory.

    They aren't if the file has another type, such as texts that spaces fill up or integers of 12 bits; nor before the
    first write.
    """
    dtype: np.dtype[Any] = dataset.dtype
    if dtype.hasobject or dataset.external or dataset.file.filename != path or dataset.id.get_storage_size() == 0:
        return None
    create = _h5py().h5t.py_create
    if dataset.id.get_type() not in (create(dtype), create(dtype, logical=True)):
        return None
    offset: int | None = dataset.id.get_offset()
    return offset


def _blocks_of(layouts: Sequence[_Layout]) -> NDArray[np.int64]:
    begin, bounds = 0, [np.zeros(1, np.int64)]
    for layout in layouts:
        bounds.append(np.append(np.arange(0, layout.rows, layout.block_rows)[1:], layout.rows) + begin)
        begin += layout.rows
    return np.unique(np.concatenate(bounds))


def _read(opened: _Opened, place: _Place, begin: int, end: int) -> NDArray[Any]:
    dataset = opened[place.name]
    values: NDArray[Any] = (dataset.asstr("utf-8") if place.is_text else dataset)[begin:end]
    return values


def _cut(mapped: NDArray[np.uint8], place: _Place, rows: int) -> NDArray[Any]:
    first = cast("int", place.offset)
    part = mapped[first : first + rows * place.row_bytes]
    return part.view(place.dtype.base).reshape(rows, *place.shape, *place.dtype.shape)


def _bytes_of(values: NDArray[Any]) -> int:
    """Return the size of rows in memory; of texts and values of variable length, that of their content."""
    if not values.dtype.hasobject or values.dtype.names is not None:
        return values.nbytes
    held: list[object] = values.ravel().tolist()
    return sum(value.nbytes if isinstance(value, np.ndarray) else len(cast("str", value)) for value in held)
