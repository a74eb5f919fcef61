"""Containers of elements: the sender takes them apart, and the receiver rebuilds them.

The containers are those of `penstock._tree` (dicts, lists, tuples, named tuples and dataclasses) and registered types,
which have functions of their own. Keys of dicts are distinguished by type, so `{1: …}` and `{True: …}` are two
structures. With pickle, an instance of a subclass of dict, list or tuple is pickled whole, so that it keeps its type;
without, it is sent as a plain dict, list or tuple. A named tuple or a dataclass that holds more than its fields is
pickled whole, too; any other gets its fields back, and no constructor is called. Unless both sides allow pickle, the
constructor is called: a type may check there what other processes send, and set what is sent only by pickle.

A type is sent by its name. The receiver builds it if the type is registered there. Otherwise, and only if pickle is
allowed, the receiver imports the type, and checks it against the description.
"""

import importlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np

from penstock._tree import field_names, holds_fields_alone, of_fields
from penstock.errors import MessageError, UsageError
from penstock.transport._bytes import Bytes
from penstock.transport._encoding._layout import MAX_DEPTH, Container, Node, value_of_text, value_text
from penstock.transport._encoding._values import pack_values

T = TypeVar("T")

NUMPY_SCALARS: Final[frozenset[type]] = frozenset(
    {np.void, *(np.dtype(character).type for character in "?bBhHiIlLqQefdgFDGmM")}
)
PLAIN_LEAVES: Final[frozenset[type]] = NUMPY_SCALARS | {
    *(type(None), bool, int, float, complex, str, bytes, bytearray, Bytes),
    *(np.ndarray, np.memmap, np.str_, np.bytes_),
}
"""Types whose instances are always leaves; the encoder has a function for each."""

Builder: TypeAlias = Callable[[Iterator[object]], object]
"""A function of the remaining leaves; it takes the leaves of one part of the element, and returns that part."""

_STRINGS: Final = frozenset({str})
_BUILT_IN: Final[frozenset[type]] = frozenset({dict, list, tuple})


@dataclass(frozen=True, slots=True)
class _Registered:
    """A type that a receiver may build: by its functions, or, if it has none, from its fields."""

    kind: type[Any]
    flatten: Callable[[Any], tuple[Sequence[object], Hashable]] | None
    unflatten: Callable[[Hashable, Sequence[object]], object] | None


_BY_TYPE: Final[dict[type, _Registered]] = {}  # those with functions
_BY_NAME: Final[dict[tuple[str, str], _Registered]] = {}


def register_container(
    kind: type[T],
    flatten: Callable[[T], tuple[Sequence[object], Hashable]] | None = None,
    unflatten: Callable[[Hashable, Sequence[object]], T] | None = None,
) -> None:
    """Let elements that contain a type cross between processes, without pickle; call it on both sides.

    Args:
        kind: the type; it doesn't cover subclasses. It is identified by its module and qualified name; a second
            registration replaces the first.
        flatten: takes an instance, and returns its children and its metadata: None, a bool, int, float, str or bytes,
            or a tuple of these.
        unflatten: takes the metadata and the children, and returns an instance. Without the two functions, `kind` must
            be a named tuple or a dataclass, and is built from its fields; only the receiver needs to register it.

    Raises:
        UsageError: one of the functions is missing, `kind` can't be built from its fields, or it is a built-in
            container or leaf.

    Example:
        >>> class Box:
        ...     def __init__(self, corners, unit):
        ...         self.corners, self.unit = corners, unit
        >>> register_container(Box, lambda box: ([box.corners], box.unit), lambda unit, children: Box(*children, unit))
    """
    if kind in PLAIN_LEAVES or kind in _BUILT_IN:
        raise UsageError(
            f"register_container() takes a type of your own, not a built-in container or leaf; got {kind.__qualname__}"
        )
    if (flatten is None) != (unflatten is None):
        raise UsageError(f"register_container({kind.__qualname__}) needs both flatten and unflatten, or neither")
    if flatten is None and _fields(kind) is None:
        raise UsageError(
            f"register_container() without functions takes a named tuple or a dataclass; got {kind.__qualname__}. "
            "Give flatten and unflatten."
        )
    registered = _Registered(kind, flatten, unflatten)
    _BY_NAME[kind.__module__, kind.__qualname__] = registered
    if flatten is None:
        _BY_TYPE.pop(kind, None)
    else:
        _BY_TYPE[kind] = registered


