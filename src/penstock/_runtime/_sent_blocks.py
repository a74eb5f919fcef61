"""Blocks of elements on their way to another process: the arrays of a leaf travel as one.

A pickled array costs each process some microseconds, of which a document of a few hundred tokens has less. So where the
elements are arrays of one axis, or dicts of them, those of one leaf are joined, and divided where they arrive, as late
as possible (`batching._joined`).
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from penstock._graph import Block, Element, Integers
from penstock.batching import JoinedElements, Leaf, joined

_LEAST: Final = 4  # elements; joining fewer takes as long


class SentBlock:
    """A block that is pickled for another process; what arrives there is a `Block`."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __reduce__(self) -> tuple[Any, ...]:
        elements, kept, filtered = self._block
        found = joined(elements) if len(elements) >= _LEAST else None
        if found is None:
            return Block, (elements, kept, filtered)
        return _arrived, (found.names, found.leaves, kept, filtered)


class SentRows:
    """A list of rows that is pickled for another process; what arrives there is the list.

    The arrays of the rows are then parts of joined ones, so a row that a function keeps also keeps the others.
    """

    def __init__(self, rows: list[Element]) -> None:
        self._rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        found = joined(self._rows) if type(self._rows) is list and len(self._rows) >= _LEAST else None
        if found is None:
            return _rows_of, (self._rows,)
        return _rows_arrived, (found.names, found.leaves)


def _rows_of(rows: list[Element]) -> list[Element]:
    return rows


def _rows_arrived(names: tuple[object, ...] | None, leaves: Sequence[Leaf]) -> list[Element]:
    rows = JoinedElements(names, leaves)
    return rows.shown(range(len(rows)))


def _arrived(names: tuple[object, ...] | None, leaves: Sequence[Leaf], kept: Integers | None, filtered: int) -> Block:
    """Return the block that was sent."""
    return Block(cast("list[Element]", JoinedElements(names, leaves)), kept, filtered)
