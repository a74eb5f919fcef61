"""The definition of a dataset that is read in order: plain Python generators, one element at a time.

The stages of `_streaming` are the fast way to the same elements, byte for byte, after any resume too. One of several
ranks reads every `ranks`-th position of each block input and stream; all steps above follow from that. Of the batch
that the ranks share, it makes its part of the rows.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from penstock._frozen import frozen
from penstock._graph import (
    DROPPED,
    Batch,
    Bucket,
    Cache,
    Chain,
    Context,
    Element,
    Filter,
    FlatMap,
    Group,
    Limit,
    Location,
    Map,
    Mix,
    Node,
    Pack,
    Read,
    Reindex,
    SeedPosition,
    Stream,
    StreamingMix,
    Unbatch,
    UserFold,
    Windows,
    WindowShuffle,
    Zip,
    apply_one,
    element_at,
    flat_elements,
    is_indexable,
    keeps,
    length,
    location_of,
    merge_rows,
    outermost_batch,
    row_location,
    salt_of,
)
from penstock._streaming._bucketed import bucketed
from penstock._streaming._combined import combined
from penstock._streaming._join import joined
from penstock._streaming._mix import measured
from penstock._streaming._packed import packed
from penstock._streaming._stream import read
from penstock._streaming._window import window_order
from penstock.batching import split_rows
from penstock.errors import GraphError, InternalError

LocatedElement = tuple[Element, Location]


def elements(node: Node, epoch: int, position: int, context: Context) -> Iterator[Element]:
    """Yield the elements of `epoch` in order, from the one at `position` on: the definition."""
    for index, (element, _) in enumerate(in_order(node, epoch, context)):
        if index >= position:
            yield element


def in_order(node: Node, epoch: int, context: Context, rank: int = 0, ranks: int = 1) -> Iterator[LocatedElement]:
    """Yield each element with its location; above a fold only the location's seed position and key have a meaning."""
    shared = outermost_batch(node) if ranks > 1 and not is_indexable(node) else None
    return _in_order(node, epoch, context, _Share(rank, ranks, shared))


@frozen
class _Share:
    """One rank's share of an epoch."""

    rank: int
    ranks: int
    batch: Batch | Bucket | None
    """The batch of which each rank makes its part."""

    def is_above(self, node: Node) -> bool:
        """Return whether a node is that batch or a step above it, which reads this rank's rows only."""
        return self.batch is not None and outermost_batch(node) is self.batch


def _in_order(node: Node, epoch: int, context: Context, share: _Share) -> Iterator[LocatedElement]:
    if is_indexable(node) and not share.is_above(node):
        positions = range(share.rank, length(node) or 0, share.ranks)
        at = ((each, replace(location_of(node, epoch, each), node=node)) for each in positions)
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
        case FlatMap():
            return _flat(node, below(node.parent), context)
        case Batch():
            return _batches(node, below(node.parent), node.size // (share.ranks if node is share.batch else 1))
        case Unbatch():
            return (
                (row, row_location(p, n)) for batch, p in below(node.parent) for n, row in enumerate(split_rows(batch))
            )
        case UserFold():
            return combined(node, below(node.parent))
        case WindowShuffle():
            return _windows(node, below(node.parent))
        case Limit():
            return itertools.islice(below(node.parent), node.count)
        case Cache():
            return below(node.parent)
        case StreamingMix():
            return _mixed(node, [below(part) for part in node.parts])
        case Chain():
            parts = zip(node.names, node.parts, strict=True)
            return ((e, within(location, name)) for name, part in parts for e, location in below(part))
        case Zip():
            return _zipped(node, [below(part) for part in node.parts])
        case Stream():
            return _streamed(node, epoch, share.rank, share.ranks)
        case Read() | Reindex() | Windows() | Group() | Mix():
            raise InternalError("a source and its samplers are indexable")
        case Pack():
            return packed(node, below(node.parent))
        case Bucket():
            return bucketed(_cut(node, share.ranks) if node is share.batch else node, below(node.parent))


def within(location: Location, name: str) -> Location:
    """Return the location as a step above a mixture has it: within the part `name`."""
    component = f"{name}/{location.component}" if location.component else name
    return replace(location, component=component, salt=salt_of(component))


def _flat(step: FlatMap, below: Iterator[LocatedElement], context: Context) -> Iterator[LocatedElement]:
    for element, location in below:
        for number, made in enumerate(flat_elements(step, element, location, context, element_at)):
            yield made, row_location(location, number)


def _batches(step: Batch, below: Iterator[LocatedElement], size: int) -> Iterator[LocatedElement]:
    """Yield batches of `size` elements, each with the location of its first row."""
    while rows := list(itertools.islice(below, size)):
        if len(rows) == size or step.remainder != "drop":
            yield merge_rows(step, [element for element, _ in rows], size), rows[0][1]


def _cut(step: Bucket, ranks: int) -> Bucket:
    rows = tuple(count // ranks for count in step.bucketing.rows)
    return replace(step, bucketing=replace(step.bucketing, rows=rows))


def _windows(step: WindowShuffle, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
    while window := list(itertools.islice(below, step.size)):
        order = window_order(step, len(window), window[0][1].address)
        yield from (window[number] for number in order.tolist())


def _mixed(step: StreamingMix, parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
    """Yield the next element of the part with the least taken measure over weight; of equal parts, the first."""
    ended = [False] * len(parts)
    taken = [0] * len(parts)
    count = 0
    while True:
        weights = [weights for start, weights in step.schedule if start <= count][-1]
        if any(start == count for start, _ in step.schedule):
            taken = [0] * len(parts)
        left = [number for number, weight in enumerate(weights) if weight and not ended[number]]
        if not left or (step.stop == "first" and len(left) < sum(weight > 0 for weight in weights)):
            return
        number = min(left, key=lambda each: (taken[each] / weights[each], each))
        try:
            element, location = next(parts[number])
        except StopIteration:
            ended[number] = True
            continue
        yield element, within(location, step.names[number])
        taken[number] += measured(step, element)
        count += 1


def _zipped(step: Zip, parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
    while True:
        following = [next(part, None) for part in parts]
        row = [one for one in following if one is not None]
        if len(row) < len(parts):
            if step.unequal == "error" and row:
                raise GraphError("zip needs parts of equal lengths")
            return
        yield joined(step, [element for element, _ in row]), within(row[0][1], step.names[0])


def _streamed(step: Stream, epoch: int, rank: int, ranks: int) -> Iterator[LocatedElement]:
    for count, element, _ in itertools.islice(read(step, epoch, None), rank, None, ranks):
        yield element, Location(epoch, count, SeedPosition(epoch, count, 0), count, step)
