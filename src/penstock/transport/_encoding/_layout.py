"""Layouts: the places of an element's leaves in memory and in the head, computed from a description.

    head      start: form and layout id │ numbers and sizes, one struct
    memory    arrays, each at a multiple of 64 bytes │ text, bytes and pickles, with the sizes in the head

A description is JSON in one strict form:

    {"penstock": 1,
     "tree": ["dict", ["image", "meta"], [null, ["list", [null, null]]]],                  null: the next leaf
     "leaves": [["array", "|B", [480, 640, 3], false, false], ["str"], ["int"]]}

Strings, null, true and false stand for themselves as keys of dicts and as metadata; other values are
`["int", "-0x1f"]`, `["float", "0x1.8p+1"]`, `["bytes", "00ff"]` and `["tuple", […]]`.

Sender and receiver both compute a layout by `parse_description` from the same bytes, and the digest of these bytes is
the layout's id. So several writers and readers need no agreement on numbers, and may learn layouts in any order.
`parse_description` trusts nothing: it refuses every description that `pack_description` can't have written.
"""

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeGuard

from penstock._memory import aligned
from penstock._tensors import ITEM_BYTES
from penstock.errors import MessageError
from penstock.transport._encoding._dtypes import Dtype, has_text, parse_dtype

FORM: Final = b"PnE\x01"  # the last byte is the version of heads, descriptions and memory
START: Final = struct.Struct("<4s16s")
_VERSION: Final = 1  # of descriptions
MAX_DEPTH: Final = 100  # of containers in containers
_ID_BYTES: Final = 16
_MAX_BYTES: Final = 1 << 62
_MAX_DIMENSIONS: Final = 64
_NUMBERS: Final = {"bool": "?", "int": "q", "float": "d", "complex": "dd"}  # the characters in the head's struct
_SIZED: Final = frozenset({"integer", "str", "bytes", "bytearray", "numpy str", "numpy bytes", "values", "pickle"})
_NUM_ENTRIES: Final = {"dict": 3, "list": 2, "tuple": 2, "fields": 5, "fields alone": 5, "registered": 5}
"""The number of entries of a container in a description, by its form."""

Node: TypeAlias = "tuple[type, str | tuple[str, ...], tuple[Node, ...]] | None"
"""The structure of an element without its leaves, hashable: the type, its keys and its children; None for a leaf.

The keys are a tuple of names: a dict's keys if all are strings, or the fields of a named tuple or dataclass. A dict's
other keys, and the metadata of a registered container, are one text from `value_text`.
"""

LeafKey: TypeAlias = tuple[Hashable, ...]
"""A leaf in a description: its kind, and the properties on which its place depends.

    kind                                                  none, bool, int, float, complex, and the sized ones
    "array", dtype, shape, Fortran order, by reference    a contiguous NumPy array
    "tensor", dtype, shape, by reference                  a contiguous torch tensor
    "permuted", axes, and one of these two keys           such an array or tensor, with its axes in this order
    "strided array", dtype, shape, strides in bytes       a NumPy array with gaps, by reference
    "strided tensor", dtype, shape, strides in items      a torch tensor with gaps, by reference
    "device tensor", dtype, shape                         a torch tensor in a device slot, which its place names
    "scalar", dtype                                       a NumPy scalar
    "handle", by reference                                a `Bytes`
"""


@dataclass(frozen=True, slots=True)
class SimpleLeaf:
    """A leaf that is no array: None, a number in the head, or data after the arrays whose size is in the head.

    Attributes:
        by_reference: whether the data is at the next of the message's places instead; only for a `Bytes`.
    """

    kind: str
    by_reference: bool = False


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """A NumPy array or scalar.

    Attributes:
        order: C, or F for an array that is contiguous in Fortran order and not in C order.
        start: its start in memory; None if it is sent by reference, at the next of the message's places.
        nbytes: the number of bytes that it spans.
        strides: in bytes, for an array with gaps; then `order` is unused, and the memory starts with the
            item at the lowest address, which isn't the first item if a stride is negative.
        axes: for each axis of the array, which one of `shape` it is, such as for channels last; None if they are equal.
        is_scalar: whether the leaf is a NumPy scalar.
        has_text: whether it holds text, whose characters must be valid.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    start: int | None
    nbytes: int
    strides: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
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
    axes: tuple[int, ...] | None = None


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
        form: dict, list, tuple, fields (a named tuple or dataclass), fields alone (one that holds nothing else, from a
            sender that may pickle) or registered.
        name: module and qualified name of the type; empty for the first three forms.
        keys: a dict's keys, or the names of fields; for a registered container one entry, its metadata.
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
        values: the struct of numbers and sizes, which follows the start of the head.
        fixed_bytes: the end of the arrays, where text, bytes and pickles start.
        num_places: the number of leaves that are sent by reference.
    """

    id: bytes
    description: bytes
    tree: Container | None
    leaves: tuple[Leaf, ...]
    values: struct.Struct
    fixed_bytes: int
    num_places: int


