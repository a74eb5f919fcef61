"""Seed positions: the addresses of elements' random streams below a step's seed.

The problem: a random step needs a stream of random numbers for each element that is the same for any number of workers
and ranks, and that no other element has. The coordinates at the step are no such address. Two shards of one dataset
both begin at position 0, and would draw equal numbers; a repeat counts the second pass on in the same epoch, while the
same pass as an epoch of its own counts from 0.

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

Invariant: seed positions are part of what a dataset means. A change of this module changes the random numbers of
existing datasets, and the golden records find it.
"""

from typing import Final, NamedTuple, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._graph._length import length, rows_per_batch
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
)
from penstock._seeds import derive, derive_block
from penstock.batching import Grouping
from penstock.errors import InternalError
from penstock.sampling import (
    Bits,
    CheckedSampler,
    FixedEpoch,
    FixedOrder,
    Reorder,
    Repeat,
    ScalarSampler,
    Shuffle,
    Slice,
    seed_positions,
)

Integers: TypeAlias = NDArray[np.int64]

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
        case (
            Stream() | StreamingMix() | Chain() | FlatMap() | Pack() | Bucket() | WindowShuffle() | UserFold() | Limit()
        ):
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
        case StreamingMix() | Chain() | Pack() | Bucket() | WindowShuffle() | UserFold() | Limit():
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
