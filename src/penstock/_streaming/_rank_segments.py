"""Rank segments: the parts of an epoch that one rank reads one after the other.

With an unchanged number of ranks there is one segment: every `count`-th position of each input. A resume on another
number of ranks must lose no element and repeat none, and the old ranks are in the midst of folds: half an unbatched
batch, a window, open sequences. These can't be divided by positions.

So each old rank that holds elements open becomes a *segment* of some new rank. It has the old rank's token, and its
input ranges, cut off where the old rank had read to, so it yields what was held open and ends. The unread positions
of all old ranks are dealt to the new ranks in turn, as the last segment of each. Both are arithmetic on tokens;
nothing is read.

Invariant: the segments of all new ranks have each unread position once, and each old rank's held elements once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock._frozen import frozen
from penstock._graph import Element
from penstock._streaming._block_input import InputRange, Span
from penstock._streaming._chunk import Chunk, Lazy, Provenance, Token
from penstock._streaming._stage import Point, Stage, check_number, one_each, parts_of


class RankSegment(NamedTuple):
    """The input ranges of all inputs, and the token at which to start in them; None is the beginning."""

    input_ranges: tuple[InputRange, ...]
    token: Token = None


@frozen
class RankSegmentsStage:
    """The segments, one after the other. A token is (the segment's number, the token in it)."""

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
                yield _numbered(chunk, number)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        number, at = parts_of(token, 2, of="a rank's part")
        check_number(number, len(self.rank_segments) - 1, "a rank's part")
        self.stage(number).check(at)
        for later in range(number + 1, len(self.rank_segments)):
            self.stage(later).check(self._start_of(later)[1])

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.stage(token[0]).points(token[1])

    def is_exhausted(self, token: Token, /) -> bool:
        if not self.stage(token[0]).is_exhausted(token[1]):
            return False
        later = (self._start_of(number) for number in range(token[0] + 1, len(self.rank_segments)))
        return all(self.stage(number).is_exhausted(at) for number, at in later)


def _numbered(chunk: Chunk, number: int) -> Chunk:
    starts, afters, count = chunk.starts, chunk.afters, len(chunk.elements)
    return chunk._replace(
        starts=Lazy(count, lambda index: (number, starts[index])),
        afters=Lazy(count, lambda index: (number, afters[index])),
    )


def deal(unfinished: Sequence[tuple[RankSegmentsStage, Token]], ranks: int) -> list[tuple[RankSegment, ...]]:
    """Return each new rank's segments, given the tokens of all old ranks.

    Args:
        unfinished: the segments and the token of each old rank.
        ranks: the number of new ranks.
    """
    open_rank_segments: list[RankSegment] = []
    left: list[list[Span]] = []
    snapshots: list[list[Token]] = []
    for stage, (current, at) in unfinished:
        for number in range(current, len(stage.rank_segments)):
            rank_segment = stage.rank_segments[number]
            token = at if number == current else rank_segment.token
            points = stage.stage(number).points(stage.stage(number).start() if token is None else token)
            left = left or [[] for _ in points]
            snapshots = snapshots or [[] for _ in points]
            read: list[InputRange] = []
            for index, (input_range, point) in enumerate(zip(rank_segment.input_ranges, points, strict=True)):
                done, rest = input_range.split(point)
                read.append(done)
                left[index] += rest
                snapshots[index].append(point.snapshot)
            if token is not None:
                held = RankSegment(tuple(read), token)
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
