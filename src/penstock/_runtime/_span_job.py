"""A job of some positions of a block input: each position is an element, or none where a step leaves it out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from penstock._graph import Block, Context, Element, Integers, Node, Upcoming, join_blocks, upcoming
from penstock._memory import Lease, Region
from penstock._runtime._job_failure import NO_FAILURE
from penstock._runtime._jobs import ComeTo
from penstock._streaming import BlockInput
from penstock.errors import InternalError

if TYPE_CHECKING:
    from penstock._runtime._io_prefetch import BlockRecords


class SpanJob:
    """Some positions of a block input."""

    has_merge = False
    joins = False
    steps = 0
    memory_bytes = 0
    row_bytes = 0
    hands_on = True
    was_first = False

    def __init__(self, block_input: BlockInput, span: range, block_rows: int) -> None:
        self.block_input = block_input
        self.block_rows = block_rows
        self.span = span
        self.blocks = max(-(-len(span) // block_rows), 1)
        self.failed = False
        self.failure = NO_FAILURE
        self.arriving: list[BlockRecords] | None = None
        self.parts: list[tuple[range, Block]] = [(range(0), Block([], None))] * self.blocks

    def use(self, lease: Lease | Region) -> None:
        del lease
        raise InternalError("elements have memory of their own")

    def upcoming(self, block: int) -> list[Upcoming]:
        """Return which records of async sources a block needs."""
        return list(upcoming(*self.places(block)))

    def places(self, block: int) -> tuple[Node, Integers, Integers]:
        """Return a block's elements, as the input's node, and their epochs and positions there."""
        span = self._span(block)
        positions = self.block_input.input_range.positions(span.start, span.stop)
        return self.block_input.node, np.full(len(positions), self.block_input.epoch, np.int64), positions

    def _span(self, block: int) -> range:
        return self.span[block * self.block_rows : (block + 1) * self.block_rows]

    @property
    def row_count(self) -> int:
        return len(self.span)

    def extent(self, block: int) -> tuple[int, tuple[int, int]] | tuple[None, None]:
        del block
        return None, None  # what is read in order has no steps yet

    def among(self, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return which of some elements, given as in `Context.crashing_rows`, are positions of the job."""
        return self.block_input.among(self.span.start, self.span.stop, elements)

    def run_block(self, block: int, context: Context, come_to: ComeTo | None = None) -> int:
        if self.arriving is not None:
            context = self.arriving[block].informed(context)
        span = self._span(block)
        if come_to is None:
            self.parts[block] = (span, self.block_input.evaluate(span.start, span.stop, context))
            return len(span)
        found: list[Block] = []
        for number in span:
            come_to(0, number - self.span.start)
            found.append(self.block_input.evaluate(number, number + 1, context))
        self.parts[block] = (span, join_blocks(found))
        return len(span)

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Compute one position, for nothing."""
        number = self.span.start + step + row  # it has one step
        self.block_input.evaluate(number, number + 1, context)

    def run_merge(self, context: Context, come_to: ComeTo | None = None) -> None:
        """Do nothing: it is the steps above that merge."""

    def elements(self, block: int) -> object:
        (_, block_of), self.parts[block] = self.parts[block], (range(0), Block([], None))
        return tuple(block_of)

    def take_elements(self, block: int, elements: tuple[list[Element], Integers | None, int]) -> None:
        self.parts[block] = self._span(block), Block(*elements)

    def merged(self) -> object:
        raise InternalError("positions of an ordered dataset are merged by the steps above")

    def take_merged(self, merged: object) -> None:
        del merged
        raise InternalError("positions of an ordered dataset are merged by the steps above")
