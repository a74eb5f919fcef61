"""The opening of a dataset that is read in order: from the nodes of the graph to stages, at any token.

`open_stages` opens the nodes as stages, one above the other. From the bottom: block inputs and streams; the stages of
the folds, once for each rank segment; `RankSegmentsStage`, which reads the segments one after the other; the stage of
the outermost batch, with one rank's part of each global batch; the stages of the steps above it. The segments are below
the batch, so that a batch may continue over the end of a segment. If workers collate, the merge and the functions next
to it are left out here (`Opening.collate`).

*Going to a position* (`token_at`) is arithmetic, and reads nothing, if each element follows from one position below:
above functions, filters, and steps that take one element apart. The outermost batch may be above them, since batches
may start anywhere. It is impossible above a step whose results depend on how many elements came before: only reading
from the beginning of the epoch shows how many these are. An epoch's own beginning can be reached in every dataset.

*Resuming on another number of ranks* (`dealt_rank_segments`) computes the rank segments of a new rank, given the states
of all old ranks.

*A keeping step* (`_keeping_step`) has other elements in an old rank's segment than that rank had: it would leave out
elements that it holds open when its inputs end, and keeps them there (`keeping_all`), so that none is lost. But a step
above it may have held elements open, too, and must get the same ones again. So `_Opener._held` opens the steps above
twice, and `LeftStage` (`_held`) reads one chain after the other: first over the step as the old rank had it, up to the
place where that rank had read it; then, with nothing held open above, over the step that keeps all. The place is in the
old rank's token, `RankSegment.held_at`. Each part of a mixture may have a keeping step of its own, so `_combine` does
the same with the token's entry for each part.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeGuard

from penstock._frozen import frozen
from penstock._graph import (
    Batch,
    Cache,
    Combine,
    Context,
    Filter,
    Fold,
    Gather,
    Map,
    Node,
    Read,
    Split,
    Step,
    Stream,
    is_batch,
    outermost_batch,
    parents_of,
    verb_text,
    walk,
)
from penstock._streaming._batch import BatchStage
from penstock._streaming._collate import Collate, collate_of
from penstock._streaming._combine import CombineStage, combining_of
from penstock._streaming._elementwise import FilterStage, MapStage, RowsStage
from penstock._streaming._empty_passes import empty_passes_of
from penstock._streaming._fold import FoldStage, folding_of
from penstock._streaming._held import LeftStage, UntilStage
from penstock._streaming._inputs import (
    BlockInput,
    EndedStage,
    InputRange,
    RankSegment,
    RankSegmentsStage,
    Reader,
    Span,
    count_positions,
    deal,
    is_block_input,
    read_inline,
)
from penstock._streaming._policy import INPUT_ELEMENTS, MAX_INPUTS, MAX_STREAM_ELEMENTS
from penstock._streaming._stage import (
    LARGEST,
    InputProgress,
    InputRef,
    SameTokenStage,
    Stage,
    StepStage,
    TimedStage,
    Token,
    check_number,
    is_compound,
    parts_of,
    refuse,
)
from penstock._streaming._stream import StreamStage, check_snapshot
from penstock.errors import InternalError, StateError, UsageError


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


def worker_collate(node: Node) -> Collate | None:
    """Return the steps above the last fold that workers compute; None if there are none, or too many block inputs."""
    inputs = inputs_of(node)
    can_read = len(inputs) <= MAX_INPUTS or all(isinstance(each, Stream) for each in inputs)
    return collate_of(node, outermost_batch(node)) if can_read else None


def rank_segments_top(node: Node) -> Node:
    """Return the highest node that is opened for each rank segment: the parent of the outermost batch, or the top.

    A fold that makes batches belongs to the segments, since it holds elements open.
    """
    batch = outermost_batch(node)
    return batch.parent if isinstance(batch, Gather) else node


def even_limit(node: Node) -> Fold | None:
    """Return the limit at which all ranks end if they have enough data: the least one above the outermost batch.

    None if a step above it adds or leaves out elements.
    """
    if outermost_batch(node) is None:
        return None
    least: Fold | None = None
    count = LARGEST
    while _passes_all(node):
        if isinstance(node, Fold) and node.value.limit is not None and node.value.limit < count:
            least, count = node, node.value.limit
        node = node.parent
    return least


def _passes_all(node: Node) -> TypeGuard[Fold | Cache | Map]:
    """Return whether a step above the outermost batch has as many elements as its parent, up to a limit."""
    match node:
        case Fold(value=value):
            return value.passes_all
        case Map(on_error=on_error):
            return on_error != "skip"
        case _:
            return isinstance(node, Cache)


def first_rank_segment(node: Node, rank: int, ranks: int) -> RankSegment:
    """Return one rank's segment for a whole epoch: every `ranks`-th position of each input."""
    input_ranges: list[InputRange] = []
    for each in inputs_of(node):
        total = LARGEST if isinstance(each, Stream) else count_positions(each)
        input_ranges.append(InputRange((Span(rank, ranks, len(range(rank, total, ranks))),)))
    return RankSegment(tuple(input_ranges))