def take_apart(
    part: object, leaves: list[object], depth: int = 0, *, keeps_types: bool = False, packs: bool = False
) -> Node:
    """Take a part of an element apart. A container that can't be described becomes a leaf, which pickle may send.

    Args:
        part: the part.
        leaves: the list to which its leaves are appended, in order.
        depth: the number of containers around it.
        keeps_types: whether parts that would arrive as others, if they were built from their children, become leaves,
            which pickle keeps as they are.
        packs: whether all containers of many plain values become leaves, not only lists and tuples of one type.

    Returns:
        Its structure.

    Raises:
        UsageError: it is nested too deeply, or the result of a registered `flatten` is invalid.
    """
    packed = pack_values(part, depth, mixed=packs)
    if packed is not None:
        leaves.append(packed)
        return None
    opened = None if keeps_types and _is_for_pickle(part) else _open(part)
    if opened is None:
        leaves.append(part)
        return None
    if depth >= MAX_DEPTH:
        raise UsageError(
            f"an element must be nested at most {MAX_DEPTH} deep; got one that is deeper, or contains itself"
        )
    kind, keys, children = opened
    if PLAIN_LEAVES.issuperset(map(type, children)):  # fast, and true of most containers
        leaves += children
        return kind, keys, (None,) * len(children)
    inner: list[Node] = []
    for child in children:
        if type(child) in PLAIN_LEAVES:
            leaves.append(child)
            inner.append(None)
        else:
            inner.append(take_apart(child, leaves, depth + 1, keeps_types=keeps_types, packs=packs))
    return kind, keys, tuple(inner)


def reason_for_leaf(part: object) -> str:
    """Return the reason why `take_apart` made a leaf of a container; empty if it is no container."""
    if isinstance(part, dict):
        try:
            value_text(tuple(cast("dict[Hashable, object]", part)))
        except TypeError as error:
            return f"a dict's keys must be None, bools, numbers, text, bytes or tuples of these; {error}"
    elif hasattr(type(part), "__dataclass_fields__"):
        try:
            _field_names(type(part))
        except UsageError as error:
            return str(error)
    return ""


def leaf_path(node: Node, position: int) -> str:
    """Return the path of the leaf at a position among the leaves, as Python code after the element."""
    if node is None:
        return ""
    kind, keys, children = node
    names: Iterable[Hashable] = range(len(children))
    if kind is dict or isinstance(keys, tuple):
        names = keys or names if isinstance(keys, tuple) else cast("tuple[Hashable, ...]", value_of_text(keys))
    for name, child in zip(names, children, strict=True):
        count = _count(child)
        if position < count:
            is_field = kind not in {dict, list, tuple} and isinstance(keys, tuple)
            return (f".{name}" if is_field else f"[{name!r}]") + leaf_path(child, position)
        position -= count
    return ""


def builder_of(tree: Container | None, *, allow_pickle: bool) -> Builder:
    """Return the function that builds an element from its leaves.

    Raises:
        MessageError: a type is not known here, or differs from the description.
    """
    if tree is None:
        return next
    children = [builder_of(child, allow_pickle=allow_pickle) for child in tree.children]
    keys = tree.keys
    if tree.form == "dict":
        if all(child is next for child in children):
            return lambda leaves: dict(zip(keys, leaves, strict=False))  # `zip` takes no leaf after the last key
        return lambda leaves: {key: child(leaves) for key, child in zip(keys, children, strict=True)}
    if tree.form == "list":
        return lambda leaves: [child(leaves) for child in children]
    if tree.form == "tuple":
        return lambda leaves: tuple([child(leaves) for child in children])
    make = _maker(tree, allow_pickle=allow_pickle)

    def build(leaves: Iterator[object]) -> object:
        parts = [child(leaves) for child in children]
        try:
            return make(parts)
        except Exception as error:
            raise MessageError(
                f"{_dotted(tree)} can't be rebuilt from what was received ({type(error).__name__}: {error})"
            ) from error

    return build


