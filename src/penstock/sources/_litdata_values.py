"""The values of LitData's items, from their bytes.

An item is a tree of dicts, lists and tuples, which the index has as a description of PyTree, and the same for all
items. Its leaves are stored one after the other behind their sizes (uint32 numbers). Each leaf has a format: a name,
and for some a number of a dtype or a file's extension behind a colon. `_DECODERS` and `_BY_DTYPE` have a function for
each name.

A leaf of the format "json" is a list or a dict in an encoding of LitData's own, which `_Nested` reads.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sources._encoded import DamageError, array_of, parts_of, pixels_of
from penstock.sources._source import Record

Value = Any  # of a leaf: numbers, text, bytes, arrays, lists and dicts
Decoder: TypeAlias = Callable[[bytes], Value]
_Make: TypeAlias = Callable[[Iterator[Any]], Any]
"""A function that takes the leaves of a tree from an iterator, and returns the tree."""

_NUMPY: Final = (
    "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?",
)  # fmt: skip
_TORCH: Final = (
    "<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", None, "u1", "i1", "<i2", "<i2", "<i4",
    "<i4", "<i8", "<i8", "?", "<u2",
)  # fmt: skip
_UNSAFE: Final = frozenset(("graph", "pickle"))
_SIZE: Final = struct.Struct("<I")
_INTEGER: Final = struct.Struct("<q")
_FLOAT: Final = struct.Struct("<d")


class Items:
    """The function from an item's bytes to the item.

    Args:
        formats: the format of each leaf.
        described: the tree: PyTree's description in JSON, or None for a single leaf.
        folder: the dataset, for messages.

    Raises:
        UsageError: a format or a type of the tree can't be read.
        DamageError: the tree hasn't as many leaves as there are formats.
    """

    def __init__(self, formats: Sequence[str], described: str | None, folder: str) -> None:
        names: list[str] = []
        self._make = _leaf("", names) if described is None else _tree(json.loads(described)[1], "", names, folder)
        if len(names) != len(formats):
            raise DamageError(f"data_spec has {len(names)} leaves, and data_format {len(formats)}")
        self._sizes = struct.Struct(f"<{len(formats)}I")
        self._leaves = [
            (f"item{name}", kind, _decoder_of(kind, f"item{name}", folder))
            for name, kind in zip(names, formats, strict=True)
        ]

    def __call__(self, content: bytes) -> Record:
        """Return the item.

        Raises:
            DamageError: the bytes have another size, or a leaf isn't of its format.
        """
        begin = self._sizes.size
        if len(content) < begin:
            raise DamageError("is too short for the sizes of its leaves.")
        leaves: list[Any] = []
        for size, (name, kind, decode) in zip(self._sizes.unpack_from(content), self._leaves, strict=True):
            end = begin + size
            if end > len(content):
                raise DamageError(f"is too short for the leaf {name}.")
            value = content[begin:end]
            try:
                leaves.append(decode(value))
            except (ValueError, RecursionError, DamageError) as error:
                raise DamageError(
                    f"has no {kind!r} in the leaf {name}: its {len(value)} bytes begin with {value[:8]!r} ({error})."
                ) from None
            begin = end
        if begin != len(content):
            raise DamageError(f"has {len(content) - begin} bytes more than its leaves.")
        return self._make(iter(leaves))


def _decoder_of(kind: str, leaf: str, folder: str) -> Decoder:
    """Return the function from bytes to values for a format.

    Args:
        kind: the format.
        leaf: the leaf that has it, for messages.
        folder: the dataset, for messages.

    Raises:
        UsageError: the format can't be read.
    """
    name, _, detail = kind.partition(":")
    if name in _UNSAFE:
        raise UsageError(
            f"pickles can't be read: a pickle runs code that the file contains; the leaf {leaf} of {folder!r} is one. "
            "Optimize the dataset again with numbers, text, bytes, arrays, lists or dicts."
        )
    if name in _BY_DTYPE:
        return partial(_flat_array, _dtype_of(_BY_DTYPE[name], detail, f"the leaf {leaf} of {folder!r}"))
    known = _DECODERS.get(name)
    if known is None:
        raise UsageError(
            f"a leaf must have one of the formats {', '.join(sorted({*_DECODERS, *_BY_DTYPE}))}; the leaf {leaf} of "
            f"{folder!r} has {kind!r}, of a serializer of your own. Optimize the dataset again with bytes there."
        )
    return known


def _dtype_of(dtypes: Sequence[str | None], number: str, place: str) -> np.dtype[Any]:
    known = dtypes[int(number)] if number.isdecimal() and int(number) < len(dtypes) else None
    if known is None:
        raise UsageError(
            f"arrays must be of numbers that NumPy has; {place} has the dtype number {number!r}. Optimize the dataset "
            "again with another dtype."
        )
    return np.dtype(known)


class Tokens:
    """The function from the bytes of tokens, without a head, to their array.

    Args:
        formats: those of a dataset for `TokensLoader`, which has one.
        folder: the dataset, for messages.

    Raises:
        UsageError: the items aren't arrays or tensors of one axis.
    """

    def __init__(self, formats: Sequence[str], folder: str) -> None:
        name, _, number = formats[0].partition(":")
        if len(formats) > 1 or name not in _BY_DTYPE:
            raise UsageError(
                f"tokens must be arrays or tensors of one axis; {folder!r} has {formats}. Optimize the dataset again."
            )
        self.dtype = _dtype_of(_BY_DTYPE[name], number, repr(folder))

    def __call__(self, content: bytes) -> NDArray[Any]:
        """Return the tokens.

        Raises:
            DamageError: a token has too few bytes.
        """
        if len(content) % self.dtype.itemsize:
            raise DamageError(f"has {len(content)} bytes, which are no whole tokens of {self.dtype}.")
        return _flat_array(self.dtype, content)


def _tree(spec: Mapping[str, Any], name: str, names: list[str], folder: str) -> _Make:
    """Return the function that makes a tree, and append the names of its leaves to `names`.

    Raises:
        UsageError: the tree has a type that can't be made here.
    """
    kind, children = spec["type"], cast("list[Mapping[str, Any]]", spec["children_spec"])
    if kind is None:
        return _leaf(name, names)
    short = kind.removeprefix("builtins.").removeprefix("collections.")
    if short in ("dict", "OrderedDict", "defaultdict"):
        context: Any = spec["context"]
        keys = context["dict_context"] if short == "defaultdict" else json.loads(context)
        made = [_tree(child, f"{name}[{key!r}]", names, folder) for key, child in zip(keys, children, strict=True)]
        return lambda leaves: {key: make(leaves) for key, make in zip(keys, made, strict=True)}
    if short not in ("list", "tuple", "deque"):
        raise UsageError(
            f"items must be trees of dicts, lists and tuples; item{name} of {folder!r} has the type {kind!r}. Optimize "
            "the dataset again with one of these."
        )
    made = [_tree(child, f"{name}[{number}]", names, folder) for number, child in enumerate(children)]
    if short == "tuple":
        return lambda leaves: tuple(make(leaves) for make in made)
    return lambda leaves: [make(leaves) for make in made]


def _leaf(name: str, names: list[str]) -> _Make:
    names.append(name)
    return next


def _flat_array(dtype: np.dtype[Any], value: bytes) -> NDArray[Any]:
    count, rest = divmod(len(value), dtype.itemsize)
    if rest:
        raise DamageError(f"elements need {dtype.itemsize} bytes each")
    return array_of(value, dtype, (count,))


def _shaped_array(dtypes: Sequence[str | None], byte_order: str, value: bytes) -> NDArray[Any]:
    """Return an array that is stored with its dtype and its shape, all of them numbers of this byte order.

    Raises:
        DamageError: the value is no such array.
    """
    if len(value) < 2 * _SIZE.size:
        raise DamageError("there is no dtype")
    number, axes = cast("tuple[int, int]", struct.unpack_from(f"{byte_order}II", value))
    begin = (2 + axes) * _SIZE.size
    if len(value) < begin:
        raise DamageError("there is no shape")
    dtype = dtypes[number] if number < len(dtypes) else None
    if dtype is None:
        raise DamageError(f"there is no dtype {number}")
    return array_of(value, np.dtype(dtype), struct.unpack_from(f"{byte_order}{axes}I", value, 2 * _SIZE.size), begin)


def _number(form: struct.Struct, value: bytes) -> Value:
    if len(value) != form.size:
        raise DamageError(f"it needs {form.size}")
    return form.unpack(value)[0]


def _boolean(value: bytes) -> bool:
    if len(value) != 1:
        raise DamageError("it needs 1")
    return value != b"\0"


class _Nested:
    """Reads a list or a dict in LitData's encoding: a tag of one byte, and by the tag sizes, texts and numbers."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def value(self) -> Value:
        """Return the value that begins here.

        Raises:
            DamageError: there is no value.
        """
        tag = self._take(1)[0]
        if tag >= len(_NESTED):
            raise DamageError(f"there is no tag {tag}")
        return _NESTED[tag](self)

    def end(self) -> None:
        """Check that nothing follows.

        Raises:
            DamageError: something does.
        """
        if self._place != len(self._content):
            raise DamageError(f"{len(self._content) - self._place} bytes follow the value")

    def size(self) -> int:
        return cast("int", _SIZE.unpack(self._take(_SIZE.size))[0])

    def text(self) -> str:
        return self._take(self.size()).decode()

    def integer(self) -> int:
        return cast("int", _INTEGER.unpack(self._take(_INTEGER.size))[0])

    def real(self) -> float:
        return cast("float", _FLOAT.unpack(self._take(_FLOAT.size))[0])

    def boolean(self) -> bool:
        return self._take(1) != b"\0"

    def json(self) -> Value:
        return json.loads(self._take(self.size()))

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.size())]

    def numbers(self, dtype: str) -> list[Any]:
        count = self.size()
        return list(np.frombuffer(self._take(count * np.dtype(dtype).itemsize), dtype).tolist())

    def mapping(self) -> dict[str, Any]:
        return {self.text(): self.value() for _ in range(self.size())}

    def mappings(self) -> list[dict[str, Any]]:
        """Return dicts that have the same keys.

        Raises:
            DamageError: there are fewer bytes than they need.
        """
        count, width = self.size(), self.size()
        if count * max(width, 1) > len(self._content):  # each value has a tag
            raise DamageError(f"there can't be {count} dicts of {width} values")
        keys = [self.text() for _ in range(width)]
        return [{key: self._scalar() for key in keys} for _ in range(count)]

    def _scalar(self) -> Value:
        tag = self._take(1)[0]
        if tag not in _SCALARS:
            raise DamageError(f"there is no tag {tag} of a scalar")
        return _SCALARS[tag](self)

    def _take(self, size: int) -> bytes:
        end = self._place + size
        if end > len(self._content):
            raise DamageError(f"{end - len(self._content)} bytes are missing")
        taken = self._content[self._place : end]
        self._place = end
        return taken


