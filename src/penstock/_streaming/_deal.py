"""Resuming on another number of ranks: the rank segments of a new rank, given the states of all old ranks.

Also the JSON form of segments in a state.
"""

from collections.abc import Sequence

from penstock._graph import Context, Limit, Node, Stream, Zip, walk
from penstock._streaming._batch import BatchStage
from penstock._streaming._block_input import InputRange, Span, count_positions, is_block_input, read_inline
from penstock._streaming._build import Opening, inputs_of, open_stages, rank_segments_of, rank_segments_top
from penstock._streaming._chunk import Token, is_compound
from penstock._streaming._limit import LimitStage
from penstock._streaming._rank_segments import RankSegment, RankSegmentsStage, deal
from penstock._streaming._rows import RowsStage
from penstock._streaming._stage import LARGEST, Stage, StepStage, check_number, parts_of, refuse
from penstock._streaming._stream import check_snapshot
from penstock._streaming._window import WindowShuffleStage
from penstock.errors import StateError


def dealt_rank_segments(
    node: Node, old: Sequence[tuple[int, tuple[RankSegment, ...], Token]], rank: int, ranks: int
) -> tuple[int, tuple[RankSegment, ...], Token]:
    """Return the epoch, the segments and the token of one new rank.

    Args:
        node: the dataset.
        old: the epoch, the segments and the token of each old rank.
        rank: the number of the new rank.
        ranks: the number of new ranks.

    Raises:
        StateError: elements that a step holds open can't be dealt.
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
                    "the states are in different epochs, so their remaining elements can't be dealt to other ranks. "
                    "Save all ranks' states at the same step."
                )
            continue  # this rank has read all of its part of the epoch
        _check_whole(stage, token)
        unfinished.append(rank_segments_of(stage, token))
        tokens.append((stage, token))
    rank_segments = deal(unfinished, ranks)[rank]
    stage = open_stages(node, rank_segments, Opening(epoch, ranks, read_inline, Context()))
    return epoch, rank_segments, _counted(stage, stage.start(), tokens)


def _counted(stage: Stage, token: Token, old: list[tuple[Stage, Token]]) -> Token:
    """Return the token with the largest counts of limits above the outermost batch among the old ranks' tokens."""
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
    """Raise a StateError for a state within an unbatched batch, or within a window of batches."""
    while isinstance(stage, StepStage) and not isinstance(stage, RankSegmentsStage | BatchStage):
        if isinstance(stage, RowsStage | WindowShuffleStage):
            if token[1]:
                raise StateError(
                    "the state was saved within a batch that unbatch() or flat_map() takes apart, or within a window "
                    "of batches, which can't be dealt to another number of ranks. Resume on as many ranks as saved the "
                    "states, or save where a batch ends."
                )
            token = token[0]
        elif isinstance(stage, LimitStage):
            token = token[0]
        stage = stage.below


def _check_steps(node: Node) -> None:
    """Raise a StateError if a step can't be dealt to other ranks within an epoch."""
    for step in walk(rank_segments_top(node)):
        if isinstance(step, Zip | Limit) and not is_block_input(step):
            raise StateError(
                f"{type(step).__name__.lower()} over datasets that are read in order can't be dealt to another number "
                "of ranks within an epoch. Resume on as many ranks as saved the states."
            )


def rank_segments_to_json(rank_segments: tuple[RankSegment, ...]) -> Token:
    """Return segments as nested tuples of integers and strings."""
    return tuple(
        (
            tuple((tuple(map(tuple, spans)), snapshot) for spans, snapshot in rank_segment.input_ranges),
            rank_segment.token,
        )
        for rank_segment in rank_segments
    )


def rank_segments_from_json(value: Token, node: Node) -> tuple[RankSegment, ...]:
    """Return the segments from the result of `rank_segments_to_json`. Their tokens are not checked.

    Raises:
        StateError: this dataset can't have such segments.
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
    """Return an input range from its JSON form; a StateError says that the input has other positions."""
    spans, snapshot = parts_of(value, 2, of="a rank's part of an input")
    total = LARGEST if isinstance(node, Stream) else count_positions(node)
    if isinstance(node, Stream):
        check_snapshot(node, snapshot, LARGEST)
    elif snapshot is not None:
        refuse(snapshot, "only a stream has a state of its own")
    found: list[Span] = []
    for span in _some(spans, "a rank's part of an input has runs of positions"):
        start, step, count = parts_of(span, 3, of="a run of positions")
        check_number(start, total, "a run of positions")
        check_number(step, LARGEST, "a run of positions")
        check_number(count, total, "a run of positions")
        if not step or (count and start + (count - 1) * step >= total):
            refuse(span, f"a run of positions has positions below {total:,}")
        found.append(Span(start, step, count))
    return InputRange(tuple(found), snapshot)
