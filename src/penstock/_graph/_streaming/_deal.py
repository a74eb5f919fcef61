"""Going on with other ranks: the legs of every new rank, from where all old ranks stand; and legs in a state."""

from collections.abc import Sequence

from penstock._graph._apply import Context
from penstock._graph._nodes import Limit, Node, Stream, Zip, walk
from penstock._graph._streaming._batch import BatchStage
from penstock._graph._streaming._block_input import InputRange, Span, count_positions, is_block_input, read_inline
from penstock._graph._streaming._build import Opening, inputs_of, open_stages, rank_segments_of, rank_segments_top
from penstock._graph._streaming._chunk import Token, is_compound
from penstock._graph._streaming._limit import LimitStage
from penstock._graph._streaming._rank_segments import RankSegment, RankSegmentsStage, deal
from penstock._graph._streaming._rows import RowsStage
from penstock._graph._streaming._stage import LARGEST, Stage, StepStage, check_number, parts_of, refuse
from penstock._graph._streaming._stream import check_snapshot
from penstock._graph._streaming._window import WindowShuffleStage
from penstock.errors import StateError


def dealt_rank_segments(
    node: Node, old: Sequence[tuple[int, tuple[RankSegment, ...], Token]], rank: int, ranks: int
) -> tuple[int, tuple[RankSegment, ...], Token]:
    """Return the epoch, the legs and the token of one new rank.

    Args:
        node: the dataset.
        old: the epoch, the legs and the token of every old rank.
        rank: which new rank.
        ranks: how many new ranks there are.

    Raises:
        StateError: if what is held open can't be dealt.
    """
    _check_steps(node)
    epoch = min(epoch for epoch, _, _ in old)
    unfinished: list[tuple[RankSegmentsStage, Token]] = []
    tokens: list[tuple[Stage, Token]] = []
    for its_epoch, rank_segments, token in old:
        stage = open_stages(node, rank_segments, Opening(its_epoch, len(old), read_inline, Context()))
        if its_epoch > epoch:
            if its_epoch > epoch + 1 or token != stage.start():
                raise StateError(
                    "the ranks stand in different epochs, and what is left of them can't be dealt to others. Save "
                    "all ranks' states at the same step."
                )
            continue  # this rank has read its part of the epoch to the end
        _check_whole(stage, token)
        unfinished.append(rank_segments_of(stage, token))
        tokens.append((stage, token))
    rank_segments = deal(unfinished, ranks)[rank]
    stage = open_stages(node, rank_segments, Opening(epoch, ranks, read_inline, Context()))
    return epoch, rank_segments, _counted(stage, stage.start(), tokens)


def _counted(stage: Stage, token: Token, old: list[tuple[Stage, Token]]) -> Token:
    """Return the token with the counts of steps above the outermost batch as far as the old ranks' were."""
    if isinstance(stage, LimitStage):
        below = [(one.below, at[0]) for one, at in old if isinstance(one, LimitStage)]
        return (_counted(stage.below, token[0], below), max((at[1] for _, at in old), default=0))
    if isinstance(stage, RankSegmentsStage) or not isinstance(stage, StepStage):
        return token
    inner = stage.below
    if is_compound(token) and len(token) == 2 and token[1] == 0 and token[0] == inner.start():
        return token
    return _counted(inner, token, [(one.below, at) for one, at in old if isinstance(one, StepStage)])


def _check_whole(stage: Stage, token: Token) -> None:
    """Raise where a state stands within a batch that was taken apart again, or a window of batches."""
    while isinstance(stage, StepStage) and not isinstance(stage, RankSegmentsStage | BatchStage):
        if isinstance(stage, RowsStage | WindowShuffleStage):
            if token[1]:
                raise StateError(
                    "the state stands within what a step above the outermost batch made of several batches or of a "
                    "part of one, which can't be dealt to another number of ranks. Resume on as many ranks as saved "
                    "the states, or save where a batch ends."
                )
            token = token[0]
        elif isinstance(stage, LimitStage):
            token = token[0]
        stage = stage.below


def _check_steps(node: Node) -> None:
    """Raise where an epoch that was begun can't be dealt to other ranks."""
    for step in walk(rank_segments_top(node)):
        if isinstance(step, Zip | Limit) and not is_block_input(step):
            raise StateError(
                f"{type(step).__name__.lower()} over datasets that are read in order can't be dealt to another number "
                "of ranks within an epoch. Resume on as many ranks as saved the states."
            )


def to_json(rank_segments: tuple[RankSegment, ...]) -> Token:
    """Return legs as nested tuples of integers and strings."""
    return tuple(
        (
            tuple((tuple(map(tuple, spans)), snapshot) for spans, snapshot in rank_segment.input_ranges),
            rank_segment.token,
        )
        for rank_segment in rank_segments
    )


def from_json(value: Token, node: Node) -> tuple[RankSegment, ...]:
    """Return the legs that `to_json` described.

    Raises:
        StateError: they can't be those of a rank of this dataset. The tokens that they begin at are not looked at.
    """
    inputs = inputs_of(node)
    rank_segments: list[RankSegment] = []
    for rank_segment in _some(value, "a state after a change of ranks has parts that a rank reads"):
        input_ranges, token = parts_of(rank_segment, 2, of="a rank's part")
        parts = parts_of(input_ranges, len(inputs), of="a rank's part")
        rank_segments.append(
            RankSegment(tuple(_input_range(part, each) for part, each in zip(parts, inputs, strict=True)), token)
        )
    if not rank_segments:
        refuse(value, "a state after a change of ranks has parts that a rank reads")
    return tuple(rank_segments)


def _some(value: Token, needed: str) -> tuple[Token, ...]:
    if not is_compound(value):
        refuse(value, f"{needed}, as a list")
    return tuple(value)


def _input_range(value: Token, node: Node) -> InputRange:
    """Return what a rank reads of a leaf: positions that the leaf has."""
    spans, snapshot = parts_of(value, 2, of="a rank's part of a leaf")
    total = LARGEST if isinstance(node, Stream) else count_positions(node)
    if isinstance(node, Stream):
        check_snapshot(node, snapshot, LARGEST)
    elif snapshot is not None:
        refuse(snapshot, "only a stream has a state of its own")
    found: list[Span] = []
    for span in _some(spans, "a rank's part of a leaf has runs of positions"):
        start, step, count = parts_of(span, 3, of="a run of positions")
        check_number(start, total, "a run of positions")
        check_number(step, LARGEST, "a run of positions")
        check_number(count, total, "a run of positions")
        if not step or (count and start + (count - 1) * step >= total):
            refuse(span, f"a run of positions lies below {total:,}")
        found.append(Span(start, step, count))
    return InputRange(tuple(found), snapshot)
