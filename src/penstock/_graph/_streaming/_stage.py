"""A stage is one step of a dataset that is read in order, opened: it yields chunks from any token on.

Guarantees, of every stage:
  - `run(token)` yields what follows the token, each element exactly once, in order, however often it is called.
  - Elements before a failing one are yielded before its error is raised; after it the iterator has ended, and reading
    goes on from the token of the last element that was taken.
  - A token holds positions only. What a stage held open is computed again from them, and nothing else is.
  - `check` accepts what the stage's own tokens can be, by their form and their ranges, and reads nothing. So a token
    from a state goes through `check` first, and every other method may rely on it. Whether the elements below are
    still those that a token speaks of only reading shows: then `run` raises a StateError.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np

from penstock._graph._nodes import Element
from penstock._graph._streaming._chunk import Chunk, Provenance, Token, is_compound, no_provenance
from penstock.errors import StateError

LARGEST: Final = 1 << 62
"""Above every count and position."""

_SHOWN: Final = 60


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

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        """Return the elements that start at the tokens, and their marks: computed again, and nothing else with them."""
        ...

    def check(self, token: Token, /) -> None:
        """Raise a StateError where a token can't be one of this stage's."""
        ...

    def points(self, token: Token, /) -> tuple[Point, ...]:
        """Return how far each leaf below was read at a token: what a stage holds open lies before."""
        ...

    def is_exhausted(self, token: Token, /) -> bool:
        """Return whether it is certain that nothing follows a token."""
        ...


@runtime_checkable
class StepStage(Stage, Protocol):
    """A stage over a single other one."""

    @property
    def below(self) -> Stage:
        """The stage that it reads from."""
        ...


def one_each(stage: Stage, tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
    """Return the first element from each token on: `reproduce` for stages without a shorter way."""
    elements: list[Element] = []
    provenance: list[Provenance] = []
    for token in tokens:
        chunk = next((chunk for chunk in stage.run(token) if chunk.elements), None)
        if chunk is None:
            raise StateError("the state holds the place of an element that this dataset doesn't have there")
        elements.append(chunk.elements[0])
        provenance.append(chunk.provenance[:1])
    return elements, np.concatenate(provenance) if provenance else no_provenance()


def parts_of(token: Token, *counts: int, of: str) -> tuple[Token, ...]:
    """Return a token that is a tuple of one of some lengths; a StateError says what it is instead."""
    parts: tuple[Token, ...] = token if is_compound(token) else ()
    if not is_compound(token) or len(parts) not in counts:
        refuse(token, f"{of} has a list of {' or '.join(map(str, counts))}")
    return parts


def check_number(value: Token, most: int, of: str) -> int:
    """Return a part of a token that is an integer from 0 to `most`; a StateError says what it is instead."""
    if type(value) is not int or not 0 <= value <= most:
        refuse(value, f"{of} has an integer from 0 to {most:,}")
    return int(value)


def refuse(value: Token, needed: str) -> NoReturn:
    """Raise the error of a token that isn't one of this dataset's."""
    text = repr(value)
    raise StateError(
        f"this state was saved by an indexable dataset, or one with other steps, or is damaged: {needed}, and here is "
        f"{text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…'}. Load it into the dataset that it was saved from."
    )


def check_enough(taken: int, count: int, what: str) -> None:
    """Raise where a state has taken all that there is of what a stage held open, or more.

    Raises:
        StateError: it can't have been saved by this dataset.
    """
    if taken >= count:
        raise StateError(
            f"the state has taken {taken} elements of {what}, which has {count}. Load it into the dataset that it was "
            "saved from."
        )


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
