"""The source of arrays in memory or in memory-mapped files; records are their rows."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, SupportsIndex, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import ArrayLike, NDArray

from penstock import _lazy
from penstock._os import local_path
from penstock._tree import is_masked
from penstock.errors import UsageError
from penstock.sources._mapped import MappedArray, RowTable, find_mapped
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range, dicts_of

SAMPLED_BYTES: Final = 1 << 20  # the fingerprint covers all content of arrays up to this size
SAMPLED_BLOCKS: Final = 64

_load: Final = _lazy.from_modules(__name__, open_arrays="penstock.sources._saved_arrays")  # zipfile is slow to import


class Arrays:
    """A dict of arrays of one length, or one array: the record of a key is that row of each.

    Records are dicts with the same names (or the bare row, for one array). Rows of arrays with one axis are NumPy
    scalars, others are arrays. They are copies, so changes of a record never change the source. The rows of one `read`
    are views of one copied block, which stays in memory as long as any of them.

    A memory map, or any view of one, is sent to other processes as its file's name, offset, dtype and shape, and
    mapped there read-only; other arrays are sent as bytes, and so are maps opened copy-on-write.

    Args:
        arrays: a dict from name to array, with equal first axes; or one array. Lists and objects with `__array__`
            (torch tensors, columns of a data frame) are converted once. Arrays aren't copied: later writes to them
            change the records.

    Raises:
        UsageError: there is no array, an array without an axis, a masked array, an object that isn't an array, or
            lengths differ.

    Example:
        >>> source = Arrays({"image": np.zeros((3, 2, 2), np.uint8), "label": np.array([4, 5, 6])})
        >>> source
        Arrays({'image': uint8[3, 2, 2], 'label': int64[3]})
        >>> source[1]["label"], source[1]["image"].shape
        (np.int64(5), (2, 2))
    """

    def __init__(self, arrays: "Mapping[str, ArrayLike] | NDArray[Any]") -> None:
        if isinstance(arrays, Mapping):
            if not arrays:
                raise UsageError("a dict of arrays must have at least one array; got {}. Pass {'name': array}.")
            self._names: tuple[str, ...] | None = tuple(arrays)
            columns = [_as_array(array, f"arrays[{name!r}]") for name, array in arrays.items()]
        else:
            self._names = None
            columns = [_as_array(arrays, "the array")]
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in zip(self._names or (), lengths, strict=True))
            raise UsageError(
                f"all arrays must have one length; got {listed}. Shorten them to the records that they share."
            )
        self._length = lengths[0]
        self._columns: list[NDArray[Any]] | None = columns
        self._mapped = [find_mapped(column) for column in columns]
        self._layout = [(column.dtype, column.shape) for column in columns]
        # Rows are values or arrays of values, so a copy is independent of the source.
        self._has_plain_rows = all(dtype.kind not in "OV" for dtype, _ in self._layout)
        self._tables: list[RowTable | None] | None = None
        self._fingerprint: str | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], names: Sequence[str] | None = None) -> "Arrays":
        """Return the source of an array in a `.npy` file, or of the arrays in an `.npz` file.

        The arrays are memory-mapped, also those inside of an `.npz` that `np.savez` has written. Those that
        `np.savez_compressed` has written are decompressed into memory, once for each call, and sent to worker processes
        with all of their bytes: save them without compression if they are large.

        Args:
            path: the file.
            names: the arrays of an `.npz` that make a record, which must have one length. Default: all.

        Returns:
            The source; records are dicts of rows, or bare rows of a `.npy`.

        Raises:
            UsageError: the file is neither, or has an array of Python objects; a name isn't in it; lengths differ.
            SourceError: the file can't be read.
            CorruptRecordError: the file is damaged.

        Example:
            >>> import pathlib, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "digits.npz")
            ...     np.savez(path, x=np.zeros((3, 2), np.uint8), y=np.arange(3))
            ...     Arrays.open(path)
            Arrays({'x': uint8[3, 2], 'y': int64[3]})
        """
        opened: Any = _load("open_arrays")
        return cls(opened(local_path(path), names))

    @property
    def fixed_shape(self) -> bool:
        """Whether rows can be written directly into arrays: False for str, bytes and Python objects."""
        return all(dtype.kind not in "OSTUV" for dtype, _ in self._layout)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: SupportsIndex) -> Record:
        number = as_key(key, self._length)
        if not self._has_plain_rows:
            return self.read([number])[0]
        # As in the result of `read`, but without a block of one row: C-contiguous copies, of the array's own type.
        rows: list[Any] = [column[number] for column in self._opened()]
        rows = [
            row if shape[1:] == () else np.array(row, order="C")
            for row, (_, shape) in zip(rows, self._layout, strict=True)
        ]
        return rows[0] if self._names is None else dict(zip(self._names, rows, strict=True))

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the rows of `keys`, gathered once per array.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A dict of rows for each key, or the rows themselves if the source is one array.
        """
        checked = as_keys(keys)
        blocks: list[list[Any]] = []
        for number, (dtype, shape) in enumerate(self._layout):
            block = np.empty((len(checked), *shape[1:]), dtype)
            self._gather(number, checked, block)
            blocks.append(list(block))
        return self._records(blocks)

    def read_into(self, keys: Sequence[int] | Keys, out: Record) -> None:
        """Write the rows of `keys` to `out`.

        Args:
            keys: in [0, length), one axis.
            out: a dict with the same names (or one array), each array of the source's dtype and row shape, with
                `len(keys)` rows.

        Raises:
            UsageError: a shape or dtype differs.
        """
        checked = as_keys(keys)
        targets: list[NDArray[Any]] = [out] if self._names is None else [out[name] for name in self._names]
        for target, (dtype, shape) in zip(targets, self._layout, strict=True):
            if target.dtype != dtype or target.shape != (len(checked), *shape[1:]):
                raise UsageError(
                    f"out must be {dtype} of shape {(len(checked), *shape[1:])}; "
                    f"got {target.dtype} of shape {target.shape}"
                )
        for number, target in enumerate(targets):
            self._gather(number, checked, target)

    def read_spans(self, keys: Sequence[int] | Keys, starts: Keys, stops: Keys) -> list[Record]:
        """Return frames of the rows of `keys`: [start, stop) of the second axis of arrays (records, frames, …).

        Args:
            keys: in [0, length), one axis.
            starts: the first frame of each.
            stops: the frame after the last of each.

        Returns:
            As for `read`, with the frames of each row; arrays with one axis have no frames, and their rows are whole.

        Raises:
            UsageError: arrays have different numbers of frames.
        """
        checked = as_keys(keys)
        check_range(checked, self._length)
        frames = {shape[1] for _, shape in self._layout if len(shape) > 1}
        if len(frames) > 1:
            raise UsageError(
                f"spans can only be read from arrays with equal numbers of frames; got {self!r}. Leave other arrays "
                "out, and add them in a map."
            )
        spans = list(zip(checked.tolist(), starts.tolist(), stops.tolist(), strict=True))
        blocks: list[list[Any]] = [
            [column[key] if column.ndim == 1 else np.array(column[key, start:stop]) for key, start, stop in spans]
            for column in self._opened()
        ]
        return self._records(blocks)

    def _identity_parts(self) -> object:
        """Return the arrays, or the places of memory maps in files: the key of a cache has their content."""
        return dict(zip(self._names or ("",), self._parts(), strict=True))

    def fingerprint(self) -> str:
        """Return a str that changes with names, dtypes, shapes and content.

        It covers all content of an array of up to 1 MB, and 64 evenly spread blocks of a larger one. For a memory map
        it covers the file's name without its folder, and its size; for Python objects, and texts of any length, no
        content.
        """
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=16)
            names = self._names or ("",)
            for name, number in sorted((repr(name), number) for number, name in enumerate(names)):
                dtype, shape = self._layout[number]
                digest.update(f"{name} {_description(dtype)} {shape}".encode())
                _add_content(digest, self._opened()[number], self._mapped[number])
            self._fingerprint = f"arrays-{digest.hexdigest()}"
        return self._fingerprint

    def __repr__(self) -> str:
        described = [f"{dtype}[{', '.join(map(str, shape))}]" for dtype, shape in self._layout]
        if self._names is None:
            return f"Arrays({described[0]})"
        return f"Arrays({{{', '.join(f'{n!r}: {d}' for n, d in zip(self._names, described, strict=True))}}})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": None, "_tables": None, "_mapped": self._parts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        kept = cast("list[MappedArray | NDArray[Any]]", state["_mapped"])
        self._mapped = [part if isinstance(part, MappedArray) else None for part in kept]
        if None in self._mapped:  # else the first read opens the maps
            # NumPy unpickles an array of the other byte order in the machine's own.
            self._columns = [
                part.open() if isinstance(part, MappedArray) else part.astype(dtype, copy=False)
                for part, (dtype, _) in zip(kept, self._layout, strict=True)
            ]

    def _parts(self) -> "list[MappedArray | NDArray[Any]]":
        """Return the place of each array in its file, or the array."""
        mapped = [part for part in self._mapped if part is not None]
        if len(mapped) == len(self._mapped):
            return [*mapped]
        return [part or column for part, column in zip(self._mapped, self._opened(), strict=True)]

    def _opened(self) -> list[NDArray[Any]]:
        # Two threads may do this at once: both map the files, and the list of one is kept.
        columns = self._columns
        if columns is None:
            columns = [mapped.open() for mapped in self._mapped if mapped is not None]
            self._columns = columns
        return columns

    def _records(self, blocks: list[list[Any]]) -> list[Record]:
        if self._names is None:
            return blocks[0]
        return dicts_of(self._names, blocks)

    def _gather(self, number: int, keys: Keys, out: NDArray[Any]) -> None:
        tables = self._tables
        if tables is None:
            tables = self._tables = [_row_table(column) for column in self._opened()]
        table = tables[number]
        if table is not None and out.flags.c_contiguous:
            table.gather(keys, out)
            return
        check_range(keys, self._length)
        column = self._opened()[number]
        if not column.flags.c_contiguous:  # `take` would copy the whole array
            out[...] = column[keys]
        elif len(keys):  # every key is in range, so none is clipped; in its other modes `take` buffers the output
            np.take(column, keys, axis=0, out=out, mode="clip")


