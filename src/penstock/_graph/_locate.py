"""The record that an element is made of: its source, its key, and the part of a mixture that it belongs to.

A batch has the record of its first row, a group that of its first member, and a zipped element that of its first part.
"""

from typing import NamedTuple, assert_never

import numpy as np

from penstock._graph._length import length
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
    SourceNode,
    Stream,
    StreamingMix,
    Unbatch,
    UserFold,
    Windows,
    WindowShuffle,
    Zip,
    root,
)
from penstock._graph._seed_position import Integers, divide_rows, first_members
from penstock.errors import InternalError
from penstock.sampling import MixtureRule, apply_block

_MAX_SHORT = 1 << 16


class Located(NamedTuple):
    """The record that one element is made of."""

    source: Read
    component: str
    """The names of the mixture parts above the source, joined as in "web/en"; empty without a mixture."""
    key: int


class Share(NamedTuple):
    """The elements of a block whose records are in one source."""

    source: Read
    component: str
    rows: Integers | None
    """The numbers of these elements within the block; None for all of it."""
    keys: Integers


class PartBlock(NamedTuple):
    """The elements of a mixture's block that come from one of its parts."""

    number: int
    rows: Integers | None
    """The numbers of these elements within the block, ascending; None for all of it."""
    epochs: Integers
    positions: Integers


def locate(node: Node, epoch: int, position: int) -> Located:
    """Return the record that one element of an indexable node is made of."""
    share = locate_block(node, np.array([epoch], np.int64), np.array([position], np.int64))[0]
    return Located(share.source, share.component, int(share.keys[0]))


def locate_block(node: Node, epochs: Integers, positions: Integers) -> list[Share]:
    """Return the records that a block of elements is made of, source by source."""
    while not isinstance(node, Read | Mix):
        node, epochs, positions = first_below(node, epochs, positions)
    if isinstance(node, Read):
        return [Share(node, "", None, positions)]
    shares: list[Share] = []
    for part in split_by_part(node.rule, epochs, positions):
        name = node.names[part.number]
        for source, inner, rows, keys in locate_block(node.parts[part.number], part.epochs, part.positions):
            path = f"{name}/{inner}" if inner else name
            shares.append(Share(source, path, _composed(part.rows, rows), keys))
    return shares


def _composed(outer: Integers | None, inner: Integers | None) -> Integers | None:
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer[inner]


def keys_of(shares: list[Share], count: int) -> Integers:
    """Return the keys of a block of `count` elements from the result of `locate_block`."""
    if len(shares) == 1 and shares[0].rows is None:
        return shares[0].keys
    keys = np.empty(count, np.int64)
    for share in shares:
        keys[slice(None) if share.rows is None else share.rows] = share.keys
    return keys


def components_of(shares: list[Share], count: int) -> list[str]:
    """Return the components of a block of `count` elements from the result of `locate_block`."""
    if len(shares) == 1 and shares[0].rows is None:
        return [shares[0].component] * count
    components = [""] * count
    for share in shares:
        for row in range(count) if share.rows is None else share.rows.tolist():
            components[row] = share.component
    return components


def key_block(node: Node, epochs: Integers, positions: Integers) -> Integers:
    """Return the keys of a block's records, each within its own source."""
    return keys_of(locate_block(node, epochs, positions), len(positions))


def split_by_part(rule: MixtureRule, epochs: Integers, positions: Integers) -> list[PartBlock]:
    """Divide a mixture's block into one block for each part that occurs in it."""
    components, epochs, positions = rule.block(epochs, positions)
    if not len(components):
        return []
    first, last = int(components.min()), int(components.max())
    if first == last:
        return [PartBlock(first, None, epochs, positions)]
    # NumPy sorts 16-bit integers in a fraction of the time.
    order = np.argsort(components.astype(np.uint16) if last < _MAX_SHORT else components, kind="stable")
    components, epochs, positions = components[order], epochs[order], positions[order]
    bounds = [0, *(np.flatnonzero(components[1:] != components[:-1]) + 1).tolist(), len(order)]
    numbers = components[bounds[:-1]].tolist()
    return [
        PartBlock(number, order[start:stop], epochs[start:stop], positions[start:stop])
        for number, start, stop in zip(numbers, bounds[:-1], bounds[1:], strict=True)
    ]


def first_below(node: Node, epochs: Integers, positions: Integers) -> tuple[Node, Integers, Integers]:
    """Return the first parent, and the coordinates there of the first element that each element is made of."""
    match node:
        case Reindex(parent=parent, sampler=sampler):
            return parent, *apply_block(sampler, epochs, positions)
        case Map(parent=parent) | Filter(parent=parent) | Cache(parent=parent):
            return parent, epochs, positions
        case Batch(parent=parent, size=size):
            return parent, epochs, positions * size
        case Unbatch():
            return _row_below(node, epochs, positions)
        case FlatMap(parent=parent, counts=counts) if counts is not None:
            return parent, epochs, counts.locate(positions)[0]
        case Windows(parent=parent, table=table):
            return parent, epochs, table.locate(positions)[0]
        case Group(parent=parent, grouping=grouping):
            return parent, epochs, first_members(grouping, positions)
        case Zip(parts=parts):
            return parts[0], epochs, positions
        case Read() | Mix():
            raise InternalError("a source has no parent, and a mixture has several")
        case (
            Stream() | StreamingMix() | Chain() | FlatMap() | Pack() | Bucket() | WindowShuffle() | UserFold() | Limit()
        ):
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            assert_never(node)


def _row_below(step: Unbatch, epochs: Integers, positions: Integers) -> tuple[Node, Integers, Integers]:
    """Return the node below the batch of an `unbatch`, and the coordinates there of single rows."""
    batches, rows = divide_rows(step, positions)
    node = step.parent
    while not isinstance(node, Batch):
        if not isinstance(node, Reindex | Map | Cache):
            raise InternalError("an indexable unbatch is above a batch")
        node, epochs, batches = first_below(node, epochs, batches)
    last = (length(node.parent) or 1) - 1  # padding repeats the last element
    return node.parent, epochs, np.minimum(batches * node.size + rows, last)


def source_of(node: Node, component: str) -> SourceNode | None:
    """Return the source node of a component such as "web/en", or None if there is none."""
    base = root(node)
    if isinstance(base, Read | Stream):
        return None if component else base
    if isinstance(base, Zip):
        return source_of(base.parts[0], component)
    for name, part in zip(base.names, base.parts, strict=True):
        if component == name or component.startswith(f"{name}/"):
            found = source_of(part, component[len(name) + 1 :])
            if found is not None:
                return found
    return None