def _is_for_pickle(part: object) -> bool:
    """Return whether a part, whose type isn't registered, would be another one if it was built from its children.

    That is so for subclasses of dict, list and tuple, and for named tuples and dataclasses that hold more than fields.
    """
    kind = type(part)
    if kind in _BUILT_IN or kind in _BY_TYPE:
        return False
    if _fields(kind) is not None:
        return not holds_fields_alone(part)
    return isinstance(part, dict | list | tuple)


def _open(part: object) -> tuple[type, str | tuple[str, ...], Collection[object]] | None:
    """Return the type, keys and children of a container; None for a leaf or a container that can't be described."""
    kind: type[Any] = type(part)
    if kind is dict:
        return _open_dict(cast("dict[Hashable, object]", part))
    registered = _BY_TYPE.get(kind)
    if registered is not None and registered.flatten is not None:
        children, metadata = _flattened(registered, part)
        return kind, metadata, children
    bases = kind.__mro__
    if dict in bases:
        return _open_dict(cast("dict[Hashable, object]", part))
    if list in bases:
        return list, (), cast("list[object]", part)
    if tuple not in bases and not hasattr(kind, "__dataclass_fields__"):
        return None
    names = _fields(kind)
    if tuple in bases:
        return (tuple if names is None else kind), names or (), cast("tuple[object, ...]", part)
    return None if names is None else (kind, names, [getattr(part, name) for name in names])


def _open_dict(part: dict[Hashable, object]) -> tuple[type, str | tuple[str, ...], Collection[object]] | None:
    keys = tuple(part)
    if _STRINGS.issuperset(map(type, keys)):
        return dict, cast("tuple[str, ...]", keys), part.values()
    try:
        return dict, value_text(keys), part.values()
    except TypeError:
        return None


def _flattened(registered: _Registered, part: object) -> tuple[list[object], str]:
    assert registered.flatten is not None
    children, metadata = registered.flatten(part)
    try:
        return list(children), value_text(metadata)
    except TypeError as error:
        raise UsageError(
            f"flatten() of {registered.kind.__qualname__} must return children, and as metadata None, a bool, int, "
            f"float, str, bytes or a tuple of these; {error}"
        ) from error


def _fields(kind: type[Any]) -> tuple[str, ...] | None:
    """Return the fields from which a named tuple or a dataclass is built; None for other types."""
    if tuple in kind.__mro__:
        return getattr(kind, "_fields", None)
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    try:
        return _field_names(kind)
    except UsageError:
        return None


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return field_names(cast("Any", kind))  # a type is hashable, even if its instances are not


def _maker(tree: Container, *, allow_pickle: bool) -> Callable[[list[object]], object]:
    registered = _BY_NAME.get(tree.name)
    if tree.form == "registered":
        if registered is None or registered.unflatten is None:
            raise MessageError(
                f"{_dotted(tree)} is not known here. Call register_container({tree.name[1]}, flatten, unflatten) in "
                "the receiving process."
            )
        unflatten, metadata = registered.unflatten, tree.keys[0]
        return lambda parts: unflatten(metadata, parts)
    kind = registered.kind if registered is not None else _imported(tree, allow_pickle=allow_pickle)
    if _fields(kind) != tree.keys:
        raise MessageError(f"{_dotted(tree)} has the fields {_fields(kind)} here; the message has {tree.keys}")
    names = [str(key) for key in tree.keys]
    if allow_pickle and tree.form == "fields alone":
        return partial(of_fields, kind, names)
    if tuple in kind.__mro__:
        return cast("Callable[[list[object]], object]", kind._make)
    return lambda parts: kind(**dict(zip(names, parts, strict=True)))


def _imported(tree: Container, *, allow_pickle: bool) -> type[Any]:
    module, name = tree.name
    if not allow_pickle:
        raise MessageError(
            f"{_dotted(tree)} is not known here. Call register_container({name}) in the receiving process, or pass "
            "allow_pickle=True if the sender is a process of your own."
        )
    found: object
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise MessageError(
            f"{_dotted(tree)} can't be imported here ({type(error).__name__}: {error}). Call "
            f"register_container({name}) in the receiving process."
        ) from error
    if not isinstance(found, type) or _fields(found) is None:
        raise MessageError(
            f"{_dotted(tree)} must be a named tuple or dataclass that can be built from its fields; here it isn't"
        )
    return found


def _count(node: Node) -> int:
    return 1 if node is None else sum(map(_count, node[2]))


def _dotted(tree: Container) -> str:
    return ".".join(tree.name)
