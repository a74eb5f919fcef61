"""Evaluating a block of positions at once; element for element it equals `element_at`.

Whatever depends on the position alone is computed here: reading, functions, predicates, and batches of these. Elements
that a filter or `on_error="skip"` left out are missing from the result, which says which ones were kept.
"""

import contextlib
import itertools
from typing import NamedTuple, assert_never

import numpy as np

from penstock._graph._apply import DROPPED, Context, Place, apply_block
from penstock._graph._evaluate import check_row_count, element_at, keeps, with_mask
from penstock._graph._length import length, rows_per_batch
from penstock._graph._nodes import Batch, Element, Filter, Map, Node, Read, Reindex, Unbatch
from penstock._graph._seed_position import (
    Integers,
    SeedPosition,
    SeedPositions,
    divide_rows,
    key_block,
    seed_position_block,
)
from penstock.batching import Stack
from penstock.batching._rows import split_rows
from penstock.batching._write import fast_stack
from penstock.errors import InternalError
from penstock.sampling import apply_block as apply_sampler
from penstock.sources._reading import read_records


class Block(NamedTuple):
    """The elements of a block of positions."""

    elements: list[Element]
    kept: Integers | None
    """Which elements of the block these are; None for all of them."""


class BlockPlaces:
    """The places of a block's elements at one node, computed when they are asked for."""

    def __init__(self, node: Node, epochs: Integers, positions: Integers, kept: Integers | None) -> None:
        self._node = node
        self._epochs = epochs if kept is None else epochs[kept]
        self._positions = positions if kept is None else positions[kept]
        self._seeds: SeedPositions | None = None
        self._keys: Integers | None = None

    @property
    def are_plain(self) -> bool:
        """Whether seed positions are the addresses of random streams as they are."""
        return True

    def place(self, index: int) -> Place:
        """Return the place of the block's element `index`."""
        seeds, keys = self.seeds(), self.keys()
        seed = SeedPosition(*(int(part[index]) for part in seeds))
        return Place(int(self._epochs[index]), int(self._positions[index]), seed, int(keys[index]))

    def all(self) -> list[Place]:
        """Return the places of all the block's elements."""
        seeds = map(SeedPosition, *(part.tolist() for part in self.seeds()))
        return list(map(Place, self._epochs.tolist(), self._positions.tolist(), seeds, self.keys().tolist()))

    def seeds(self) -> SeedPositions:
        """Return the seed positions of the block's elements."""
        if self._seeds is None:
            self._seeds = seed_position_block(self._node, self._epochs, self._positions)
        return self._seeds

    def keys(self) -> Integers:
        """Return the keys of the block's elements."""
        if self._keys is None:
            self._keys = key_block(self._node, self._epochs, self._positions)
        return self._keys


def evaluate_block(node: Node, epochs: Integers, positions: Integers, context: Context) -> Block:
    """Return the elements at a block of coordinates of a node.

    Args:
        node: a node without folds below it: indexable, or made so by leaving elements out.
        epochs: int64, the epoch of each element.
        positions: int64, of the same length; each in [0, length of the node or of what it leaves elements out of).
        context: of the calling thread.
    """
    match node:
        case Read(source=source):
            return Block(read_records(source, positions), None)
        case Reindex(parent=parent, sampler=sampler):
            return evaluate_block(parent, *apply_sampler(sampler, epochs, positions), context)
        case Map(parent=parent):
            below = evaluate_block(parent, epochs, positions, context)
            places = BlockPlaces(parent, epochs, positions, below.kept)
            results = apply_block(node, below.elements, places, context, element_at)
            if node.on_error != "skip":
                return Block(results, below.kept)
            return _keep(results, below.kept, [result is not DROPPED for result in results])
        case Filter(parent=parent):
            below = evaluate_block(parent, epochs, positions, context)
            places = BlockPlaces(parent, epochs, positions, below.kept)
            return _keep(below.elements, below.kept, _predicate(node, below.elements, places))
        case Batch():
            return Block(_batches(node, epochs, positions, context), None)
        case Unbatch():
            return Block(_rows(node, epochs, positions, context), None)
        case _:
            assert_never(node)


def _keep(elements: list[Element], kept: Integers | None, mask: list[bool]) -> Block:
    chosen = np.flatnonzero(np.asarray(mask, bool))
    return Block([elements[i] for i in chosen.tolist()], chosen if kept is None else kept[chosen])


def _predicate(step: Filter, elements: list[Element], places: BlockPlaces) -> list[bool]:
    with contextlib.suppress(Exception):  # judged again below, one by one, which adds the note
        predicate = step.predicate
        return [bool(predicate(element)) for element in elements]
    return [keeps(step, element, places.place(index)) for index, element in enumerate(elements)]


def _batches(step: Batch, epochs: Integers, positions: Integers, context: Context) -> list[Element]:
    """Return whole batches: the rows of all of them evaluated at once, then merged one by one."""
    total = length(step.parent)
    if total is None:
        raise InternalError("a batch of an ordered dataset has no position of its own")
    counts = np.minimum(step.size, total - positions * step.size)
    ends = np.cumsum(counts)
    rows = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts - positions * step.size, counts)
    elements = evaluate_block(step.parent, np.repeat(epochs, counts), rows, context).elements
    bounds = [0, *ends.tolist()]
    return [merge_block(step, elements[start:stop], step.size) for start, stop in itertools.pairwise(bounds)]


def merge_block(step: Batch, rows: list[Element], size: int) -> Element:
    """Return the rows merged, as `merge_rows` defines it, by the fast path where the merge is plain stacking."""
    count = len(rows)
    if step.remainder == "pad":
        rows = rows + [rows[-1]] * (size - count)
    batch = fast_stack(rows) if isinstance(step.merge, Stack) else step.merge(rows)
    return with_mask(step, batch, count, len(rows))


def _rows(step: Unbatch, epochs: Integers, positions: Integers, context: Context) -> list[Element]:
    """Return single rows of batches; each batch of the block is evaluated once."""
    known = rows_per_batch(step.parent)
    if known is None:
        raise InternalError("rows of an ordered unbatch have no positions of their own")
    batches, rows = divide_rows(step, positions)
    pairs, which = np.unique(np.stack([epochs, batches]), axis=1, return_inverse=True)
    evaluated = evaluate_block(step.parent, pairs[0].copy(), pairs[1].copy(), context).elements
    taken_apart = [split_rows(batch) for batch in evaluated]
    for batch, found in zip(pairs[1].tolist(), taken_apart, strict=True):
        check_row_count(known.total, known.size, batch, len(found))
    return [taken_apart[w][r] for w, r in zip(which.reshape(-1).tolist(), rows.tolist(), strict=True)]
