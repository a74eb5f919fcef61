"""The encoding of an element as bytes: a short text with its structure and the forms of its leaves, then the leaves.

    size of the text, 4 bytes | the text, JSON | leaf | leaf | …

    [["dict", ["image", "label"], [null, null]], [["array", "|u1", 3], ["int", "", 0]]]

Elements of one dataset mostly share the text, so it is built and parsed once. Dicts with str or int keys, lists and
tuples are containers; arrays and scalars of NumPy, bytes, str, int, float, bool and None have forms of their own. All
other objects, among them dataclasses and subclasses of the above, are pickled as leaves. Decoding these may run any
code, so the bytes must come from a source that you would import code from.

A function that gets a decoded element gives what it gives for the encoded one. Arrays and scalars keep their dtype with
its byte order. An array that isn't in C order keeps its strides, and one that is read-only stays so. An element is
pickled as a whole if an object is in several places of it, or if some of its arrays share memory: a write to one of
them is a write to the others.
"""

import ast
import functools
import json
import math
import pickle
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from numpy.typing import NDArray

from penstock._independent import shared_within
from penstock._pickles import dumps, dumps_sharing, plain_text
from penstock._strides import copied_items, in_one_piece, with_strides, without_wide_gaps
from penstock._tree import LEAF, Element, Structure, flatten, unflatten
from penstock.errors import UsageError

Part: TypeAlias = bytes | memoryview
Take: TypeAlias = Callable[[bytes, int], tuple[object, int]]
"""Reads the leaf at an offset of the bytes; returns it, and the offset of the next leaf."""
_Put: TypeAlias = Callable[[Any, list[Part]], "Form"]


class Form(NamedTuple):
    """The format of a leaf; for arrays and scalars, with the dtype's description and the number of axes."""

    name: str
    dtype: str = ""
    axes: int = 0


_SIZE: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<Q")
_INTEGER: Final = struct.Struct("<q")
_FLOAT: Final = struct.Struct("<d")
_BOOL: Final = struct.Struct("<?")
_CONTAINERS: Final[dict[str, type]] = {"dict": dict, "list": list, "tuple": tuple}
_WITHOUT_COPY_BYTES: Final = 1 << 14  # for larger arrays a view costs less than another copy


def encode(element: Element) -> bytes:
    """Return an element as bytes for `decode`.

    Raises:
        UsageError: a leaf has no form of its own, and can't be pickled.

    Example:
        >>> decode(encode({"image": (1, b"ab"), "label": None}))
        {'image': (1, b'ab'), 'label': None}
    """
    parts: list[Part] = [b""]
    shared = shared_within(element)
    if shared is not None:
        form = _put_pickled(element, parts, partial(dumps_sharing, groups=shared))
        return b"".join([_text(LEAF, (form,)), *parts])
    leaves, structure = flatten(element, _is_leaf)
    forms = tuple([_put(leaf, parts) for leaf in leaves])
    parts[0] = _text(structure, forms)
    return b"".join(parts)


def decode(data: bytes) -> Element:
    """Return the element of bytes from `encode`; its arrays are new, and writable unless they were read-only.

    Example:
        >>> decode(encode([1, "a"]))
        [1, 'a']
    """
    (size,) = _SIZE.unpack_from(data)
    start = _SIZE.size + size
    structure, takes = _parsed(data[_SIZE.size : start])
    leaves: list[object] = []
    for take in takes:
        leaf, start = take(data, start)
        leaves.append(leaf)
    return unflatten(structure, leaves)


def _is_leaf(part: object) -> bool:
    """Return whether a part of an element is a leaf here: any object but plain containers with plain keys."""
    kind = type(part)
    if kind is dict:
        return not all(type(key) in {str, int} for key in cast("dict[object, object]", part))
    return kind is not list and kind is not tuple


def _put(leaf: object, parts: list[Part]) -> Form:
    """Append a leaf's bytes to the parts, and return its form."""
    return _put_of(type(leaf))(leaf, parts)


def _put_of(kind: type[object]) -> _Put:
    put = _PUTS.get(kind)
    if put is not None:
        return put
    return _put_scalar if issubclass(kind, np.generic) else _put_pickled


