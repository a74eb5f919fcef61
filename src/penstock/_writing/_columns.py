"""Tables in shards: Arrow's IPC files, which readers map, and Parquet, which is smaller. pyarrow writes them."""

import bisect
import contextlib
import datetime
import importlib.util
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Self, TypeAlias, cast

import numpy as np

from penstock._frozen import frozen
from penstock._optional import need
from penstock._tensors import is_tensor
from penstock._tree import is_array, is_masked
from penstock._writing._drafts import Draft
from penstock.batching._stack_arrays import split_dicts
from penstock.errors import UsageError

_GROUP_BYTES: Final = 4 << 20  # of a row group: what a random read of one record costs at most
_BATCH_BYTES: Final = 1 << 19  # of a record batch at least; it is mapped, so its size matters little
_MIN_GROUP_ROWS: Final = 64

_SAMPLED: Final = ", the type of the first elements"  # said of a column in messages
_ANY_TYPE: Final = "any type of Arrow"
_MODULES: Final = ("pyarrow.parquet", "pandas")  # pyarrow imports pandas, if it is there, to convert the first column

Fields = Mapping[str, Any]
Positions = Sequence[int]
Column: TypeAlias = Any  # pyarrow has no types
Kind: TypeAlias = Any


def modules() -> tuple[str, ...]:
    """Return the modules with which tables are written, as far as they are installed."""
    return tuple(name for name in _MODULES if importlib.util.find_spec(name.partition(".")[0]) is not None)


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
        elements = [fields_of(element, at, "a table") for at, element in zip(positions, sample, strict=True)]
        names = list(elements[0]) if elements else []
        if elements and not names:
            raise UsageError(f"an element of a table must have a field; the one at position {positions[0]} has none")
        columns = [(name, _type_of(name, positions, _values(name, positions, elements))) for name in names]
        if suffixes == (".parquet",):
            _need_no_seconds(columns)
        return cls(pyarrow.schema(columns), suffixes)

    def size_of(self, element: Fields, _: int) -> int:
        """Return the bytes of an element's values."""
        return sum(map(_size_of, element.values()))

    def write(self, blocks: Iterable[tuple[int, Sequence[object]]], drafts: Sequence[Draft]) -> None:
        """Write record batches of 0.5 MiB and more, or row groups of 4 MiB and more."""
        pyarrow = need("pyarrow", "pyarrow", extra="arrow")
        [draft] = drafts
        if self.suffixes == (".arrow",):
            writer, least = pyarrow.ipc.new_file(draft, self.schema), _BATCH_BYTES
        else:
            least = _GROUP_BYTES
            try:
                parquet = need("pyarrow.parquet", "pyarrow", extra="arrow")
                writer = parquet.ParquetWriter(draft, self.schema, compression="zstd", write_page_index=True)
            except pyarrow.ArrowNotImplementedError as error:
                raise UsageError(
                    f"Parquet has no such column: {error}. Convert it in a map, or leave it out."
                ) from error
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
    named = f"{what} has named fields, so elements must be dicts with text for keys; the one at position {position}"
    if not isinstance(element, Mapping):
        raise UsageError(f'{named} is of type {type(element).__name__}. Add .map(lambda element: {{"name": element}}).')
    others = [name for name in cast("Mapping[object, Any]", element) if not isinstance(name, str)]
    if others:
        raise UsageError(f"{named} has the key {others[0]!r}. Rename it in a map.")
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
    """Return about how many bytes a value takes in a column, with all that is in it."""
    if isinstance(value, memoryview) or (is_array(value) and value.dtype != object):
        return value.nbytes
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes | bytearray):
        return len(value)
    if not isinstance(value, Collection):
        return 8
    inner = cast("Collection[object]", value.values() if isinstance(value, Mapping) else value)
    return 8 + (8 * len(inner) if {*map(type, inner)} <= {int, float} else sum(map(_size_of, inner)))


