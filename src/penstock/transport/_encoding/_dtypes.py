"""NumPy's dtypes as exact text, and back; the text isn't trusted.

The text of a plain dtype is its byte order and character (`<f`, `<q`) or, if it has a size or a unit, NumPy's own
string (`<U5`, `<M8[25s]`). The character distinguishes dtypes that compare equal, such as `long` and `long long`. The
text of a structured dtype is JSON, and that of a dtype that an extension registered is its name. Dtypes that can't be
restored exactly have no text: objects, variable-width strings, dtypes with metadata, and those without a size.
"""

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

Dtype: TypeAlias = np.dtype[Any]

_PLAIN: Final = re.compile(r"[<>|][?bBhHiIlLqQefdgFDG]|[<>|][SV][1-9]\d{0,9}|[<>]U[1-9]\d{0,8}")
_TIMES: Final = re.compile(r"[<>][Mm]8(\[\d{0,10}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_NAMED: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FIRST_USER_DTYPE: Final = 256  # NPY_USERDEF: extensions' dtypes are numbered from here
_DEEPEST: Final = 16
_numpy_dtype: Final = cast("Callable[..., Dtype]", np.dtype)  # NumPy's type stubs accept only literal dictionaries
_STRUCTURED: Final = {"names", "formats", "titles", "offsets", "itemsize", "aligned"}


def dtype_text(dtype: Dtype) -> str | None:
    """Return the text from which `parse_dtype` restores exactly this dtype, or None if there is none."""
    value = _value(dtype, 0)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    try:
        rebuilt = parse_dtype(text)
    except ValueError:
        return None
    return text if _same(rebuilt, dtype) else None


@functools.lru_cache(maxsize=512)
def parse_dtype(text: str) -> Dtype:
    """Return the dtype of a text.

    Raises:
        ValueError: it is no text of `dtype_text`.
    """
    try:
        dtype = _dtype(json.loads(text) if text.startswith("{") else text, 0)
    except (TypeError, OverflowError, MemoryError, RecursionError, KeyError) as error:
        raise ValueError(f"no dtype: {text[:80]!r}") from error
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"a dtype must have a size and no objects; got {text[:80]!r}")
    return dtype


def has_text(dtype: Dtype) -> bool:
    """Return whether a dtype holds text of fixed width, whose characters may be invalid."""
    if dtype.subdtype is not None:
        return has_text(dtype.subdtype[0])
    return dtype.kind == "U" or any(has_text(field[0]) for field in _fields(dtype).values())


def check_text(array: NDArray[Any]) -> None:
    """Check that every character in an array's text is valid: a Python string of an invalid one is corrupt.

    Raises:
        ValueError: a character is invalid.
    """
    for name in array.dtype.names or ():
        check_text(array[name])
    if array.dtype.kind == "U" and array.size:
        characters = np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)
        if np.ascontiguousarray(array).reshape(-1).view(characters).max() > sys.maxunicode:
            raise ValueError("an array of text has an invalid character")


def _value(dtype: Dtype, depth: int) -> object:
    """Return the JSON value of a dtype; None if it has none."""
    if dtype.metadata is not None or depth > _DEEPEST:
        return None
    if dtype.num >= _FIRST_USER_DTYPE:
        return dtype.name
    if dtype.names is None:
        text = dtype.str if dtype.kind in "SUVMm" else dtype.str[0] + dtype.char
        return text if _PLAIN.fullmatch(text) or _TIMES.fullmatch(text) else None
    fields = [_fields(dtype)[name] for name in dtype.names]
    titles = [field[2] if len(field) > 2 else None for field in fields]
    if not all(map(_is_title, titles)):
        return None
    formats = [_format(field[0], depth + 1) for field in fields]
    if any(each is None for each in formats):
        return None
    return {
        "names": list(dtype.names),
        "formats": formats,
        "titles": titles,
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _fields(dtype: Dtype) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", dtype.fields or {})


def _format(dtype: Dtype, depth: int) -> object:
    if dtype.subdtype is None:
        return _value(dtype, depth)
    base, shape = dtype.subdtype
    inner = _format(base, depth + 1)
    return None if inner is None else [inner, list(shape)]


def _dtype(value: object, depth: int) -> Dtype:
    if depth > _DEEPEST:
        raise ValueError("a dtype is nested too deeply")
    if isinstance(value, str):
        return _plain(value)
    if not _is_dict(value) or set(value) != _STRUCTURED:
        raise ValueError(f"a structured dtype must have the entries {sorted(_STRUCTURED)}")
    names, formats, titles, offsets = (value[name] for name in ("names", "formats", "titles", "offsets"))
    if not (_is_list(names) and _is_list(formats) and _is_list(titles) and _is_list(offsets)):
        raise ValueError("a structured dtype's fields must be lists")
    if not all(isinstance(name, str) for name in names) or not all(map(_is_size, [*offsets, value["itemsize"]])):
        raise ValueError("fields must have names and offsets, and a structured dtype a size")
    if not len(names) == len(formats) == len(titles) == len(offsets) or not all(map(_is_title, titles)):
        raise ValueError("each field must have a name, a format, a title or None, and an offset")
    if not isinstance(value["aligned"], bool):
        raise TypeError("the entry aligned must be true or false")
    fields: dict[str, Any] = {
        "names": names,
        "formats": [_field(each, depth + 1) for each in formats],
        "titles": titles,
        "offsets": offsets,
        "itemsize": value["itemsize"],
    }
    return _numpy_dtype(fields, align=value["aligned"])  # NumPy checks that the fields are inside the item


def _field(value: object, depth: int) -> Dtype:
    if depth > _DEEPEST:
        raise ValueError("a dtype is nested too deeply")
    if not _is_list(value):
        return _dtype(value, depth)
    if len(value) != 2 or not _is_list(value[1]) or not all(map(_is_size, value[1])):
        raise ValueError("a field of arrays must have a format and a shape")
    return np.dtype((_field(value[0], depth + 1), tuple(value[1])))


def _plain(text: str) -> Dtype:
    if _PLAIN.fullmatch(text) or _TIMES.fullmatch(text):
        return np.dtype(text)
    if _NAMED.fullmatch(text):
        dtype: Dtype = np.dtype(text)
        if dtype.num >= _FIRST_USER_DTYPE and not dtype.hasobject:
            return dtype
    raise ValueError(f"no dtype: {text[:80]!r}")


def _same(one: Dtype, other: Dtype) -> bool:
    """Return whether two dtypes are identical in all visible properties, not only equal."""
    if one != other or one.type is not other.type or one.num != other.num or one.str != other.str:
        return False
    if one.isalignedstruct != other.isalignedstruct or one.metadata != other.metadata:
        return False
    if one.subdtype is not None and other.subdtype is not None:
        return one.subdtype[1] == other.subdtype[1] and _same(one.subdtype[0], other.subdtype[0])
    names = one.names or ()
    if names != (other.names or ()) or one.itemsize != other.itemsize:
        return False
    ours, theirs = _fields(one), _fields(other)
    return all(ours[name][1:] == theirs[name][1:] and _same(ours[name][0], theirs[name][0]) for name in names)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _is_title(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
