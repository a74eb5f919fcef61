"""A layout as bytes: JSON in one strict form, all of which is checked.

    {"penstock": 1,
     "tree": ["dict", ["image", "meta"], [null, ["list", [null, null]]]],                  null: the next leaf
     "leaves": [["array", "|B", [480, 640, 3], false, false], ["str"], ["int"]]}

Keys of dicts and metadata: strings, null, true and false are themselves; others are `["int", "-0x1f"]`,
`["float", "0x1.8p+1"]`, `["bytes", "00ff"]` and `["tuple", […]]`.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

from penstock.errors import MessageError
from penstock.transport._encoding._layout import DEEPEST, Container, Layout, LeafKey, layout_of

VERSION: Final = 1
_NUM_ENTRIES: Final = {"dict": 3, "list": 2, "tuple": 2, "fields": 5, "registered": 5}

Node: TypeAlias = "tuple[type, str | tuple[str, ...], tuple[Node, ...]] | None"
"""The structure of an element without its leaves, exact and hashable: the type, its keys, and its children.

Keys are the names of a dict or of fields; or text for a dict's other keys, or the metadata of a registered container.
"""


def describe(node: Node, keys: Sequence[LeafKey]) -> bytes:
    """Return the description of an element."""
    whole = {"penstock": VERSION, "tree": _tree_value(node), "leaves": keys}
    return json.dumps(whole, separators=(",", ":")).encode()


def parse(description: bytes) -> Layout:
    """Return the layout that a description describes.

    Raises:
        MessageError: it is no description of this version, or `describe` can't have written it.
    """
    try:
        return _layout(description)
    except MessageError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise MessageError(f"this description is damaged ({type(error).__name__}: {_short(error)})") from error


def _layout(description: bytes) -> Layout:
    whole: object = json.loads(description, parse_constant=_no_constant)
    if not _is_dict(whole) or whole.get("penstock") != VERSION:
        raise MessageError(f"a description must have version {VERSION}; got {_short(description)}")
    if set(whole) != {"penstock", "tree", "leaves"} or not _is_list(whole["leaves"]):
        raise ValueError("a description has a tree and leaves")
    tree = _tree(whole["tree"], 0)
    keys = [_leaf_key(value) for value in whole["leaves"]]
    if _num_leaves(tree) != len(keys):
        raise ValueError("the tree has another number of leaves")
    return layout_of(description, tree, keys)


def _num_leaves(tree: Container | None) -> int:
    return 1 if tree is None else sum(map(_num_leaves, tree.children))


def value_text(value: object) -> str:
    """Return a key or metadata as text; the same text means the same value and type.

    Raises:
        TypeError: it is not None, a bool, int, float, str, bytes or a tuple of these.
    """
    return json.dumps(_value_json(value, 0), separators=(",", ":"))


def value_of_text(text: str) -> Hashable:
    """Return the value of a text from `value_text`."""
    return _value(json.loads(text), 0)


def _value_json(value: object, depth: int) -> object:
    if depth >= DEEPEST:
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
    if depth >= DEEPEST or not _is_list(value) or len(value) != 2:
        raise ValueError("no key or metadata")
    kind, inner = value
    if kind == "tuple" and _is_list(inner):
        return tuple(_value(part, depth + 1) for part in inner)
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None or not isinstance(inner, str):
        raise ValueError("no key or metadata")
    return read(inner)


def _int(text: str) -> int:
    return int(text, 16)


_READERS: Final[dict[str, Callable[[str], Hashable]]] = {"int": _int, "float": float.fromhex, "bytes": bytes.fromhex}


def _tree_value(node: Node) -> object:
    if node is None:
        return None
    kind, keys, children = node
    inner = [_tree_value(child) for child in children]
    if kind is dict:
        names: object = list(keys) if isinstance(keys, tuple) else json.loads(keys)[1]
        return ["dict", names, inner]
    if kind in {list, tuple}:
        return [kind.__name__, inner]
    if isinstance(keys, tuple):
        return ["fields", kind.__module__, kind.__qualname__, list(keys), inner]
    return ["registered", kind.__module__, kind.__qualname__, json.loads(keys), inner]


def _tree(value: object, depth: int) -> Container | None:
    if value is None:
        return None
    if depth >= DEEPEST or not _is_list(value):
        raise ValueError("no container, or one that is nested too deeply")
    container = _container(value, depth)
    if container.form in {"dict", "fields"} and len(container.keys) != len(container.children):
        raise ValueError("a container has another number of keys than of children")
    if len(set(container.keys)) != len(container.keys):
        raise ValueError("a container has a key twice")
    return container


def _container(value: list[Any], depth: int) -> Container:
    form: object = value[0] if value else None
    if not isinstance(form, str) or _NUM_ENTRIES.get(form) != len(value):
        raise ValueError("no container")
    children = _trees(value[-1], depth)
    if form in {"list", "tuple"}:
        return Container(form, ("", ""), (), children)
    if form == "dict":
        return Container(form, ("", ""), _values(value[1]), children)
    module, name, keys = value[1:4]
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a type is named by two texts")
    return Container(form, (module, name), _values(keys if form == "fields" else [keys]), children)


def _trees(values: object, depth: int) -> tuple[Container | None, ...]:
    if not _is_list(values):
        raise ValueError("a container's children are a list")
    return tuple(_tree(value, depth + 1) for value in values)


def _values(values: object) -> tuple[Hashable, ...]:
    if not _is_list(values):
        raise ValueError("a container's keys are a list")
    return tuple(_value(value, 0) for value in values)


def _leaf_key(value: object) -> LeafKey:
    if not _is_list(value):
        raise ValueError("no leaf")
    return tuple(tuple(part) if _is_list(part) else part for part in value)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no value here")


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