_NESTED: Final[Sequence[Callable[[_Nested], Any]]] = (  # by tag
    _Nested.json,
    _Nested.texts,
    lambda nested: nested.numbers("<i8"),
    lambda nested: nested.numbers("<f8"),
    lambda nested: nested.numbers("?"),
    _Nested.mapping,
    _Nested.mappings,
    _Nested.text,
    _Nested.integer,
    _Nested.real,
    _Nested.boolean,
    lambda _: None,
)
_SCALARS: Final[Mapping[int, Callable[[_Nested], Any]]] = {
    0x10: lambda _: None,
    0x11: _Nested.text,
    0x12: _Nested.integer,
    0x13: _Nested.real,
    0x14: _Nested.boolean,
}
_LAST_TAG: Final = 0x20  # above, it is JSON


def _nested(value: bytes) -> Value:
    if not value or value[0] > _LAST_TAG:
        return json.loads(value)
    nested = _Nested(value)
    found = nested.value()
    nested.end()
    return found


_DECODERS: Final[Mapping[str, Decoder]] = {
    **dict.fromkeys(
        ("audio", "bytes", "file", "image", "jpeg", "mesh", "nifti", "pdf", "tiff", "tifffile", "video"), bytes
    ),
    "str": bytes.decode,
    "text": bytes.decode,
    "bool": _boolean,
    "int": partial(_number, _INTEGER),
    "float": partial(_number, _FLOAT),
    "json": _nested,
    "numpy": partial(_shaped_array, _NUMPY, "<"),
    "tensor": partial(_shaped_array, _TORCH, ">"),
    "pil": pixels_of,
    "jpeg_array": partial(parts_of, 0),
}
_BY_DTYPE: Final = {"no_header_numpy": _NUMPY, "no_header_tensor": _TORCH}  # arrays of one axis, by the dtype's number
