"""The opening of a dataset that is read in order: from the nodes of the graph to stages, one above the other.

From the bottom: block inputs and streams; the stages of the folds, once for each rank segment; `RankSegmentsStage`,
which reads the segments one after the other; the stage of the outermost batch, with one rank's part of each global
batch; the stages of the steps above it. The segments are below the batch, so that a batch may continue over the end
of a segment. If workers collate, the merge and the functions next to it are left out here (`Opening.collate`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from penstock._frozen import frozen
from penstock._graph import (
    Batch,
    Bucket,
    Cache,
    Chain,
    Context,
    Filter,
    FlatMap,
    Limit,
    Map,
    Mix,
    Node,
    Pack,
    Read,
    Step,
    Stream,
    StreamingMix,
    Unbatch,
    UserFold,
    WindowShuffle,
    Zip,
    outermost_batch,
    parents_of,
)
from penstock._streaming._batch import BatchStage
from penstock._streaming._block_input import (
    BlockInput,
    InputRange,
    Reader,
    Span,
    count_positions,
    is_block_input,
)
from penstock._streaming._bucket import BucketStage
from penstock._streaming._chunk import Token, is_compound
from penstock._streaming._collate import Collate, collate_of
from penstock._streaming._each import FilterStage, MapStage
from penstock._streaming._join import ChainStage, ZipStage
from penstock._streaming._limit import LimitStage
from penstock._streaming._locations import InputRef
from penstock._streaming._mix import StreamingMixStage
from penstock._streaming._pack import PackStage
from penstock._streaming._rank_segments import RankSegment, RankSegmentsStage
from penstock._streaming._rows import RowsStage
from penstock._streaming._stage import Stage, StepStage
from penstock._streaming._stream import StreamStage
from penstock._streaming._user_fold import UserFoldStage
from penstock._streaming._window import WindowShuffleStage
from penstock.errors import InternalError

_ENDLESS = 1 << 62
_PARTS_AT_ONCE = 4096  # elements computed at once, over all inputs of a mixture

MAX_INPUTS: Final = 64
"""Workers read ahead for at most so many block inputs, since each takes slots of the ring, and memory."""


@frozen
class Opening:
    """The arguments of the stages."""

    epoch: int
    ranks: int
    read: Reader
    context: Context
    must_fill: bool = False
    """Whether a rank that runs out of data before the limit on which all ranks end is an error."""
    collate: Collate | None = None
    """Steps that are left out, since workers compute them."""

    def leaves_out(self, node: Node) -> bool:
        """Return whether a node is one of the steps that are left out."""
        return self.collate is not None and self.collate.has(node)


class _Opened(NamedTuple):
    stage: Stage
    inputs: Mapping[int, InputRef]


def inputs_of(node: Node) -> list[Node]:
    """Return the inputs of a dataset that is read in order: its streams and block inputs, in the order of the parts.

    The outermost batch is part of no input, since each rank merges its own part of the rows.
    """
    return [input_ref.node for input_ref in _input_refs(rank_segments_top(node))]


def worker_inputs(node: Node) -> list[Node]:
    """Return the block inputs, which workers can read ahead; none if the dataset has more than MAX_INPUTS inputs."""
    inputs = inputs_of(node)
    return [each for each in inputs if not isinstance(each, Stream)] if len(inputs) <= MAX_INPUTS else []


def reads_streams(node: Node) -> bool:
    """Return whether an input of the node is a stream."""
    return any(isinstance(each, Stream) for each in inputs_of(node))


def worker_collate(node: Node) -> Collate | None:
    """Return the steps above the last fold that workers compute; None if there are none, or too many inputs."""
    reads = bool(worker_inputs(node)) or all(isinstance(each, Stream) for each in inputs_of(node))
    return collate_of(node, outermost_batch(node)) if reads else None


def rank_segments_top(node: Node) -> Node:
    """Return the highest node that is opened for each rank segment: the parent of the outermost batch, or the top.

    A bucket belongs to the segments, since it holds elements open.
    """
    batch = outermost_batch(node)
    return batch.parent if isinstance(batch, Batch) else node


def even_limit(node: Node) -> Limit | None:
    """Return the limit at which all ranks end if they have enough data: the least one above the outermost batch.

    None if a step above it adds or leaves out elements.
    """
    if outermost_batch(node) is None:
        return None
    limits: list[Limit] = []
    while isinstance(node, Limit | WindowShuffle | Cache) or (isinstance(node, Map) and node.on_error != "skip"):
        if isinstance(node, Limit):
            limits.append(node)
        node = node.parent
    return min(limits, key=lambda limit: limit.count, default=None)


def first_rank_segment(node: Node, rank: int, ranks: int) -> RankSegment:
    """Return one rank's segment for a whole epoch: every `ranks`-th position of each input."""
    input_ranges: list[InputRange] = []
    for each in inputs_of(node):
        total = _ENDLESS if isinstance(each, Stream) else count_positions(each)
        input_ranges.append(InputRange((Span(rank, ranks, len(range(rank, total, ranks))),)))
    return RankSegment(tuple(input_ranges))


