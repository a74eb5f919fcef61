"""The first elements of a dataset, as text and as a table with pictures for notebooks.

A notebook displays a dataset whenever a cell ends with it. So the display must be cheap, and must have no side effects.
But a user's function may take minutes, write a file or raise; a cache would store elements; a stream would be opened;
and a filter may reject millions of records before the first element. So `html_text` evaluates the dataset only if its
elements need none of these. Otherwise it evaluates the nearest step below that needs none, such as the one that reads
the source. `Dataset.show` always evaluates the dataset itself.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock._caught import Caught
from penstock._graph._apply import Context
from penstock._graph._describe import chain_text, escaped, leaf_texts, tree_text
from penstock._graph._evaluate import element_at
from penstock._graph._fingerprint import functions_of
from penstock._graph._length import is_indexable, length
from penstock._graph._nodes import Cache, Element, Node, parents_of, walk
from penstock._graph._pictures import image_tag
from penstock._printable import printable
from penstock._tree import flatten, is_array, leaf_paths

SHOWN: Final = 8  # elements
_CHARACTERS: Final = 60  # of a text
_VALUES: Final = 8  # of an array that is written out


class Preview:
    """The first elements of a dataset, to be printed, or displayed by a notebook.

    Args:
        node: the dataset.
        elements: its first elements, or those of a step below it.
        title: the sentence above the elements.

    Example:
        >>> import penstock as ps
        >>> print(ps.range(4).map(lambda number: {"n": number, "text": str(number)}).show(2))
        map(<lambda>): 4
        └ read(Range(0, 4, 1)): 4
        <BLANKLINE>
        0  ['n']: 0, ['text']: '0'
        1  ['n']: 1, ['text']: '1'
    """

    def __init__(self, node: Node, elements: Sequence[Element], title: str = "") -> None:
        self._tree = tree_text(node)
        self._title = title
        self._elements = elements

    def __str__(self) -> str:
        rows = [
            printable(f"{number}  {', '.join(f'{path}: {text}' if path else text for path, text in _texts(element))}")
            for number, element in enumerate(self._elements)
        ]
        return "\n".join([self._tree, "", *([self._title] if self._title else []), *rows])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """Return the HTML that a notebook displays."""
        title = f"<p>{escaped(self._title)}</p>" if self._title else ""
        return f"<pre>{escaped(self._tree)}</pre>{title}<table>{self._rows()}</table>"

    def _rows(self) -> str:
        """Return a row for each leaf of the first element: its path, its kind, and its value in each element."""
        examples: dict[str, list[str]] = {}
        for element in self._elements:
            leaves, structure = flatten(element)
            for path, leaf, (_, text) in zip(leaf_paths(structure), leaves, _texts(element), strict=True):
                examples.setdefault(path, []).append(_image(leaf) or f"<div>{escaped(text)}</div>")
        kinds = leaf_texts(self._elements[0]) if self._elements else []
        return "".join(
            f"<tr><td><code>{escaped(path or 'element')}</code></td><td>{escaped(kind)}</td>"
            f"<td>{''.join(examples[path])}</td></tr>"
            for path, kind in kinds
        )


def html_text(node: Node) -> str:
    """Return the HTML that a notebook displays for a dataset; this calls no function of the user's."""
    below = _without_functions(node)
    if below is None:
        return Preview(node, [], "show() computes the first elements.").html()
    title = "" if below is node else f"The first elements of {chain_text(below)}. show() computes those of the dataset."
    found: list[Element] = []
    known = length(below)
    count = SHOWN if known is None else min(known, SHOWN)
    with Caught(Exception) as caught:  # the elements before an error are shown
        found.extend(element_at(below, 0, position, Context()) for position in range(count))
    if caught.error is not None:
        title = f"{title} {type(caught.error).__name__}: {caught.error}".strip()
    return Preview(node, found, title).html()


def _without_functions(node: Node) -> Node | None:
    """Return the node, or the nearest one below it, that is indexable and calls no function of the user's.

    If a node has several parents, the search continues in the first one. None if there is no such node, as above a
    stream: an object that a stream reads may be one that can be read only once.
    """
    if is_indexable(node) and not any(map(_calls_user, walk(node))):
        return node
    parents = parents_of(node)
    return _without_functions(parents[0]) if parents else None


def _calls_user(step: Node) -> bool:
    """Return whether a step calls a function of the user's, or stores its elements, as a cache does."""
    own = (type(function).__module__.partition(".")[0] == "penstock" for function in functions_of(step))
    return isinstance(step, Cache) or not all(own)


def _texts(element: Element) -> list[tuple[str, str]]:
    """Return the path and the text of each leaf of an element: its value if that is short, else its kind and shape."""
    leaves, _ = flatten(element)
    kinds = leaf_texts(element)
    return [(path, value_text(leaf) or kind) for leaf, (path, kind) in zip(leaves, kinds, strict=True)]


def value_text(leaf: object) -> str:
    """Return a leaf's value as text, if that is short; "" if it isn't, or an object's own text can't be made."""
    with Caught(Exception):
        if isinstance(leaf, str):
            return repr(leaf if len(leaf) <= _CHARACTERS else f"{leaf[:_CHARACTERS]}…")
        if is_array(leaf) and leaf.size > _VALUES:
            return ""
        if is_array(leaf) or isinstance(leaf, int | float | complex | np.generic):
            return " ".join(str(np.asarray(leaf).tolist()).split())
    return ""


def _image(leaf: object) -> str:
    """Return an `<img>` for a leaf that is a picture, or those of its rows if it is a batch of them."""
    if is_array(leaf) and (leaf.ndim == 4 or (leaf.ndim == 3 and leaf.shape[2] not in {1, 3})):
        return "".join(image_tag(row, channels_first=False) for row in leaf[:SHOWN])
    return image_tag(leaf, channels_first=False)
