"""Rows of Arrow record batches, as dicts of NumPy's and Python's values.

pyarrow has no fast way to one row: `Table.take` of a column in chunks takes many microseconds, and each value becomes a
scalar of Arrow before it becomes one of Python. So a `Column` reads the buffers of an array itself. It has two
functions, made once for each column of a batch: `at` returns one value, and `span` the values of a range, by which a
list reads its items. Where values have one size and none is null, `whole` has all of them.

Many rows are read column by column, from the *takers* of the blocks: the memory of a column in all batches of a block,
from which native code makes texts and bytes, or copies numbers. `ChosenRows` are rows of several blocks that are read
together, since a read of 256 records in shuffled order needs a few rows of each of many blocks.

A `Style` decides what values are. In `NUMPY`, the style of files and tables, a number is a NumPy scalar and a list of
numbers is an array. In `PLAIN`, each value is what pyarrow's `as_py` returns, as in the records of a Hugging Face
dataset. Types that have no reader here, such as decimals, are read by `as_py` in both.

Guarantees:
  - Values are copies: they don't keep the batch, and changes of a value don't change the next one.
  - Any thread may read. Two threads may make the functions of one batch at once; those of one are kept.
  - A damaged offset never reads memory outside of its buffer, and text that isn't UTF-8 raises CorruptRecordError. Only
    pyarrow trusts offsets, so batches of files must have passed `validate_columns`.
"""

import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NoReturn, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock import _native
from penstock._frozen import frozen
from penstock._optional import need
from penstock._packed_strings import PackedStrings
from penstock._progress import Progress, counted
from penstock._tree import is_array
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._mapped import RowTable
from penstock.sources._source import Keys, Record, dicts_of
from penstock.sources._takers import Numbers, Piece, Strings, Taker, arrays_of, received, sent

Module = Any  # pyarrow has no types
Array = Any  # a pyarrow.Array
Value = Any  # of a record

_BYTES_OF_A_VIEW: Final = 16  # four integers: length, prefix, number of the buffer, offset
_INLINE_BYTES: Final = 12  # a text up to this length is in the view itself
_UNUSED_BYTES: Final = 4096  # of buffers, that are no sign of a slice


def need_arrow(module: str = "pyarrow") -> Module:
    """Return pyarrow, or one of its modules.

    Args:
        module: the module's name.

    Raises:
        MissingDependencyError: pyarrow isn't installed.
    """
    return need(module, "pyarrow", extra="arrow")


@frozen
class Column:
    """The functions that read an array.

    Attributes:
        at: returns the value of a row.
        span: returns the values of rows [begin, end), as an array or a list.
        whole: all values, over the memory of the array; None where they don't lie there as they are.
    """

    at: Callable[[int], Value]
    span: Callable[[int, int], Value]
    whole: NDArray[Any] | None = None


Style = Sequence[tuple[str, Callable[[Array], Column]]]
"""For types without children: a predicate of `pyarrow.types`, and the function that makes the column."""


_Columns = list[tuple[str, Column]]
"""The columns of a batch, each with its name."""


