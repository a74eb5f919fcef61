"""The work of a span: consecutive positions of a block input, for a dataset that is read in order.

Each position is an element, or none where a step leaves it out. A span has no merge: the steps above it, which run in
one thread, make the batches.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from penstock._graph import Context
from penstock._plan import Plan
from penstock._runtime._jobs import BlockSize, Coordinates, Job, Shape, Work
from penstock._runtime._sent_blocks import SentBlock
from penstock._streaming import BlockInput, InputRange, read_inline


class SpanTask(NamedTuple):
    """The description of a `SpanWork`."""

    number: int
    epoch: int
    input_range: InputRange
    span: range
    cut: BlockSize

    def work(self, plan: Plan) -> "SpanWork":
        """Return the work."""
        node = plan.streaming.inputs[self.number]
        block_input = BlockInput(self.number, node, self.epoch, self.input_range, read_inline, Context())
        return SpanWork(block_input, self.span, self.cut, is_sent=True)


class SpanWork(Work):
    """Consecutive positions of a block input.

    Args:
        block_input: the block input.
        span: the positions, as numbers in its input range.
        cut: the size of blocks.
        is_sent: whether the results are sent to another process.
    """

    def __init__(self, block_input: BlockInput, span: range, cut: BlockSize, *, is_sent: bool = False) -> None:
        self._is_sent = is_sent
        self.block_input = block_input
        self.span = span
        self._cut = cut
        super().__init__(Shape((0, len(span)), cut.bounds(len(span), self.coordinates), sends_results=True))

    def task(self) -> SpanTask:
        block_input = self.block_input
        return SpanTask(block_input.number, block_input.epoch, block_input.input_range, self.span, self._cut)

    def coordinates(self, start: int, stop: int) -> Coordinates:
        span = self.span[start:stop]
        positions = self.block_input.input_range.positions(span.start, span.stop)
        epochs = np.full(len(positions), self.block_input.epoch, np.int64)
        return Coordinates(self.block_input.node, epochs, positions, (self.block_input.number,))

    def compute(self, results: list[Any], start: int, stop: int, context: Context) -> None:
        """Add the span of the rows, and the elements of its positions, to the results."""
        span = self.span[start:stop]
        block = self.block_input.evaluate(span.start, span.stop, context)
        results.append((span, SentBlock(block) if self._is_sent else block))


SpanJob: TypeAlias = Job[SpanWork]
