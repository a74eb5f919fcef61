"""The inputs of folds: block inputs, whose elements depend on positions alone, and the segments that a rank reads.

*Block inputs* are the parts of a dataset below its folds. Workers compute them in blocks, ahead of the folds. A rank
reads the positions of its *input range*, a few spans of equal steps: at first every `count`-th position, after a change
of the number of ranks the positions that were dealt to it. The token of an element is its number in the input range. A
filter that is part of a block input leaves out elements; their numbers are skipped. (The other inputs are streams, in
`_stream`.)

*Rank segments* are the parts of an epoch that one rank reads one after the other. With an unchanged number of ranks
there is one segment: every `count`-th position of each input. A resume on another number of ranks must lose no element
and repeat none, and the old ranks are in the midst of folds: half an unbatched batch, a window, open sequences. These
can't be divided by positions.

So each old rank that holds elements open becomes a *segment* of some new rank. It has the old rank's token, and its
input ranges, cut off where the old rank had read to, so it yields what was held open and ends. Steps that would leave
out held elements keep them there, which the stages of `_held` hide from the steps above. The unread positions
of all old ranks are dealt to the new ranks in turn, as the last segment of each (`deal`). Both are arithmetic on
tokens; nothing is read. In a state the segments are the entry "legs"; messages call one "a rank's part".

Invariant: the segments of all new ranks have each unread position once, and each old rank's held elements once.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock._caught import CaughtFailure
from penstock._decisions import INPUT_ELEMENTS_INLINE, decide
from penstock._frozen import frozen
from penstock._graph import (
    DROPPED,
    Block,
    Context,
    Element,
    Filter,
    Integers,
    Map,
    Node,
    element_after_crash,
    evaluate_block,
    is_indexable,
    join_blocks,
    length,
    seed_position_block,
)
from penstock._streaming._empty_passes import EmptyPasses
from penstock._streaming._policy import CHUNK_SECONDS, INPUT_ELEMENTS
from penstock._streaming._stage import (
    EPOCH,
    INPUT,
    POSITION,
    Chunk,
    InputProgress,
    Picked,
    Provenance,
    Stage,
    Token,
    check_number,
    one_each,
    parts_of,
)
from penstock.errors import InternalError, StateError


class Span(NamedTuple):
    """Positions start, start + step, …: `total` of them."""

    start: int
    step: int
    total: int

    def positions(self, first: int, stop: int) -> Integers:
        """Return positions [first, stop) of the span."""
        return np.arange(first, stop, dtype=np.int64) * self.step + self.start

    def rest(self, index: int) -> "Span":
        """Return the span without its first `index` positions."""
        return Span(self.start + index * self.step, self.step, self.total - index)


class InputRange(NamedTuple):
    """The positions of an input that one rank reads in an epoch."""

    spans: tuple[Span, ...]
    snapshot: Token = None
    """Of a stream: the snapshot from which to read it."""

    @property
    def total(self) -> int:
        """The number of positions."""
        return sum(span.total for span in self.spans)

    def positions(self, start: int, stop: int) -> Integers:
        """Return positions [start, stop) of the range, by number."""
        parts: list[Integers] = []
        for span in self.spans:
            first, last = max(start, 0), min(stop, span.total)
            if first < last:
                parts.append(span.positions(first, last))
            start, stop = start - span.total, stop - span.total
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    @property
    def end(self) -> int:
        """The least position above all positions of the range."""
        return max((span.start + (span.total - 1) * span.step + 1 for span in self.spans if span.total), default=0)

    def has(self, position: int) -> bool:
        """Return whether a position is in the range."""
        return any(
            (position - span.start) % span.step == 0 and 0 <= position - span.start < span.total * span.step
            for span in self.spans
        )

    def is_dense_from(self, position: int) -> bool:
        """Return whether the range has every position from this one to its end."""
        return len(self.spans) == 1 and self.spans[0].step == 1 and self.spans[0].start <= position

    def split(self, progress: InputProgress) -> "tuple[InputRange, tuple[Span, ...]]":
        """Return the part of the range that was read, given the progress in it, and the spans of the rest."""
        read: list[Span] = []
        left: list[Span] = []
        index = progress.taken
        for span in self.spans:
            if progress.by_position:
                index = -((span.start - progress.taken) // span.step)  # the first number at or above the position
            first = min(max(index, 0), span.total)
            read += [span._replace(total=first)] if first else []
            left += [span.rest(first)] if first < span.total else []
            index -= span.total
        return InputRange(tuple(read), self.snapshot), tuple(left)


@frozen
class BlockInput:
    """The stage of a block input."""

    number: int
    node: Node
    epoch: int
    input_range: InputRange
    read: "Reader"
    context: Context
    at_once: int = INPUT_ELEMENTS
    """The maximal number of elements of a chunk, however little time they take."""
    empty_passes: EmptyPasses | None = None
    """Counts the elements that are left out; None if the input leaves nothing out, or has an end."""

    def start(self) -> Token:
        return 0

    def run(self, token: Token, /) -> Iterator[Chunk]:
        return self.read(self, token)

    def evaluate(self, start: int, stop: int, context: Context) -> Block:
        """Return the elements with numbers [start, stop)."""
        context.times.start(stop - start)
        if context.crashing_rows and self.among(start, stop, context.crashing_rows):
            return join_blocks(
                [self._evaluate_one(position, context) for position in self.input_range.positions(start, stop).tolist()]
            )
        positions = self.input_range.positions(start, stop)
        return evaluate_block(self.node, np.full(len(positions), self.epoch, np.int64), positions, context)

    def among(self, start: int, stop: int, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return the elements, keyed as in `Context.crashing_rows`, that are numbers [start, stop) of the range."""
        positions = self.input_range.positions(start, stop)
        ours = (each for each in elements if (each[0], each[2]) == (self.epoch, self.number))
        return {each for each in ours if each[1] in positions}

    def _evaluate_one(self, position: int, context: Context) -> Block:
        death = context.crashing_rows.get((self.epoch, position, self.number))
        if death is None:
            at = np.array([self.epoch], np.int64), np.array([position], np.int64)
            return evaluate_block(self.node, *at, context)
        element = element_after_crash(self.node, self.epoch, position, death, context)
        return Block([], np.empty(0, np.int64)) if element is DROPPED else Block([element], None)

    def chunk(self, start: int, stop: int, block: Block) -> Chunk:
        """Return the chunk of the block of numbers [start, stop)."""
        positions = self.input_range.positions(start, stop)
        numbers: Sequence[int] = range(start, stop)
        if self.empty_passes is not None:
            self.empty_passes.read_block(start, stop, block.kept)
        if block.kept is not None:
            positions = positions[block.kept]
            numbers = Picked(numbers, block.kept.tolist())
            self.context.filtered(self.node, len(block.elements), block.filtered)
        afters = (
            range(start + 1, stop + 1)
            if block.kept is None
            else Picked(range(start + 1, stop + 1), block.kept.tolist())
        )
        return Chunk(block.elements, self.provenance(positions), numbers, afters)

    def provenance(self, positions: Integers) -> Provenance:
        """Return the provenance of the elements at some positions."""
        provenance = np.empty((len(positions), 6), np.int64)
        epochs = np.full(len(positions), self.epoch, np.int64)
        provenance[:, INPUT], provenance[:, EPOCH], provenance[:, POSITION] = self.number, epochs, positions
        provenance[:, 3], provenance[:, 4], provenance[:, 5] = seed_position_block(self.node, epochs, positions)
        return provenance

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        if not tokens:
            return [], self.provenance(np.empty(0, np.int64))
        parts = [self.input_range.positions(token, token + 1) for token in tokens]
        positions = np.concatenate(parts)
        block = evaluate_block(self.node, np.full(len(positions), self.epoch, np.int64), positions, self.context)
        if len(block.elements) != len(tokens):
            raise StateError(
                "the state has the token of an element that a filter now leaves out. Its predicate must be a pure "
                "function, and the dataset the one that the state was saved from."
            )
        return block.elements, self.provenance(positions)

    def check(self, token: Token, /) -> None:
        check_number(token, self.input_range.total, "an input")

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        return (InputProgress(token),)

    def is_exhausted(self, token: Token, /) -> bool:
        return bool(token >= self.input_range.total)