def _put_array(array: NDArray[Any], parts: list[Part]) -> Form:
    described = _described(array.dtype)
    if described is None:
        return _put_pickled(array, parts)
    if not array.flags.c_contiguous:
        array = without_wide_gaps(array)
    flags = array.flags
    if not flags.c_contiguous or not flags.writeable:
        parts.append(_view_head(array.ndim).pack(*array.shape, *array.strides, flags.writeable))
        parts.append(in_one_piece(array).data)
        return Form("view", described, array.ndim)
    parts.append(struct.pack(f"<{array.ndim}Q", *array.shape))
    if array.nbytes < _WITHOUT_COPY_BYTES:
        parts.append(array.tobytes())
    else:
        parts.append(array.reshape(-1).view(np.uint8).data)
    return Form("array", described, array.ndim)


def _put_scalar(scalar: "np.generic[Any]", parts: list[Part]) -> Form:
    described = _described(scalar.dtype)
    if described is None or _dtype(described).type is not type(scalar) or isinstance(scalar, np.void):
        return _put_pickled(scalar, parts)
    parts.append(scalar.tobytes())
    return Form("scalar", described)


def _put_numpy_text(scalar: str | bytes, parts: list[Part]) -> Form:
    """Append one of NumPy's texts: of an array it would come back without the NULs at its end."""
    text = plain_text(scalar)
    return _put_sized(*(("numpy bytes", text) if isinstance(text, bytes) else ("numpy str", _encoded(text))), parts)


def _put_integer(number: int, parts: list[Part]) -> Form:
    size = number.bit_length() // 8 + 1
    if size <= _INTEGER.size:
        parts.append(_INTEGER.pack(number))
        return Form("int")
    return _put_sized("big int", number.to_bytes(size, "little", signed=True), parts)


def _put_float(number: float, parts: list[Part]) -> Form:
    parts.append(_FLOAT.pack(number))
    return Form("float")


def _put_bool(value: object, parts: list[Part]) -> Form:
    parts.append(_BOOL.pack(value))
    return Form("bool")


def _put_none(leaf: None, parts: list[Part]) -> Form:
    del leaf, parts
    return Form("None")


def _put_bytes(data: bytes, parts: list[Part]) -> Form:
    return _put_sized("bytes", data, parts)


def _put_text(text: str, parts: list[Part]) -> Form:
    return _put_sized("str", _encoded(text), parts)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _put_pickled(leaf: object, parts: list[Part], dumps: Callable[[object], bytes] = dumps) -> Form:
    try:
        data = dumps(leaf)
    except Exception as error:
        raise UsageError(
            "the leaves of a cached element must be arrays, bytes, numbers, strings or objects that can be pickled; "
            f"got {type(leaf).__qualname__} ({type(error).__name__}: {error}). Cache before the step that makes it."
        ) from error
    return _put_sized("pickle", data, parts)


def _put_sized(name: str, data: bytes, parts: list[Part]) -> Form:
    parts.append(_LENGTH.pack(len(data)))
    parts.append(data)
    return Form(name)


_PUTS: Final[dict[type, _Put]] = {
    np.ndarray: _put_array,
    int: _put_integer,
    float: _put_float,
    bytes: _put_bytes,
    str: _put_text,
    bool: _put_bool,
    type(None): _put_none,
    np.bytes_: _put_numpy_text,
    np.str_: _put_numpy_text,
}
_NUMBERS: Final = {"int": _INTEGER, "float": _FLOAT, "bool": _BOOL}
_READERS: Final[dict[str, Callable[[memoryview], object]]] = {
    "bytes": bytes,
    "str": _decoded,
    "numpy bytes": lambda data: np.bytes_(bytes(data)),
    "numpy str": lambda data: np.str_(_decoded(data)),
    "big int": lambda data: int.from_bytes(data, "little", signed=True),
    "pickle": pickle.loads,
}


