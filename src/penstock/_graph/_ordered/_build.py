"""Opening the steps of an ordered dataset: from the graph to stages, one on top of the other.

The outermost batch holds one rank's part of every global batch. Below it stand the legs, so that batches go on over
the end of a leg.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from penstock._frozen import frozen
from penstock._graph._apply import Context
from penstock._graph._nodes import (
    Batch,
    Bucket,
    Cache,
    Chain,
    Filter,
    FlatMap,
    Limit,
    Map,
    Mix,
    Node,
    OrderedMix,
    Pack,
    Read,
    Step,
    Stream,
    Unbatch,
    WindowShuffle,
    Zip,
    parents_of,
)
from penstock._graph._ordered._batch import BatchStage
from penstock._graph._ordered._bucket import BucketStage
from penstock._graph._ordered._chunk import Token, is_compound
from penstock._graph._ordered._each import FilterStage, MapStage
from penstock._graph._ordered._join import ChainStage, ZipStage
from penstock._graph._ordered._leaf import Leaf, LeafCourse, Reader, Span, count_positions, is_leaf
from penstock._graph._ordered._legs import Leg, LegsStage
from penstock._graph._ordered._limit import LimitStage
from penstock._graph._ordered._mix import OrderedMixStage
from penstock._graph._ordered._pack import PackStage
from penstock._graph._ordered._places import Whence
from penstock._graph._ordered._rows import RowsStage
from penstock._graph._ordered._stage import Stage, StepStage
from penstock._graph._ordered._stream import StreamStage
from penstock._graph._ordered._tail import Tail, tail_of
from penstock._graph._ordered._window import WindowShuffleStage
from penstock._graph._outermost_batch import outermost_batch
from penstock.errors import InternalError

_ENDLESS = 1 << 62
_PARTS_AT_ONCE = 4096  # elements computed at once, over all leaves of a mixture

MOST_LEAVES: Final = 64
"""Each leaf takes slots of the ring; beyond, reading ahead for all would take more memory."""


@frozen
class Opening:
    """What stages are opened with."""

    epoch: int
    ranks: int
    read: Reader
    context: Context
    must_fill: bool = False
    """Whether a rank that runs out of data before the limit on which all ranks end is an error."""
    tail: Tail | None = None
    """Steps that are left out, since others compute them."""

    def leaves_out(self, node: Node) -> bool:
        """Return whether a node is one of these steps."""
        return self.tail is not None and self.tail.has(node)


class _Opened(NamedTuple):
    stage: Stage
    leaves: Mapping[int, Whence]


def leaves_of(node: Node) -> list[Node]:
    """Return what an ordered dataset is computed from: its streams, and its highest nodes without a fold below.

    The outermost batch is in none of them, since each rank makes its own part of every batch from rows.
    """
    return [whence.node for whence in _whences(legs_top(node))]


def worker_leaves(node: Node) -> list[Node]:
    """Return the leaves that workers can read ahead: all but streams, and none where there are too many."""
    leaves = leaves_of(node)
    return [leaf for leaf in leaves if not isinstance(leaf, Stream)] if len(leaves) <= MOST_LEAVES else []


def reads_streams(node: Node) -> bool:
    """Return whether an ordered node is computed from a stream, beside other leaves or alone."""
    return any(isinstance(leaf, Stream) for leaf in leaves_of(node))


def worker_tail(node: Node) -> Tail | None:
    """Return the steps above the folds, if there are some and workers compute them: not where they read no leaves."""
    reads = bool(worker_leaves(node)) or all(isinstance(leaf, Stream) for leaf in leaves_of(node))
    return tail_of(node, outermost_batch(node)) if reads else None


def legs_top(node: Node) -> Node:
    """Return the highest node of an ordered dataset that is opened over each leg: what the outermost batch is made of.

    A bucket is opened with the legs, since it holds elements open.
    """
    batch = outermost_batch(node)
    return batch.parent if isinstance(batch, Batch) else node


def even_limit(node: Node) -> Limit | None:
    """Return the limit on which all ranks end, if they have data enough: the least one above the outermost batch.

    Above it there are only steps that leave no element out and add none.
    """
    if outermost_batch(node) is None:
        return None
    limits: list[Limit] = []
    while isinstance(node, Limit | WindowShuffle | Cache) or (isinstance(node, Map) and node.on_error != "skip"):
        if isinstance(node, Limit):
            limits.append(node)
        node = node.parent
    return min(limits, key=lambda limit: limit.count, default=None)


def first_leg(node: Node, rank: int, ranks: int) -> Leg:
    """Return one rank's way through an epoch: every `ranks`-th position of each leaf."""
    courses: list[LeafCourse] = []
    for leaf in leaves_of(node):
        total = _ENDLESS if isinstance(leaf, Stream) else count_positions(leaf)
        courses.append(LeafCourse((Span(rank, ranks, len(range(rank, total, ranks))),)))
    return Leg(tuple(courses))


