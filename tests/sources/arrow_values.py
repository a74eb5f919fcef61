"""Random Arrow tables, and the records that Penstock must make of them, by pyarrow's `to_pylist`."""

import decimal
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

pa: Any = pytest.importorskip("pyarrow")

Kind = Any  # a pyarrow.DataType
Table = Any  # a pyarrow.Table

_DATES = st.dates(date(1900, 1, 1), date(2200, 1, 1))
_TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))

LEAVES: dict[Kind, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float16(): st.floats(width=16, allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
    pa.string(): st.text(max_size=20),
    pa.large_string(): st.text(max_size=5),
    pa.string_view(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.binary_view(): st.binary(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.timestamp("us"): _TIMES,
    pa.duration("us"): st.timedeltas(timedelta(-(10**5)), timedelta(10**5)),
    pa.date32(): _DATES,
    pa.date64(): _DATES,
    pa.time64("us"): st.times(),
    pa.decimal128(9, 2): st.integers(-(10**8), 10**8).map(lambda cents: decimal.Decimal(cents).scaleb(-2)),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", "b", "a longer word"]),
}

_NESTS: tuple[Callable[[Kind], Kind], ...] = (
    pa.list_,
    pa.large_list,
    lambda kind: pa.list_(kind, 2),
    pa.list_view,
    lambda kind: pa.struct({"x": kind, "y": pa.int8()}),
    lambda kind: pa.map_(pa.string(), kind),
)


_DTYPES: dict[str, np.dtype[Any]] = {
    "timestamp[us]": np.dtype("M8[us]"),
    "duration[us]": np.dtype("m8[us]"),
    "date32[day]": np.dtype("M8[D]"),
    "date64[ms]": np.dtype("M8[ms]"),
}


def _nested(children: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.tuples(st.sampled_from(_NESTS), children).map(lambda pair: pair[0](pair[1]))


kinds: st.SearchStrategy[Kind] = st.recursive(st.sampled_from(list(LEAVES)), _nested, max_leaves=3)


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    """Return values of a type, None among them."""
    if kind in LEAVES:
        return st.none() | LEAVES[kind]
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    if pa.types.is_map(kind):
        return st.none() | st.lists(st.tuples(st.text(max_size=3), values_of(kind.item_type)), max_size=2)
    least, most = (2, 2) if pa.types.is_fixed_size_list(kind) else (0, 4)
    items = values_of(kind.value_type)
    if kind.value_type == pa.null():
        return st.none() | st.lists(items, min_size=least, max_size=most)
    given = items.filter(lambda item: item is not None)
    return st.none() | st.one_of(*(st.lists(each, min_size=least, max_size=most) for each in (items, given)))


@st.composite
def tables(draw: st.DrawFn, kind: st.SearchStrategy[Kind] = kinds) -> Table:
    """Return a table of two columns in several batches, each a slice of a longer one."""
    types = {"a": draw(kind), "b": draw(kind)}
    batches: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 12))
        columns = [
            pa.array(draw(st.lists(values_of(kind), min_size=rows, max_size=rows)), kind) for kind in types.values()
        ]
        begin = draw(st.integers(0, rows))
        whole = pa.record_batch(columns, names=list(types))
        batches.append(whole.slice(begin, draw(st.integers(0, rows - begin))))
    return pa.Table.from_batches(batches)


def records_of(table: Table) -> list[dict[str, Any]]:
    """Return the records of a table: its rows, with NumPy's values for numbers, and arrays for lists of them."""
    kinds = {field.name: field.type for field in table.schema}
    return [{name: _value(value, kinds[name]) for name, value in row.items()} for row in table.to_pylist()]


def _value(value: Any, kind: Kind) -> Any:
    types = pa.types
    if value is None or types.is_map(kind):
        return value
    if types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_list_view(kind):
        return _items([_value(item, kind.value_type) for item in value], kind.value_type)
    dtype = _dtype(kind)
    return value if dtype is None else np.array(value, dtype)[()]


def _items(items: list[Any], kind: Kind) -> Any:
    """Return a list of numbers, or of equal arrays of a fixed size, as an array, unless it has a None."""
    shape: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    dtype = _dtype(kind)
    if dtype is None or not all(isinstance(item, np.ndarray | np.generic) for item in items):
        return items
    return np.array(items, dtype).reshape(len(items), *shape)


def _dtype(kind: Kind) -> np.dtype[Any] | None:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    return _DTYPES.get(str(kind))
