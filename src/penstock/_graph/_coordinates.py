"""The coordinates below an element: its seed position, its record, and the records that a block of elements needs.

An element of an indexable node has coordinates (epoch, position) there. Three readings of the graph map them to what is
below, each for a block of elements at once, with arithmetic alone:

- `seed_position_block`: the address of the element's random stream below a step's seed.
- `locate_block`: the record that the element is made of: its source, its key, and the part of a mixture that it belongs
  to. A batch has the record of its first row, a group that of its first member, and a zipped element that of its first
  part.
- `upcoming`: all records of async sources that the elements are made of, so that they can be requested ahead. The
  result may be incomplete, and the missing records are read when they are needed: below a cache, which may hold the
  elements, and for substitutes.

The problem of seed positions: a random step needs a stream of random numbers for each element that is the same for any
number of workers and ranks, and that no other element has. The coordinates at the step are no such address. Two shards
of one dataset both begin at position 0, and would draw equal numbers; a repeat counts the second pass on in the same
epoch, while the same pass as an epoch of its own counts from 0.

The solution: the address of an element is its *seed position* (epoch, position, ordinal), which names the element in
the global order of the dataset below all slices, shards and repeats.

- Slices, shards, repeats and fixed epochs map their positions to those of the dataset below. A shuffle maps them to
  themselves: it changes which record has a seed position. A list of positions and a sampler of the user's may take an
  element twice, so there the positions above count (`passes_below`).
- A mixture, a concatenation and a zip count their own positions.
- A batch and a group have the seed position of their first row or member.
- A step that makes several elements of one (`unbatch`, `flat_map`, `windows`, `pack`) adds the number of the row to the
  ordinal.

The ordinal is one number below 2**63, however many such steps are nested. It holds the row of each step in 24 bits as
long as they fit, so that it is readable. Beyond, it is a hash of the outer ordinal and the row, so that elements at any
depth have different streams. A longer address was rejected: it would have changed the streams of all datasets.

Invariant: seed positions are part of what a dataset means. A change of these functions changes the random
numbers of existing datasets, and the golden records find it.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._graph._length import length, rows_per_batch
from penstock._graph._nodes import (
    Batch,
    Cache,
    Chain,
    Filter,
    FlatMap,
    Fold,
    Group,
    Map,
    Mix,
    Node,
    Read,
    Reindex,
    SourceNode,
    Stream,
    StreamingMix,
    Unbatch,
    Windows,
    Zip,
    root,
    walk,
)
from penstock._seeds import derive, derive_block
from penstock.batching import Grouping
from penstock.errors import InternalError
from penstock.sampling import (
    Bits,
    CheckedSampler,
    FixedEpoch,
    FixedOrder,
    MixtureRule,
    Reorder,
    Repeat,
    ScalarSampler,
    Shuffle,
    Slice,
    apply_block,
    seed_positions,
)
from penstock.sources import AwaitedSource

Integers: TypeAlias = NDArray[np.int64]


_MAX_SHORT = 1 << 16


_ROWS_BITS: Final = 24  # of a row's number, if steps that make several elements of one are nested
_MAX_SHIFTED: Final = 1 << (63 - _ROWS_BITS)  # a larger ordinal has no room for another row's number
_NESTED_SEED: Final = derive(0, "nested rows")
_FLUSHED_SEED: Final = derive(0, "flushed rows")


class SeedPosition(NamedTuple):
    """The address of one element's random stream below a step's seed."""

    epoch: int
    position: int
    ordinal: int


class SeedPositions(NamedTuple):
    """The seed positions of a block of elements: int64 arrays of shape (elements,)."""

    epochs: Integers
    positions: Integers
    ordinals: Integers


def seed_position(node: Node, epoch: int, position: int) -> SeedPosition:
    """Return the seed position of one element of an indexable node."""
    block = seed_position_block(node, np.array([epoch], np.int64), np.array([position], np.int64))
    return SeedPosition(int(block.epochs[0]), int(block.positions[0]), int(block.ordinals[0]))


def seed_position_block(node: Node, epochs: Integers, positions: Integers) -> SeedPositions:
    """Return the seed positions of a block of elements of a node, given their coordinates at that node."""
    match node:
        case Read() | Mix() | Zip():
            return SeedPositions(epochs, positions, np.zeros_like(positions))
        case Reindex(parent=parent, sampler=sampler):
            if not passes_below(sampler):
                return SeedPositions(epochs, positions, np.zeros_like(positions))
            return seed_position_block(parent, *seed_positions(sampler, epochs, positions))
        case Map(parent=parent) | Filter(parent=parent) | Cache(parent=parent):
            return seed_position_block(parent, epochs, positions)
        case Batch(parent=parent, size=size):
            return seed_position_block(parent, epochs, positions * size)
        case Unbatch(parent=parent):
            batches, rows = divide_rows(node, positions)
            return _with_rows(seed_position_block(parent, epochs, batches), rows)
        case FlatMap(parent=parent, counts=counts) if counts is not None:
            parents, ordinals = counts.locate(positions)
            return _with_rows(seed_position_block(parent, epochs, parents), ordinals)
        case Windows(parent=parent, table=table):
            episodes, starts, _ = table.locate(positions)
            return _with_rows(seed_position_block(parent, epochs, episodes), starts // table.stride)
        case Group(parent=parent, grouping=grouping):
            # Several groups may begin with pieces of one element, so each has its number as the ordinal.
            return _with_rows(seed_position_block(parent, epochs, first_members(grouping, positions)), positions)
        case Stream() | StreamingMix() | Chain() | FlatMap() | Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            assert_never(node)


def positions_per_epoch(node: Node) -> int | None:
    """Return the number of positions in an epoch of the order in which a node's seed positions count.

    None if it is unknown, as for a stream; 0 for a stream that repeats without end, which has one epoch.
    """
    match node:
        case Read() | Mix() | Zip():
            return length(node)
        case Reindex(parent=parent, sampler=sampler):
            return positions_per_epoch(parent) if passes_below(sampler) else len(sampler)
        case Stream(times=times):
            return 0 if times is None else None
        case Map(parent=parent) | Filter(parent=parent) | Cache(parent=parent) | Batch(parent=parent):
            return positions_per_epoch(parent)
        case Unbatch(parent=parent) | FlatMap(parent=parent) | Windows(parent=parent) | Group(parent=parent):
            return positions_per_epoch(parent)
        case StreamingMix() | Chain() | Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            assert_never(node)


def indices(node: Node, epochs: list[int], positions: list[int]) -> list[int | None]:
    """Return `Origin.index` of elements with some seed positions; None for an element whose index is unknown."""
    count = positions_per_epoch(node)
    if count is None:
        return [None] * len(positions)
    return [epoch * count + position for epoch, position in zip(epochs, positions, strict=True)]


def _with_rows(below: SeedPositions, rows: Integers) -> SeedPositions:
    return SeedPositions(below.epochs, below.positions, nested_ordinals(below.ordinals, rows))


def nested_ordinal(ordinal: int, row: int) -> int:
    """Return the ordinal of row `row` of the elements that a step makes of an element with an ordinal.

    Ordinal 0 is never hashed, even if the row has more than 24 bits, so the streams of a single such step are what they
    have always been. A step with more than 2**24 rows in another such step may let two elements share a stream.
    """
    if ordinal == 0 or (ordinal < _MAX_SHIFTED and row < 1 << _ROWS_BITS):
        return (ordinal << _ROWS_BITS) + row
    return derive(_NESTED_SEED, ordinal, row) >> 1


def nested_ordinals(ordinals: Integers, rows: Integers) -> Integers:
    """Return `nested_ordinal` of a block of elements."""
    nested: Integers = (ordinals << _ROWS_BITS) + rows
    hashed = (ordinals != 0) & ((ordinals >= _MAX_SHIFTED) | (rows >= 1 << _ROWS_BITS))
    if hashed.any():
        nested[hashed] = (derive_block(_NESTED_SEED, ordinals[hashed], rows[hashed]) >> np.uint64(1)).view(np.int64)
    return nested


def flushed_ordinal(ordinal: int, row: int) -> int:
    """Return the ordinal of an element that a fold gives when it is flushed, after the last element with an ordinal.

    It is a hash, so that it differs from the ordinals of the elements that were made when that element was added: after
    a resume it isn't known how many these were.
    """
    return derive(_FLUSHED_SEED, ordinal, row) >> 1


def passes_below(sampler: ScalarSampler) -> bool:
    """Return whether elements above a sampler have the seed positions that they have below it.

    They have if the sampler takes each of the parent's elements at most once an epoch. A list of positions or a sampler
    of the user's may take one twice, and the two must have different random streams: there the positions above count.
    """
    if isinstance(sampler, FixedOrder | CheckedSampler):
        return passes_below(sampler.sampler)
    return isinstance(sampler, Shuffle | Reorder | Slice | Bits | Repeat | FixedEpoch)


def row_seed_position(batch: SeedPosition, row: int) -> SeedPosition:
    """Return the seed position of one row of a batch."""
    return SeedPosition(batch.epoch, batch.position, nested_ordinal(batch.ordinal, row))


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
        case Stream() | StreamingMix() | Chain() | FlatMap() | Fold():
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


class Upcoming(NamedTuple):
    """Records of one source."""

    source: AwaitedSource
    keys: Integers
    """In the order in which the evaluation needs them; a key that is needed twice is listed twice."""


def awaits(node: Node) -> bool:
    """Return whether a node has an async source below it."""
    return any(True for _ in awaited_sources(node))


def awaited_sources(node: Node) -> Iterator[AwaitedSource]:
    """Yield the async sources below a node, in the order of the parts; a source that is read twice is yielded twice."""
    for step in walk(node):
        if isinstance(step, Read) and isinstance(step.source, AwaitedSource):
            yield step.source


def upcoming(node: Node, epochs: Integers, positions: Integers) -> Iterator[Upcoming]:
    """Yield the records of async sources that a block of elements needs.

    Records below a cache, and those of substitutes, are left out; they are read when they are needed.

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
        case Stream() | StreamingMix() | Chain() | Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            yield from upcoming(node.parent, *_all_below(node, epochs, positions))