def open_stages(node: Node, legs: tuple[Leg, ...], opening: Opening) -> Stage:
    """Return the top stage of a node, over the legs of one rank."""
    batch, top = outermost_batch(node), legs_top(node)
    opener = _Opener(opening, batch, even_limit(node) if opening.must_fill else None)
    stage: Stage = LegsStage(legs, lambda leg: opener.open_leg(top, leg))
    leaves = whences_of(node)
    if isinstance(batch, Batch):
        tail = opening.tail
        merges, gives_rest = tail is None or tail.merge is None, tail is not None and bool(tail.rows)
        stage = BatchStage(batch, batch.size // opening.ranks, stage, merges, gives_rest)
        for step in _steps_above(node, batch):
            if not opening.leaves_out(step):
                stage = opener.step(step, _Opened(stage, leaves))
    return stage


def legs_of(stage: Stage, token: Token) -> tuple[LegsStage, Token]:
    """Return the legs that a top stage stands on, and their token.

    Raises:
        InternalError: never for a stage that `open_stages` made.
    """
    at = token
    while not isinstance(stage, LegsStage):
        if isinstance(stage, LimitStage | RowsStage | WindowShuffleStage) and is_compound(at):
            at = at[0]
        if not isinstance(stage, MapStage | FilterStage | BatchStage | LimitStage | RowsStage | WindowShuffleStage):
            raise InternalError("there is always a stage of legs")
        stage = stage.below
    return stage, at


def whences_of(node: Node) -> Mapping[int, Whence]:
    """Return what the leaves of an ordered dataset are, as its batches see them."""
    return dict(enumerate(_whences(legs_top(node))))


def first_read(stage: Stage, token: Token) -> tuple[Leaf, int]:
    """Return the leaf that a stage of a single leaf stands on, and where a token lets it begin."""
    legs, at = legs_of(stage, token)
    below, index = legs.stage(at[0]), at[1]
    while not isinstance(below, Leaf):
        if not isinstance(below, StepStage):
            raise InternalError("there is a single leaf")
        below = below.below
    while is_compound(index):
        index = index[0]  # of every token's parts the first is the parent's
    return below, index


def _steps_above(node: Node, batch: Batch) -> list[Step]:
    steps: list[Step] = []
    while node is not batch:
        if isinstance(node, Read | Stream | Mix | Chain | Zip | OrderedMix):
            raise InternalError("only single steps stand above the outermost batch")
        steps.append(node)
        node = node.parent
    return steps[::-1]


@frozen
class _Opener:
    """Opens nodes.

    Attributes:
        opening: what they are opened with.
        outermost: the batch that the ranks share, if there is one.
        even_limit: the limit that every rank must fill, if there is one.
    """

    opening: Opening
    outermost: Batch | Bucket | None
    even_limit: Limit | None

    def open_leg(self, node: Node, leg: Leg) -> Stage:
        """Return a node's stage over one leg."""
        share = max(_PARTS_AT_ONCE // max(len(leg.courses), 1), 1)
        return self._open(node, leg, 0, share).stage

    def _open(self, node: Node, leg: Leg, first: int, share: int) -> _Opened:
        """Return a node's stage; its leaves are numbered from `first` on."""
        opening = self.opening
        if isinstance(node, Stream):
            return _Opened(StreamStage(first, node, opening.epoch, leg.courses[first]), {first: Whence(node, "")})
        if is_leaf(node):
            leaf = Leaf(first, node, opening.epoch, leg.courses[first], opening.read, opening.context, share)
            return _Opened(leaf, {first: Whence(node, "")})
        if isinstance(node, OrderedMix | Chain | Zip):
            return self._join(node, leg, first, share)
        below = self._open(parents_of(node)[0], leg, first, share)
        if opening.leaves_out(node):
            return below
        stage = self.step(node, below)
        if isinstance(stage, BucketStage) and leg.token is not None:
            stage = replace(stage, keep_short=True)  # what was held open must all come out
        return _Opened(stage, below.leaves)

    def _join(self, node: OrderedMix | Chain | Zip, leg: Leg, first: int, share: int) -> _Opened:
        stages: list[Stage] = []
        leaves: dict[int, Whence] = {}
        for name, part in zip(node.names, node.parts, strict=True):
            opened = self._open(part, leg, first + len(leaves), share)
            stages.append(opened.stage)
            leaves |= {number: _within(name, whence) for number, whence in opened.leaves.items()}
        parts = tuple(stages)
        if isinstance(node, OrderedMix):
            # What was held open must all come out, however the parts end.
            return _Opened(OrderedMixStage(replace(node, stop="all") if leg.token is not None else node, parts), leaves)
        return _Opened(ChainStage(parts) if isinstance(node, Chain) else ZipStage(node, parts), leaves)

    def step(self, node: Node, below: _Opened) -> Stage:
        """Return the stage of a single step over an opened one."""
        stage, leaves = below
        match node:
            case Map():
                return MapStage(node, stage, leaves, self.opening.context)
            case Filter():
                return FilterStage(node, stage, leaves, self.opening.context)
            case Unbatch() | FlatMap():
                return RowsStage(node, stage, leaves, self.opening.context)
            case Batch():
                if isinstance(stage, PackStage):
                    stage = replace(stage, batched=node.size)
                return BatchStage(node, node.size, stage)
            case WindowShuffle():
                return WindowShuffleStage(node, stage, leaves)
            case Limit():
                return LimitStage(node, stage, must_fill=node is self.even_limit)
            case Pack():
                batch = self.outermost
                if isinstance(batch, Batch) and batch.parent is node:
                    return PackStage(node, stage, leaves, batch.size // self.opening.ranks)
                return PackStage(node, stage, leaves)
            case Bucket():
                ranks = self.opening.ranks if node is self.outermost else 1
                rows = tuple(count // ranks for count in node.bucketing.rows)
                return BucketStage(node, rows, node.bucketing.keep_short, stage, leaves)
            case _:
                raise InternalError(f"{type(node).__name__} is not a step that is read in order")


def _whences(node: Node) -> list[Whence]:
    if isinstance(node, Stream) or is_leaf(node):
        return [Whence(node, "")]
    if isinstance(node, OrderedMix | Chain | Zip):
        parts = zip(node.names, node.parts, strict=True)
        return [_within(name, whence) for name, part in parts for whence in _whences(part)]
    return _whences(parents_of(node)[0])


def _within(name: str, whence: Whence) -> Whence:
    return whence._replace(component=f"{name}/{whence.component}" if whence.component else name)
