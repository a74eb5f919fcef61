"""The protocol of stages, the errors of their tokens, and the progress of their inputs.

A stage is one step of a dataset that is read in order, opened for an epoch and a rank.

Guarantees of each stage:
  - `run(token)` yields the elements after the token, each exactly once, in order, however often it is called.
  - Elements before a failing one are yielded before its error is raised. The error ends the iterator; reading continues
    with `run` at the `after` token of the last element taken.
  - A token has positions only. `run` computes the elements that the stage held open again, and no others.
  - `check` accepts every token of the stage, judged by form and ranges, and reads nothing. A token from a state goes
    through `check` first, and all other methods rely on it. If the elements below have changed since, `run` finds out,
    and raises a StateError.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np

from penstock._graph import Element
from penstock._streaming._chunk import Chunk, Provenance, Token, is_compound, no_provenance
from penstock.errors import StateError

LARGEST: Final = 1 << 62
"""Above every count and position."""

_SHOWN: Final = 60


class Point(NamedTuple):
    """The progress of a block input or stream: its first `taken` positions were read, the last one maybe in part."""

    taken: int
    snapshot: Token = None
    """Of a stream: the snapshot, at or before the position, from which to read it."""
    by_position: bool = False
    """Whether `taken` is a position, as of a stream; else it is a number in the input range."""


class Stage(Protocol):
    """An opened step."""

    def start(self) -> Token:
        """Return the token before the first element."""
        ...

    def run(self, token: Token, /) -> Iterator[Chunk]:
        """Yield the elements after a token."""
        ...

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        """Return the elements that start at the tokens, and their provenance. No other elements are computed."""
        ...

    def check(self, token: Token, /) -> None:
        """Raise a StateError for a token that this stage can't have made."""
        ...

    def points(self, token: Token, /) -> tuple[Point, ...]:
        """Return the progress of each input below at a token; elements that stages hold open count as read."""
        ...

    def is_exhausted(self, token: Token, /) -> bool:
        """Return whether certainly no element follows a token."""
        ...


@runtime_checkable
class StepStage(Stage, Protocol):
    """A stage with one stage below."""

    @property
    def below(self) -> Stage:
        """The stage that it reads from."""
        ...


def one_each(stage: Stage, tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
    """Return the first element after each token: `reproduce` of stages that have no shorter way."""
    elements: list[Element] = []
    provenance: list[Provenance] = []
    for token in tokens:
        chunk = next((chunk for chunk in stage.run(token) if chunk.elements), None)
        if chunk is None:
            raise StateError("the state has the token of an element that this dataset doesn't have there")
        elements.append(chunk.elements[0])
        provenance.append(chunk.provenance[:1])
    return elements, np.concatenate(provenance) if provenance else no_provenance()


def parts_of(token: Token, *counts: int, of: str) -> tuple[Token, ...]:
    """Return a token that is a tuple of one of some lengths, else raise a StateError."""
    parts: tuple[Token, ...] = token if is_compound(token) else ()
    if not is_compound(token) or len(parts) not in counts:
        refuse(token, f"{of} has a list of {' or '.join(map(str, counts))}")
    return parts


def check_number(value: Token, most: int, of: str) -> int:
    """Return a part of a token that is an integer from 0 to `most`, else raise a StateError."""
    if type(value) is not int or not 0 <= value <= most:
        refuse(value, f"{of} has an integer from 0 to {most:,}")
    return int(value)


def refuse(value: Token, needed: str) -> NoReturn:
    """Raise the StateError for a token that this dataset can't have made."""
    text = repr(value)
    raise StateError(
        f"this state was saved by an indexable dataset, or one with other steps, or is damaged: {needed}; got "
        f"{text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…'}. Load it into the dataset that it was saved from."
    )


def check_enough(taken: int, count: int, what: str) -> None:
    """Raise if a state says that `taken` elements were taken of fewer than that, which is never so.

    Raises:
        StateError: this dataset didn't save the state.
    """
    if taken >= count:
        raise StateError(
            f"the state has taken {taken} elements of {what}, which has {count}. Load it into the dataset that it was "
            "saved from."
        )


def check_held(found: Token, saved: Token, what: str) -> None:
    """Raise if the elements that a stage held open, computed again, end at another token than when they were saved.

    Raises:
        StateError: the elements below have changed since, for example by other weights of a mixture.
    """
    if found != saved:
        raise StateError(
            f"the state was saved within {what}, which has other elements in this dataset, so some would be lost and "
            "others repeated. Change a mixture's weights only at positions that no rank has read yet, open windows and "
            "sequences included; or load the state into the dataset that it was saved from."
        )
