"""The kinds of leaves in a batch: an array of some dtype and shape, a str, bytes, or None.

A Python int counts as an int64 array without axes, a float as float64, a bool as bool, a NumPy scalar as an array of
its own dtype. Two leaves can be in one column if and only if their kinds are equal. No dtype is ever promoted.
"""

import functools
from typing import Any, Final, NoReturn, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._caught import add_note
from penstock._frozen import frozen
from penstock._tensors import has_numpy_dtype, is_tensor
from penstock._tree import Element, flatten, is_container, is_masked, leaf_paths, subject, unflatten
from penstock.errors import UsageError

OWN_MERGE: Final = "merge the elements yourself with .batch(n, merge=…)"


@frozen
class LeafSpec:
    """The shape and dtype of a leaf that is an array, a NumPy scalar or a Python number.

    Attributes:
        shape: the axes of one element's leaf; empty for a scalar.
        dtype: its NumPy dtype; int64, float64 and bool for Python's numbers.

    Example:
        >>> import numpy as np
        >>> str(LeafSpec((28, 28), np.dtype("uint8")))
        'uint8 of shape (28, 28)'
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}" if self.shape else str(self.dtype)


LeafKind: TypeAlias = LeafSpec | type[str] | type[bytes] | None
Value: TypeAlias = NDArray[Any] | str | bytes | None


class LeafError(Exception):
    """A leaf can't be in a batch; the text describes it."""


def as_value(leaf: object) -> Value:
    """Return a leaf as a value for a batch: an array without a copy, a str or bytes unchanged, or None.

    Raises:
        LeafError: it is another object. An exception of an object's own `__array__` passes through.
    """
    if leaf is None or isinstance(leaf, (str, bytes)):
        return leaf
    array = _as_array(leaf)
    if array.dtype.hasobject:
        raise LeafError(f"an array of dtype {array.dtype}, which holds references")
    return array


def _as_array(leaf: object) -> NDArray[Any]:
    if type(leaf) is np.ndarray:
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        if is_masked(cast("Any", leaf)):
            raise LeafError("a masked array, whose mask would be lost")
        return np.asarray(cast("Any", leaf))
    if isinstance(leaf, bool):
        return np.array(leaf, np.bool_)
    if isinstance(leaf, int):
        try:
            return np.array(int(leaf), np.int64)
        except OverflowError:
            raise LeafError(f"an int of {leaf.bit_length()} bits, which int64 cannot hold") from None
    if isinstance(leaf, float):
        return np.array(float(leaf), np.float64)
    return _exported(leaf)


def _exported(leaf: object) -> NDArray[Any]:
    if is_container(leaf):
        raise LeafError("a container")
    if hasattr(type(leaf), "__array__"):
        if is_tensor(leaf) and not has_numpy_dtype(cast("Any", leaf)):
            raise LeafError(f"a tensor of dtype {cast('Any', leaf).dtype}, which NumPy doesn't have")
        return np.asarray(leaf)
    if hasattr(type(leaf), "__dlpack__"):
        return np.from_dlpack(cast("Any", leaf))
    kind = type(leaf)
    raise LeafError(
        f"a {kind.__qualname__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"
    )


def kind_of(value: Value) -> LeafKind:
    """Return the kind of a value of `as_value`."""
    if value is None:
        return None
    if isinstance(value, str):
        return str
    if isinstance(value, bytes):
        return bytes
    return LeafSpec(value.shape, value.dtype)


def describe_kind(kind: LeafKind) -> str:
    """Return the name of a kind for messages."""
    if kind is None:
        return "None"
    return str(kind) if isinstance(kind, LeafSpec) else kind.__name__


def _reject_leaf(error: LeafError, path: str, row: int | None) -> NoReturn:
    where = subject(path) if row is None else f"{subject(path)} of row {row}"
    raise UsageError(
        f"every leaf of a batch must be an array, a number, a str, bytes or None; {where} is {error}. "
        f"Convert it in .map, or {OWN_MERGE}."
    ) from None


def values_of(leaves: list[Any], paths: tuple[str, ...], row: int | None = None) -> list[Value]:
    """Return the values of the leaves of one element.

    Raises:
        UsageError: a leaf can't be in a batch; the text names its path, and the row if one is given.
    """
    values: list[Value] = []
    for leaf, path in zip(leaves, paths, strict=True):
        try:
            values.append(as_value(leaf))
        except LeafError as error:
            _reject_leaf(error, path, row)
        except Exception as error:
            where = subject(path) if row is None else f"{subject(path)} of row {row}"
            add_note(
                error, f"This was raised by {where}, a {type(leaf).__qualname__}, as it was converted to an array."
            )
            raise
    return values


def element_spec(element: Element) -> Element:
    """Return the element with each leaf replaced by its kind.

    Arrays and numbers become a `LeafSpec`, a str becomes the type `str`, bytes the type `bytes`, and None stays.

    Raises:
        UsageError: a leaf is another object; the text names its path.

    Example:
        >>> element_spec({"label": 3, "name": "cat"})
        {'label': LeafSpec(shape=(), dtype=dtype('int64')), 'name': <class 'str'>}
    """
    leaves, structure = flatten(element)
    values = values_of(leaves, leaf_paths(structure))
    return unflatten(structure, [kind_of(value) for value in values])


def number_as(number: float, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return a number as an array of a dtype, without axes; None if the dtype has no such value. Floats are rounded.

    Zero is a value of every dtype.

    Example:
        >>> import numpy as np
        >>> number_as(-1, np.dtype("int16")), number_as(-1, np.dtype("uint8"))
        (array(-1, dtype=int16), None)
    """
    value = np.zeros((), dtype)
    if number == 0:
        return value
    try:
        # NumPy 1 wraps around integers that are too large.
        if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            return None
        with np.errstate(over="ignore"):
            value[()] = number
    except (TypeError, ValueError, OverflowError):
        return None
    if dtype.kind in "fc":
        return value if np.isfinite(number) == np.isfinite(value) else None
    return value if dtype.kind in "iub" and value == number else None


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Return whether items of this dtype have bytes that belong to no field.

    In a batch these bytes are zero (`write_value`).

    Example:
        >>> import numpy as np
        >>> has_padding(np.dtype([("flag", "i1"), ("value", "i8")], align=True))
        True
    """
    return dtype.names is not None and not bool(_covered(dtype).all())


def write_value(value: NDArray[Any], place: NDArray[Any]) -> None:
    """Write a value to a part of a batch that has its dtype and shape; bytes that belong to no field become zero.

    NumPy 2.5 copies these bytes, too; earlier versions leave those of the batch.
    """
    place[...] = value
    if has_padding(place.dtype):
        # With a last axis of one item, any array can be seen as bytes.
        content: NDArray[np.uint8] = place[..., np.newaxis].view(np.uint8)
        content[..., ~_covered(place.dtype)] = 0


@functools.lru_cache(maxsize=256)
def _covered(dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return a mask of the bytes of an item that belong to a field."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.tile(_covered(base), int(np.prod(shape)))
    if dtype.fields is None:
        return np.ones(dtype.itemsize, np.bool_)
    covered = np.zeros(dtype.itemsize, np.bool_)
    for inner, offset, *_ in dtype.fields.values():
        covered[offset : offset + inner.itemsize] |= _covered(inner)
    return covered