class ArrowRows:
    """Rows of record batches that have one schema, one batch after the other; a row is a dict.

    Args:
        batches: objects of `pyarrow.RecordBatch`.
        names: the names of the columns, in the order of the dicts.
        style: `NUMPY` or `PLAIN`.
    """

    def __init__(self, batches: Sequence[Array], names: Sequence[str], style: Style) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._names = tuple(names)
        self._style = style
        self._takers: list[Taker | None] | None = None  # None for a column that is read value by value
        self._types: bytes | None = None  # of columns that another process has sent, pickled
        self._begin([batch.num_rows for batch in self._batches])

    def _begin(self, counts: Sequence[int]) -> None:
        self._ends = list(accumulate(counts))
        self._starts = [0, *self._ends]
        self._length: int = self._starts[-1]
        self._made: list[_Columns | None] = [None] * len(counts)

    def __getstate__(self) -> dict[str, Any]:
        types = self._types_of_takers()
        return {
            "style": "PLAIN" if self._style is PLAIN else "NUMPY",
            "names": self._names,
            "counts": [batch.num_rows for batch in self._batches],
            "types": None if types is None else pickle.dumps(types),
            "content": _stream_of(self._batches) if types is None else sent(self.takers()),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._names, self._types = state["names"], state["types"]
        self._style = {"PLAIN": PLAIN, "NUMPY": NUMPY}[state["style"]]
        self._takers = None if self._types is None else list(map(received, state["content"]))
        if self._types is None:
            self._batches = _batches_of(state["content"])
        self._begin(state["counts"])

    def _types_of_takers(self) -> list[Array] | None:
        """Return the types of all columns; None if the memory of takers is not all of the batches, or more than that.

        It is more if a batch is a slice. Types of other packages may be unknown in another process.
        """
        columns = [batch.column(name) for batch in self._batches for name in self._names]
        types = [column.type for column in columns[: len(self._names)]]
        if not columns or None in self.takers() or not all(map(can_fill_batches, types)):
            return None
        used_bytes = sum(batch.nbytes for batch in self._batches)
        unused_bytes = sum(batch.get_total_buffer_size() for batch in self._batches) - used_bytes
        is_sliced = any(column.offset for column in columns) or unused_bytes > max(used_bytes // 4, _UNUSED_BYTES)
        return None if is_sliced else types

    @cached_property
    def _batches(self) -> list[Array]:
        """The record batches that have rows; those of another process are made when something needs them."""
        takers, types = cast("list[Taker]", self._takers), pickle.loads(cast("bytes", self._types))
        columns = [arrays_of(taker, kind) for taker, kind in zip(takers, types, strict=True)]
        make = need_arrow().RecordBatch.from_arrays
        return [make(list(arrays), names=self._names) for arrays in zip(*columns, strict=True)]

    @property
    def batches(self) -> Sequence[Array]:
        """The record batches that have rows."""
        return self._batches

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Record:
        """Return the dict of a row in [0, length).

        Raises:
            CorruptRecordError: the row's bytes are damaged.
        """
        number = bisect_right(self._ends, row)
        columns = self._made[number] or self._columns(number)
        local = row - self._starts[number]
        try:
            return {name: column.at(local) for name, column in columns}
        except (ValueError, IndexError) as error:
            raise CorruptRecordError(
                f"a value must be as its Arrow type says; row {row} isn't: {error}. The data is damaged: write it "
                "again."
            ) from error

    def take(self, rows: Keys) -> list[Record]:
        """Return the dicts of several rows.

        Args:
            rows: each in [0, length).

        Raises:
            CorruptRecordError: the bytes of one are damaged.
        """
        lists: list[list[Value]] = [[None] * len(rows) for _ in self._names]
        ChosenRows(self._names, [self], np.array([0, len(rows)]), rows, np.arange(len(rows))).fill(lists)
        return dicts_of(self._names, lists)

    def take_into(self, rows: Keys, out: Record) -> None:
        """Write several rows to a batch, as `read_into` of a source does.

        Args:
            rows: each in [0, length).
            out: a dict with an array or a list for each column.

        Raises:
            UsageError: an array has another dtype or shape than the values, or a value is null.
        """
        targets = [out[name] for name in self._names]
        ChosenRows(self._names, [self], np.array([0, len(rows)]), rows, np.arange(len(rows))).fill_into(targets)

    @cached_property
    def can_fill_batches(self) -> bool:
        """Whether any rows can be columns of a batch as they are stored: no value is null."""
        names = self._names
        return all(
            _is_of_batches(batch.column(name).type, self._style) for batch in self._batches[:1] for name in names
        ) and all(batch.column(name).null_count == 0 for batch in self._batches for name in names)

    def takers(self) -> "list[Taker | None]":
        """Return the taker of each column; None for one that is read value by value."""
        # Two threads may make the takers at once: those of one are kept.
        found = self._takers
        if found is None:
            found = self._takers = [self._made_taker(name) for name in self._names]
        return found

    def values(self, column: int, rows: Keys) -> list[Value]:
        """Return the values of a column in several rows, read one by one."""
        listed: list[int] = rows.tolist()
        if len(self._batches) == 1:
            return list(map(self._columns(0)[column][1].at, listed))
        batches = [bisect_right(self._ends, row) for row in listed]
        return [
            (self._made[batch] or self._columns(batch))[column][1].at(row - self._starts[batch])
            for batch, row in zip(batches, listed, strict=True)
        ]

    def _made_taker(self, name: str) -> "Taker | None":
        arrays = [batch.column(name) for batch in self._batches]
        return _strings_of(arrays) or _numbers_of(arrays, self._style)

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Return `len(row[name])` of every row, and 0 for None.

        Raises:
            UsageError: there is no such column, or its values have no length.
        """
        if name not in self._names:
            listed = ", ".join(map(repr, self._names))
            raise UsageError(f"lengths are those of one column; there is no column {name!r}; there are {listed}.")
        return lengths_of(self._batches, name, len(self))

    def _columns(self, number: int) -> _Columns:
        made = self._made[number]
        if made is None:
            batch = self._batches[number]
            made = [(name, column_of(batch.column(name), self._style)) for name in self._names]
            self._made[number] = made
        return made


@frozen
class ChosenRows:
    """Rows of some `ArrowRows` of one schema that are read together, each with its place among the rows of a read.

    Attributes:
        names: of the columns.
        parts: the rows of each block.
        bounds: int64, one axis: rows [bounds[k], bounds[k + 1]) are those of part k.
        rows: int64, one axis: each in [0, length of its part).
        places: int64, one axis: the place of each row.
    """

    names: Sequence[str]
    parts: Sequence[ArrowRows]
    bounds: Keys
    rows: Keys
    places: Keys

    def fill(self, lists: Sequence[list[Value]]) -> None:
        """Write the values of each column into the places of a list.

        Raises:
            CorruptRecordError: the bytes of a row are damaged.
        """
        try:
            for column, (takers, values) in enumerate(zip(self._takers(), lists, strict=True)):
                self._fill_list(column, takers, values)
        except (ValueError, IndexError):  # read singly, the error names the row
            for part, rows, places in self._each():
                for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                    for values, value in zip(lists, part[row].values(), strict=True):
                        values[place] = value

    def fill_into(self, targets: Sequence[NDArray[Any] | list[Value] | PackedStrings]) -> None:
        """Write the values of each column into rows of a batch.

        Args:
            targets: for each column an array, or a list or packed strings if it has texts or bytes.

        Raises:
            UsageError: an array has another dtype or shape than the values, or a value is null.
            CorruptRecordError: the bytes of a row are damaged.
            ValueError: a column is damaged.
            IndexError: a column is damaged.
        """
        try:
            for column, (takers, target) in enumerate(zip(self._takers(), targets, strict=True)):
                if isinstance(target, np.ndarray):
                    target[self.places] = _fitting(self._values(column, takers), target, self.names[column])
                elif self._fill_list(column, takers, target):
                    _raise_null(self.names[column])
        except UsageError:
            raise
        except (ValueError, IndexError):
            for part, rows, _ in self._each():
                for row in rows.tolist():
                    part[row]  # of a damaged row, this raises an error that names it
            raise

    def _each(self) -> Iterator[tuple[ArrowRows, Keys, Keys]]:
        for part, begin, end in zip(self.parts, self.bounds[:-1], self.bounds[1:], strict=True):
            yield part, self.rows[begin:end], self.places[begin:end]

    def _takers(self) -> "Iterator[_Takers]":
        return zip(*[part.takers() for part in self.parts], strict=True)

    def _fill_list(self, column: int, takers: "_Takers", out: list[Value] | PackedStrings) -> bool:
        """Write the values of a column into a list, or into packed strings if they have offsets.

        Returns:
            Whether one is null.
        """
        strings = cast("list[_native.Strings]", list(takers))
        if isinstance(out, PackedStrings):
            return out.take(strings, self.bounds, self.rows, self.places) > 0
        if set(map(type, takers)) == {Strings}:
            return _native.take_strings(strings, self.bounds, self.rows, self.places, out) > 0
        values = self._values(column, takers)
        has_nulls = not is_array(values) and any(value is None for value in values)
        if is_array(values):
            values = cast("Numbers", takers[0]).listed(values)
        for place, value in zip(self.places.tolist(), values, strict=True):
            out[place] = value
        return has_nulls

    def _values(self, column: int, takers: "_Takers") -> NDArray[Any] | list[Value]:
        """Return the values of a column, as an array where all have one size."""
        if set(map(type, takers)) == {Numbers}:
            numbers = cast("Sequence[Numbers]", takers)
            found = numbers[0].empty(len(self.rows))
            if len(self.rows):
                RowTable.gather_each([taker.table for taker in numbers], self.bounds, self.rows, found)
            return found
        return [value for part, rows, _ in self._each() for value in part.values(column, rows)]


_Takers = Sequence[Taker | None]
"""Those of a column, for each part."""


def _strings_of(arrays: Sequence[Array]) -> Strings | None:
    """Return the values of arrays of texts or bytes that have offsets; None for other arrays."""
    stored = list(map(_storage, arrays))
    kind = str(stored[0].type) if stored else ""
    if kind not in _OFFSET_STRINGS:
        return None
    pieces: list[Piece] = [
        (_offset_items(array), _content(array.buffers()[2]), _validity(array), array.offset if array.null_count else 0)
        for array in stored
    ]
    return Strings(pieces, is_text=kind.endswith("string"))


def _numbers_of(arrays: Sequence[Array], style: Style) -> Numbers | None:
    """Return the values of arrays of numbers or times without nulls; None for other arrays."""
    wholes: list[NDArray[Any]] = []
    for array in arrays:
        whole = column_of(array, style).whole if is_of_fixed_size(array.type) else None
        if whole is None or not whole[0].nbytes:
            return None
        wholes.append(whole)
    return Numbers(wholes, is_plain=style is PLAIN) if wholes else None


def _storage(array: Array) -> Array:
    """Return the array that stores the values of an extension type, or the array itself."""
    extension = need_arrow().BaseExtensionType
    return array.storage if isinstance(array.type, extension) else array


def _raise_null(name: str) -> NoReturn:
    raise UsageError(f"read_into needs a value in every row; column {name!r} has a null. Use read.")


def _fitting(values: NDArray[Any] | list[Value], column: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the values of some rows as an array that fits a column.

    Raises:
        UsageError: one is null, or they have another dtype or shape.
    """
    if isinstance(values, list) and any(value is None for value in values):
        _raise_null(name)
    found = np.asarray(values)
    if found.dtype != column.dtype or found.shape[1:] != column.shape[1:]:
        raise UsageError(
            f"out[{name!r}] must be {found.dtype} of shape {(len(column), *found.shape[1:])}; got {column.dtype} of "
            f"shape {column.shape}. Make it so, or use read."
        )
    return found


def _stream_of(batches: Sequence[Array]) -> Array | None:
    """Return batches as a stream of Arrow's in one buffer; the pickle of a slice would have all of its batch."""
    if not batches:
        return None
    measured = need_arrow().MockOutputStream()
    _write(batches, measured)
    content = need_arrow().allocate_buffer(measured.size())
    _write(batches, need_arrow().FixedSizeBufferWriter(content))
    return content


def _write(batches: Sequence[Array], sink: Array) -> None:
    with need_arrow("pyarrow.ipc").new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def _batches_of(stream: Array | None) -> list[Array]:
    return [] if stream is None else list(need_arrow("pyarrow.ipc").open_stream(stream))


def names_of(schema: Array, place: str) -> tuple[str, ...]:
    """Return the names of the columns of a `pyarrow.Schema`.

    Args:
        schema: the schema.
        place: what has the schema, for messages.

    Raises:
        UsageError: two columns have one name.
    """
    names: tuple[str, ...] = tuple(schema.names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the columns of a table must have different names; {place} has {twice!r} twice. Rename one.")
    return names


_LISTS: Final = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
_TEXTS: Final = ("is_string", "is_large_string", "is_string_view")
_NUMBERS: Final = ("is_integer", "is_floating", "is_boolean", "is_timestamp", "is_duration", "is_date")
_OFFSET_STRINGS: Final = frozenset({"string", "large_string", "binary", "large_binary"})
_PLAIN_TYPES: Final = frozenset({"int64", "double", *_OFFSET_STRINGS})
_AS_BYTES: Final = {"string": "binary", "large_string": "large_binary", "string_view": "binary_view"}
_BINARIES: Final = ("is_binary", "is_large_binary", "is_fixed_size_binary", "is_binary_view")


def lengths_of(batches: Iterable[Array], name: str, rows: int, *, progress: bool = True) -> NDArray[np.int64]:
    """Return the length of a column's value in every row of some record batches, and 0 for None.

    Args:
        batches: the batches, each with the column.
        name: the name of the column.
        rows: the number of rows of all batches.
        progress: show progress on a terminal.

    Raises:
        UsageError: the column's values have no length.
        CorruptRecordError: the column is damaged.
    """
    found = [np.empty(0, np.int64)]
    with Progress(f"lengths of {name}", rows, enabled=progress, amount=counted) as shown:
        for batch in batches:
            found.append(_lengths(batch.column(name), name))
            shown.advance(len(found[-1]))
    return np.concatenate(found)


def _lengths(array: Array, name: str) -> NDArray[np.int64]:
    types, compute = need_arrow("pyarrow.types"), need_arrow("pyarrow.compute")

    def is_any(predicates: Sequence[str]) -> bool:
        return any(getattr(types, predicate)(array.type) for predicate in predicates)

    if types.is_dictionary(array.type):
        return _lengths(_with_valid_offsets(array, name).dictionary_decode(), name)
    if is_any(_LISTS):
        counts = compute.list_value_length(array)
    elif is_any(_TEXTS):
        counts = compute.utf8_length(_with_valid_offsets(array, name).cast("large_string"))
    elif is_any(_BINARIES):
        counts = compute.binary_length(_with_valid_offsets(array, name).cast("large_binary"))
    else:
        raise UsageError(
            f"lengths are those of lists, texts or bytes; column {name!r} has the type {array.type}. Name another "
            "column."
        )
    filled: NDArray[np.int64] = compute.fill_null(counts, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return filled


def _with_valid_offsets(array: Array, name: str) -> Array:
    """Return an array after a check of its offsets, which pyarrow trusts; texts needn't be UTF-8.

    Raises:
        CorruptRecordError: one is outside of its buffer.
    """
    try:
        array.view(_AS_BYTES.get(str(array.type), array.type)).validate(full=True)
    except need_arrow().ArrowInvalid as error:
        raise CorruptRecordError(
            f"a column must be as its Arrow type says; {name!r} isn't: {error}. The data is damaged: write it again."
        ) from error
    return array


def validate_columns(batch: Array) -> None:
    """Validate a `pyarrow.RecordBatch` of a file, and all values of the columns that pyarrow reads by their offsets.

    With damaged offsets, pyarrow may abort the process. A full validation reads about a gigabyte each second, which is
    little beside the 20 microseconds that pyarrow takes for each of these values.
    """
    batch.validate()
    for column in batch.columns:
        if _is_read_by_pyarrow(column.type):
            column.validate(full=True)


def _is_read_by_pyarrow(kind: Array) -> bool:
    """Return whether `as_py` or `run_end_decode` reads values of a type, or values inside, that have offsets."""
    pyarrow, types = need_arrow(), need_arrow("pyarrow.types")
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _is_read_by_pyarrow(kind.storage_type)
    if types.is_dictionary(kind):
        return _is_read_by_pyarrow(kind.value_type)
    if types.is_map(kind) or types.is_union(kind) or types.is_run_end_encoded(kind):
        return True
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return len({field.name for field in fields}) < len(fields) or any(
        _is_read_by_pyarrow(field.type) for field in fields
    )


def can_fill_batches(kind: Array) -> bool:
    """Return whether values of a `pyarrow.DataType` can be columns of batches without a merge."""
    return str(kind) in _OFFSET_STRINGS or is_of_fixed_size(kind)


def _is_of_batches(kind: Array, style: Style) -> bool:
    # Python's numbers are batched as int64 and float64, and a list of them isn't an array.
    return str(kind) in _PLAIN_TYPES if style is PLAIN else can_fill_batches(kind)


def is_of_fixed_size(kind: Array) -> bool:
    """Return whether a `pyarrow.DataType` is that of numbers or times, or of lists of one length of them."""
    types = need_arrow("pyarrow.types")
    if types.is_fixed_size_list(kind):
        return is_of_fixed_size(kind.value_type)
    return any(getattr(types, predicate)(kind) for predicate in _NUMBERS)


def column_of(array: Array, style: Style) -> Column:
    """Return the functions that read a `pyarrow.Array` of any type, which may be a slice of another."""
    pyarrow, types = need_arrow(), need_arrow("pyarrow.types")
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _extended(column_of(array.storage, style), kind)
    made = _made(array, style, types)
    return made if array.null_count == 0 or array.buffers()[0] is None else _nullable(array, made)


def _made(array: Array, style: Style, types: Module) -> Column:
    for predicate, make in style:
        if getattr(types, predicate)(array.type):
            return make(array)
    for predicate, make_nested in _NESTED:
        if getattr(types, predicate)(array.type):
            return make_nested(array, style)
    return _one_by_one(lambda row: array[row].as_py())


def _one_by_one(at: Callable[[int], Value]) -> Column:
    return Column(at, lambda begin, end: [at(row) for row in range(begin, end)])


def _nullable(array: Array, made: Column) -> Column:
    validity = array.buffers()[0]
    bits, content, offset = _view(validity), np.frombuffer(validity, np.uint8), array.offset

    def at(row: int) -> Value:
        place = offset + row
        return made.at(row) if bits[place >> 3] >> (place & 7) & 1 else None

    def span(begin: int, end: int) -> Value:
        if _unpacked(content, offset + begin, offset + end).all():
            return made.span(begin, end)
        return [at(row) for row in range(begin, end)]

    return Column(at, span)


def _extended(made: Column, kind: Array) -> Column:
    """Return the values of an extension type, which are those of its storage; tensors get their axes."""
    if kind.extension_name != "arrow.fixed_shape_tensor":
        return made
    stored: list[int] = kind.shape  # in the order of memory
    axes: list[int] = kind.permutation or list(range(len(stored)))

    def at(row: int) -> Value:
        value = made.at(row)
        return value if value is None else np.reshape(value, stored).transpose(axes)

    return _one_by_one(at)


def _view(buffer: Array) -> memoryview:
    """Return the bytes of a `pyarrow.Buffer`, which is None if it would be empty."""
    return memoryview(b"" if buffer is None else buffer).cast("B")


def _items(buffer: Array, dtype: DTypeLike, begin: int, count: int) -> NDArray[Any]:
    """Return `count` items of a buffer from item `begin` on, without a copy.

    Raises:
        ValueError: the buffer has fewer.
    """
    kind = np.dtype(dtype)
    items: NDArray[Any] = np.empty(0, kind)
    return np.frombuffer(_view(buffer), kind, count, begin * kind.itemsize) if count else items


def _unpacked(content: NDArray[np.uint8], begin: int, end: int) -> NDArray[np.bool_]:
    """Return bits, which are in the order of Arrow, as a new array."""
    first = begin & ~7
    bits: NDArray[np.bool_] = np.unpackbits(content[first >> 3 : (end + 7) >> 3], bitorder="little").view(np.bool_)
    return bits[begin - first : end - first]


def _numbers(array: Array, dtype: DTypeLike) -> Column:
    values = _items(array.buffers()[1], dtype, array.offset, len(array))
    return Column(values.__getitem__, lambda begin, end: values[begin:end].copy(), values)


def _plain_numbers(array: Array) -> Column:
    values = _items(array.buffers()[1], array.type.to_pandas_dtype(), array.offset, len(array))
    return Column(values.item, lambda begin, end: values[begin:end].tolist(), values)


def _days(array: Array) -> Column:
    values = _items(array.buffers()[1], np.int32, array.offset, len(array))
    return Column(
        lambda row: np.datetime64(values.item(row), "D"),
        lambda begin, end: values[begin:end].astype("datetime64[D]"),
    )


def _booleans(array: Array) -> Column:
    made = _plain_booleans(array)
    content, offset = np.frombuffer(_view(array.buffers()[1]), np.uint8), array.offset
    return Column(
        lambda row: np.bool_(made.at(row)), lambda begin, end: _unpacked(content, offset + begin, offset + end)
    )


def _plain_booleans(array: Array) -> Column:
    bits = _view(array.buffers()[1])
    offset: int = array.offset
    return _one_by_one(lambda row: bits[(offset + row) >> 3] >> ((offset + row) & 7) & 1 == 1)


def _offsets(array: Array) -> memoryview:
    """Return the offsets of texts, bytes or lists: one for each, and the last one's end."""
    return memoryview(_offset_items(array).data)


def _offset_items(array: Array) -> NDArray[Any]:
    is_large = str(array.type).startswith("large_")
    count = len(array) + 1 if len(array) else 0
    return _items(array.buffers()[1], np.int64 if is_large else np.int32, array.offset, count)


def _content(buffer: Array | None) -> NDArray[np.uint8]:
    """Return the bytes of a `pyarrow.Buffer`, which is None if it would be empty."""
    return np.frombuffer(_view(buffer), np.uint8)


def _validity(array: Array) -> NDArray[np.uint8] | None:
    """Return the bits that say which values aren't null; None if none is."""
    return _content(array.buffers()[0]) if array.null_count and array.buffers()[0] is not None else None


def _binaries(array: Array) -> Column:
    offsets, content = _offsets(array), _view(array.buffers()[2])
    return _one_by_one(lambda row: bytes(content[offsets[row] : offsets[row + 1]]))


def _texts(array: Array) -> Column:
    offsets, content = _offsets(array), _view(array.buffers()[2])
    return _one_by_one(lambda row: str(content[offsets[row] : offsets[row + 1]], "utf-8"))


def _fixed_binaries(array: Array) -> Column:
    content, offset, size = _view(array.buffers()[1]), array.offset, array.type.byte_width
    return _one_by_one(lambda row: bytes(content[(offset + row) * size : (offset + row + 1) * size]))


def _binary_views(array: Array) -> Column:
    _, buffer, *more = array.buffers()
    views, buffers, first = _view(buffer), [_view(each) for each in more], array.offset * _BYTES_OF_A_VIEW
    integers = views[: len(views) & -4].cast("i")

    def at(row: int) -> bytes:
        begin = first + row * _BYTES_OF_A_VIEW
        length, _, number, offset = integers[begin >> 2 : (begin >> 2) + 4]
        if length <= _INLINE_BYTES:
            return bytes(views[begin + 4 : begin + 4 + length])
        return bytes(buffers[number][offset : offset + length])

    return _one_by_one(at)


def _text_views(array: Array) -> Column:
    read = _binary_views(array).at
    return _one_by_one(lambda row: read(row).decode())


def _lists(array: Array, style: Style) -> Column:
    offsets, items = _offsets(array), column_of(array.values, style)
    return _one_by_one(lambda row: items.span(offsets[row], offsets[row + 1]))


def _list_views(array: Array, style: Style) -> Column:
    items, offsets, sizes = column_of(array.values, style), array.offsets.to_numpy(), array.sizes.to_numpy()
    return _one_by_one(lambda row: items.span(offsets.item(row), offsets.item(row) + sizes.item(row)))


def _fixed_lists(array: Array, style: Style) -> Column:
    items, offset, size = column_of(array.values, style), array.offset, array.type.list_size

    def at(row: int) -> Value:
        return items.span((offset + row) * size, (offset + row + 1) * size)

    def span(begin: int, end: int) -> Value:
        values = items.span((offset + begin) * size, (offset + end) * size)
        if is_array(values):
            return values.reshape(end - begin, size, *values.shape[1:])
        return [at(row) for row in range(begin, end)]

    if items.whole is None:
        return Column(at, span)
    values = items.whole[offset * size : (offset + len(array)) * size]
    return Column(at, span, values.reshape(len(array), size, *values.shape[1:]))


def _structs(array: Array, style: Style) -> Column:
    fields = [(array.type.field(k).name, column_of(array.field(k), style).at) for k in range(array.type.num_fields)]
    if len(dict(fields)) < len(fields):  # as_py explains it
        return _one_by_one(lambda row: array[row].as_py())
    return _one_by_one(lambda row: {name: at(row) for name, at in fields})


def _dictionaries(array: Array, style: Style) -> Column:
    read, numbers = column_of(array.dictionary, style).at, _plain_numbers(array.indices).at
    return _one_by_one(lambda row: read(numbers(row)))


def _run_ends(array: Array, style: Style) -> Column:
    return column_of(need_arrow("pyarrow.compute").run_end_decode(array), style)


_LEAVES: Final[Style] = (
    ("is_string", _texts),
    ("is_large_string", _texts),
    ("is_binary", _binaries),
    ("is_large_binary", _binaries),
    ("is_fixed_size_binary", _fixed_binaries),
    ("is_string_view", _text_views),
    ("is_binary_view", _binary_views),
)
NUMPY: Final[Style] = (
    ("is_integer", lambda array: _numbers(array, array.type.to_pandas_dtype())),
    ("is_floating", lambda array: _numbers(array, array.type.to_pandas_dtype())),
    ("is_boolean", _booleans),
    *_LEAVES,
    ("is_timestamp", lambda array: _numbers(array, f"datetime64[{array.type.unit}]")),
    ("is_duration", lambda array: _numbers(array, f"timedelta64[{array.type.unit}]")),
    ("is_date64", lambda array: _numbers(array, "datetime64[ms]")),
    ("is_date32", _days),
)
PLAIN: Final[Style] = (
    ("is_integer", _plain_numbers),
    ("is_float64", _plain_numbers),
    ("is_float32", _plain_numbers),
    ("is_boolean", _plain_booleans),
    *_LEAVES,
)
_NESTED: Final[Sequence[tuple[str, Callable[[Array, Style], Column]]]] = (
    ("is_list", _lists),
    ("is_large_list", _lists),
    ("is_fixed_size_list", _fixed_lists),
    ("is_list_view", _list_views),
    ("is_large_list_view", _list_views),
    ("is_struct", _structs),
    ("is_dictionary", _dictionaries),
    ("is_run_end_encoded", _run_ends),
)