def open_stages(node: Node, rank_segments: tuple[RankSegment, ...], opening: Opening) -> Stage:
    """Return the top stage of a node, over the segments of one rank; none if its part of the epoch has ended."""
    if not rank_segments:
        return EndedStage()
    batch, top = outermost_batch(node), rank_segments_top(node)
    opener = _Opener(opening, batch, even_limit(node) if opening.must_fill else None)
    stage: Stage = RankSegmentsStage(rank_segments, lambda rank_segment: opener.open_rank_segment(top, rank_segment))
    inputs = input_refs_of(node)
    if isinstance(batch, Gather):
        collate = opening.collate
        merges, gives_rest = collate is None or collate.merge is None, collate is not None and bool(collate.rows)
        stage = BatchStage(batch.value, batch.value.size // opening.ranks, stage, merges, gives_rest)
        stage = opener.timed(stage, batch)
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
        if not isinstance(stage, StepStage):
            raise InternalError("a top stage is over a stage of rank segments")
        at = _token_below(stage, at)
        stage = stage.below
    return stage, at


def _token_below(stage: StepStage, token: Token) -> Token:
    """Return the parent's token in a stage's token: the token itself, or its first entry."""
    return token if isinstance(stage, SameTokenStage) else token[0]


def _is_limit(stage: Stage) -> bool:
    """Return whether a stage counts elements up to a limit, in the second entry of its token."""
    return isinstance(stage, FoldStage) and stage.value.limit is not None


def input_refs_of(node: Node) -> Mapping[int, InputRef]:
    """Return the inputs by their numbers, each with its component as seen from the batches."""
    return dict(enumerate(_input_refs(rank_segments_top(node))))


def _steps_above(node: Node, batch: Gather[Batch]) -> list[Step]:
    steps: list[Step] = []
    while node is not batch:
        if isinstance(node, Read | Stream | Combine):
            raise InternalError("each step above the outermost batch has one parent")
        steps.append(node)
        node = node.parent
    return steps[::-1]


class _Lowest(NamedTuple):
    """A node below others that is opened already."""

    node: Node
    opened: _Opened


class _Inputs(NamedTuple):
    """The arguments of the inputs below a node.

    Attributes:
        ranges: those of all inputs of the segment.
        first: the number of the node's first input.
        share: the maximal number of elements of a chunk.
        keeps_all: whether all steps keep what an old rank held open.
        wanted: the number of elements that the steps above need for their next one; as of `StreamStage`.
    """

    ranges: tuple[InputRange, ...]
    first: int
    share: int
    keeps_all: bool
    wanted: int


@frozen
class _Opener:
    """Opens nodes.

    Attributes:
        opening: the arguments of the stages.
        outermost: the batch that the ranks share, if there is one.
        even_limit: the limit that every rank must fill, if there is one.
    """

    opening: Opening
    outermost: Gather[Batch] | Fold | None
    even_limit: Fold | None

    def open_rank_segment(self, node: Node, rank_segment: RankSegment) -> Stage:
        """Return a node's stage over one segment."""
        share = max(INPUT_ELEMENTS // max(len(rank_segment.input_ranges), 1), 1)
        batched = self.outermost.value.size // self.opening.ranks if isinstance(self.outermost, Gather) else 0
        held_at = rank_segment.held_at
        keeps_all = rank_segment.token is not None and held_at is None
        wanted = 1 if self.outermost is None else batched or MAX_STREAM_ELEMENTS
        inputs = _Inputs(rank_segment.input_ranges, 0, share, keeps_all, wanted)
        return self._held(node, inputs, held_at, batched, starts_there=True).stage

    def _open(self, node: Node, inputs: _Inputs, batched: int = 0, lowest: _Lowest | None = None) -> _Opened:
        """Return a node's stage.

        Args:
            node: the node.
            inputs: what its inputs read.
            batched: the number of rows of a batch directly above; 0 if there is none.
            lowest: a node that is opened already.
        """
        opening, first = self.opening, inputs.first
        if lowest is not None and node is lowest.node:
            return lowest.opened
        if isinstance(node, Stream):
            stage = StreamStage(first, node, opening.epoch, inputs.ranges[first], opening.context.times, inputs.wanted)
            return _Opened(stage, {first: InputRef(node, "")})
        if is_block_input(node):
            block_input = BlockInput(
                *(first, node, opening.epoch, inputs.ranges[first], opening.read, opening.context, inputs.share),
                empty_passes=empty_passes_of(node),
            )
            return _Opened(block_input, {first: InputRef(node, "")})
        if isinstance(node, Combine):
            return self._combine(node, inputs)
        rows = node.value.size if is_batch(node) else 0
        below = self._open(parents_of(node)[0], inputs._replace(wanted=_wanted(node, inputs.wanted)), rows, lowest)
        if opening.leaves_out(node):
            return below
        return _Opened(self.step(node, below, batched, keeps_all=inputs.keeps_all), below.inputs)

    def _combine(self, node: Combine, inputs: _Inputs, held_at: Token = None) -> _Opened:
        stages: list[Stage] = []
        refs: dict[int, InputRef] = {}
        tokens = (None,) * len(node.parts) if held_at is None else combining_of(node).tokens(held_at)
        for name, part, token in zip(node.names, node.parts, tokens, strict=True):
            of_part = inputs._replace(first=inputs.first + len(refs), wanted=MAX_STREAM_ELEMENTS)
            opened = self._held(part, of_part, token)
            stages.append(opened.stage)
            refs |= {number: _in_part(name, input_ref) for number, input_ref in opened.inputs.items()}
        value = combining_of(node).of_rank(self.opening.ranks)
        value = value if held_at is None and not inputs.keeps_all else value.keeping_all()
        return _Opened(self.timed(CombineStage(value, node.names, tuple(stages)), node), refs)

    def _held(
        self, node: Node, inputs: _Inputs, held_at: Token, batched: int = 0, *, starts_there: bool = False
    ) -> _Opened:
        """Return the stage of the elements that a node and those below it held open at an old rank's token.

        Args:
            node: the node.
            inputs: what its inputs read.
            held_at: the token; None where all is read as that rank reads it.
            batched: the number of rows of a batch directly above; 0 if there is none.
            starts_there: whether no element before the token is needed. A fold above computes some of those again.
        """
        keeping = None if held_at is None else _keeping_step(node)
        as_read = self._open(node, inputs, batched)
        if keeping is None:
            return as_read
        following, until = _after_held(node, as_read.stage, held_at, keeping)
        left = self._open(node, inputs, batched, _Lowest(keeping, self._keeping(keeping, inputs, until)))
        if starts_there and following == held_at:
            return left
        lowest = self._open(keeping, inputs)
        may_be_start = isinstance(keeping, Combine) and not combining_of(keeping).starts_are_afters
        lowest = lowest._replace(stage=UntilStage(lowest.stage, until, may_be_start))
        held = self._open(node, inputs, batched, _Lowest(keeping, lowest))
        return left._replace(stage=LeftStage(held.stage, left.stage, following))

    def _keeping(self, node: Fold | Combine, inputs: _Inputs, held_at: Token) -> _Opened:
        """Return the stage of a step that keeps what it held open at an old rank's token."""
        if isinstance(node, Combine):
            return self._combine(node, inputs, held_at)
        below = self._held(node.parent, inputs, folding_of(node).read_to(held_at))
        return _Opened(self.step(node, below, keeps_all=True), below.inputs)

    def step(self, node: Node, below: _Opened, batched: int = 0, *, keeps_all: bool = False) -> Stage:
        """Return the stage of a single step over an opened one.

        Args:
            node: the step.
            below: the opened step below.
            batched: the number of rows of a batch directly above; 0 if there is none.
            keeps_all: whether the stage must yield each element that an old rank held open.
        """
        stage, inputs = below
        match node:
            case Map():
                return MapStage(node, stage, inputs, self.opening.context)
            case Filter():
                return FilterStage(node, stage, inputs, self.opening.context)
            case Split():
                return RowsStage(node, stage, inputs, self.opening.context)
            case Gather(value=Batch() as batch):
                return self.timed(BatchStage(batch, batch.size, stage), node)
            case Fold():
                value = folding_of(node)
                value = value.of_rank(self.opening.ranks) if node is self.outermost else value
                value = value.keeping_all() if keeps_all else value
                fold = FoldStage(value, stage, inputs, batched, must_fill=node is self.even_limit)
                return self.timed(fold, node)
            case _:
                raise InternalError(f"{type(node).__name__} has no stage")

    def timed(self, stage: Stage, step: Node) -> Stage:
        """Return a stage whose time is recorded. The stages of functions and streams record theirs themselves."""
        return TimedStage(stage, step, self.opening.context.times)


def _wanted(node: Node, above: int) -> int:
    """Return how many elements a step needs for as many as the steps above it need."""
    if is_batch(node):
        return node.value.size
    if isinstance(node, Map | Filter):
        return above
    return 1 if isinstance(node, Split) else MAX_STREAM_ELEMENTS


def _input_refs(node: Node) -> list[InputRef]:
    if isinstance(node, Stream) or is_block_input(node):
        return [InputRef(node, "")]
    if isinstance(node, Combine):
        parts = zip(node.names, node.parts, strict=True)
        return [_in_part(name, input_ref) for name, part in parts for input_ref in _input_refs(part)]
    return _input_refs(parents_of(node)[0])


def _in_part(name: str, input_ref: InputRef) -> InputRef:
    return input_ref._replace(component=f"{name}/{input_ref.component}" if input_ref.component else name)


def positions_of(node: Node) -> int:
    """Return how many positions an epoch has, of a dataset that is read in order and can start at each of them.

    Raises:
        UsageError: it can't, since a step depends on how many elements came before.
    """
    shared = outermost_batch(node)
    step, is_above = node, shared is not None
    while is_above or not is_block_input(step):
        if step is shared and isinstance(step, Gather):
            is_above = False
        elif not isinstance(step, Map | Filter | Split):
            _refuse_position(step)
        step = step.parent
    return count_positions(step)


def _refuse_position(step: Node) -> NoReturn:
    match step:
        case Stream():
            why = "has no positions at which reading could start"
        case Combine():
            why = "has parts, each with positions of its own"
        case Fold(value=value) if value.limit is not None:
            why = "counts elements from the beginning of the epoch"
        case Gather() | Fold() if step is outermost_batch(step):
            why = "puts elements together by what came before"
        case _:
            why = "depends on the elements that came before"
    raise UsageError(
        f"seek(position=…) works where each element follows from one position, below functions, filters and one batch; "
        f"{verb_text(step)} {why}. Load a state that was saved at this place, with load_state_dict."
    )


def token_at(stage: Stage, position: int) -> Token:
    """Return the token with which the elements of a position and of all later ones begin.

    Args:
        stage: of a rank that reads the epoch as it was first assigned, and of a dataset that `positions_of` accepts,
            unless the position is 0.
        position: at most the number of positions. If another rank reads it, this rank's next one comes first.
    """
    if position == 0:
        return stage.start()
    match stage:
        case BlockInput():
            return stage.input_range.split(InputProgress(position, by_position=True))[0].total
        case RankSegmentsStage():
            return (0, token_at(stage.stage(0), position))
        case RowsStage():
            return (token_at(stage.below, position), 0)
        case MapStage() | FilterStage() | BatchStage() | TimedStage():
            return token_at(stage.below, position)
        case _:
            raise InternalError("above other stages no position is known")


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
        check_whole(
            stage,
            token,
            "which can't be dealt to another number of ranks. Resume on as many ranks as saved the states",
        )
        unfinished.append(rank_segments_of(stage, token))
        tokens.append((stage, token))
    rank_segments = deal(unfinished, ranks, keeps_held=_keeping_step(rank_segments_top(node)) is not None)[rank]
    stage = open_stages(node, rank_segments, Opening(epoch, ranks, read_inline, Context()))
    return epoch, rank_segments, _with_largest_counts(stage, stage.start(), tokens)


def _keeping_step(node: Node) -> Fold | Combine | None:
    """Return the highest step whose elements are others in an old rank's segment than that rank had; None if none is.

    That is a step that keeps what was held open, or a step of several datasets with such a step in a part.
    """
    while not isinstance(node, Stream) and not is_block_input(node):
        if isinstance(node, Combine):
            return node if any(map(_keeps_held, walk(node))) else None
        if isinstance(node, Fold) and _keeps_held(node):
            return node
        (node,) = parents_of(node)
    return None


def _keeps_held(step: Node) -> bool:
    if isinstance(step, Fold):
        return folding_of(step).keeping_all() != folding_of(step)
    if isinstance(step, Combine) and not is_block_input(step):
        return combining_of(step).keeping_all() != combining_of(step)
    return False


def _after_held(node: Node, stage: Stage, token: Token, lowest: Node) -> tuple[Token, Token]:
    """Return the token after the elements that steps above `lowest` hold open, and its part for `lowest`."""
    if node is lowest:
        return token, token
    stage = stage.below if isinstance(stage, TimedStage) else stage
    if not isinstance(stage, StepStage):
        raise InternalError("a step with one parent is a stage with one stage below")
    (parent,) = parents_of(node)
    if isinstance(stage, SameTokenStage):
        return _after_held(parent, stage.below, token, lowest)
    if isinstance(stage, FoldStage):
        following, until = _after_held(parent, stage.below, stage.value.read_to(token), lowest)
        return stage.value.start(following), until
    if isinstance(stage, RowsStage):
        following, until = _after_held(parent, stage.below, stage.read_to(token), lowest)
        return (following, 0), until
    raise InternalError("other steps have the tokens of the steps below")


def _with_largest_counts(stage: Stage, token: Token, old: list[tuple[Stage, Token]]) -> Token:
    """Return the token with the largest counts of limits above the outermost batch among the old ranks' tokens."""
    if not isinstance(stage, StepStage):
        return token
    old_below = [(one.below, _token_below(one, at)) for one, at in old if isinstance(one, StepStage)]
    below = _with_largest_counts(stage.below, _token_below(stage, token), old_below)
    if isinstance(stage, SameTokenStage):
        return below
    return (below, max((at[1] for _, at in old), default=0)) if _is_limit(stage) else (below, *token[1:])


def check_whole(stage: Stage, token: Token, refusal: str) -> None:
    """Raise a StateError for a state at which a step above the outermost batch holds batches open.

    Args:
        stage: the top stage.
        token: the state's.
        refusal: the part of the message that says what is impossible with these batches, and the remedy.
    """
    while isinstance(stage, StepStage) and not isinstance(stage, BatchStage):
        holds = not isinstance(stage, SameTokenStage) and token[1:] != stage.start()[1:]
        if holds and not _is_limit(stage):
            raise StateError(
                "the state was saved within a batch that unbatch() or flat_map() takes apart, or within a window of "
                f"batches, {refusal}, or save where such a batch or window ends."
            )
        token = _token_below(stage, token)
        stage = stage.below


def _check_steps(node: Node) -> None:
    """Raise a StateError if a step can't be dealt to other ranks within an epoch."""
    for step in walk(rank_segments_top(node)):
        verb = _verb_that_binds(step)
        if verb and not is_block_input(step):
            raise StateError(
                f"{verb} over datasets that are read in order can't be dealt to another number of ranks within an "
                "epoch, nor follow such a deal. Resume on as many ranks as saved the states, or from an epoch's begin."
            )


def _verb_that_binds(step: Node) -> str:
    """Return the verb of a step whose elements can't be dealt to other ranks; empty for other steps."""
    match step:
        case Fold(value=value) if value.limit is not None:
            return "limit"
        case Combine() if combining_of(step).depends_on_count:
            return "a mix with a schedule" if step.value.takes_one else step.value.verb
        case _:
            return ""


def rank_segments_to_json(rank_segments: tuple[RankSegment, ...]) -> Token:
    """Return segments as nested tuples of integers and strings."""
    return tuple(
        (
            tuple((tuple(map(tuple, spans)), snapshot) for spans, snapshot in rank_segment.input_ranges),
            rank_segment.token,
            *(() if rank_segment.held_at is None else (rank_segment.held_at,)),
        )
        for rank_segment in rank_segments
    )


def rank_segments_from_json(value: Token, node: Node) -> tuple[RankSegment, ...]:
    """Return the segments from the result of `rank_segments_to_json`. The tokens at which they start aren't checked.

    Raises:
        StateError: this dataset can't have such segments.
    """
    _check_steps(node)
    inputs = inputs_of(node)
    rank_segments: list[RankSegment] = []
    for rank_segment in _listed(value, "a state after a change of ranks has parts that a rank reads"):
        input_ranges, token, *held_at = parts_of(rank_segment, 2, 3, of="a rank's part")
        parts = parts_of(input_ranges, len(inputs), of="a rank's part")
        ranges = tuple(_input_range(part, each) for part, each in zip(parts, inputs, strict=True))
        if held_at:
            opener = _Opener(Opening(0, 1, read_inline, Context()), None, None)
            opener.open_rank_segment(rank_segments_top(node), RankSegment(ranges)).check(held_at[0])
        rank_segments.append(RankSegment(ranges, token, *held_at))
    if not rank_segments:
        refuse(value, "a state after a change of ranks has parts that a rank reads")
    return tuple(rank_segments)


def _listed(value: Token, needed: str) -> tuple[Token, ...]:
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
    for span in _listed(spans, "a rank's part of an input has runs of positions"):
        start, step, count = parts_of(span, 3, of="a run of positions")
        check_number(start, total, "a run of positions")
        check_number(step, LARGEST, "a run of positions")
        check_number(count, total, "a run of positions")
        if not step or (count and start + (count - 1) * step >= total):
            refuse(span, f"a run of positions has positions below {total:,}")
        found.append(Span(start, step, count))
    return InputRange(tuple(found), snapshot)
