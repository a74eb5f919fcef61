"""Foldings, the values of folds: each has the facts, the definition and the stage of one fold.

A fold is one file in this package, and a verb that adds a `Fold` node with the value. The file has the value, a
`Folding`; the definition, a generator; and the stage. No other file distinguishes folds: the graph reads the facts
(`FoldFacts`), `_in_order` calls the definition, `_opening` opens the stage. A node for each fold was rejected: each
function over the graph then needs a case for each fold.

Rules of a fold's stage, beyond those of each stage:
  - A token is a tuple, and its first entry is the parent's token at which reading continues. The other entries identify
    the elements that the fold holds open, by their tokens and by counts.
  - A fold that passes all elements of its parent may be above a batch that ranks share. Its state can then be dealt to
    another number of ranks where the other entries of its token equal those of its start.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from penstock._graph import Fold, FoldFacts
from penstock._streaming._stage import InputRef, LocatedElement, Stage
from penstock.errors import InternalError


class OpenedBelow(NamedTuple):
    """The opened step below a fold, and the facts about the steps above it."""

    stage: Stage
    inputs: Mapping[int, InputRef]
    """The block inputs and streams below, by their numbers."""
    batched: int = 0
    """The number of elements in each batch of a batch directly above; 0 if there is none."""
    must_fill: bool = False
    """Whether all ranks end at this fold's limit, so that it is an error to have fewer elements."""


class Folding(FoldFacts):
    """The value of a fold's node; a frozen dataclass of the verb's arguments inherits from it.

    Equal values make equal datasets, and a value is pickled for worker processes.
    """

    __slots__ = ()

    @abstractmethod
    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        """Yield the fold's elements, each with its location, given those of the parent: the definition."""

    @abstractmethod
    def open(self, below: OpenedBelow) -> Stage:
        """Return the fold's stage over the stage below."""

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


def folding_of(node: Fold) -> Folding:
    """Return the value of a fold's node."""
    if not isinstance(node.value, Folding):
        raise InternalError(f"the value of a fold has a definition and a stage; got {node.value!r}")
    return node.value
