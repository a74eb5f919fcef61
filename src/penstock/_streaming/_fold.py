"""Foldings, the values of folds: each has the facts, the definition and the stage of one fold.

A fold is one file in this package, and a verb that adds a `Fold` node with the value. The file has the value, a
`Folding`, with the facts for the graph, the definition, and the methods of the stage. No other file distinguishes
folds. A node for each fold was rejected: each function over the graph then needs a case for each fold.

A resume uses the methods of the stage in this order: `check_token`, for the token of the state; on another number of
ranks `read_to` and `is_exhausted`, to divide what was read from what is left, and `keeping_all`, for the stage that
yields what an old rank held open; then `run`, which calls `reproduce` of the stage below for the elements held open.

Rules of a fold's stage, beyond those of each stage:
  - A token is a tuple, and its first entry is the parent's token at which reading continues. The other entries identify
    the elements that the fold holds open, by their tokens and by counts.
  - A fold that passes all elements of its parent may be above a batch that ranks share. Its state can then be dealt to
    another number of ranks where the other entries of its token equal those of its start.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from penstock._frozen import frozen
from penstock._graph import Element, Fold, FoldFacts, Location
from penstock._streaming._stage import (
    Chunk,
    InputProgress,
    InputRef,
    LocatedElement,
    Provenance,
    Stage,
    StreamedLocations,
    Token,
    one_each,
)
from penstock.errors import InternalError


class Folding(FoldFacts):
    """The value of a fold's node; a frozen dataclass of the verb's arguments inherits from it.

    Equal values make equal datasets, and a value is pickled for worker processes. The methods of the stage get the
    opened stage, with the stage below; the token is always one that `check_token` accepted.
    """

    __slots__ = ()

    @abstractmethod
    def start(self, below: Token) -> Token:
        """Return the token at which no element is held open, given the parent's."""

    @abstractmethod
    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        """Yield the fold's elements, each with its location, given those of the parent: the definition."""

    @abstractmethod
    def run(self, stage: "FoldStage", token: Token) -> Iterator[Chunk]:
        """Yield the elements after a token, as `Stage.run`."""

    @abstractmethod
    def check_token(self, stage: "FoldStage", token: Token) -> None:
        """Raise a StateError for a token that the stage can't have made, as `Stage.check`."""

    def reproduce(self, stage: "FoldStage", tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
        """Return the elements that start at the tokens, as `Stage.reproduce`. By default each is computed by `run`."""
        return one_each(stage, tokens)

    def read_to(self, token: Token) -> Token:
        """Return the parent's token behind the last element that was read. By default reading continues there."""
        return token[0]

    def is_exhausted(self, stage: "FoldStage", token: Token) -> bool:
        """Return whether certainly no element follows a token. By default none is held open, nor follows below."""
        return bool(token == self.start(token[0])) and stage.below.is_exhausted(token[0])

    def of_rank(self, ranks: int) -> Self:
        """Return the value for one of several ranks; a fold that makes the batch they share makes its part of it."""
        del ranks
        return self

    def keeping_all(self) -> Self:
        """Return the value for an old rank's segment, whose stage must yield each element that was held open."""
        return self

    def check(self, text: str, below: Iterator[LocatedElement], count: int) -> None:
        """Raise a GraphError if the user's functions break their promises, for `Dataset.check`.

        Args:
            text: the chain of steps up to the fold, for messages.
            below: the elements of the parent, which may be evaluated only as far as they are read.
            count: the number of elements to check.
        """


@frozen
class FoldStage:
    """An opened fold.

    Attributes:
        value: the fold.
        below: the stage of the parent.
        inputs: the block inputs and streams below, by their numbers.
        batched: the number of elements in each batch of a batch directly above; 0 if there is none.
        must_fill: whether all ranks end at this fold's limit, so that it is an error to have fewer elements.
    """

    value: Folding
    below: Stage
    inputs: Mapping[int, InputRef]
    batched: int = 0
    must_fill: bool = False

    def start(self) -> Token:
        return self.value.start(self.below.start())

    def run(self, token: Token, /) -> Iterator[Chunk]:
        return self.value.run(self, token)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return self.value.reproduce(self, tokens)

    def check(self, token: Token, /) -> None:
        self.value.check_token(self, token)

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        return self.below.progress(self.value.read_to(token))

    def is_exhausted(self, token: Token, /) -> bool:
        return self.value.is_exhausted(self, token)

    def location(self, provenance: Provenance, index: int) -> Location:
        """Return the location of an element of the parent, given the provenance of its chunk."""
        return StreamedLocations(self.inputs, provenance).at(index)


def folding_of(node: Fold) -> Folding:
    """Return the value of a fold's node."""
    if not isinstance(node.value, Folding):
        raise InternalError(f"the value of a fold has a definition and a stage; got {node.value!r}")
    return node.value
