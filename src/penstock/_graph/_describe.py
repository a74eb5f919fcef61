"""Texts of datasets: the chain of verbs, the tree, and HTML for notebooks."""

import binascii
import functools
import struct
import zlib
from collections.abc import Callable
from typing import Any, TypeGuard, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._graph._length import is_endless, length
from penstock._graph._nodes import (
    Batch,
    Cache,
    Combine,
    Element,
    Filter,
    Fold,
    Group,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
    chain,
    root,
)
from penstock._tree import flatten, is_array, leaf_paths
from penstock.batching import LeafError, Pad, Stack, as_value, describe_kind, kind_of
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
        case Batch(size=size, merge=merge, remainder=remainder):
            extra = "" if remainder == "keep" else f", remainder={remainder!r}"
            if isinstance(merge, Pad):
                return f"padded_batch({size}{extra})"
            merged = "" if isinstance(merge, Stack) else f", merge={function_name(merge)}"
            return f"batch({size}{merged}{extra})"
        case Group(verb=verb) | Cache(verb=verb):
            return verb
        case Combine():
            return _combine_text(node)
        case Fold(value=value) | Split(value=value):
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
    """Return the qualified name of a function, or of the class of another callable."""
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
            lines += _tree_lines(part, below, f"{part_name}: ")
        if len(base.names) > MAX_PARTS:
            lines.append((f"{'  ' * below}└ … {len(base.names) - MAX_PARTS} more parts", None))
    return lines


def html_text(node: Node, first: list[Element]) -> str:
    """Return a small table for notebooks: the tree, the element's structure, and the first images.

    Args:
        node: the dataset.
        first: the first elements. The structure is that of the first one; leaves that look like images are shown.
    """
    rows = "".join(
        f"<tr><td><code>{escaped(path or 'element')}</code></td><td>{escaped(leaf)}</td></tr>"
        for path, leaf in (leaf_texts(first[0]) if first else ())
    )
    images = "".join(_image(leaf) for element in first for leaf in flatten(element)[0])
    return f"<pre>{escaped(tree_text(node))}</pre><table>{rows}</table><div>{images}</div>"


def escaped(text: str) -> str:
    """Return the result of `html.escape`, whose import would take a twentieth of ours."""
    return text.translate(_HTML)


def leaf_texts(element: Element) -> list[tuple[str, str]]:
    """Return the path and a description of each leaf of an element."""
    leaves, structure = flatten(element)
    return [(path, _leaf_text(leaf)) for path, leaf in zip(leaf_paths(structure), leaves, strict=True)]


def _leaf_text(leaf: object) -> str:
    try:
        return describe_kind(kind_of(as_value(leaf)))
    except LeafError:  # such as an image object that a later map converts to an array
        return type(leaf).__qualname__


def _image(array: object, most: int = 8) -> str:
    """Return an `<img>` for a leaf of shape (height, width[, 1 or 3]), or its rows where it is a batch of these."""
    if not is_array(array):
        return ""
    if array.dtype.kind not in "fui":
        return ""
    if array.ndim == 4 or (array.ndim == 3 and array.shape[2] not in {1, 3}):
        return "".join(_image(row) for row in array[:most])
    if array.ndim not in {2, 3} or min(array.shape[:2]) < 4 or max(array.shape[:2]) > 1024:
        return ""
    data = binascii.b2a_base64(_png(array), newline=False).decode()
    return f'<img src="data:image/png;base64,{data}" style="height:64px;margin:2px;image-rendering:pixelated">'


def _png(image: NDArray[Any]) -> bytes:
    """Return an image as PNG (ISO/IEC 15948): 8 bits, grey or RGB, floats scaled from their own range."""
    if image.dtype != np.uint8:
        image = np.nan_to_num(image.astype(np.float64), posinf=0.0, neginf=0.0)
        low, high = float(image.min()), float(image.max())
        image = ((image - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    height, width = image.shape[:2]
    colour = 2 if image.ndim == 3 and image.shape[2] == 3 else 0
    lines = image.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(raw)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
