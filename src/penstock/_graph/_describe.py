"""How a dataset is shown: as the chain that the user wrote, as a tree, and as HTML for notebooks."""

import binascii
import functools
import struct
import zlib
from collections.abc import Callable
from typing import Any, TypeGuard, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._graph._length import is_endless, length
from penstock._graph._nodes import Batch, Element, Filter, Map, Node, Read, Reindex, Unbatch, chain
from penstock._tree import flatten, is_array, leaf_paths
from penstock.batching import Pad, Stack
from penstock.batching._leaf import LeafError, as_value, describe_kind, kind_of
from penstock.sources._source import name_of

_VERBS = {"none": "map", "generator": "random_map", "seed": "random_map", "globals": "random_map"}
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def chain_text(node: Node) -> str:
    """Return the dataset as the chain of verbs that made it, as `read(…).shuffle().map(decode)`."""
    verbs = [verb for verb in map(verb_text, chain(node)) if verb]
    return verbs[0] + "".join(verb if verb.startswith("[") else f".{verb}" for verb in verbs[1:])


def verb_text(node: Node) -> str:
    """Return the verb that made the node, as the user wrote it; empty for a node that another verb brought along."""
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
        case Unbatch():
            return "unbatch()"
        case _:
            assert_never(node)


def source_text(source: object, limit: int = 60) -> str:
    """Return a source's repr on one line, cut to `limit` characters."""
    text = type(source).__name__ if type(source) in {list, tuple} else name_of(source)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def function_name(function: Callable[..., Any]) -> str:
    """Return what a function calls itself: its qualified name, or its class's for other callables."""
    if _is_partial(function):
        return function_name(function.func)
    return getattr(function, "__qualname__", type(function).__qualname__)


def _is_partial(function: object) -> "TypeGuard[functools.partial[Any]]":
    return isinstance(function, functools.partial)


def length_text(node: Node) -> str:
    """Return how many elements the node has, in words."""
    if is_endless(node):
        return "endless"
    count = length(node)
    return "in order only" if count is None else f"{count:,}"


def tree_text(node: Node) -> str:
    """Return the dataset as a tree, the last step on top, each with its length."""
    lines: list[str] = []
    for step in reversed(chain(node)):
        verb = verb_text(step)
        if verb:
            lines.append(f"{'  ' * len(lines)}{'└ ' if lines else ''}{verb}: {length_text(step)}")
    return "\n".join(lines)


def html_text(node: Node, first: list[Element]) -> str:
    """Return a small table for notebooks: the tree, the element's structure, and the first images.

    Args:
        node: the dataset.
        first: the first elements; the structure is that of the first of them, and image-like leaves are drawn.
    """
    rows = "".join(
        f"<tr><td><code>{_escaped(path or 'element')}</code></td><td>{_escaped(leaf)}</td></tr>"
        for path, leaf in (_leaf_texts(first[0]) if first else ())
    )
    images = "".join(_image(leaf) for element in first for leaf in flatten(element)[0])
    return f"<pre>{_escaped(tree_text(node))}</pre><table>{rows}</table><div>{images}</div>"


def _escaped(text: str) -> str:
    """Return what `html.escape` does; that module brings every name of HTML with it, a twentieth of our import."""
    return text.translate(_HTML)


def _leaf_texts(element: Element) -> list[tuple[str, str]]:
    """Return the path of each leaf of an element, and what the leaf is."""
    leaves, structure = flatten(element)
    return [(path, _leaf_text(leaf)) for path, leaf in zip(leaf_paths(structure), leaves, strict=True)]


def _leaf_text(leaf: object) -> str:
    try:
        return describe_kind(kind_of(as_value(leaf)))
    except LeafError:  # such as an image that a later map makes an array of
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