def _take_of(form: Form) -> Take:
    """Return the function that reads a leaf of this form."""
    match form.name:
        case "array":
            return partial(_take_array, _dtype(form.dtype), struct.Struct(f"<{form.axes}Q"))
        case "view":
            return partial(_take_view, _dtype(form.dtype), form.axes)
        case "scalar":
            return partial(_take_scalar, _dtype(form.dtype))
        case "None":
            return _take_none
        case name if name in _NUMBERS:
            return partial(_take_number, _NUMBERS[name])
        case name:
            return partial(_take_sized, _READERS[name])


def _take_array(dtype: np.dtype[Any], lengths: struct.Struct, data: bytes, start: int) -> tuple[object, int]:
    shape = lengths.unpack_from(data, start)
    start += lengths.size
    array: NDArray[Any] = np.ndarray(shape, dtype, data, start)
    return copied_items(array), start + array.nbytes


def _take_view(dtype: np.dtype[Any], axes: int, data: bytes, start: int) -> tuple[object, int]:
    """Read an array with strides of its own, or one that is read-only."""
    head = _view_head(axes)
    *numbers, is_writable = head.unpack_from(data, start)
    shape, strides = tuple(numbers[:axes]), tuple(numbers[axes:])
    start += head.size
    stored = [length if stride else min(length, 1) for length, stride in zip(shape, strides, strict=True)]
    raw: NDArray[np.uint8] = np.ndarray(math.prod(stored) * dtype.itemsize, np.uint8, data, start).copy()
    raw.flags.writeable = is_writable
    return with_strides(raw, dtype, shape, strides), start + raw.nbytes


@functools.lru_cache(maxsize=64)
def _view_head(axes: int) -> struct.Struct:
    """Return the format of the shape and the strides of an array, and of whether it can be written to."""
    return struct.Struct(f"<{axes}Q{axes}q?")


def _take_scalar(dtype: np.dtype[Any], data: bytes, start: int) -> tuple[object, int]:
    array: NDArray[Any] = np.ndarray((), dtype, data, start)
    return array[()], start + dtype.itemsize


def _take_number(form: struct.Struct, data: bytes, start: int) -> tuple[object, int]:
    return form.unpack_from(data, start)[0], start + form.size


def _take_sized(reader: Callable[[memoryview], object], data: bytes, start: int) -> tuple[object, int]:
    (length,) = _LENGTH.unpack_from(data, start)
    start += _LENGTH.size
    return reader(memoryview(data)[start : start + length]), start + length


def _take_none(data: bytes, start: int) -> tuple[object, int]:
    del data
    return None, start


@functools.lru_cache(maxsize=1024)
def _text(structure: Structure, forms: tuple[Form, ...]) -> bytes:
    text = json.dumps([_to_json(structure), forms], separators=(",", ":")).encode()
    return _SIZE.pack(len(text)) + text


@functools.lru_cache(maxsize=1024)
def _parsed(text: bytes) -> tuple[Structure, tuple[Take, ...]]:
    structure, forms = json.loads(text)
    return _from_json(structure), tuple(_take_of(Form(*form)) for form in forms)


def _to_json(structure: Structure) -> list[object] | None:
    if structure.container is None:
        return None
    return [structure.container.__name__, structure.keys, [_to_json(child) for child in structure.children]]


def _from_json(described: tuple[str, list[str | int], list[Any]] | None) -> Structure:
    if described is None:
        return Structure()
    name, keys, children = described
    return Structure(_CONTAINERS[name], tuple(keys), tuple(_from_json(child) for child in children))


def _described(dtype: np.dtype[Any]) -> str | None:
    """Return a dtype as text, or None if only pickle preserves all of it."""
    if dtype.hasobject or dtype.metadata or not dtype.itemsize:
        return None
    return _describe(dtype)


@functools.lru_cache(maxsize=256)
def _describe(dtype: np.dtype[Any]) -> str | None:
    described = repr(dtype_to_descr(dtype)) if dtype.names else dtype.str
    try:
        return described if _dtype(described) == dtype else None
    except (TypeError, ValueError):  # a dtype of another package
        return None


@functools.lru_cache(maxsize=256)
def _dtype(described: str) -> np.dtype[Any]:
    if described.startswith("["):
        return descr_to_dtype(ast.literal_eval(described))
    return np.dtype(described)
