"""Several elements out of one: the rows of a batch, or what the function of a `flat_map` returns.

A token is (the parent element's start, how many of its rows came before), and where that is not 0, also the parent
element's `after`: what is left of it is not lost when the rest is dealt to other ranks.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock._graph._apply import Context
from penstock._graph._evaluate import element_at
from penstock._graph._flat import flat_block
from penstock._graph._nodes import Element, FlatMap, Unbatch
from penstock._graph._ordered._chunk import ORDINAL, Chunk, Lazy, Marks, Token, no_marks
from penstock._graph._ordered._places import MarkPlaces, Whence
from penstock._graph._ordered._stage import Point, Stage, check_held
from penstock._graph._seed_position import ROWS_BITS
from penstock.batching._rows import split_rows


@dataclass(frozen=True, slots=True)
class RowsStage:
    """The rows of each of the parent's elements."""

    step: Unbatch | FlatMap
    below: Stage
    leaves: Mapping[int, Whence]
    context: Context

    def start(self) -> Token:
        return (self.below.start(), 0)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        skip = token[1]
        for chunk in self.below.run(token[0]):
            for number, rows in enumerate(self._split_in_turn(chunk)):
                if skip:
                    check_held(chunk.afters[number], token[2], "an element that several are made of")
                yield self._chunk(rows, skip, chunk.marks[number], (chunk.starts, chunk.afters, number))
                skip = 0

    def _split_in_turn(self, chunk: Chunk) -> Iterator[list[Element]]:
        """Yield the rows of each element of a chunk; those before a failing one come first."""
        split: list[list[Element]] | None = None
        with contextlib.suppress(Exception):  # raised again below, by the element that it belongs to
            split = self._split(chunk.elements, chunk.marks)
        if split is not None:
            yield from split
            return
        for number, element in enumerate(chunk.elements):
            yield self._split([element], chunk.marks[number : number + 1])[0]

    def _split(self, elements: list[Element], marks: Marks) -> list[list[Element]]:
        if isinstance(self.step, Unbatch):
            return list(map(split_rows, elements))
        return flat_block(self.step, elements, MarkPlaces(self.leaves, marks), self.context, element_at)

    def _chunk(
        self,
        rows: list[Element],
        skip: int,
        mark: Marks,
        parent: tuple[Sequence[Token], Sequence[Token], int],
    ) -> Chunk:
        starts, afters, number = parent
        count = len(rows)

        def token(row: int) -> Token:
            if row == count:
                return (afters[number], 0)
            return (starts[number], row, afters[number]) if row else (starts[number], 0)

        marks = np.repeat(mark[None], max(count - skip, 0), axis=0)
        marks[:, ORDINAL] = (marks[:, ORDINAL] << ROWS_BITS) + np.arange(skip, max(count, skip))
        left = len(marks)
        befores = Lazy(left, lambda index: token(skip + index))
        return Chunk(rows[skip:], marks, befores, Lazy(left, lambda index: token(skip + index + 1)))

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Marks]:
        if not tokens:
            return [], no_marks()
        parents = list(dict.fromkeys(token[0] for token in tokens))  # each is computed once
        elements, marks = self.below.reproduce(parents)
        split = dict(zip(parents, zip(self._split(elements, marks), marks, strict=True), strict=True))
        found: list[Element] = []
        found_marks: list[Marks] = []
        for token in tokens:
            rows, mark = split[token[0]]
            chunk = self._chunk(rows[: token[1] + 1], token[1], mark, ((), (), 0))
            found += chunk.elements
            found_marks.append(chunk.marks)
        return found, np.concatenate(found_marks)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token[2] if token[1] else token[0])

    def is_drained(self, token: Token, /) -> bool:
        return token[1] == 0 and self.below.is_drained(token[0])
