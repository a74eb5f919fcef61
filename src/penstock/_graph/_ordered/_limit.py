"""The first elements of an ordered dataset. A token is (the parent's, how many came before)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock._graph._nodes import Element, Limit
from penstock._graph._ordered._chunk import Chunk, Lazy, Marks, Token
from penstock._graph._ordered._stage import Point, Stage


@dataclass(frozen=True, slots=True)
class LimitStage:
    """At most the step's count of elements."""

    step: Limit
    below: Stage

    def start(self) -> Token:
        return (self.below.start(), 0)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        below, count = token
        if count >= self.step.count:
            return
        for chunk in self.below.run(below):
            part = chunk.part(0, self.step.count - count)
            yield _counted(part, count)
            count += len(part.elements)
            if count >= self.step.count:
                return

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Marks]:
        return self.below.reproduce([token[0] for token in tokens])

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token[0])

    def is_drained(self, token: Token, /) -> bool:
        return token[1] >= self.step.count or self.below.is_drained(token[0])


def _counted(chunk: Chunk, count: int) -> Chunk:
    starts, afters = chunk.starts, chunk.afters
    return chunk._replace(
        starts=Lazy(len(chunk.elements), lambda index: (starts[index], count + index)),
        afters=Lazy(len(chunk.elements), lambda index: (afters[index], count + index + 1)),
    )
