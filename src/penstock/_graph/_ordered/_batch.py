"""Batches of an ordered dataset: consecutive elements merged. A token is that of the first row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock._graph._blocks import merge_block
from penstock._graph._nodes import Batch, Element
from penstock._graph._ordered._chunk import Chunk, Marks, Token, groups
from penstock._graph._ordered._stage import Point, Stage, one_each


@dataclass(frozen=True, slots=True)
class BatchStage:
    """Elements merged `size` at a time: the step's size, or one rank's part of it."""

    step: Batch
    size: int
    below: Stage

    def start(self) -> Token:
        return self.below.start()

    def run(self, token: Token, /) -> Iterator[Chunk]:
        for group in groups(self.below.run(token), self.size):
            if len(group.elements) == self.size or self.step.remainder != "drop":
                yield group.chunk(merge_block(self.step, group.elements, self.size))

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Marks]:
        return one_each(self, tokens)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token)

    def is_drained(self, token: Token, /) -> bool:
        return self.below.is_drained(token)