def _as_array(value: object, name: str) -> NDArray[Any]:
    type_name = type(value).__name__
    if is_masked(value):
        raise UsageError(f"{name} must not be a masked array: records have no mask. Pass data and mask as two arrays.")
    # NumPy would iterate over other objects with a length, such as another dataset.
    if not isinstance(value, list | tuple) and not hasattr(value, "__array__"):
        raise UsageError(
            f"{name} must be an array; got a {type_name}. Pass arrays of one length, or lists; "
            "if it is a dict of datasets, read one of them."
        )
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError as error:
        raise UsageError(
            f"{name} must be an array; got a {type_name} that can't be converted: {error}. "
            "Put rows of unequal shape into a list of records."
        ) from error
    if array.ndim == 0:
        raise UsageError(
            f"{name} must be an array with at least one axis, whose rows are records; got a {type_name} without one."
        )
    return array


def _row_table(array: NDArray[Any]) -> RowTable | None:
    """Return the table that copies an array's rows; None if their bytes don't lie together, at a positive stride."""
    row_bytes = array.nbytes // len(array) if len(array) else 0
    if row_bytes == 0 or array.dtype.hasobject:
        return None
    first = array.view(np.ndarray)[:1]
    stride_bytes = row_bytes if len(array) == 1 else array.strides[0]
    if stride_bytes <= 0 or not first.flags.c_contiguous:
        return None
    # The memory of all rows, with the bytes that lie between two of them.
    span_bytes = (len(array) - 1) * stride_bytes + row_bytes
    flat = as_strided(first.reshape(-1).view(np.uint8), (span_bytes,), (1,), writeable=False)
    return RowTable([flat], row_bytes=row_bytes, stride_bytes=stride_bytes)


