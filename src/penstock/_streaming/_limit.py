"""The fold `limit`: the first elements of a dataset that is read in order.

A token of the stage is (the parent's token, the number of elements before it). If several ranks must end on the same
step, a rank that runs out of data before the limit raises an error, and raises it again after each resume.
"""

import itertools
from collections.abc import Iterator, Sequence

from penstock._frozen import frozen
from penstock._graph import Element
from penstock._streaming._batch import Rest
from penstock._streaming._fold import Folding, FoldStage
from penstock._streaming._stage import Chunk, Lazy, LocatedElement, Provenance, Token, check_number, parts_of
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

    def start(self, below: Token) -> Token:
        return (below, 0)

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        return itertools.islice(below, self.count)

    def run(self, stage: FoldStage, token: Token) -> Iterator[Chunk]:
        below, count = token
        if count >= self.count:
            return
        for chunk in stage.below.run(below):
            if isinstance(chunk.elements[-1] if chunk.elements else None, Rest):  # alone in its chunk
                yield _with_counts(chunk, count, of_each=0)
                continue
            left = self.count - count
            part = chunk if len(chunk.elements) <= left else chunk.part(0, left)  # a part takes a microsecond
            yield _with_counts(part, count)
            count += len(part.elements)
            if count >= self.count:
                return
        if stage.must_fill:
            raise GraphError(
                f"all ranks must have the {self.count} elements of limit({self.count}), so that they end on "
                f"the same step; this rank ran out of data after {count}. Lower the limit, or use repeat() before it."
            )

    def check_token(self, stage: FoldStage, token: Token) -> None:
        below, count = parts_of(token, 2, of="limit()")
        stage.below.check(below)
        check_number(count, self.count, "limit()")

    def reproduce(self, stage: FoldStage, tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
        return stage.below.reproduce([token[0] for token in tokens])

    def is_exhausted(self, stage: FoldStage, token: Token) -> bool:
        return token[1] >= self.count or stage.below.is_exhausted(token[0])


def _with_counts(chunk: Chunk, count: int, of_each: int = 1) -> Chunk:
    """Return the chunk with the tokens of a limit, of which `count` elements were taken before."""
    starts, afters = chunk.starts, chunk.afters
    return chunk._replace(
        starts=Lazy(len(chunk.elements), lambda index: (starts[index], count + of_each * index)),
        afters=Lazy(len(chunk.elements), lambda index: (afters[index], count + of_each * (index + 1))),
    )
