"""Texts of datasets: the chain of verbs, the tree, and the leaves of an element."""

import functools
from collections.abc import Callable
from typing import Any, TypeGuard, assert_never, cast

from penstock._caught import Caught
from penstock._graph._length import is_endless, length
from penstock._graph._nodes import (
    Cache,
    Combine,
    Element,
    Filter,
    Fold,
    Gather,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
    chain,
    root,
)
from penstock._printable import printable
from penstock._tree import flatten, leaf_paths
from penstock.batching import as_value, describe_kind, kind_of
from penstock.sources import name_of

_VERBS = {"none": "map", **dict.fromkeys(("generator", "seed", "key", "globals"), "random_map")}
_MAX_NAMES = 4  # of parts, in a chain
MAX_PARTS = 16  # in a tree
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def chain_text(node: Node) -> str:
    """Return the chain of verbs that made a dataset, as in `read(…).shuffle().map(decode)`."""
    verbs = [verb for verb in map(verb_text, chain(node)) if verb]
    return verbs[0] + "".join(verb if verb.startswith("[") else f".{verb}" for verb in verbs[1:])


def verb_text(node: Node) -> str:
    """Return the verb that made a node, as the user wrote it; empty for a node that another verb added."""
    return printable(_verb_text(node))


def _verb_text(node: Node) -> str:
    match node:
        case Read(source=source):
            return f"read({source_text(source)})"
        case Reindex(verb=verb):
            return verb
        case Map(name=name, form=form, on_error=on_error):
            verb = "map_with_origin" if form == "origin" else _VERBS[form]
            extra = "" if on_error == "raise" else f", on_error={on_error!r}"
            return f"{verb}({name}{extra})"
        case Filter(name=name):
            return f"filter({name})"
        case Cache(verb=verb):
            return verb
        case Combine():
            return _combine_text(node)
        case Fold(value=value) | Split(value=value) | Gather(value=value):
            return value.text
        case Stream(iterable=iterable, times=times):
            extra = "" if times == 1 else f", times={times}"
            text = function_name(iterable) if is_function(iterable) else source_text(iterable)
            return f"stream({text}{extra})"
        case _:
            assert_never(node)


def _combine_text(node: Combine) -> str:
    """Return the verb that made a node with several parts, with their names."""
    named = not all(map(str.isdecimal, node.names))
    shown = [f"{name}: …" for name in node.names] if named else ["…"] * len(node.parts)
    if len(shown) > _MAX_NAMES:
        shown[_MAX_NAMES:] = [f"… {len(shown) - _MAX_NAMES} more"]
    text = ", ".join(shown)
    return f"{node.value.verb}({{{text}}})" if named else f"{node.value.verb}({text})"


def source_text(source: object, limit: int = 60) -> str:
    """Return a source's repr on one line, cut to `limit` characters."""
    text = type(source).__name__ if type(source) in {list, tuple} else name_of(source)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def function_name(function: Callable[..., Any]) -> str:
    """Return the qualified name of a function, or of the class of another callable, as it is: seeds depend on it."""
    if _is_partial(function):
        return function_name(function.func)
    return getattr(function, "__qualname__", type(function).__qualname__)


def is_function(target: object) -> TypeGuard[Callable[..., Any]]:
    """Return whether an object is a function that makes an iterable, and not an iterable itself."""
    return callable(target) and not hasattr(target, "__iter__")


def _is_partial(function: object) -> "TypeGuard[functools.partial[Any]]":
    return isinstance(function, functools.partial)


def length_text(node: Node) -> str:
    """Return the number of elements of a node, in words."""
    if is_endless(node):
        return "endless"
    count = length(node)
    return "in order only" if count is None else f"{count:,}"


def listed(texts: list[str]) -> str:
    """Return texts about the parts of a mixture with commas; of many parts the first."""
    more = f" and {len(texts) - MAX_PARTS} more" if len(texts) > MAX_PARTS else ""
    return ", ".join(texts[:MAX_PARTS]) + more


def tree_text(node: Node) -> str:
    """Return a dataset as a tree: each step with its length, the last on top, and the parts of mixtures by name."""
    return "\n".join(line for line, _ in tree_lines(node))


def tree_lines(node: Node) -> list[tuple[str, Node | None]]:
    """Return the lines of the tree, each with its step; None for a line that stands for more parts."""
    return _tree_lines(node, 0, "")


def _tree_lines(node: Node, depth: int, name: str) -> list[tuple[str, Node | None]]:
    """Return the lines of a subtree at `depth` steps below the top; `name` is that of its part, if it is one."""
    lines: list[tuple[str, Node | None]] = []
    for step in reversed(chain(node)):
        verb = verb_text(step)
        if verb:
            level = depth + len(lines)
            lines.append((f"{'  ' * level}{'└ ' if level else ''}{name}{verb}: {length_text(step)}", step))
            name = ""
    base = root(node)
    if not isinstance(base, Read | Stream):
        below = depth + len(lines)
        for part_name, part in list(zip(base.names, base.parts, strict=True))[:MAX_PARTS]:
            lines += _tree_lines(part, below, f"{printable(part_name)}: ")
        if len(base.names) > MAX_PARTS:
            lines.append((f"{'  ' * below}└ … {len(base.names) - MAX_PARTS} more parts", None))
    return lines


def escaped(text: str) -> str:
    """Return a text as HTML that can be encoded: names of files that aren't UTF-8 hold lone surrogates.

    It is not `html.escape`, whose import would take a twentieth of ours.
    """
    return text.encode("utf-8", "replace").decode().translate(_HTML)


def leaf_texts(element: Element, is_leaf: Callable[[object], bool] | None = None) -> list[tuple[str, str]]:
    """Return the path and a description of each leaf of an element; `is_leaf` is as for `flatten`."""
    leaves, structure = flatten(element, is_leaf)
    return [(path, _leaf_text(leaf)) for path, leaf in zip(leaf_paths(structure), leaves, strict=True)]


def is_column_of_texts(part: object) -> TypeGuard[list[object]]:
    """Return whether a part of an element is a list of several texts or several bytes, as a batch has them."""
    if not isinstance(part, list):
        return False
    items = cast("list[object]", part)
    return len(items) > 1 and set(map(type, items)) in ({str}, {bytes})


def _leaf_text(leaf: object) -> str:
    if is_column_of_texts(leaf):
        return f"list of {len(leaf):,} {type(leaf[0]).__name__}"
    with Caught(Exception):  # of an object that a batch can't hold, such as an image or a sparse tensor
        return describe_kind(kind_of(as_value(leaf)))
    return type(leaf).__qualname__
