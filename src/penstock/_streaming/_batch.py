"""The step `batch`, which merges consecutive elements.

`batched` is the definition. A token of the stage is that of the batch's first row.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from penstock._caught import ends_generator
from penstock._frozen import frozen
from penstock._graph import Batch, Element, merge_rows, with_mask
from penstock._streaming._stage import (
    Chunk,
    Cut,
    Group,
    LocatedElement,
    Pending,
    Provenance,
    SameTokenStage,
    Stage,
    Token,
    one_each,
)
from penstock.batching import RowStacker, Stack


def batched(step: Batch, below: Iterator[LocatedElement], size: int) -> Iterator[LocatedElement]:
    """Yield batches of `size` elements, each with the location of its first row."""
    while rows := list(itertools.islice(below, size)):
        if len(rows) == size or step.remainder != "drop":
            yield merge_rows(step, [element for element, _ in rows], size), rows[0][1]


class Rest(list[Element]):
    """Rows at the end or before an error that make no batch. Functions are still applied to them, and may raise."""


@frozen
class BatchStage(SameTokenStage):
    """Batches of `size` elements: the step's size, or one rank's part of it."""

    step: Batch
    size: int
    below: Stage
    merges: bool = True
    """Whether rows are merged here; else each batch is a list of rows, which workers merge."""
    gives_rest: bool = False
    """Whether rows before an error, or that are dropped at the end, are yielded as a `Rest`."""

    def run(self, token: Token, /) -> Iterator[Chunk]:
        pending = Pending()
        merge = RowStacker() if isinstance(self.step.merge, Stack) else None  # finds the layout of rows once
        try:
            yield from self._full(token, pending, merge)
        except BaseException as error:
            if pending.count and self.gives_rest and not ends_generator(error):
                yield _rest(pending)
            raise
        if pending.count and self.step.remainder != "drop":
            yield self._merged(pending.take(pending.count), merge)
        elif pending.count and self.gives_rest:
            yield _rest(pending)

    def _full(self, token: Token, pending: Pending, merge: RowStacker | None) -> Iterator[Chunk]:
        for chunk in self.below.run(token):
            pending.add(chunk)
            while pending.count >= self.size:
                whole = pending.take_stacked(self.size) if self._stacks else None
                yield self._merged(pending.take(self.size), merge) if whole is None else self._stacked(*whole)

    def _stacked(self, stacked: Element, cuts: list[Cut]) -> Chunk:
        """Return the chunk of a batch, which its elements are in already."""
        provenance = np.concatenate([chunk.provenance[first:stop] for chunk, first, stop in cuts])
        batch = with_mask(self.step, stacked, self.size, self.size)
        begin, end = cuts[0], cuts[-1]
        starts, afters = begin.chunk.starts[begin.first : begin.first + 1], end.chunk.afters[end.stop - 1 : end.stop]
        return Chunk([batch], provenance[:1], starts, afters, [provenance])

    def _merged(self, group: Group, merge: RowStacker | None) -> Chunk:
        rows = group.elements
        return group.chunk(merge_rows(self.step, rows, self.size, merge) if self.merges else rows)

    @property
    def _stacks(self) -> bool:
        """Whether the stacked form of a chunk's elements is a batch, which it isn't where batches are lists of rows."""
        return self.merges and isinstance(self.step.merge, Stack)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)


def _rest(pending: Pending) -> Chunk:
    group = pending.take(pending.count)
    return group._replace(after=group.start).chunk(Rest(group.elements))  # reading continues before these rows
