"""Chunks, which stages pass to each other: elements, their provenance, and their tokens.

A *token* is a place from which a stage can start: nested tuples of integers and strings, so that a state holds
positions and never data. Each element has two. A stage that starts at `start` yields this element first; at `after`,
the next one. Tokens don't depend on how elements are divided into chunks.

Few tokens are ever used: the loader needs that of the last delivered batch. So they are made on request (`Lazy`,
`Picked`), and a sequence of tokens that are numbers is a `range`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._graph import Element, SeedPositions
from penstock.errors import InternalError

Token: TypeAlias = Any
"""An integer, a string, None, or a tuple of tokens. Indexing a sequence of tokens with a slice returns a sequence."""

Provenance: TypeAlias = NDArray[np.int64]
"""int64 of shape (elements, 6): the number of the block input or stream that an element comes from, the epoch and
position there, and the seed position: epoch, position, ordinal. An element made of several has the first one's."""

INPUT: Final = 0
EPOCH: Final = 1
POSITION: Final = 2
SEEDS: Final = slice(3, 6)
ORDINAL: Final = 5


class Chunk(NamedTuple):
    """Consecutive elements; possibly none."""

    elements: list[Element]
    provenance: Provenance
    starts: Sequence[Token]
    afters: Sequence[Token]
    rows: Sequence[Provenance] | None = None
    """Of batches: the provenance of each batch's rows."""
    stacked: Element | None = None
    """Of elements that are the rows of arrays in one piece of memory: these arrays, equal to the stacked elements."""

    def part(self, start: int, stop: int) -> "Chunk":
        """Return the elements [start, stop)."""
        rows = None if self.rows is None else self.rows[start:stop]
        cut = (self.elements[start:stop], self.provenance[start:stop], self.starts[start:stop], self.afters[start:stop])
        return Chunk(*cut, rows)

    def pick(self, kept: NDArray[np.int64], elements: list[Element]) -> "Chunk":
        """Return a chunk of `elements`, which replace those whose numbers are `kept`."""
        numbers: list[int] = kept.tolist()
        rows = None if self.rows is None else [self.rows[number] for number in numbers]
        return Chunk(elements, self.provenance[kept], Picked(self.starts, numbers), Picked(self.afters, numbers), rows)


class Lazy(Sequence[Token]):
    """Tokens that are made on request."""

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
    """The tokens at some numbers of a sequence."""

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
    """Consecutive elements that a stage takes together."""

    elements: list[Element]
    provenance: Provenance
    start: Token
    after: Token
    parts: tuple[tuple[Provenance, Sequence[Provenance] | None], ...]
    """Of each chunk that the elements are from: their provenance, and, of batches, that of their rows."""

    def rows(self) -> list[Provenance] | None:
        """Return the provenance of each batch's rows; None if no element is a batch."""
        if all(rows is None for _, rows in self.parts):
            return None
        return [
            each
            for provenance, rows in self.parts
            for each in (np.split(provenance, len(provenance)) if rows is None else rows)
        ]

    def chunk(self, element: Element) -> Chunk:
        """Return the chunk of the one element that is made of the group."""
        return Chunk([element], self.provenance[:1], (self.start,), (self.after,), [self.provenance])


class Pending:
    """A queue of elements, added in chunks and taken in groups of other sizes."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._first = 0  # number of the next element in the first chunk
        self.count = 0

    def add(self, chunk: Chunk) -> None:
        """Add a chunk at the end."""
        if chunk.elements:
            self._chunks.append(chunk)
            self.count += len(chunk.elements)

    def take(self, count: int) -> Group:
        """Take the first `count` elements; `count` is from 1 to the number of elements in the queue."""
        if not 0 < count <= self.count:
            raise InternalError(f"{count} elements were requested, and {self.count} are pending")
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
    """Yield groups of `size` elements, and at the end a smaller one of the rest, if there is a rest."""
    pending = Pending()
    for chunk in chunks:
        pending.add(chunk)
        while pending.count >= size:
            yield pending.take(size)
    if pending.count:
        yield pending.take(pending.count)


def is_compound(token: Token) -> bool:
    """Return whether a token is a tuple of tokens."""
    return isinstance(token, tuple)


def no_provenance() -> Provenance:
    """Return the provenance of no elements."""
    return np.empty((0, 6), np.int64)


def seeds_of(provenance: Provenance) -> SeedPositions:
    """Return the seed positions in some elements' provenance."""
    return SeedPositions(*(np.ascontiguousarray(column) for column in provenance[:, SEEDS].T))