def pack_description(node: Node, keys: Sequence[LeafKey], *, keeps_types: bool = False) -> bytes:
    """Return the description of an element that was taken apart with this `keeps_types`."""
    form = "fields alone" if keeps_types else "fields"
    whole = {"penstock": _VERSION, "tree": _tree_value(node, form), "leaves": keys}
    return json.dumps(whole, separators=(",", ":")).encode()


def parse_description(description: bytes) -> Layout:
    """Return the layout that a description describes.

    Raises:
        MessageError: it is no description of this version, or `pack_description` can't have written it.
    """
    try:
        return _layout(description)
    except MessageError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise MessageError(f"this description is damaged ({type(error).__name__}: {_short(error)})") from error


def value_text(value: object) -> str:
    """Return a key or metadata as text; equal texts mean equal values of equal types.

    Raises:
        TypeError: it is not None, a bool, int, float, str, bytes or a tuple of these.
    """
    return json.dumps(_value_json(value, 0), separators=(",", ":"))


def value_of_text(text: str) -> Hashable:
    """Return the value of a text from `value_text`."""
    return _value(json.loads(text), 0)


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


def _layout(description: bytes) -> Layout:
    whole: object = json.loads(description, parse_constant=_no_constant)
    if not _is_dict(whole) or whole.get("penstock") != _VERSION:
        raise MessageError(f"a description must have version {_VERSION}; got {_short(description)}")
    if set(whole) != {"penstock", "tree", "leaves"} or not _is_list(whole["leaves"]):
        raise ValueError("a description must have a tree and leaves")
    tree = _tree(whole["tree"], 0)
    keys = [_leaf_key(value) for value in whole["leaves"]]
    if _num_leaves(tree) != len(keys):
        raise ValueError("the tree and the list must have equally many leaves")
    return _layout_of(description, tree, keys)


def _num_leaves(tree: Container | None) -> int:
    return 1 if tree is None else sum(map(_num_leaves, tree.children))


def _layout_of(description: bytes, tree: Container | None, keys: Sequence[LeafKey]) -> Layout:
    """Return the layout of a description, given its parsed tree and leaves.

    Raises:
        ValueError: a leaf's key is invalid, or a size is out of bounds.
    """
    leaves: list[Leaf] = []
    end, num_places, formats = 0, 0, ["<"]
    for key in keys:
        leaf = _leaf(key, end)
        leaves.append(leaf)
        if isinstance(leaf, SimpleLeaf):
            formats.append(_NUMBERS.get(leaf.kind, "" if leaf.kind == "none" else "Q"))
            num_places += leaf.by_reference
        elif isinstance(leaf, DeviceLeaf):
            formats.append("Q")
            num_places += 1
        elif leaf.start is None:
            num_places += 1
        else:
            end = aligned(leaf.start + leaf.nbytes)
    if end > _MAX_BYTES:
        raise ValueError(f"an element must have at most {_MAX_BYTES} bytes")
    values = struct.Struct("".join(formats))
    identity = hashlib.blake2b(description, digest_size=_ID_BYTES).digest()
    return Layout(identity, description, tree, tuple(leaves), values, end, num_places)


