"""Several elements out of one: the rows of a batch, or what the function of a `flat_map` returns.

A token is (the parent element's start, how many of its rows came before), and where that is not 0, also the parent
element's `after`: what is left of it is not lost when the rest is dealt to other ranks.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock._graph._apply import whereabouts
from penstock._graph._nodes import Element, FlatMap, Unbatch
from penstock._graph._ordered._chunk import ORDINAL, Chunk, Lazy, Marks, Token, no_marks
from penstock._graph._ordered._places import MarkPlaces, Whence
from penstock._graph._ordered._stage import Point, Stage
from penstock._graph._seed_position import ROWS_BITS, Integers
from penstock.batching._rows import split_rows
from penstock.errors import GraphError

_CHUNK_SECONDS: Final = 0.002
_MOST_AT_ONCE: Final = 1024  # rows, but for those of one element, which come together


@dataclass(frozen=True, slots=True)
class RowsStage:
    """The rows of each of the parent's elements."""

    step: Unbatch | FlatMap
    below: Stage
    leaves: Mapping[int, Whence]

    def start(self) -> Token:
        return (self.below.start(), 0)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        skip = token[1]
        for chunk in self.below.run(token[0]):
            places = MarkPlaces(self.leaves, chunk.marks)
            first, lists, count = 0, list[list[Element]](), 0
            began = time.perf_counter()
            for number, element in enumerate(chunk.elements):
                try:
                    lists.append(self._split(element, places, number))
                except Exception:
                    yield _chunk(lists, skip, chunk.part(first, number))
                    raise
                count += len(lists[-1])
                if count >= _MOST_AT_ONCE or time.perf_counter() - began > _CHUNK_SECONDS:
                    yield _chunk(lists, skip, chunk.part(first, number + 1))
                    first, lists, count, skip = number + 1, [], 0, 0
                    began = time.perf_counter()
            if lists:
                yield _chunk(lists, skip, chunk.part(first, len(chunk.elements)))
                skip = 0

    def _split(self, element: Element, places: MarkPlaces, number: int) -> list[Element]:
        if isinstance(self.step, Unbatch):
            return split_rows(element)
        return flat(self.step, element, lambda: whereabouts(self.step, places.place(number)))

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Marks]:
        if not tokens:
            return [], no_marks()
        parents = list(dict.fromkeys(token[0] for token in tokens))  # each is computed once
        elements, marks = self.below.reproduce(parents)
        places = MarkPlaces(self.leaves, marks)
        split = {
            parent: (self._split(element, places, number), marks[number])
            for number, (parent, element) in enumerate(zip(parents, elements, strict=True))
        }
        found: list[Element] = []
        found_marks: list[Marks] = []
        for token in tokens:
            rows, mark = split[token[0]]
            found.append(rows[token[1]])
            found_marks.append(_marks(mark[None], np.zeros(1, np.int64), np.array([token[1]], np.int64)))
        return found, np.concatenate(found_marks)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token[2] if token[1] else token[0])

    def is_drained(self, token: Token, /) -> bool:
        return token[1] == 0 and self.below.is_drained(token[0])


def _chunk(lists: list[list[Element]], skip: int, parents: Chunk) -> Chunk:
    """Return the chunk of the rows that some parents were taken apart into, less the first `skip` of the first one."""
    elements = list(itertools.chain.from_iterable(lists))[skip:]
    counts = np.array([len(rows) for rows in lists], np.int64)
    bounds = np.cumsum(counts)
    which = np.repeat(np.arange(len(lists)), counts)[skip:]
    rows = np.arange(skip, skip + len(elements)) - (bounds - counts)[which]

    def before(number: int) -> Token:
        parent, row = which.item(number), rows.item(number)
        start = parents.starts[parent]
        return (start, row, parents.afters[parent]) if row else (start, 0)

    def after(number: int) -> Token:
        parent, row = which.item(number), rows.item(number) + 1
        after_it = parents.afters[parent]
        return (after_it, 0) if row == len(lists[parent]) else (parents.starts[parent], row, after_it)

    marks = _marks(parents.marks, which, rows)
    return Chunk(elements, marks, Lazy(len(elements), before), Lazy(len(elements), after))


def _marks(parents: Marks, which: Integers, rows: Integers) -> Marks:
    """Return the marks of rows, given those of the parents, which of these each is of, and its number there."""
    marks: Marks = parents[which]
    marks[:, ORDINAL] = (marks[:, ORDINAL] << ROWS_BITS) + rows
    return marks


def flat(step: FlatMap, element: Element, where: Callable[[], str]) -> list[Element]:
    """Return the list that the step's function makes of an element."""
    try:
        made = step.function(element)
    except StopIteration as error:
        raise RuntimeError(f"the function of step {step.name!r} raised StopIteration") from error
    except Exception as error:
        error.add_note(where())
        raise
    if isinstance(made, str | bytes | dict) or not hasattr(made, "__iter__"):
        raise GraphError(
            f"the function of flat_map must return a list of elements; step {step.name!r} returned a "
            f"{type(made).__name__} {where()}. Return a list, with one element or none if need be."
        )
    return list(made)
