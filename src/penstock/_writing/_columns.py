"""Tables in shards: Arrow's IPC files, which readers map, and Parquet, which is smaller. pyarrow writes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

import numpy as np

from penstock._frozen import frozen
from penstock._optional import need
from penstock._tree import is_array
from penstock.errors import UsageError

_GROUP_BYTES: Final = 4 << 20  # of a record batch or a row group: what a random read of one record costs at most
_MIN_GROUP_ROWS: Final = 64

Fields = Mapping[str, Any]
Column: TypeAlias = Any  # pyarrow has no types
Kind: TypeAlias = Any


@frozen
class Columnar:
    """A table with a column for each field, of the types that a sample of elements has.

    Attributes:
        schema: the columns' types, a `pyarrow.Schema`.
        suffix: ".arrow" or ".parquet".
    """

    schema: Any
    suffix: str

    @classmethod
    def of(cls, sample: Sequence[tuple[int, Fields]], suffix: str) -> Self:
        """Return the table of elements like those of a sample.

        Raises:
            UsageError: the elements have different fields, or values that no column can have.
            MissingDependencyError: pyarrow isn't installed.
        """
        pyarrow = need("pyarrow", "pyarrow", extra="arrow")
        first: Fields = sample[0][1] if sample else {}
        columns = [(name, _type_of(name, [(p, _field(e, name, p)) for p, e in sample])) for name in first]
        return cls(pyarrow.schema(columns), suffix)

    def size_of(self, element: Fields) -> int:
        """Return the bytes of an element's values."""
        return sum(map(_size_of, element.values()))

    def write(self, elements: Iterable[tuple[int, Fields]], path: str) -> None:
        """Write groups of rows of about 4 MiB."""
        pyarrow, parquet = need("pyarrow", "pyarrow", extra="arrow"), need("pyarrow.parquet", "pyarrow", extra="arrow")
        if self.suffix == ".arrow":
            writer = pyarrow.ipc.new_file(path, self.schema)
        else:
            writer = parquet.ParquetWriter(path, self.schema, compression="zstd", write_page_index=True)
        with writer:
            rows: list[tuple[int, Fields]] = []
            size = 0
            for row in elements:
                rows.append(row)
                size += self.size_of(row[1])
                if size >= _GROUP_BYTES and len(rows) >= _MIN_GROUP_ROWS:
                    writer.write_batch(self._batch(rows))
                    rows, size = [], 0
            if rows:
                writer.write_batch(self._batch(rows))

    def _batch(self, rows: Sequence[tuple[int, Fields]]) -> Column:
        pyarrow = need("pyarrow", "pyarrow", extra="arrow")
        for position, element in rows:
            if len(element) != len(self.schema):
                raise UsageError(_fields_text(element, self.schema.names, position))
        columns = [_column([(p, _field(e, field.name, p)) for p, e in rows], field) for field in self.schema]
        return pyarrow.record_batch(columns, schema=self.schema)


def _field(element: Fields, name: str, position: int) -> object:
    try:
        return element[name]
    except KeyError:
        raise UsageError(_fields_text(element, [name], position)) from None


def _fields_text(element: Fields, names: Sequence[str], position: int) -> str:
    return (
        f"all elements of a table must have the same fields; the one at position {position} has {list(element)}, "
        f"others have {list(names)}. Fill them in a map, with None for a missing value."
    )


def _size_of(value: object) -> int:
    if is_array(value):
        return value.nbytes
    return len(value) if isinstance(value, str | bytes) else 8


def _type_of(name: str, values: Sequence[tuple[int, object]]) -> Kind:
    """Return the type of a column: that of its values, or of tensors of one shape."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    arrays = [value for _, value in values if is_array(value) and value.ndim > 1]
    if not arrays:
        return _converted(name, values, lambda column: pyarrow.array(column)).type
    if len(arrays) < len(values) or len({(array.dtype, array.shape) for array in arrays}) > 1:
        raise UsageError(
            f"arrays of several axes in a table must have one dtype and shape; field {name!r} has several. Flatten "
            "them in a map, with the shape as another field, or encode them as bytes."
        )
    return pyarrow.fixed_shape_tensor(pyarrow.from_numpy_dtype(arrays[0].dtype), arrays[0].shape)


def _column(values: Sequence[tuple[int, object]], field: Kind) -> Column:
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    if isinstance(field.type, pyarrow.FixedShapeTensorType):
        dtype, shape = field.type.value_type.to_pandas_dtype(), tuple(field.type.shape)
        for position, value in values:
            if not is_array(value) or value.dtype != dtype or value.shape != shape:
                raise UsageError(_value_text(field.name, field.type, value, position))
        flat = np.concatenate([np.ravel(np.asarray(value)) for _, value in values])
        storage = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), int(np.prod(shape)))
        return pyarrow.ExtensionArray.from_storage(field.type, storage)
    return _converted(field.name, values, lambda column: _exactly(column, field.type), field.type)


def _converted(
    name: str,
    values: Sequence[tuple[int, object]],
    convert: Callable[[list[object]], Column],
    expected: object = "a type of Arrow",
) -> Column:
    """Return a column of values, or name the first one that doesn't fit."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    refused = (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError, OverflowError)
    try:
        return convert([value for _, value in values])
    except refused as error:
        for position, value in values:
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
