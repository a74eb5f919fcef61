"""The fold `limit`: the first elements of a dataset that is read in order.

A token of the stage is (the parent's token, the number of elements before it). If several ranks must end on the same
step, a rank that runs out of data before the limit raises an error, and raises it again after each resume.
"""

import itertools
from collections.abc import Iterator, Sequence

from penstock._frozen import frozen
from penstock._graph import Element
from penstock._streaming._batch import Rest
from penstock._streaming._fold import Folding, OpenedBelow
from penstock._streaming._stage import (
    Chunk,
    Lazy,
    LocatedElement,
    Point,
    Provenance,
    Stage,
    Token,
    check_number,
    parts_of,
)
from penstock.errors import GraphError


@frozen
class Limit(Folding):
    """The first `count` elements of every rank."""

    count: int

    @property
    def text(self) -> str:
        return f"limit({self.count})"

    @property
    def order_text(self) -> str:
        return f"limit {self.count}"

    @property
    def limit(self) -> int:
        return self.count

    @property
    def passes_all(self) -> bool:
        return True

    @property
    def state_text(self) -> str:
        return "how many elements came before"

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        return itertools.islice(below, self.count)

    def open(self, below: OpenedBelow) -> Stage:
        return LimitStage(self, below.stage, below.must_fill)


@frozen
class LimitStage:
    """The parent's first elements, at most as many as the step's count."""

    step: Limit
    below: Stage
    must_fill: bool = False
    """Whether having fewer elements is an error."""

    def start(self) -> Token:
        return (self.below.start(), 0)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        below, count = token
        if count >= self.step.count:
            return
        for chunk in self.below.run(below):
            if isinstance(chunk.elements[-1] if chunk.elements else None, Rest):  # alone in its chunk
                yield _with_counts(chunk, count, of_each=0)
                continue
            part = chunk.part(0, self.step.count - count)
            yield _with_counts(part, count)
            count += len(part.elements)
            if count >= self.step.count:
                return
        if self.must_fill:
            raise GraphError(
                f"all ranks must have the {self.step.count} elements of limit({self.step.count}), so that they end on "
                f"the same step; this rank ran out of data after {count}. Lower the limit, or use repeat() before it."
            )

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return self.below.reproduce([token[0] for token in tokens])

    def check(self, token: Token, /) -> None:
        below, count = parts_of(token, 2, of="limit()")
        self.below.check(below)
        check_number(count, self.step.count, "limit()")

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token[0])

    def is_exhausted(self, token: Token, /) -> bool:
        return token[1] >= self.step.count or (not self.must_fill and self.below.is_exhausted(token[0]))


def _with_counts(chunk: Chunk, count: int, of_each: int = 1) -> Chunk:
    """Return the chunk with the tokens of a limit, of which `count` elements were taken before."""
    starts, afters = chunk.starts, chunk.afters
    return chunk._replace(
        starts=Lazy(len(chunk.elements), lambda index: (starts[index], count + of_each * index)),
        afters=Lazy(len(chunk.elements), lambda index: (afters[index], count + of_each * (index + 1))),
    )
