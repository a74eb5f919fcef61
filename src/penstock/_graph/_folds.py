"""Steps that depend on what came before: batches and rows of a dataset whose length only evaluating tells.

Everything below the first fold depends on the position alone and is computed in blocks, by any worker. The folds then
take its elements in order, one after the other. Each item carries the *cursor* from which its production could start
again, and the one after it, so that a state needs positions only, never data.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple, assert_never

from penstock._graph._apply import DROPPED, Context, Place, apply_one
from penstock._graph._blocks import merge_block
from penstock._graph._evaluate import element_at, keeps, row_place
from penstock._graph._length import is_indexable
from penstock._graph._nodes import Batch, Element, Filter, Map, Node, Read, Reindex, Unbatch, chain
from penstock.batching._rows import split_rows
from penstock.errors import InternalError


class Cursor(NamedTuple):
    """Where production can start again: a position below the first fold, and rows to skip in each `unbatch` fold.

    The rows are those of the first batch that the fold meets.
    """

    position: int
    skips: tuple[int, ...] = ()


class Item(NamedTuple):
    """An element on its way through the folds."""

    element: Element
    place: Place
    start: Cursor
    """Starting from here, this is the first item."""
    after: Cursor
    """Starting from here, the item after this one is the first."""
    rows: tuple[Place, ...] = ()
    """For a batch: the places of its rows."""


def split_at_folds(node: Node) -> tuple[Node, tuple[Node, ...]]:
    """Return the highest node that depends on the position alone, and the steps above it, lowest first."""
    steps_ = chain(node)
    for index, step in enumerate(steps_):
        if isinstance(step, Batch | Unbatch) and not is_indexable(step):
            return steps_[index - 1], tuple(steps_[index:])
    return node, ()


def indexable_base(node: Node) -> Node:
    """Return the highest indexable node below a node without folds: its positions address what may be left out."""
    while not is_indexable(node):
        if not isinstance(node, Map | Filter):
            raise InternalError("only filters and skipping maps leave elements out")
        node = node.parent
    return node


def start_cursor(folds: tuple[Node, ...]) -> Cursor:
    """Return where an epoch starts."""
    return Cursor(0, (0,) * sum(isinstance(fold, Unbatch) for fold in folds))


def run_folds(
    folds: tuple[Node, ...], items: Iterable[Item], start: Cursor, context: Context, ranks: int = 1
) -> Iterator[Item]:
    """Yield the items that come out of the folds.

    Args:
        folds: as `split_at_folds` gives them.
        items: what comes from below, starting at `start.position`; their cursors have no skips.
        start: where production starts.
        context: of the calling thread.
        ranks: the outermost batch holds one part of this many.
    """
    stream: Iterator[Item] = iter(items)
    skips = iter(start.skips)
    outermost = next((fold for fold in reversed(folds) if isinstance(fold, Batch)), None)
    for fold in folds:
        match fold:
            case Map():
                stream = _map(fold, stream, context)
            case Filter():
                stream = _filter(fold, stream)
            case Batch(size=size):
                stream = _batch(fold, stream, size // ranks if fold is outermost else size)
            case Unbatch():
                stream = _unbatch(stream, next(skips))
            case Read() | Reindex():
                raise InternalError("a source and its reorderings stand below the folds")
            case _:
                assert_never(fold)
    return stream


def _map(step: Map, items: Iterator[Item], context: Context) -> Iterator[Item]:
    for item in items:
        result = apply_one(step, item.element, item.place, context, element_at)
        if result is not DROPPED:
            yield item._replace(element=result)


def _filter(step: Filter, items: Iterator[Item]) -> Iterator[Item]:
    return (item for item in items if keeps(step, item.element, item.place))


def _batch(step: Batch, items: Iterator[Item], size: int) -> Iterator[Item]:
    while rows := list(itertools.islice(items, size)):
        if len(rows) == size or step.remainder != "drop":
            yield _merged(step, rows, size)


def _merged(step: Batch, rows: list[Item], size: int) -> Item:
    batch = merge_block(step, [row.element for row in rows], size)
    return Item(batch, rows[0].place, rows[0].start, rows[-1].after, tuple(row.place for row in rows))


def _unbatch(items: Iterator[Item], skip: int) -> Iterator[Item]:
    for item in items:
        position, skips = item.start
        rows = split_rows(item.element)
        for number in range(skip, len(rows)):
            start = Cursor(position, (*skips, number))
            is_last = number + 1 == len(rows)
            next_row = start._replace(skips=(*skips, number + 1))
            after = Cursor(item.after.position, (*item.after.skips, 0)) if is_last else next_row
            yield Item(rows[number], row_place(item.place, number), start, after)
        skip = 0