def _type_of(name: str, positions: Positions, values: list[object]) -> Kind:
    """Return the type of a column: that of its values, or of tensors of one shape."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    _need_unmasked(name, positions, values)
    arrays = [value for value in values if is_array(value) and value.ndim > 1]
    if not arrays:
        return _widest(_converted(name, positions, values, _exact).type)
    if len(arrays) < len(values) or len({(array.dtype, array.shape) for array in arrays}) > 1:
        raise UsageError(
            f"arrays of several axes in a table must have one dtype and shape; field {name!r} has several. Flatten "
            "them in a map, with the shape as another field, or encode them as bytes."
        )
    with contextlib.suppress(*_refusals()):
        if arrays[0].size:
            return pyarrow.fixed_shape_tensor(pyarrow.from_numpy_dtype(arrays[0].dtype), arrays[0].shape)
    raise UsageError(_value_text(name, "a tensor of Arrow", arrays[0], positions[0]))


def _need_no_seconds(columns: Sequence[tuple[str, Kind]]) -> None:
    """Check that no column has arrays of several axes with times in seconds: Parquet would drop the axes.

    Raises:
        UsageError: one has.
    """
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    for name, kind in columns:
        if isinstance(kind, pyarrow.FixedShapeTensorType) and kind.value_type == pyarrow.timestamp("s"):
            raise UsageError(
                f"arrays of several axes in Parquet must not have times in seconds; those of field {name!r} have. Call "
                '.astype("datetime64[ms]") in a map.'
            )


def _need_unmasked(name: str, positions: Positions, values: list[object]) -> None:
    if _has_mask(values):
        position = next(at for at, value in zip(positions, values, strict=True) if is_masked(value))
        raise UsageError(
            f"an array in a table must not be masked: tables have no mask. Field {name!r} at position {position} is. "
            "Write data and mask as two fields."
        )


def _has_mask(values: Sequence[object]) -> bool:
    kinds = {*map(type, values)} - {np.ndarray}  # of a whole block: most have one, and no array
    return any(issubclass(kind, np.ndarray) for kind in kinds) and any(map(is_masked, values))


def _column(field: Kind, positions: Positions, values: list[object]) -> Column:
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    _need_unmasked(field.name, positions, values)
    if isinstance(field.type, pyarrow.FixedShapeTensorType):
        dtype, shape = _dtype_of(field.type.value_type), tuple(field.type.shape)
        for position, value in zip(positions, values, strict=True):
            if not is_array(value) or value.dtype != dtype or value.shape != shape:
                raise UsageError(_value_text(field.name, field.type, value, position))
        flat = np.concatenate([np.ravel(np.asarray(value)) for value in values])
        storage = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), int(np.prod(shape)))
        return pyarrow.ExtensionArray.from_storage(field.type, storage)
    return _converted(field.name, positions, values, lambda column: _exactly(column, field.type), field.type)


def _dtype_of(kind: Kind) -> object:
    """Return the dtype of arrays from whose dtype pyarrow makes this type."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    return _DAYS if pyarrow.types.is_date32(kind) else kind.to_pandas_dtype()


def _converted(
    name: str,
    positions: Positions,
    values: list[object],
    convert: Callable[[list[object]], Column],
    expected: object = _ANY_TYPE,
) -> Column:
    """Return a column of values, or name the first one that doesn't fit, or not beside those before it."""
    refused = _refusals()

    def refusal(some: list[object]) -> Exception | None:
        try:
            convert(some)
        except refused as error:
            return error
        return None

    try:
        return convert(values)
    except refused as error:
        number = bisect.bisect_left(range(len(values)), 1, key=lambda last: refusal(values[: last + 1]) is not None)
        alone = refusal([values[number]])
        if alone is not None:
            sampled = "" if expected is _ANY_TYPE else _SAMPLED
            reason = f": {alone}" if isinstance(alone, _LossError) else sampled
            raise UsageError(_value_text(name, expected, values[number], positions[number], reason)) from error
        raise UsageError(
            f"the values of field {name!r} have several types, and the one at position {positions[number]} doesn't fit "
            f"those before it: {error}. Convert them in a map."
        ) from error


class _LossError(ValueError):
    """The refusal of values that pyarrow would change."""


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions of pyarrow, and of its conversions, for a value that a column can't have."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    return (pyarrow.ArrowNotImplementedError, OverflowError, TypeError, ValueError)


def _exact(values: list[object]) -> Column:
    """Return values as a column of the type that pyarrow chooses, which loses nothing of them.

    Raises:
        _LossError: it would.
    """
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    _need_one_unit(values)
    try:
        column = pyarrow.array(values)
    except TypeError:
        values = [*map(_with_dates, values)]
        column = pyarrow.array(values)
    if not _is_checked(column.type):
        _need_kept(values, column.type)
    return column