def _leaf(key: LeafKey, start: int) -> Leaf:
    match key:
        case (str(kind),) if kind in _NUMBERS or kind in _SIZED or kind == "none":
            return SimpleLeaf(kind)
        case ("handle", bool(by_reference)):
            return SimpleLeaf("handle", by_reference)
        case ("array", str(text), shape, bool(fortran), bool(by_reference)):
            dtype, sizes = parse_dtype(text), _shape(shape)
            nbytes = _nbytes(sizes, dtype.itemsize)
            order: Literal["C", "F"] = "F" if fortran else "C"
            return ArrayLeaf(dtype, sizes, order, None if by_reference else start, nbytes, has_text=has_text(dtype))
        case ("scalar", str(text)):
            dtype = parse_dtype(text)
            if dtype.kind in "SU":
                raise ValueError("a NumPy string must be sent as text, not as a scalar")
            return ArrayLeaf(dtype, (), "C", start, dtype.itemsize, is_scalar=True, has_text=has_text(dtype))
        case ("permuted", axes, "array" | "tensor", *_):
            return _permuted(_leaf(key[2:], start), axes)
        case ("strided array", str(text), shape, strides):
            sizes = _shape(shape)
            return _strided_array(text, sizes, _strides(strides, sizes))
        case _:
            return _tensor(key, start)


def _tensor(key: LeafKey, start: int) -> TensorLeaf | DeviceLeaf:
    match key:
        case ("tensor", str(text), shape, bool(by_reference)) if text in ITEM_BYTES:
            sizes = _shape(shape)
            return TensorLeaf(text, sizes, None if by_reference else start, _nbytes(sizes, ITEM_BYTES[text]))
        case ("strided tensor", str(text), shape, strides):
            sizes = _shape(shape)
            return _strided_tensor(text, sizes, _strides(strides, sizes))
        case ("device tensor", str(text), shape) if text in ITEM_BYTES:
            sizes = _shape(shape)
            return DeviceLeaf(text, sizes, _nbytes(sizes, ITEM_BYTES[text]))
        case _:
            raise ValueError(f"a leaf must have a known kind and its properties; got {str(key)[:80]}")


def _permuted(leaf: Leaf, axes: object) -> ArrayLeaf | TensorLeaf:
    """Return a contiguous array or tensor with its axes in another order.

    Raises:
        ValueError: it is no such leaf, or these are not its axes.
    """
    if not isinstance(leaf, ArrayLeaf | TensorLeaf) or sorted(_shape(axes)) != [*range(len(leaf.shape))]:
        raise ValueError(f"axes must be those of the shape in another order; got {str(axes)[:80]}")
    return dataclasses.replace(leaf, axes=_shape(axes))


