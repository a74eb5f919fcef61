"""Going to a position of a dataset that is read in order: the token with which the elements from there on begin.

This is arithmetic, and reads nothing, if each element follows from one position below: above functions, filters, and
steps that take one element apart. The outermost batch may be above them, since batches may start anywhere. It is
impossible above a step whose results depend on how many elements came before: only reading from the beginning of the
epoch shows how many these are. An epoch's own beginning can be reached in every dataset.
"""

from typing import NoReturn

from penstock._graph import (
    Batch,
    Bucket,
    Chain,
    Filter,
    FlatMap,
    Limit,
    Map,
    Node,
    Stream,
    StreamingMix,
    Unbatch,
    Zip,
    outermost_batch,
    verb_text,
)
from penstock._streaming._batch import BatchStage
from penstock._streaming._block_input import BlockInput, count_positions, is_block_input
from penstock._streaming._chunk import Token
from penstock._streaming._each import FilterStage, MapStage
from penstock._streaming._rank_segments import RankSegmentsStage
from penstock._streaming._rows import RowsStage
from penstock._streaming._stage import Point, Stage
from penstock.errors import InternalError, UsageError


def positions_of(node: Node) -> int:
    """Return how many positions an epoch has, of a dataset that is read in order and can start at each of them.

    Raises:
        UsageError: it can't, since a step depends on how many elements came before.
    """
    shared = outermost_batch(node)
    step, is_above = node, shared is not None
    while is_above or not is_block_input(step):
        if step is shared and isinstance(step, Batch):
            is_above = False
        elif not isinstance(step, Map | Filter | FlatMap | Unbatch):
            _refuse(step)
        step = step.parent
    return count_positions(step)


def _refuse(step: Node) -> NoReturn:
    match step:
        case Stream():
            why = "has no positions at which reading could start"
        case StreamingMix() | Chain() | Zip():
            why = "has parts, each with positions of its own"
        case Limit():
            why = "counts elements from the beginning of the epoch"
        case Bucket() | Batch():
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
            return stage.input_range.split(Point(position, by_position=True))[0].total
        case RankSegmentsStage():
            return (0, token_at(stage.stage(0), position))
        case RowsStage():
            return (token_at(stage.below, position), 0)
        case MapStage() | FilterStage() | BatchStage():
            return token_at(stage.below, position)
        case _:
            raise InternalError("above other stages no position is known")
