"""Going on with other ranks: the legs of every new rank, from where all old ranks stand; and legs in a state."""

from collections.abc import Sequence

from penstock._graph._apply import Context
from penstock._graph._nodes import Limit, Node, Zip, walk
from penstock._graph._ordered._batch import BatchStage
from penstock._graph._ordered._build import Opening, legs_of, legs_top, open_stages
from penstock._graph._ordered._chunk import Token, is_compound
from penstock._graph._ordered._leaf import LeafCourse, Span, is_leaf, read_inline
from penstock._graph._ordered._legs import Leg, LegsStage, deal
from penstock._graph._ordered._limit import LimitStage
from penstock._graph._ordered._rows import RowsStage
from penstock._graph._ordered._stage import Stage, StepStage
from penstock._graph._ordered._window import WindowShuffleStage
from penstock.errors import StateError


def dealt_legs(
    node: Node, old: Sequence[tuple[int, tuple[Leg, ...], Token]], rank: int, ranks: int
) -> tuple[int, tuple[Leg, ...], Token]:
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
    unfinished: list[tuple[LegsStage, Token]] = []
    tokens: list[tuple[Stage, Token]] = []
    for its_epoch, legs, token in old:
        stage = open_stages(node, legs, Opening(its_epoch, len(old), read_inline, Context()))
        if its_epoch > epoch:
            if its_epoch > epoch + 1 or token != stage.start():
                raise StateError(
                    "the ranks stand in different epochs, and what is left of them can't be dealt to others. Save "
                    "all ranks' states at the same step."
                )
            continue  # this rank has read its part of the epoch to the end
        _check_whole(stage, token)
        unfinished.append(legs_of(stage, token))
        tokens.append((stage, token))
    legs = deal(unfinished, ranks)[rank]
    stage = open_stages(node, legs, Opening(epoch, ranks, read_inline, Context()))
    return epoch, legs, _counted(stage, stage.start(), tokens)


def _counted(stage: Stage, token: Token, old: list[tuple[Stage, Token]]) -> Token:
    """Return the token with the counts of steps above the outermost batch as far as the old ranks' were."""
    if isinstance(stage, LimitStage):
        below = [(one.below, at[0]) for one, at in old if isinstance(one, LimitStage)]
        return (_counted(stage.below, token[0], below), max((at[1] for _, at in old), default=0))
    if isinstance(stage, LegsStage) or not isinstance(stage, StepStage):
        return token
    inner = stage.below
    if is_compound(token) and len(token) == 2 and token[1] == 0 and token[0] == inner.start():
        return token
    return _counted(inner, token, [(one.below, at) for one, at in old if isinstance(one, StepStage)])


def _check_whole(stage: Stage, token: Token) -> None:
    """Raise where a state stands within a batch that was taken apart again, or a window of batches."""
    while isinstance(stage, StepStage) and not isinstance(stage, LegsStage | BatchStage):
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
    for step in walk(legs_top(node)):
        if isinstance(step, Zip | Limit) and not is_leaf(step):
            raise StateError(
                f"{type(step).__name__.lower()} over datasets that are read in order can't be dealt to another number "
                "of ranks within an epoch. Resume on as many ranks as saved the states."
            )


def to_json(legs: tuple[Leg, ...]) -> Token:
    """Return legs as nested tuples of integers and strings."""
    return tuple(
        (tuple((tuple(map(tuple, spans)), snapshot) for spans, snapshot in leg.courses), leg.token) for leg in legs
    )


def from_json(value: Token) -> tuple[Leg, ...]:
    """Return the legs that `to_json` described, or raise a StateError."""
    try:
        return tuple(
            Leg(tuple(LeafCourse(tuple(Span(*span) for span in spans), snapshot) for spans, snapshot in courses), token)
            for courses, token in value
        )
    except (TypeError, ValueError) as error:
        raise StateError(f"the legs of this state are damaged ({error})") from error
