"""The stages of a dataset that is read in order, run in one thread, over block inputs that anyone computes.

Guarantees:
  - Batches come in order, each exactly once, each with the token from which reading continues after it.
  - Batches before a failing element are delivered before its error is raised.
"""

from types import GeneratorType
from typing import TYPE_CHECKING

from penstock._graph import Context, Element, Location, Stream
from penstock._plan._plan import Plan
from penstock._runtime._batches import StepRange, Unit
from penstock._runtime._streams import EndOfEpoch
from penstock._streaming import (
    BlockInput,
    Chunk,
    Collate,
    Opening,
    Provenance,
    Reader,
    Stage,
    StreamedLocations,
    Token,
    first_read,
    open_stages,
)
from penstock.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator


class StreamingBatches:
    """Elements of a dataset that is read in order, over the inputs of a `Reader`; without collate steps, if given."""

    def __init__(
        self, plan: Plan, step_range: StepRange, context: Context, read: Reader, collate: Collate | None = None
    ) -> None:
        self._plan = plan
        self._stage = stage_of(plan, step_range, context, read, collate)
        self._token: Token = None if step_range.where is None else step_range.where.token
        self._chunks: Iterator[Chunk] | None = None
        self._chunk: Chunk | None = None
        self._index = 0
        self._closed = False
        self._own: Provenance | None = None  # of the batch last returned, whose ordinal no row may have
        self._rows: Provenance | None = None
        self._collate = collate

    def next(self) -> tuple[Element, Token]:
        if self._closed:
            raise EndOfEpoch
        chunk = self._filled()
        if chunk is None:
            self.close()
            raise EndOfEpoch
        index = self._index
        element, own = chunk.elements[index], chunk.provenance[index : index + 1]
        rows = own if chunk.rows is None else chunk.rows[index]
        if self._collate is not None:
            self._collate.check(element, rows)
        self._index, self._token, self._own, self._rows = index + 1, chunk.afters[index], own, rows
        return element, self._token

    def _filled(self) -> Chunk | None:
        """Return the chunk in which `_index` is the next element; None at the end."""
        if self._chunks is None:
            self._chunks = self._stage.run(self._stage.start() if self._token is None else self._token)
            self._chunk = None
        while self._chunk is None or self._index >= len(self._chunk.elements):
            try:
                self._chunk, self._index = next(self._chunks, None), 0
            except BaseException:
                self._stop()  # a generator that raised is finished; the next call starts again from the token
                raise
            if self._chunk is None:
                return None
        return self._chunk

    def places(self) -> list[Location]:
        """Return the places of the rows of the batch last returned."""
        locations = StreamedLocations(self._plan.streaming.input_refs, self.rows)
        return [locations.at(row) for row in range(len(self.rows))]

    @property
    def rows(self) -> Provenance:
        """The marks of the rows of the batch last returned."""
        if self._rows is None:
            raise InternalError("no batch was returned yet")
        return self._rows

    @property
    def provenance(self) -> Provenance:
        """The marks that the tail needs of the batch last returned: those of its rows, or its own."""
        if self._own is None:
            raise InternalError("no batch was returned yet")
        return self.rows if self._collate is not None and self._collate.rows else self._own

    @property
    def has_begun(self) -> bool:
        """Whether reading has begun, or will never."""
        return self._closed or self._chunks is not None

    def first_read(self) -> tuple[BlockInput, int] | None:
        """Return the block input and the number at which reading begins; None for streams, and for several inputs."""
        inputs = self._plan.streaming.inputs
        if len(inputs) != 1 or isinstance(inputs[0], Stream):
            return None
        return first_read(self._stage, self._stage.start() if self._token is None else self._token)

    @property
    def has_more_at_hand(self) -> bool:
        """Whether the next element is computed already."""
        return self._chunk is not None and self._index < len(self._chunk.elements)

    def next_nowait(self) -> tuple[Element, Token] | None:
        return None

    def failing(self) -> Unit | None:
        return None

    def fileno(self) -> int | None:
        return None

    def is_ready(self) -> bool:
        return True

    def _stop(self) -> None:
        self._chunk, chunks, self._chunks = None, self._chunks, None
        if isinstance(chunks, GeneratorType) and not chunks.gi_running:  # in another thread, which finds this closed
            chunks.close()

    def close(self) -> None:
        self._closed = True
        self._stop()


def stage_of(
    plan: Plan, step_range: StepRange, context: Context, read: Reader, collate: Collate | None = None
) -> Stage:
    """Return the top stage of a streaming plan, in the epoch and over the rank segments of a range of steps."""
    if step_range.where is None:
        raise InternalError("steps of a dataset that is read in order begin at a token")
    opening = Opening(step_range.first.epoch, plan.shard.count, read, context, plan.must_fill, collate)
    return open_stages(plan.streaming.node, step_range.where.rank_segments, opening)