def _add_content(digest: "hashlib.blake2b", array: NDArray[Any], mapped: MappedArray | None) -> None:
    if mapped is not None:
        digest.update(f"{mapped.path.replace(chr(92), '/').rpartition('/')[2]!r} {mapped.file_bytes}".encode())
        digest.update(f"{mapped.offset} {mapped.strides}".encode())
    elif not array.dtype.hasobject:
        add_sample(digest, array)


def add_sample(digest: "hashlib.blake2b", array: NDArray[Any]) -> None:
    """Add an array's content to `digest`: all of it up to 1 MB, else 64 evenly spread blocks, the ends included.

    Args:
        digest: the digest to update.
        array: any layout; no Python objects.
    """
    if array.nbytes <= SAMPLED_BYTES:
        digest.update(np.ascontiguousarray(array).tobytes())
        return
    block = max(1, SAMPLED_BYTES // SAMPLED_BLOCKS // array.dtype.itemsize)
    for number in range(SAMPLED_BLOCKS):
        start = (array.size - block) * number // (SAMPLED_BLOCKS - 1)
        digest.update(array.flat[start : start + block].tobytes())


def _description(dtype: np.dtype[Any]) -> object:
    """Return a dtype as a value whose text determines it."""
    if dtype.fields is None:
        return dtype.str if dtype.subdtype is None else (_description(dtype.base), dtype.shape)
    try:
        return dtype.descr
    except ValueError:  # fields overlap, or aren't in the order of their offsets
        fields = [(name, field[1], _description(field[0])) for name, field in dtype.fields.items()]
        return fields, dtype.itemsize