def _with_dates(value: object) -> object:
    """Return a value with dates of Python in place of NumPy's days, which pyarrow converts only as whole arrays."""
    if isinstance(value, np.datetime64 | np.ndarray):
        held = cast("Any", value)
        has_dates = held.dtype == _DAYS and not ((held < _DATES[0]) | (held > _DATES[1])).any()
        return held.tolist() if has_dates else held
    if isinstance(value, dict):
        return {name: _with_dates(each) for name, each in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [*map(_with_dates, cast("Sequence[object]", value))]
    return value


def _need_kept(values: Sequence[object], kind: Kind) -> None:
    """Check that a column of this type, which pyarrow chose for these values, keeps all of them.

    Raises:
        _LossError: it doesn't.
    """
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    for predicate, (kept, but) in _KEPT.items():
        if getattr(pyarrow.types, predicate)(kind):
            for each in {*map(type, values)}:
                if issubclass(each, but) or not issubclass(each, (*kept, type(None), pyarrow.Scalar)):
                    raise _LossError(_loss_text(each, kind))
    for predicate, loss_of in _LOSSES:
        loss = loss_of(values) if getattr(pyarrow.types, predicate)(kind) else None
        if loss is not None:
            raise _LossError(loss)
    for inner, inner_kind in _inner(values, kind):
        _need_one_unit(inner)
        _need_kept(inner, inner_kind)


def _need_one_unit(values: Sequence[object]) -> None:
    """Check that NumPy's times, and the arrays beside them, have one dtype, whose unit isn't a multiple of another.

    pyarrow reads all of them in the unit of the first, without its multiple, and crashes at numbers after times.

    Raises:
        _LossError: they don't.
    """
    if not any(issubclass(each, _WITH_DTYPES) for each in {*map(type, values)}):
        return
    given = [cast("Any", value).dtype for value in values if isinstance(value, _WITH_DTYPES)]
    dtypes: list[Any] = [dtype for dtype in dict.fromkeys(given) if dtype.kind != "O"]
    times = [dtype for dtype in dtypes if dtype.kind in "mM"]
    if times and len(dtypes) > 1:
        names = ", ".join(map(str, dtypes))
        raise _LossError(f"times of NumPy in a column must have one dtype, and these have {names}")
    for unit, count in map(np.datetime_data, times):
        if count > 1:
            raise _LossError(f"Arrow has no unit of {count} {unit}")


def _inner(values: Sequence[Any], kind: Kind) -> Iterator[tuple[Sequence[object], Kind]]:
    """Yield the values inside of lists and dicts, with their type, as far as pyarrow doesn't check them."""
    types = need("pyarrow", "pyarrow", extra="arrow").types
    if types.is_struct(kind):
        elements = [value for value in values if value is not None]
        for field in kind:
            if not _is_checked(field.type):
                yield [element.get(field.name) for element in elements], field.type
    elif types.is_list(kind) and not _is_number(kind.value_type):
        # In a list pyarrow even makes text of bytes.
        lists = (value for value in values if value is not None and not (is_array(value) and value.dtype != object))
        yield [*chain.from_iterable(lists)], kind.value_type


def _is_checked(kind: Kind) -> bool:
    """Return whether pyarrow chooses a type only if it keeps all values, outside of lists."""
    return _is_number(kind) or bool(need("pyarrow", "pyarrow", extra="arrow").types.is_string(kind))


def _loss_text(given: type, kind: Kind) -> str:
    reason = ", but its order differs from run to run, so use sorted(…)" if issubclass(given, set) else ""
    return f"pyarrow would make {kind} of a {given.__name__}{reason}"


def _loss_of_a_mask(values: Sequence[object]) -> str | None:
    return "tables have no mask, so write data and mask as two fields" if _has_mask(values) else None


def _loss_of_a_zone(values: Sequence[object]) -> str | None:
    times = (value for value in values if isinstance(value, datetime.time))
    return "Arrow's times of day have no time zone" if any(time.tzinfo is not None for time in times) else None


def _loss_of_an_instant(values: Sequence[object]) -> str | None:
    times = [value for value in values if isinstance(value, datetime.datetime)]
    if len({time.tzinfo is None for time in times}) > 1:
        return "a column has either times with a time zone or times without"
    return _NANOSECONDS if any(getattr(time, "nanosecond", 0) for time in times) else None


def _loss_of_nanoseconds(values: Sequence[object]) -> str | None:
    durations = (value for value in values if isinstance(value, datetime.timedelta))
    return _NANOSECONDS if any(getattr(duration, "nanoseconds", 0) for duration in durations) else None


_WITH_DTYPES: Final = (np.ndarray, np.datetime64, np.timedelta64)
_DAYS: Final = np.dtype("datetime64[D]")
_DATES: Final = np.array(["0001-01-01", "9999-12-31"], _DAYS)  # of Python, the first and the last
_NANOSECONDS: Final = "pyarrow drops the nanoseconds of pandas, but not those of value.to_numpy()"
_KEPT: Final[Mapping[str, tuple[tuple[type, ...], tuple[type, ...]]]] = {
    "is_string": ((str,), ()),
    "is_binary": ((bytes, bytearray, memoryview), ()),
    "is_list": ((object,), (set,)),
    "is_date32": ((datetime.date,), (datetime.datetime,)),
    "is_time64": ((datetime.time,), ()),
    "is_timestamp": ((datetime.datetime, np.datetime64), ()),
    "is_duration": ((datetime.timedelta, np.timedelta64), ()),
}
"""For types of Arrow: the classes whose values they keep, and classes derived from these whose values they don't."""
_LOSSES: Final[Sequence[tuple[str, Callable[[Sequence[object]], str | None]]]] = (
    ("is_list", _loss_of_a_mask),
    ("is_time64", _loss_of_a_zone),
    ("is_timestamp", _loss_of_an_instant),
    ("is_duration", _loss_of_nanoseconds),
)
"""For types of Arrow: why a column of the type doesn't keep all of some values of these classes."""


def _exactly(values: list[object], kind: Kind) -> Column:
    """Return values as a column of a type, which loses nothing of them."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    column = _exact(values)
    if column.type == kind:
        return column
    own = column.cast(_filled(column.type, kind))
    cast = own.cast(kind)
    if not _is_same(cast.cast(own.type), own):
        raise pyarrow.ArrowInvalid(_unfit_text(column.type, kind))
    return cast


def _filled(kind: Kind, wanted: Kind) -> Kind:
    """Return the type of values with the wanted one where all values are missing.

    Raises:
        pyarrow.ArrowInvalid: a cast would make other values of them, such as texts of numbers.
    """
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    types = pyarrow.types
    if types.is_null(kind):
        return wanted
    if not (_is_number(kind) and _is_number(wanted)) and _form(kind) != _form(wanted):
        raise pyarrow.ArrowInvalid(_unfit_text(kind, wanted))
    if types.is_struct(kind):
        known = {field.name: field.type for field in wanted}
        return pyarrow.struct([(field.name, _filled(field.type, known.get(field.name, field.type))) for field in kind])
    return pyarrow.list_(_filled(kind.value_type, wanted.value_type)) if types.is_list(kind) else kind


def _widest(kind: Kind) -> Kind:
    """Return a type with the most digits for decimals before the point, since later values may be larger."""
    pyarrow = need("pyarrow", "pyarrow", extra="arrow")
    types = pyarrow.types
    if types.is_decimal128(kind):
        return pyarrow.decimal128(38, kind.scale)
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, _widest(field.type)) for field in kind])
    return pyarrow.list_(_widest(kind.value_type)) if types.is_list(kind) else kind


def _form(kind: Kind) -> tuple[int, bool]:
    """Return the form of a type's values; times with a zone and times without have different ones."""
    return kind.id, getattr(kind, "tz", None) is not None


def _is_number(kind: Kind) -> bool:
    types = need("pyarrow", "pyarrow", extra="arrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _unfit_text(kind: Kind, wanted: Kind) -> str:
    return f"{kind} doesn't fit into {wanted}"


def _is_same(one: Column, other: Column) -> bool:
    """Return whether two columns of a type have the same values; `equals` takes a NaN for another one than itself."""
    pyarrow, compute = need("pyarrow", "pyarrow", extra="arrow"), need("pyarrow.compute", "pyarrow", extra="arrow")
    if one.equals(other):
        return True
    kind = one.type
    if not one.is_valid().equals(other.is_valid()):
        return False
    if pyarrow.types.is_floating(kind):
        nans = compute.is_nan(one)
        numbers = (compute.if_else(nans, None, column) for column in (one, other))
        return bool(nans.equals(compute.is_nan(other))) and bool(operator.eq(*numbers))
    if pyarrow.types.is_struct(kind):
        return all(map(_is_same, one.flatten(), other.flatten()))
    if pyarrow.types.is_list(kind):
        lengths = map(compute.list_value_length, (one, other))
        return bool(operator.eq(*lengths)) and _is_same(one.flatten(), other.flatten())
    return False


def _value_text(name: str, expected: object, value: object, position: int, reason: str = _SAMPLED) -> str:
    kind = f"{value.dtype} of shape {value.shape}" if is_array(value) else type(value).__name__
    return (
        f"field {name!r} at position {position} is a {kind}, which doesn't fit into {expected}{reason}. Convert it in "
        f"a map{', as in tensor.numpy()' if is_tensor(value) else ''}."
    )
