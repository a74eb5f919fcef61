"""The records of async sources that a block of positions needs, so that they can be requested ahead of its evaluation.

The graph is walked as in `evaluate_block`, with arithmetic alone. The result may be incomplete, and the missing records
are read when they are needed: below a cache, which may hold the elements, and for substitutes.
"""

from collections.abc import Iterator
from typing import NamedTuple, assert_never

import numpy as np

from penstock._graph._blocks import distinct, rows_of_batches
from penstock._graph._length import length
from penstock._graph._locate import split_by_part
from penstock._graph._nodes import (
    Batch,
    Bucket,
    Cache,
    Chain,
    Filter,
    FlatMap,
    Group,
    Limit,
    Map,
    Mix,
    Node,
    Pack,
    Read,
    Reindex,
    Stream,
    StreamingMix,
    Unbatch,
    UserFold,
    Windows,
    WindowShuffle,
    Zip,
    walk,
)
from penstock._graph._seed_position import Integers, divide_rows
from penstock.errors import InternalError
from penstock.sampling import apply_block as apply_sampler
from penstock.sources import AwaitedSource


class Upcoming(NamedTuple):
    """Records of one source."""

    source: AwaitedSource
    keys: Integers
    """In the order in which the evaluation needs them; a key that is needed twice is there twice."""


def awaits(node: Node) -> bool:
    """Return whether a node has an async source below it."""
    return any(True for _ in awaited_sources(node))


def awaited_sources(node: Node) -> Iterator[AwaitedSource]:
    """Yield the async sources below a node, in the order of the parts; one that is read twice is there twice."""
    for step in walk(node):
        if isinstance(step, Read) and isinstance(step.source, AwaitedSource):
            yield step.source


def upcoming(node: Node, epochs: Integers, positions: Integers) -> Iterator[Upcoming]:
    """Yield the records of async sources that the elements at a block of coordinates are made of, as far as known.

    Args:
        node: a node without folds below it.
        epochs: int64, the epoch of each element.
        positions: int64, of the same length.
    """
    match node:
        case Read(source=source):
            if isinstance(source, AwaitedSource) and len(positions):
                yield Upcoming(source, positions)
        case Cache():
            return
        case Zip(parts=parts):
            for part in parts:
                yield from upcoming(part, epochs, positions)
        case Mix(parts=parts, rule=rule):
            for number, _, part_epochs, part_positions in split_by_part(rule, epochs, positions):
                yield from upcoming(parts[number], part_epochs, part_positions)
        case Stream() | StreamingMix() | Chain() | Pack() | Bucket() | WindowShuffle() | UserFold() | Limit():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            yield from upcoming(node.parent, *_below(node, epochs, positions))


def _below(
    node: Reindex | Map | Filter | Batch | Unbatch | FlatMap | Windows | Group, epochs: Integers, positions: Integers
) -> tuple[Integers, Integers]:
    """Return the coordinates, at the parent, of all elements that a block is made of."""
    match node:
        case Reindex(sampler=sampler):
            return apply_sampler(sampler, epochs, positions)
        case Map() | Filter():
            return epochs, positions
        case Batch(parent=parent, size=size):
            counts, rows = rows_of_batches(positions, size, length(parent) or 0)
            return np.repeat(epochs, counts), rows
        case Unbatch():
            return distinct(epochs, divide_rows(node, positions)[0])[:2]
        case FlatMap(counts=counts):
            if counts is None:
                raise InternalError("a flat_map without counts has no positions")
            return distinct(epochs, counts.locate(positions)[0])[:2]
        case Windows(table=table):
            return distinct(epochs, table.locate(positions)[0])[:2]
        case Group(grouping=grouping):
            counts, members = grouping.members(positions)
            return np.repeat(epochs, counts), members
        case _:
            assert_never(node)
