"""A stage is one step of a dataset that is read in order, opened: it yields chunks from any token on.

Guarantees, of every stage:
  - `run(token)` yields what follows the token, each element exactly once, in order, however often it is called.
  - Elements before a failing one are yielded before its error is raised; after it the iterator has ended, and reading
    goes on from the token of the last element that was taken.
  - A token holds positions only. What a stage held open is computed again from them, and nothing else is.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from penstock._graph._nodes import Element
from penstock._graph._ordered._chunk import Chunk, Marks, Token, no_marks
from penstock.errors import InternalError, StateError


class Point(NamedTuple):
    """How far a leaf was read: its first `taken` positions were taken in, the last of them maybe in part."""

    taken: int
    snapshot: Token = None
    """Of a stream: where to start reading it, at or before that."""
    by_position: bool = False
    """Whether `taken` is a position of the leaf, as for streams, rather than a number in its course."""


class Stage(Protocol):
    """One step, opened."""

    def start(self) -> Token:
        """Return the token of the beginning."""
        ...

    def run(self, token: Token, /) -> Iterator[Chunk]:
        """Yield what follows a token."""
        ...

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Marks]:
        """Return the elements that start at the tokens, and their marks: computed again, and nothing else with them."""
        ...

    def points(self, token: Token, /) -> tuple[Point, ...]:
        """Return how far each leaf below was read at a token: what a stage holds open lies before."""
        ...

    def is_drained(self, token: Token, /) -> bool:
        """Return whether it is certain that nothing follows a token."""
        ...


@runtime_checkable
class StepStage(Stage, Protocol):
    """A stage over a single other one."""

    @property
    def below(self) -> Stage:
        """The stage that it reads from."""
        ...


def one_each(stage: Stage, tokens: Sequence[Token]) -> tuple[list[Element], Marks]:
    """Return the first element from each token on: `reproduce` for stages without a shorter way."""
    elements: list[Element] = []
    marks: list[Marks] = []
    for token in tokens:
        chunk = next((chunk for chunk in stage.run(token) if chunk.elements), None)
        if chunk is None:
            raise InternalError("no element starts at a token that a state holds")
        elements.append(chunk.elements[0])
        marks.append(chunk.marks[:1])
    return elements, np.concatenate(marks) if marks else no_marks()


def check_held(found: Token, saved: Token, what: str) -> None:
    """Raise where what a stage held open, computed again, ends elsewhere than when it was saved.

    Raises:
        StateError: the elements below have changed in between, as by a mixture's weights.
    """
    if found != saved:
        raise StateError(
            f"the state stands within {what}, which holds other elements in this dataset than where it was saved, so "
            "some would be lost and others come twice. Change a mixture's weights only at positions that no rank has "
            "read yet, what is held open included; or load the state into the dataset it was saved from."
        )
