"""What stages pass to each other: some elements, where each comes from, and where reading could start and go on.

A *token* says where a stage can start again: nested tuples of integers and strings, so that a state holds positions and
never data. Every element has two: starting from its `start` gives this element first, starting from its `after` the one
that follows. They don't depend on how elements were cut into chunks.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._graph._nodes import Element
from penstock._graph._seed_position import SeedPositions
from penstock.errors import InternalError

Token: TypeAlias = Any
"""An integer, a string, None, or a tuple of tokens; or a sequence of tokens, where a slice was asked for."""

Provenance: TypeAlias = NDArray[np.int64]
"""int64 of shape (elements, 6): which leaf of the graph an element comes from, the epoch and position there, and its
seed position: epoch, position, ordinal. What was made of several elements has the first one's."""

INPUT: Final = 0
EPOCH: Final = 1
POSITION: Final = 2
SEEDS: Final = slice(3, 6)
ORDINAL: Final = 5


class Chunk(NamedTuple):
    """Some elements in order; possibly none."""

    elements: list[Element]
    provenance: Provenance
    starts: Sequence[Token]
    afters: Sequence[Token]
    rows: Sequence[Provenance] | None = None
    """Of batches: the marks of each one's rows."""
    stacked: Element | None = None
    """Of elements that are the rows of one piece of memory: what stacking all of them would give."""

    def part(self, start: int, stop: int) -> "Chunk":
        """Return the elements [start, stop)."""
        rows = None if self.rows is None else self.rows[start:stop]
        cut = (self.elements[start:stop], self.provenance[start:stop], self.starts[start:stop], self.afters[start:stop])
        return Chunk(*cut, rows)

    def pick(self, kept: NDArray[np.int64], elements: list[Element]) -> "Chunk":
        """Return the elements whose numbers are `kept`, each replaced by one of `elements`."""
        numbers: list[int] = kept.tolist()
        rows = None if self.rows is None else [self.rows[number] for number in numbers]
        return Chunk(elements, self.provenance[kept], Picked(self.starts, numbers), Picked(self.afters, numbers), rows)


class Lazy(Sequence[Token]):
    """Tokens that are made when they are asked for, which most never are."""

    def __init__(self, count: int, make: Callable[[int], Token]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Token:
        if isinstance(index, slice):
            return Picked(self, range(*index.indices(self._count)))
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._make(index)


class Picked(Sequence[Token]):
    """Some of a sequence's tokens."""

    def __init__(self, tokens: Sequence[Token], numbers: Sequence[int]) -> None:
        self._tokens = tokens
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int | slice) -> Token:
        if isinstance(index, slice):
            return Picked(self._tokens, self._numbers[index])
        return self._tokens[self._numbers[index]]


class Group(NamedTuple):
    """Consecutive elements taken together."""

    elements: list[Element]
    provenance: Provenance
    start: Token
    after: Token
    parts: tuple[tuple[Provenance, Sequence[Provenance] | None], ...]
    """Of each chunk that it was taken from: the marks of its elements, and of the rows of each."""

    def rows(self) -> list[Provenance] | None:
        """Return, of batches, the marks of each one's rows; None where no element is a batch."""
        if all(rows is None for _, rows in self.parts):
            return None
        return [
            each
            for provenance, rows in self.parts
            for each in (np.split(provenance, len(provenance)) if rows is None else rows)
        ]

    def chunk(self, element: Element) -> Chunk:
        """Return the chunk of the one element that was made of the group."""
        return Chunk([element], self.provenance[:1], (self.start,), (self.after,), [self.provenance])


class Pending:
    """Elements that came in chunks and are taken in other numbers."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._first = 0  # of the first chunk
        self.count = 0

    def add(self, chunk: Chunk) -> None:
        """Add a chunk at the end."""
        if chunk.elements:
            self._chunks.append(chunk)
            self.count += len(chunk.elements)

    def take(self, count: int) -> Group:
        """Take the first `count` elements; there must be as many, and at least one."""
        if not 0 < count <= self.count:
            raise InternalError(f"{count} of {self.count} pending elements were asked for")
        elements: list[Element] = []
        parts: list[tuple[Provenance, Sequence[Provenance] | None]] = []
        start = self._chunks[0].starts[self._first]
        while True:
            chunk, first = self._chunks[0], self._first
            stop = min(first + count - len(elements), len(chunk.elements))
            elements += chunk.elements[first:stop]
            parts.append((chunk.provenance[first:stop], None if chunk.rows is None else chunk.rows[first:stop]))
            self._first = stop
            if stop == len(chunk.elements):
                self._chunks.popleft()
                self._first = 0
            if len(elements) == count:
                self.count -= count
                provenance = np.concatenate([part for part, _ in parts]) if len(parts) > 1 else parts[0][0]
                return Group(elements, provenance, start, chunk.afters[stop - 1], tuple(parts))


def groups(chunks: Iterable[Chunk], size: int) -> Iterator[Group]:
    """Yield `size` elements at a time; at the end what is left, if anything."""
    pending = Pending()
    for chunk in chunks:
        pending.add(chunk)
        while pending.count >= size:
            yield pending.take(size)
    if pending.count:
        yield pending.take(pending.count)


def is_compound(token: Token) -> bool:
    """Return whether a token is made of others."""
    return isinstance(token, tuple)


def no_provenance() -> Provenance:
    """Return the marks of no elements."""
    return np.empty((0, 6), np.int64)


def seeds_of(provenance: Provenance) -> SeedPositions:
    """Return the seed positions of marked elements."""
    return SeedPositions(*(np.ascontiguousarray(column) for column in provenance[:, SEEDS].T))