def open_stages(node: Node, rank_segments: tuple[RankSegment, ...], opening: Opening) -> Stage:
    """Return the top stage of a node, over the segments of one rank."""
    batch, top = outermost_batch(node), rank_segments_top(node)
    opener = _Opener(opening, batch, even_limit(node) if opening.must_fill else None)
    stage: Stage = RankSegmentsStage(rank_segments, lambda rank_segment: opener.open_rank_segment(top, rank_segment))
    inputs = input_refs_of(node)
    if isinstance(batch, Batch):
        collate = opening.collate
        merges, gives_rest = collate is None or collate.merge is None, collate is not None and bool(collate.rows)
        stage = BatchStage(batch, batch.size // opening.ranks, stage, merges, gives_rest)
        for step in _steps_above(node, batch):
            if not opening.leaves_out(step):
                stage = opener.step(step, _Opened(stage, inputs))
    return stage


def rank_segments_of(stage: Stage, token: Token) -> tuple[RankSegmentsStage, Token]:
    """Return the `RankSegmentsStage` below a top stage, and its part of a token.

    Raises:
        InternalError: the stage isn't from `open_stages`.
    """
    at = token
    while not isinstance(stage, RankSegmentsStage):
        if isinstance(stage, LimitStage | RowsStage | WindowShuffleStage) and is_compound(at):
            at = at[0]
        if not isinstance(stage, MapStage | FilterStage | BatchStage | LimitStage | RowsStage | WindowShuffleStage):
            raise InternalError("a top stage is over a stage of rank segments")
        stage = stage.below
    return stage, at


def input_refs_of(node: Node) -> Mapping[int, InputRef]:
    """Return the inputs by their numbers, each with its component as seen from the batches."""
    return dict(enumerate(_input_refs(rank_segments_top(node))))


def first_read(stage: Stage, token: Token) -> tuple[BlockInput, int]:
    """Return the block input below a stage with a single input, and the number in it at which a token begins."""
    rank_segments, at = rank_segments_of(stage, token)
    below, index = rank_segments.stage(at[0]), at[1]
    while not isinstance(below, BlockInput):
        if not isinstance(below, StepStage):
            raise InternalError("the stage has a single input")
        below = below.below
    while is_compound(index):
        index = index[0]  # of every token's parts the first is the parent's
    return below, index


def _steps_above(node: Node, batch: Batch) -> list[Step]:
    steps: list[Step] = []
    while node is not batch:
        if isinstance(node, Read | Stream | Mix | Chain | Zip | StreamingMix):
            raise InternalError("each step above the outermost batch has one parent")
        steps.append(node)
        node = node.parent
    return steps[::-1]


@frozen
class _Opener:
    """Opens nodes.

    Attributes:
        opening: the arguments of the stages.
        outermost: the batch that the ranks share, if there is one.
        even_limit: the limit that every rank must fill, if there is one.
    """

    opening: Opening
    outermost: Batch | Bucket | None
    even_limit: Limit | None

    def open_rank_segment(self, node: Node, rank_segment: RankSegment) -> Stage:
        """Return a node's stage over one segment."""
        share = max(_PARTS_AT_ONCE // max(len(rank_segment.input_ranges), 1), 1)
        return self._open(node, rank_segment, 0, share).stage

    def _open(self, node: Node, rank_segment: RankSegment, first: int, share: int) -> _Opened:
        """Return a node's stage; its inputs are numbered from `first` on."""
        opening = self.opening
        if isinstance(node, Stream):
            return _Opened(
                StreamStage(first, node, opening.epoch, rank_segment.input_ranges[first]), {first: InputRef(node, "")}
            )
        if is_block_input(node):
            block_input = BlockInput(
                first, node, opening.epoch, rank_segment.input_ranges[first], opening.read, opening.context, share
            )
            return _Opened(block_input, {first: InputRef(node, "")})
        if isinstance(node, StreamingMix | Chain | Zip):
            return self._join(node, rank_segment, first, share)
        below = self._open(parents_of(node)[0], rank_segment, first, share)
        if opening.leaves_out(node):
            return below
        stage = self.step(node, below)
        if isinstance(stage, BucketStage) and rank_segment.token is not None:
            stage = replace(stage, keep_short=True)  # all elements that the old rank held open must come out
        return _Opened(stage, below.inputs)

    def _join(self, node: StreamingMix | Chain | Zip, rank_segment: RankSegment, first: int, share: int) -> _Opened:
        stages: list[Stage] = []
        inputs: dict[int, InputRef] = {}
        for name, part in zip(node.names, node.parts, strict=True):
            opened = self._open(part, rank_segment, first + len(inputs), share)
            stages.append(opened.stage)
            inputs |= {number: _within(name, input_ref) for number, input_ref in opened.inputs.items()}
        parts = tuple(stages)
        if isinstance(node, StreamingMix):
            # All elements that the old rank held open must come out, whichever part ends first.
            return _Opened(
                StreamingMixStage(replace(node, stop="all") if rank_segment.token is not None else node, parts), inputs
            )
        return _Opened(ChainStage(parts) if isinstance(node, Chain) else ZipStage(node, parts), inputs)

    def step(self, node: Node, below: _Opened) -> Stage:
        """Return the stage of a single step over an opened one."""
        stage, inputs = below
        match node:
            case Map():
                return MapStage(node, stage, inputs, self.opening.context)
            case Filter():
                return FilterStage(node, stage, inputs, self.opening.context)
            case Unbatch() | FlatMap():
                return RowsStage(node, stage, inputs, self.opening.context)
            case Batch():
                if isinstance(stage, PackStage):
                    stage = replace(stage, batched=node.size)
                return BatchStage(node, node.size, stage)
            case UserFold():
                return UserFoldStage(node, stage, inputs)
            case WindowShuffle():
                return WindowShuffleStage(node, stage, inputs)
            case Limit():
                return LimitStage(node, stage, must_fill=node is self.even_limit)
            case Pack():
                batch = self.outermost
                if isinstance(batch, Batch) and batch.parent is node:
                    return PackStage(node, stage, inputs, batch.size // self.opening.ranks)
                return PackStage(node, stage, inputs)
            case Bucket():
                ranks = self.opening.ranks if node is self.outermost else 1
                rows = tuple(count // ranks for count in node.bucketing.rows)
                return BucketStage(node, rows, node.bucketing.keep_short, stage, inputs)
            case _:
                raise InternalError(f"{type(node).__name__} has no stage")


def _input_refs(node: Node) -> list[InputRef]:
    if isinstance(node, Stream) or is_block_input(node):
        return [InputRef(node, "")]
    if isinstance(node, StreamingMix | Chain | Zip):
        parts = zip(node.names, node.parts, strict=True)
        return [_within(name, input_ref) for name, part in parts for input_ref in _input_refs(part)]
    return _input_refs(parents_of(node)[0])


def _within(name: str, input_ref: InputRef) -> InputRef:
    return input_ref._replace(component=f"{name}/{input_ref.component}" if input_ref.component else name)