def _strided_array(text: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> ArrayLeaf:
    dtype = parse_dtype(text)
    if has_text(dtype):  # each item would have to be checked, and a stride of 0 makes any number of items
        raise ValueError("an array of text must be contiguous")
    _nbytes(shape, dtype.itemsize)
    return ArrayLeaf(dtype, shape, "C", None, span_bytes(shape, strides, dtype.itemsize), strides)


def _strided_tensor(text: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorLeaf:
    if text not in ITEM_BYTES or min(strides, default=0) < 0:
        raise ValueError("a tensor must have one of torch's dtypes, and no negative strides")
    item_bytes = ITEM_BYTES[text]
    _nbytes(shape, item_bytes)
    span = span_bytes(shape, tuple(step * item_bytes for step in strides), item_bytes)
    return TensorLeaf(text, shape, None, span, strides)


def _shape(shape: object) -> tuple[int, ...]:
    if not _is_tuple(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"a shape must be at most {_MAX_DIMENSIONS} sizes; got {str(shape)[:80]}")
    sizes = tuple(size for size in shape if isinstance(size, int) and not isinstance(size, bool) and size >= 0)
    if len(sizes) != len(shape):
        raise ValueError(f"a shape must be at most {_MAX_DIMENSIONS} sizes; got {str(shape)[:80]}")
    return sizes


def _strides(strides: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not _is_tuple(strides) or len(strides) != len(shape):
        raise ValueError(f"strides must be whole numbers, one for each dimension; got {str(strides)[:80]}")
    steps = tuple(step for step in strides if isinstance(step, int) and not isinstance(step, bool))
    if len(steps) != len(shape) or any(abs(step) > _MAX_BYTES for step in steps):
        raise ValueError(f"strides must be whole numbers, one for each dimension; got {str(strides)[:80]}")
    if sum((size - 1) * abs(step) for size, step in zip(shape, steps, strict=True) if size) > _MAX_BYTES:
        raise ValueError(f"a strided array must span at most {_MAX_BYTES} bytes")
    return steps


def _nbytes(shape: tuple[int, ...], item_bytes: int) -> int:
    # NumPy requires that the other dimensions fit into memory, even for an array without items.
    if math.prod(size or 1 for size in shape) * item_bytes > _MAX_BYTES:
        raise ValueError(f"an array must have at most {_MAX_BYTES} bytes; got the shape {str(shape)[:80]}")
    return math.prod(shape) * item_bytes


def _tree_value(node: Node, form: str) -> object:
    if node is None:
        return None
    kind, keys, children = node
    inner = [_tree_value(child, form) for child in children]
    if kind is dict:
        names: object = list(keys) if isinstance(keys, tuple) else json.loads(keys)[1]
        return ["dict", names, inner]
    if kind in {list, tuple}:
        return [kind.__name__, inner]
    if isinstance(keys, tuple):
        return [form, kind.__module__, kind.__qualname__, list(keys), inner]
    return ["registered", kind.__module__, kind.__qualname__, json.loads(keys), inner]


def _tree(value: object, depth: int) -> Container | None:
    if value is None:
        return None
    if depth >= MAX_DEPTH or not _is_list(value):
        raise ValueError(f"a container must be a list, nested at most {MAX_DEPTH} deep")
    container = _container(value, depth)
    if container.form in {"dict", "fields", "fields alone"} and len(container.keys) != len(container.children):
        raise ValueError("a container must have as many keys as children")
    if len(set(container.keys)) != len(container.keys):
        raise ValueError("a container must have each key once")
    return container


def _container(value: list[Any], depth: int) -> Container:
    form: object = value[0] if value else None
    if not isinstance(form, str) or _NUM_ENTRIES.get(form) != len(value):
        raise ValueError("a container must begin with its form, and have the entries of that form")
    children = _trees(value[-1], depth)
    if form in {"list", "tuple"}:
        return Container(form, ("", ""), (), children)
    if form == "dict":
        return Container(form, ("", ""), _values(value[1]), children)
    module, name, keys = value[1:4]
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a type must be named by its module and name")
    return Container(form, (module, name), _values([keys] if form == "registered" else keys), children)


def _trees(values: object, depth: int) -> tuple[Container | None, ...]:
    if not _is_list(values):
        raise ValueError("a container's children must be a list")
    return tuple(_tree(value, depth + 1) for value in values)


def _values(values: object) -> tuple[Hashable, ...]:
    if not _is_list(values):
        raise ValueError("a container's keys must be a list")
    return tuple(_value(value, 0) for value in values)


def _leaf_key(value: object) -> LeafKey:
    if not _is_list(value):
        raise ValueError("a leaf must be a list")
    return tuple(tuple(part) if _is_list(part) else part for part in value)


def _value_json(value: object, depth: int) -> object:
    if depth >= MAX_DEPTH:
        raise TypeError("it is nested too deeply")
    kind = type(value)
    if value is None or kind in {bool, str}:
        return value
    if isinstance(value, int) and kind is int:
        return ["int", hex(value)]
    if isinstance(value, float) and kind is float:
        return ["float", value.hex()]
    if isinstance(value, bytes) and kind is bytes:
        return ["bytes", value.hex()]
    if _is_tuple(value) and kind is tuple:
        return ["tuple", [_value_json(part, depth + 1) for part in value]]
    raise TypeError(f"{value!r} is a {kind.__qualname__}")


def _value(value: object, depth: int) -> Hashable:
    if value is None or isinstance(value, bool | str):
        return value
    if depth >= MAX_DEPTH or not _is_list(value) or len(value) != 2:
        raise ValueError("a key or metadata must be plain, or a pair of its type and text")
    kind, inner = value
    if kind == "tuple" and _is_list(inner):
        return tuple(_value(part, depth + 1) for part in inner)
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None or not isinstance(inner, str):
        raise ValueError("a key or metadata must be plain, or a pair of its type and text")
    return read(inner)


def _hex_int(text: str) -> int:
    return int(text, 16)


_READERS: Final[dict[str, Callable[[str], Hashable]]] = {
    "int": _hex_int,
    "float": float.fromhex,
    "bytes": bytes.fromhex,
}


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} isn't allowed")


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
