"""Tables in shards: Arrow's IPC files, which readers map, and Parquet, which is smaller. pyarrow writes them."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, cast

import numpy as np

from penstock._frozen import frozen
from penstock._optional import need
from penstock._tree import is_array
from penstock._writing._drafts import Draft
from penstock.batching._stack_arrays import split_dicts
from penstock.errors import UsageError

_GROUP_BYTES: Final = 4 << 20  # of a row group: what a random read of one record costs at most
_BATCH_BYTES: Final = 1 << 19  # of a record batch at least; it is mapped, so its size matters little
_MIN_GROUP_ROWS: Final = 64

Fields = Mapping[str, Any]
Positions = Sequence[int]
Column: TypeAlias = Any  # pyarrow has no types
Kind: TypeAlias = Any


@frozen
class Columnar:
    """A table with a column for each field, of the types that a sample of elements has.

    Attributes:
        schema: the columns' types, a `pyarrow.Schema`.
        suffixes: (".arrow",) or (".parquet",).
    """

    schema: Any
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, positions: Positions, sample: Sequence[object], suffixes: tuple[str, ...]) -> Self:
        """Return the table of elements like those of a sample.

        Raises:
            UsageError: the elements have different fields, or values that no column can have.
            MissingDependencyError: pyarrow isn't installed.
        """
        pyarrow = need("pyarrow", "pyarrow", extra="arrow")
        elements = _checked(positions, sample)
        names = list(elements[0]) if elements else []
        columns = [(name, _type_of(name, positions, _values(name, positions, elements))) for name in names]
        return cls(pyarrow.schema(columns), suffixes)

    def size_of(self, element: Fields) -> int:
        """Return the bytes of an element's values."""
        return sum(map(_size_of, element.values()))

    def write(self, blocks: Iterable[tuple[int, Sequence[object]]], drafts: Sequence[Draft]) -> None:
        """Write record batches of 0.5 MiB and more, or row groups of 4 MiB and more."""
        pyarrow, parquet = need("pyarrow", "pyarrow", extra="arrow"), need("pyarrow.parquet", "pyarrow", extra="arrow")
        [draft] = drafts
        if self.suffixes == (".arrow",):
            writer, least = pyarrow.ipc.new_file(draft, self.schema), _BATCH_BYTES
        else:
            least = _GROUP_BYTES
            writer = parquet.ParquetWriter(draft, self.schema, compression="zstd", write_page_index=True)
        with writer:
            for group in self._groups(blocks, least):
                writer.write_table(group)

    def _groups(self, blocks: Iterable[tuple[int, Sequence[object]]], least: int) -> Iterator[Column]:
        """Yield tables of one chunk each, of whole blocks, with so many bytes at least."""
        pyarrow = need("pyarrow", "pyarrow", extra="arrow")
        batches: list[Column] = []
        rows = size = 0
        for begin, elements in blocks:
            batch = self._batch(range(begin, begin + len(elements)), elements)
            batches.append(batch)
            del elements  # their memory is that of the next ones, while the processor's cache has it
            rows += batch.num_rows
            size += batch.nbytes
            if size >= least and rows >= _MIN_GROUP_ROWS:
                yield pyarrow.Table.from_batches(batches).combine_chunks()
                batches, rows, size = [], 0, 0
        if batches:
            yield pyarrow.Table.from_batches(batches).combine_chunks()

    def _batch(self, positions: Positions, block: Sequence[object]) -> Column:
        pyarrow = need("pyarrow", "pyarrow", extra="arrow")
        names = tuple(self.schema.names)
        values = split_dicts(block, names) or self._each_field(positions, block)
        columns = [_column(field, positions, of_field) for field, of_field in zip(self.schema, values, strict=True)]
        return pyarrow.record_batch(columns, schema=self.schema)

    def _each_field(self, positions: Positions, block: Sequence[object]) -> list[list[object]]:
        """Return the values of each field, of elements in any order of their fields.

        Raises:
            UsageError: an element isn't a dict of the fields.
        """
        elements = _checked(positions, block)
        for position, element in zip(positions, elements, strict=True):
            if len(element) != len(self.schema):
                raise UsageError(_fields_text(element, self.schema.names, position))
        return [_values(field.name, positions, elements) for field in self.schema]


