"""Layouts: the places of an element's leaves in memory and in the head; values without behaviour.

    head      start: form and layout id │ numbers and sizes, one struct
    memory    arrays, each at a multiple of 64 bytes │ text, bytes and pickles, with the sizes in the head

`layout_of` computes a layout from a description alone. Both sides call it with the same bytes, whose digest is the
layout's id. So several writers and readers need no agreement on numbers, and may learn layouts in any order.
"""

import hashlib
import math
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeGuard

from penstock._memory import aligned
from penstock.transport._encoding._dtypes import Dtype, has_text, parse_dtype
from penstock.transport._encoding._torch_tensors import ITEM_BYTES

START: Final = struct.Struct("<4s16s")
FORM: Final = b"PnE\x01"  # the last byte is the version of heads, descriptions and memory
ID_BYTES: Final = 16
DEEPEST: Final = 100  # containers within containers
LARGEST_BYTES: Final = 1 << 62
MAX_DIMENSIONS: Final = 64

NUMBERS: Final = {"bool": "?", "int": "q", "float": "d", "complex": "dd"}
SIZED: Final = frozenset({"integer", "str", "bytes", "bytearray", "numpy str", "numpy bytes", "pickle"})

LeafKey: TypeAlias = tuple[Hashable, ...]
"""A leaf in a description.

    kind                                                  none, bool, int, float, complex, and the sized ones
    "array", dtype, shape, Fortran order, by reference    a contiguous NumPy array
    "tensor", dtype, shape, by reference                  a contiguous torch tensor
    "strided array", dtype, shape, strides in bytes       a NumPy array that isn't contiguous, by reference
    "strided tensor", dtype, shape, strides in items      a torch tensor that isn't contiguous, by reference
    "device tensor", dtype, shape                         a torch tensor in a device slot, which its place names
    "scalar", dtype                                       a NumPy scalar
    "handle", by reference                                a `Bytes`
"""


@dataclass(frozen=True, slots=True)
class SimpleLeaf:
    """A leaf that is no array: None, a number in the head, or sized data after the arrays.

    Attributes:
        refers: whether the data is at the next place instead; only for a `Bytes`.
    """

    kind: str
    refers: bool = False


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """A NumPy array or scalar.

    Attributes:
        order: C, or F for an array that is contiguous in Fortran order and not in C order.
        start: its start in memory; None if its data is at the next place.
        nbytes: the memory that it spans.
        strides: in bytes, for an array that isn't contiguous; then `order` means nothing, and the memory starts with
            the item of the lowest address, which isn't the first item if a stride is negative.
        is_scalar: whether the leaf is a NumPy scalar.
        has_text: whether it holds text, whose characters must be valid.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    start: int | None
    nbytes: int
    strides: tuple[int, ...] | None = None
    is_scalar: bool = False
    has_text: bool = False


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A torch tensor on the host, in C order or with strides in items; other attributes as in `ArrayLeaf`."""

    dtype: str
    shape: tuple[int, ...]
    start: int | None
    nbytes: int
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceLeaf:
    """A torch tensor in a device slot, in C order; the head holds its offset in the slot."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


Leaf: TypeAlias = SimpleLeaf | ArrayLeaf | TensorLeaf | DeviceLeaf


@dataclass(frozen=True, slots=True)
class Container:
    """A container in a description; types are named, since the reader may not have them.

    Attributes:
        form: dict, list, tuple, fields (a named tuple or dataclass) or registered.
        name: module and qualified name of the type; empty for the first three forms.
        keys: a dict's keys or the names of fields; a registered container's metadata, alone.
        children: None for a leaf.
    """

    form: str
    name: tuple[str, str]
    keys: tuple[Hashable, ...]
    children: tuple["Container | None", ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all leaves of an element.

    Attributes:
        id: the digest of the description.
        description: the bytes from which the layout was computed.
        tree: the outermost container; None for a bare leaf.
        leaves: the leaves in order.
        values: the struct after the head's start.
        fixed_bytes: the start of text and pickles.
        num_places: the number of leaves that are sent by reference.
    """

    id: bytes
    description: bytes
    tree: Container | None
    leaves: tuple[Leaf, ...]
    values: struct.Struct
    fixed_bytes: int
    num_places: int


def digest(description: bytes) -> bytes:
    """Return the id of the layout of a description."""
    return hashlib.blake2b(description, digest_size=ID_BYTES).digest()


def layout_of(description: bytes, tree: Container | None, keys: Sequence[LeafKey]) -> Layout:
    """Return the layout of a description, given its tree and leaves.

    Raises:
        ValueError: a leaf's key is invalid, or a size is out of bounds.
    """
    leaves: list[Leaf] = []
    end, num_places, formats = 0, 0, ["<"]
    for key in keys:
        leaf = _leaf(key, end)
        leaves.append(leaf)
        if isinstance(leaf, SimpleLeaf):
            formats.append(NUMBERS.get(leaf.kind, "" if leaf.kind == "none" else "Q"))
            num_places += leaf.refers
        elif isinstance(leaf, DeviceLeaf):
            formats.append("Q")
            num_places += 1
        elif leaf.start is None:
            num_places += 1
        else:
            end = aligned(leaf.start + leaf.nbytes)
    if end > LARGEST_BYTES:
        raise ValueError("an element is larger than any memory")
    values = struct.Struct("".join(formats))
    return Layout(digest(description), description, tree, tuple(leaves), values, end, num_places)


