"""The definition of a dataset that is read in order: plain Python generators, one element at a time.

The definitions of folds are generators beside their stages. The stages are the fast way to the same elements, byte for
byte, after any resume too. One of several ranks reads every `ranks`-th position of each block input and stream; all
steps above follow from that. Of the batch that the ranks share, it makes its part of the rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from penstock._frozen import frozen
from penstock._graph import (
    DROPPED,
    Batch,
    Cache,
    Combine,
    Context,
    Element,
    Filter,
    Fold,
    Gather,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
    apply_one,
    element_at,
    is_indexable,
    keeps,
    length,
    location_of,
    outermost_batch,
)
from penstock._streaming._batch import batched
from penstock._streaming._combine import combining_of
from penstock._streaming._elementwise import split
from penstock._streaming._empty_passes import EmptyPasses, empty_passes_of
from penstock._streaming._fold import folding_of
from penstock._streaming._inputs import is_block_input
from penstock._streaming._stage import LocatedElement
from penstock._streaming._stream import streamed
from penstock._tracebacks import trim
from penstock.errors import InternalError

Passing: TypeAlias = Callable[[Node, Iterator[LocatedElement]], Iterator[LocatedElement]]
"""A function that passes on a step's elements, given the step and the elements; it is called for lower steps first."""


def elements(node: Node, epoch: int, position: int, context: Context) -> Iterator[Element]:
    """Yield the elements of `epoch` in order, from the one at `position` on: the definition."""
    try:
        for index, (element, _) in enumerate(in_order(node, epoch, context)):
            if index >= position:
                yield element
    except Exception as error:
        trim(error)
        raise


def in_order(
    node: Node, epoch: int, context: Context, rank: int = 0, ranks: int = 1, passing: Passing | None = None
) -> Iterator[LocatedElement]:
    """Yield each element with its location; above a fold only the location's seed position and key have a meaning.

    Args:
        node: the dataset.
        epoch: the epoch.
        context: of the calling thread.
        rank: which rank's elements are yielded.
        ranks: the number of ranks.
        passing: passes on the elements of each step that is read in order, and of the highest indexable steps.
    """
    shared = outermost_batch(node) if ranks > 1 and not is_indexable(node) else None
    return _in_order(node, epoch, context, _Share(rank, ranks, shared, passing))


@frozen
class _Share:
    """One rank's share of an epoch."""

    rank: int
    ranks: int
    batch: Gather[Batch] | Fold | None
    """The batch of which each rank makes its part."""
    passing: Passing | None
    empty_passes: EmptyPasses | None = None
    """The counter of the block input to which a node belongs, if it has one."""

    def is_above(self, node: Node) -> bool:
        """Return whether a node is that batch or a step above it, which reads this rank's rows only."""
        return self.batch is not None and outermost_batch(node) is self.batch


def _in_order(node: Node, epoch: int, context: Context, share: _Share) -> Iterator[LocatedElement]:
    is_top = share.empty_passes is None and is_block_input(node) and outermost_batch(node) is None
    counter = empty_passes_of(node) if is_top else None
    if counter is None:
        made = _made(node, epoch, context, share)
    else:
        made = _kept(counter, _made(node, epoch, context, replace(share, empty_passes=counter)))
    return made if share.passing is None else share.passing(node, made)


def _read(counter: EmptyPasses | None, positions: range) -> Iterator[int]:
    for number, position in enumerate(positions):
        if counter is not None:
            counter.read(number)
        yield position


def _kept(counter: EmptyPasses, made: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
    for each in made:
        counter.keep()
        yield each


def _made(node: Node, epoch: int, context: Context, share: _Share) -> Iterator[LocatedElement]:
    if is_indexable(node) and not share.is_above(node):
        positions = range(share.rank, length(node) or 0, share.ranks)
        read = _read(share.empty_passes, positions)
        at = ((each, replace(location_of(node, epoch, each), node=node)) for each in read)
        return ((element_at(node, epoch, each, context), location) for each, location in at)

    def below(parent: Node) -> Iterator[LocatedElement]:
        return _in_order(parent, epoch, context, share)

    match node:
        case Map():
            results = (
                (apply_one(node, e, location, context, element_at), location) for e, location in below(node.parent)
            )
            return (result for result in results if result[0] is not DROPPED)
        case Filter():
            return ((e, location) for e, location in below(node.parent) if keeps(node, e, location))
        case Split():
            return split(node, below(node.parent), context)
        case Gather(value=Batch() as batch):
            return batched(batch, below(node.parent), batch.size // (share.ranks if node is share.batch else 1))
        case Fold():
            value = folding_of(node)
            return (value.of_rank(share.ranks) if node is share.batch else value).in_order(below(node.parent))
        case Cache():
            return below(node.parent)
        case Combine():
            combining = combining_of(node).of_rank(share.ranks)
            return combining.in_order(node.names, [below(part) for part in node.parts])
        case Stream():
            return streamed(node, epoch, share.rank, share.ranks)
        case Read() | Reindex() | Gather():
            raise InternalError("a source and its samplers are indexable")