def fields_of(element: object, position: int, what: str) -> Fields:
    """Return an element as a dict with text for keys.

    Raises:
        UsageError: it isn't one.
    """
    kind = type(element).__name__
    if not isinstance(element, Mapping) or not all(
        isinstance(name, str) for name in cast("Mapping[object, Any]", element)
    ):
        raise UsageError(
            f"{what} has named fields, so elements must be dicts with text for keys; the one at position {position} "
            f'is a {kind}. Add .map(lambda element: {{"name": element}}).'
        )
    return cast("Fields", element)


def _checked(positions: Positions, elements: Sequence[object]) -> Sequence[Fields]:
    """Return elements, which are dicts; their names are those of the columns, or `_values` refuses them."""
    if not {*map(type, elements)} <= {dict}:
        return [fields_of(element, position, "a table") for position, element in zip(positions, elements, strict=True)]
    return cast("Sequence[Fields]", elements)


def _values(name: str, positions: Positions, elements: Sequence[Fields]) -> list[object]:
    """Return the values of one field."""
    try:
        return list(map(operator.itemgetter(name), elements))
    except KeyError:
        lacking = next(number for number, element in enumerate(elements) if name not in element)
        raise UsageError(_fields_text(elements[lacking], [name], positions[lacking])) from None


def _fields_text(element: Fields, names: Sequence[str], position: int) -> str:
    return (
        f"all elements of a table must have the same fields; the one at position {position} has {list(element)}, "
        f"others have {list(names)}. Fill them in a map, with None for a missing value."
    )


def _size_of(value: object) -> int:
    if is_array(value):
        return value.nbytes
    return len(value) if isinstance(value, str | bytes) else 8


def _type_of(name: str, positions: Positions, values: list[object]) -> Kind:
    """Return the type of a column: that of its values, or of tensors of one shape."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    arrays = [value for value in values if is_array(value) and value.ndim > 1]
    if not arrays:
        return _converted(name, positions, values, lambda column: pyarrow.array(column)).type
    if len(arrays) < len(values) or len({(array.dtype, array.shape) for array in arrays}) > 1:
        raise UsageError(
            f"arrays of several axes in a table must have one dtype and shape; field {name!r} has several. Flatten "
            "them in a map, with the shape as another field, or encode them as bytes."
        )
    return pyarrow.fixed_shape_tensor(pyarrow.from_numpy_dtype(arrays[0].dtype), arrays[0].shape)


def _column(field: Kind, positions: Positions, values: list[object]) -> Column:
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    if isinstance(field.type, pyarrow.FixedShapeTensorType):
        dtype, shape = field.type.value_type.to_pandas_dtype(), tuple(field.type.shape)
        for position, value in zip(positions, values, strict=True):
            if not is_array(value) or value.dtype != dtype or value.shape != shape:
                raise UsageError(_value_text(field.name, field.type, value, position))
        flat = np.concatenate([np.ravel(np.asarray(value)) for value in values])
        storage = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), int(np.prod(shape)))
        return pyarrow.ExtensionArray.from_storage(field.type, storage)
    return _converted(field.name, positions, values, lambda column: _exactly(column, field.type), field.type)


def _converted(
    name: str,
    positions: Positions,
    values: list[object],
    convert: Callable[[list[object]], Column],
    expected: object = "a type of Arrow",
) -> Column:
    """Return a column of values, or name the first one that doesn't fit."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    refused = (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError, OverflowError)
    try:
        return convert(values)
    except refused as error:
        for position, value in zip(positions, values, strict=True):
            try:
                convert([value])
            except refused:
                raise UsageError(_value_text(name, expected, value, position)) from error
        raise UsageError(f"the values of field {name!r} have several types: {error}. Convert them in a map.") from error


def _exactly(values: list[object], kind: Kind) -> Column:
    """Return values as a column of a type, which loses nothing of them."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    column = pyarrow.array(values)
    if column.type == kind:
        return column
    cast = column.cast(kind)
    if not cast.cast(column.type).equals(column):
        message = f"{column.type} doesn't fit into {kind}"
        raise pyarrow.ArrowInvalid(message)
    return cast


def _value_text(name: str, expected: object, value: object, position: int) -> str:
    kind = f"{value.dtype} of shape {value.shape}" if is_array(value) else type(value).__name__
    return (
        f"field {name!r} at position {position} is a {kind}, which doesn't fit into {expected}, the type of the first "
        "elements. Convert it in a map."
    )