Reader: TypeAlias = Callable[[BlockInput, int], Iterator[Chunk]]
"""Yields the chunks of a block input from some number on, computed inline or by workers."""


def never(number: int) -> bool:
    """Return False: reading goes on."""
    del number
    return False


def unheld() -> None:
    """Do nothing: no complete batch waits for elements to be computed."""


def read_inline(
    block_input: BlockInput, start: int, ends: Callable[[int], bool] = never, before: Callable[[], None] = unheld
) -> Generator[Chunk, None, int]:
    """Yield chunks computed inline: of one element first, then of as many as take a few milliseconds.

    Args:
        block_input: the input.
        start: the number of the first element.
        ends: asked with the number of the next element, when those before it were used, whether to end before it.
        before: called before elements are computed, which may take long.

    Returns:
        The number of the next element.
    """
    end = block_input.input_range.total
    size = 1
    while start < end:
        stop = min(start + decide(INPUT_ELEMENTS_INLINE, size, block_input.at_once), end)
        before()
        began = time.perf_counter()
        block: Block | None = None
        with CaughtFailure():  # raised again below, for the element that it belongs to
            block = block_input.evaluate(start, stop, block_input.context)
        if block is None:
            yield from one_by_one(block_input, start, stop, before)
        else:
            seconds = time.perf_counter() - began
            yield block_input.chunk(start, stop, block)
            size = min(size * 2, block_input.at_once) if seconds < CHUNK_SECONDS else max(size // 2, 1)
        start = stop
        if ends(stop):
            break
    return start


def one_by_one(block_input: BlockInput, start: int, stop: int, before: Callable[[], None] = unheld) -> Iterator[Chunk]:
    """Yield chunks of one element, so that elements before a failing one come first; `before` as for `read_inline`."""
    for index in range(start, stop):
        before()
        yield block_input.chunk(index, index + 1, block_input.evaluate(index, index + 1, block_input.context))


def is_block_input(node: Node) -> bool:
    """Return whether a node's elements depend on positions alone; filters may leave some out."""
    return is_indexable(node) or (isinstance(node, Map | Filter) and is_block_input(node.parent))


def count_positions(node: Node) -> int:
    """Return the number of positions of a block input."""
    while not is_indexable(node):
        if not isinstance(node, Map | Filter):
            raise InternalError("a block input has filters and skipping maps over an indexable node")
        node = node.parent
    return length(node) or 0


class RankSegment(NamedTuple):
    """The input ranges of all inputs, and the token at which to start in them; None is the beginning."""

    input_ranges: tuple[InputRange, ...]
    token: Token = None
    held_at: Token = None
    """The token of the old rank whose segment this is, if a step below has other elements in it than that rank had; so
    the stages depend on it. None also in states of earlier versions."""


@frozen
class RankSegmentsStage:
    """The rank segments, one after the other. A token is (the segment's number, the token in it)."""

    rank_segments: tuple[RankSegment, ...]
    open_rank_segment: Callable[[RankSegment], Stage]

    def stage(self, number: int) -> Stage:
        """Return a segment's stage."""
        return self.open_rank_segment(self.rank_segments[number])

    def _start_of(self, number: int) -> Token:
        token = self.rank_segments[number].token
        return (number, self.stage(number).start() if token is None else token)

    def start(self) -> Token:
        return self._start_of(0)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        first, at = token
        for number in range(first, len(self.rank_segments)):
            if number > first:
                at = self._start_of(number)[1]
            for chunk in self.stage(number).run(at):
                yield chunk.wrapped(partial(_numbered, number))

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        number, at = parts_of(token, 2, of="a rank's part")
        check_number(number, len(self.rank_segments) - 1, "a rank's part")
        self.stage(number).check(at)
        for later in range(number + 1, len(self.rank_segments)):
            self.stage(later).check(self._start_of(later)[1])

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        return self.stage(token[0]).progress(token[1])

    def is_exhausted(self, token: Token, /) -> bool:
        if not self.stage(token[0]).is_exhausted(token[1]):
            return False
        later = (self._start_of(number) for number in range(token[0] + 1, len(self.rank_segments)))
        return all(self.stage(number).is_exhausted(at) for number, at in later)


@frozen
class EndedStage:
    """The stage of a rank whose part of the epoch has ended: it yields nothing, and nor do steps above it."""

    def start(self) -> Token:
        return 0

    def run(self, token: Token, /) -> Iterator[Chunk]:
        del token
        return iter(())

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        check_number(token, 0, "a part that has ended")

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        del token
        return ()

    def is_exhausted(self, token: Token, /) -> bool:
        del token
        return True


def _numbered(number: int, token: Token) -> Token:
    return (number, token)


def deal(
    unfinished: Sequence[tuple[RankSegmentsStage, Token]], ranks: int, *, keeps_held: bool
) -> list[tuple[RankSegment, ...]]:
    """Return each new rank's segments, given the tokens of all old ranks: every rank computes the same list.

    For each segment that an old rank has not ended, its token says how far each input was read (`Stage.progress`), and
    `InputRange.split` divides the range there. The read part, with the token, is a segment of a new rank, unless
    nothing is held open in it (`Stage.is_exhausted`). The unread parts of all are dealt.

    Args:
        unfinished: the segments and the token of each old rank.
        ranks: the number of new ranks.
        keeps_held: whether a step has other elements in an old rank's segment than that rank had.
    """
    open_rank_segments: list[RankSegment] = []
    left: list[list[Span]] = []
    snapshots: list[list[Token]] = []
    for stage, (current, at) in unfinished:
        for number in range(current, len(stage.rank_segments)):
            rank_segment = stage.rank_segments[number]
            token = at if number == current else rank_segment.token
            inputs = stage.stage(number).progress(stage.stage(number).start() if token is None else token)
            left = left or [[] for _ in inputs]
            snapshots = snapshots or [[] for _ in inputs]
            read: list[InputRange] = []
            for index, (input_range, progress) in enumerate(zip(rank_segment.input_ranges, inputs, strict=True)):
                done, rest = input_range.split(progress)
                read.append(done)
                left[index] += rest
                snapshots[index].append(progress.snapshot)
            if token is not None:
                is_first = rank_segment.token is None and keeps_held
                held = RankSegment(tuple(read), token, token if is_first else rank_segment.held_at)
                if not stage.open_rank_segment(held).is_exhausted(token):
                    open_rank_segments.append(held)
    dealt = [[_dealt(_joined(spans), rank, ranks) for spans in left] for rank in range(ranks)]
    return [
        (
            *open_rank_segments[rank::ranks],
            RankSegment(tuple(map(InputRange, dealt[rank], map(_earliest, snapshots)))),
        )
        for rank in range(ranks)
    ]


def _dealt(spans: Sequence[Span], rank: int, ranks: int) -> tuple[Span, ...]:
    """Return every `ranks`-th position of some spans, the first being number `rank`."""
    found: list[Span] = []
    before = 0
    for span in spans:
        first = (rank - before) % ranks
        count = len(range(first, span.total, ranks))
        if count:
            found.append(Span(span.start + first * span.step, span.step * ranks, count))
        before += span.total
    return tuple(found)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the same positions in few spans: the spans of all ranks of one deal join to one span without gaps."""
    found: list[Span] = []
    for step in sorted({span.step for span in spans}):
        alike = [span for span in spans if span.step == step]
        if len({span.start % step for span in alike}) < step or len(alike) > step:
            found += alike
            continue
        dense = max(span.start for span in alike) - step + 1  # every position from here on is in a span
        stop = min(span.start + span.total * step for span in alike)  # up to here
        if stop <= dense:
            found += alike
            continue
        for span in alike:
            early = len(range(span.start, dense, step))
            late = len(range(span.start, stop, step))
            found += [span._replace(total=early)] if early else []
            found += [Span(span.start + late * step, step, span.total - late)] if span.total > late else []
        found.append(Span(dense, 1, stop - dense))
    return sorted(found)


def _earliest(snapshots: list[Token]) -> Token:
    """Return the earliest of a stream's snapshots; None is the beginning."""
    return None if None in snapshots else min(snapshots, key=lambda snapshot: snapshot[0])
