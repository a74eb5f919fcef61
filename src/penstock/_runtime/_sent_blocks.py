"""Blocks of elements on their way to another process: the arrays of a leaf travel as one.

A pickled array costs each process some microseconds, of which a document of a few hundred tokens has less. So where the
elements are arrays of one axis, or dicts of them, those of one leaf are joined, and divided where they arrive, as late
as possible (`batching._joined`).
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from penstock._graph import Block, Element, Integers
from penstock._independent import have_own_objects
from penstock._pickles import Apart
from penstock._runtime._shared_values import apart
from penstock._tree import IMMUTABLE
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
            return Block, (apart(elements), kept, filtered)
        if not all(map(_is_apart, found.leaves)) and not have_own_objects(elements):
            return Block, (Apart(elements), kept, filtered)
        return _arrived, (found.names, found.leaves, kept, filtered)


def _is_apart(leaf: Leaf) -> bool:
    """Return whether the values of a leaf certainly share no memory: they are joined, or can't be written to."""
    return not isinstance(leaf, list) or IMMUTABLE.issuperset(map(type, leaf))


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