def _leaf(key: LeafKey, start: int) -> Leaf:
    match key:
        case (str(kind),) if kind in NUMBERS or kind in SIZED or kind == "none":
            return SimpleLeaf(kind)
        case ("handle", bool(refers)):
            return SimpleLeaf("handle", refers)
        case ("array", str(text), shape, bool(fortran), bool(refers)):
            dtype, sizes = parse_dtype(text), _shape(shape)
            nbytes = _nbytes(sizes, dtype.itemsize)
            order: Literal["C", "F"] = "F" if fortran else "C"
            return ArrayLeaf(dtype, sizes, order, None if refers else start, nbytes, has_text=has_text(dtype))
        case ("scalar", str(text)):
            dtype = parse_dtype(text)
            if dtype.kind in "SU":
                raise ValueError("NumPy's strings are sent as text")
            return ArrayLeaf(dtype, (), "C", start, dtype.itemsize, is_scalar=True, has_text=has_text(dtype))
        case ("strided array", str(text), shape, strides):
            sizes = _shape(shape)
            return _strided_array(text, sizes, _strides(strides, sizes))
        case _:
            return _tensor(key, start)


def _tensor(key: LeafKey, start: int) -> TensorLeaf | DeviceLeaf:
    match key:
        case ("tensor", str(text), shape, bool(refers)) if text in ITEM_BYTES:
            sizes = _shape(shape)
            return TensorLeaf(text, sizes, None if refers else start, _nbytes(sizes, ITEM_BYTES[text]))
        case ("strided tensor", str(text), shape, strides):
            sizes = _shape(shape)
            return _strided_tensor(text, sizes, _strides(strides, sizes))
        case ("device tensor", str(text), shape) if text in ITEM_BYTES:
            sizes = _shape(shape)
            return DeviceLeaf(text, sizes, _nbytes(sizes, ITEM_BYTES[text]))
        case _:
            raise ValueError(f"no leaf: {str(key)[:80]}")


def _strided_array(text: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> ArrayLeaf:
    dtype = parse_dtype(text)
    if has_text(dtype):  # each item would have to be checked, and a stride of 0 makes any number of items
        raise ValueError("text is sent in one piece")
    _nbytes(shape, dtype.itemsize)
    return ArrayLeaf(dtype, shape, "C", None, span_bytes(shape, strides, dtype.itemsize), strides)


def _strided_tensor(text: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorLeaf:
    if text not in ITEM_BYTES or min(strides, default=0) < 0:
        raise ValueError("a tensor has one of torch's dtypes, and no negative strides")
    item_bytes = ITEM_BYTES[text]
    _nbytes(shape, item_bytes)
    span = span_bytes(shape, tuple(step * item_bytes for step in strides), item_bytes)
    return TensorLeaf(text, shape, None, span, strides)


def span_bytes(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> int:
    """Return the bytes from the lowest item of an array to the end of the highest.

    Args:
        shape: the array's.
        strides: in bytes.
        item_bytes: the size of an item.
    """
    if 0 in shape:
        return 0
    return sum((size - 1) * abs(step) for size, step in zip(shape, strides, strict=True)) + item_bytes


def first_item_bytes(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the offset in bytes of an array's first item from its lowest one; 0 without negative strides."""
    return sum((size - 1) * -step for size, step in zip(shape, strides, strict=True) if step < 0 < size)


def _shape(shape: object) -> tuple[int, ...]:
    if not _is_tuple(shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"no shape: {str(shape)[:80]}")
    sizes = tuple(size for size in shape if isinstance(size, int) and not isinstance(size, bool) and size >= 0)
    if len(sizes) != len(shape):
        raise ValueError(f"no shape: {str(shape)[:80]}")
    return sizes


def _strides(strides: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not _is_tuple(strides) or len(strides) != len(shape):
        raise ValueError(f"no strides: {str(strides)[:80]}")
    steps = tuple(step for step in strides if isinstance(step, int) and not isinstance(step, bool))
    if len(steps) != len(shape) or any(abs(step) > LARGEST_BYTES for step in steps):
        raise ValueError(f"no strides: {str(strides)[:80]}")
    if sum((size - 1) * abs(step) for size, step in zip(shape, steps, strict=True) if size) > LARGEST_BYTES:
        raise ValueError("a strided array spans more than any memory")
    return steps


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple)


def _nbytes(shape: tuple[int, ...], item_bytes: int) -> int:
    # NumPy requires that the other dimensions fit into memory, even for an array without items.
    if math.prod(size or 1 for size in shape) * item_bytes > LARGEST_BYTES:
        raise ValueError(f"an array of the shape {str(shape)[:80]} is larger than any memory")
    return math.prod(shape) * item_bytes
