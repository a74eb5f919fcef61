"""Reading an ordered dataset: blocks of positions, computed anywhere, then the folds, in the consumer's thread.

Guarantees:
  - Items come in order, each exactly once; each carries the cursor from which reading could go on after it.
  - Elements before a failing one are delivered before its error is raised.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from penstock._graph._apply import Context
from penstock._graph._blocks import Block, BlockPlaces, evaluate_block
from penstock._graph._folds import Cursor, Item, run_folds
from penstock._plan._plan import Folded, Shard


def positions_of(program: Folded, shard: Shard) -> int:
    """Return how many positions of the base this rank has: every `count`-th."""
    return len(range(shard.rank, program.total, shard.count))


def evaluate_span(program: Folded, shard: Shard, epoch: int, span: range, context: Context) -> Block:
    """Return the base's elements at this rank's positions `span`."""
    positions = np.arange(span.start, span.stop, dtype=np.int64) * shard.count + shard.rank
    return evaluate_block(program.base, np.full(len(positions), epoch, np.int64), positions, context)


def items_of(program: Folded, shard: Shard, epoch: int, span: range, block: Block) -> Iterator[Item]:
    """Yield a block's elements as items for the folds."""
    positions = np.arange(span.start, span.stop, dtype=np.int64) * shard.count + shard.rank
    places = BlockPlaces(program.base, np.full(len(positions), epoch, np.int64), positions, block.kept)
    kept = range(len(span)) if block.kept is None else block.kept.tolist()
    for local, element, place in zip(kept, block.elements, places.all(), strict=True):
        yield Item(element, place, Cursor(span.start + local), Cursor(span.start + local + 1))


def one_by_one(program: Folded, shard: Shard, epoch: int, span: range, context: Context) -> Iterator[Item]:
    """Yield a block's items computed singly, so that those before a failing one are delivered first."""
    for position in span:
        single = range(position, position + 1)
        yield from items_of(program, shard, epoch, single, evaluate_span(program, shard, epoch, single, context))


def read_in_order(
    program: Folded, shard: Shard, start: Cursor, items: Iterable[Item], context: Context
) -> Iterator[Item]:
    """Yield what comes out of the folds, given the base's items from `start.position` on."""
    return run_folds(program.folds, items, start, context, shard.count)
