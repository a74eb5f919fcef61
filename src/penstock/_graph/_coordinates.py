"""The coordinates below an element: its seed position, its record, and the records that a block of elements needs.

An element of an indexable node has coordinates (epoch, position) there. Three readings of the graph follow the
`inputs` of a block of elements down, with arithmetic alone:

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

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from penstock._graph._gather import is_batch
from penstock._graph._inputs import first_inputs, inputs
from penstock._graph._length import length
from penstock._graph._nodes import (
    Cache,
    Combine,
    Fold,
    Integers,
    Map,
    Node,
    Origin,
    Read,
    Reindex,
    SourceNode,
    Split,
    Stream,
    parents_of,
    root,
    walk,
)
from penstock._seeds import derive, derive_block
from penstock.errors import InternalError
from penstock.events import Event, Substituted
from penstock.sampling import FixedEpoch, ScalarSampler, facts_of, seed_positions
from penstock.sources import AwaitedSource, describe_key

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
        case Read() | Combine():
            return SeedPositions(epochs, positions, np.zeros_like(positions))
        case Reindex(parent=parent, sampler=sampler):
            if not passes_below(sampler):
                return SeedPositions(epochs, positions, np.zeros_like(positions))
            return seed_position_block(parent, *seed_positions(sampler, epochs, positions))
        case _:
            below = first_inputs(node, epochs, positions)
            seeds = seed_position_block(*below[:3])
            return seeds if below.ordinals is None else _with_rows(seeds, below.ordinals)


def positions_per_epoch(node: Node) -> int | None:
    """Return the number of positions in an epoch of the order in which a node's seed positions count.

    None if it is unknown, as for a stream; 0 for a stream that repeats without end, which has one epoch.
    """
    match node:
        case Read() | Combine():
            return length(node)
        case Reindex(parent=parent, sampler=sampler):
            return positions_per_epoch(parent) if passes_below(sampler) else len(sampler)
        case Stream(times=times):
            return 0 if times is None else None
        case Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            return positions_per_epoch(node.parent)


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
    return facts_of(sampler).takes_once


def draws_by_epoch(node: Node) -> bool:
    """Return whether a random map of a node may draw other numbers in each epoch."""
    if isinstance(node, Reindex) and isinstance(node.sampler, FixedEpoch):
        return False
    draws = isinstance(node, Map) and node.form not in {"none", "origin"} and not _is_seeded_by_one_epoch(node.parent)
    return draws or any(map(draws_by_epoch, parents_of(node)))


def _is_seeded_by_one_epoch(node: Node) -> bool:
    """Return whether the seed positions of a node's elements are those of one epoch, in all epochs of the node."""
    match node:
        case Read() | Stream() | Combine() | Fold():
            return False
        case Reindex(parent=parent, sampler=sampler):
            return isinstance(sampler, FixedEpoch) or (passes_below(sampler) and _is_seeded_by_one_epoch(parent))
        case _:
            return _is_seeded_by_one_epoch(node.parent)


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


def locate(node: Node, epoch: int, position: int) -> Located:
    """Return the record that one element of an indexable node is made of."""
    share = locate_block(node, np.array([epoch], np.int64), np.array([position], np.int64))[0]
    return Located(share.source, share.component, int(share.keys[0]))


def locate_block(node: Node, epochs: Integers, positions: Integers) -> list[Share]:
    """Return the records that a block of elements is made of, source by source."""
    while not (isinstance(node, Combine) and node.value.takes_one):
        if isinstance(node, Read):
            return [Share(node, "", None, positions)]
        node, epochs, positions = _first_below(node, epochs, positions)
    shares: list[Share] = []
    for below in inputs(node, epochs, positions):
        name = node.names[below.part]
        for source, inner, rows, keys in locate_block(below.parent, below.epochs, below.positions):
            path = f"{name}/{inner}" if inner else name
            shares.append(Share(source, path, _composed(below.rows, rows), keys))
    return shares


def _first_below(node: Node, epochs: Integers, positions: Integers) -> tuple[Node, Integers, Integers]:
    """Return the node below, and the coordinates there of the first input of each element; of a row, the row's own."""
    below = first_inputs(node, epochs, positions)
    if not isinstance(node, Split) or not node.value.pieces_are_inputs or below.ordinals is None:
        return below[:3]
    rows = below.ordinals
    node, epochs, positions = below[:3]
    while not is_batch(node):
        if not isinstance(node, Reindex | Map | Cache):
            raise InternalError("an indexable unbatch is above a batch")
        node, epochs, positions = first_inputs(node, epochs, positions)[:3]
    return first_inputs(node, epochs, positions, rows)[:3]


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


def source_of(node: Node, component: str) -> SourceNode | None:
    """Return the source node of a component such as "web/en", or None if there is none."""
    base = root(node)
    if isinstance(base, Read | Stream):
        return None if component else base
    if not base.value.takes_one:
        return source_of(base.parts[0], component)
    for name, part in zip(base.names, base.parts, strict=True):
        if component == name or component.startswith(f"{name}/"):
            found = source_of(part, component[len(name) + 1 :])
            if found is not None:
                return found
    return None


def describe_record(node: Node, component: str, key: int) -> str:
    """Return the key of a record of a component and, where the source knows them, its file and its place in it."""
    source = source_of(node, component)
    return describe_key(source.source, key) if isinstance(source, Read) else f"key {key}"


def origins(node: Node, epochs: Integers, positions: Integers) -> tuple[Origin, ...]:
    """Return the origins of a block of elements of an indexable node, without reading one."""
    if not len(positions):
        return ()
    seeds, shares = seed_position_block(node, epochs, positions), locate_block(node, epochs, positions)
    keys, components = keys_of(shares, len(positions)).tolist(), components_of(shares, len(positions))
    at = (seeds.epochs.tolist(), seeds.positions.tolist())
    columns = (*at, keys, seeds.ordinals.tolist(), components, indices(node, *at))
    return tuple(
        origin_in(node, component, Origin(epoch, position, key, 0, ordinal, component, index))
        for epoch, position, key, ordinal, component, index in zip(*columns, strict=True)
    )


def origin_in(node: Node, component: str, origin: Origin) -> Origin:
    """Return an origin that asks the source of a node's component for the record's name."""
    vars(origin)["describe"] = partial(describe_record, node, component, origin.key)
    return origin


def with_substitutes(origin: Origin, events: Iterable[Event]) -> Origin:
    """Return an origin whose record's name says which element took its place, by the events of the row's computation.

    The row may be computed together with others, as below `unbatch`; events about their records are none of its own.
    """
    taken = [
        f" (replaced in step {event.step!r} by the element of position {event.taken_from:,}, key {event.taken_key})"
        for event in events
        if isinstance(event, Substituted) and event.key == origin.key
    ]
    vars(origin)["describe"] = partial("".join, [origin.record, *taken])
    return origin


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
    if isinstance(node, Read) and isinstance(node.source, AwaitedSource) and len(positions):
        yield Upcoming(node.source, positions)
    if isinstance(node, Cache):
        return
    for below in inputs(node, epochs, positions):
        yield from upcoming(*(below.distinct()[:3] if below.are_shared else below[:3]))
