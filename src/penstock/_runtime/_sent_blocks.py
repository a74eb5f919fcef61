"""Blocks of elements on their way to another process: the arrays of a leaf travel as one.

A pickled array costs each process some microseconds, of which a document of a few hundred tokens has less. So where the
elements are arrays of one axis, or dicts of them, those of one leaf are joined, and divided where they arrive, as late
as possible (`batching._joined`).
"""

from typing import Any, Final, cast

import numpy as np

from penstock._graph import Block, Element, Integers
from penstock.batching import JoinedElements, JoinedLeaf

_KINDS: Final = "biufc"
_LEAST: Final = 4  # elements; joining fewer takes as long


class SentBlock:
    """A block that is pickled for another process; what arrives there is a `Block`."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __reduce__(self) -> tuple[Any, ...]:
        elements, kept, filtered = self._block
        names = _names(elements)
        columns = [elements] if names is None else [[element[name] for element in elements] for name in names]
        return _arrived, (names, [_joined(column) for column in columns], kept, filtered)


def _names(elements: list[Element]) -> tuple[object, ...] | None:
    """Return the keys of elements that are dicts of the same keys in the same order; None for other elements."""
    if not elements or set(map(type, elements)) != {dict} or not elements[0]:
        return None
    names = tuple(elements[0])
    return names if all(tuple(element) == names for element in elements) else None


def _joined(column: list[Any]) -> JoinedLeaf | list[Any]:
    if len(column) < _LEAST or set(map(type, column)) != {np.ndarray}:
        return column
    dtype: np.dtype[Any] = column[0].dtype
    if dtype.kind not in _KINDS or not dtype.isnative or dtype.metadata is not None:
        return column
    if any(array.dtype is not dtype or array.ndim != 1 for array in column):
        return column
    return JoinedLeaf(np.concatenate(column), np.cumsum([0, *map(len, column)]))


def _arrived(
    names: tuple[object, ...] | None, leaves: list[JoinedLeaf | list[Any]], kept: Integers | None, filtered: int
) -> Block:
    """Return the block that was sent."""
    if names is None and isinstance(leaves[0], list):
        return Block(leaves[0], kept, filtered)
    return Block(cast("list[Element]", JoinedElements(names, leaves)), kept, filtered)