def _all_below(
    node: Reindex | Map | Filter | Batch | Unbatch | FlatMap | Windows | Group, epochs: Integers, positions: Integers
) -> tuple[Integers, Integers]:
    """Return the epochs and positions of the parent's elements that a block of elements needs."""
    match node:
        case Reindex(sampler=sampler):
            return apply_block(sampler, epochs, positions)
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


def distinct(epochs: Integers, positions: Integers) -> tuple[Integers, Integers, list[int]]:
    """Return the distinct coordinates of a block, and for each element the number of its own among them."""
    if len(epochs) and (epochs == epochs[0]).all():
        found, which = np.unique(positions, return_inverse=True)
        return np.full_like(found, epochs[0]), found, which.reshape(-1).tolist()
    pairs, which = np.unique(np.stack([epochs, positions]), axis=1, return_inverse=True)
    return pairs[0].copy(), pairs[1].copy(), which.reshape(-1).tolist()


def rows_of_batches(batches: Integers, size: int, total: int) -> tuple[Integers, Integers]:
    """Return the number of rows of each batch, and the positions of the rows of all batches."""
    counts = np.minimum(size, total - batches * size)
    ends = np.cumsum(counts)
    return counts, np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts - batches * size, counts)


def divide_rows(node: Unbatch, positions: Integers) -> tuple[Integers, Integers]:
    """Return the parent's batch and the row in it for each position of an indexable `unbatch`."""
    known = rows_per_batch(node.parent)
    if known is None:
        raise InternalError("rows of batches that are read in order have no positions")
    batches = positions // known.size
    return batches, positions - batches * known.size


def first_members(grouping: Grouping, groups: Integers) -> Integers:
    """Return the position, in the parent, of the first member of each group."""
    counts, members = grouping.members(groups)
    firsts: Integers = members[np.cumsum(counts) - counts]
    return firsts
