"""The definition of an indexable dataset: `element_at` computes one element in plain Python.

`elements` in `_in_order` is the definition of a dataset that is read in order. Blocks, jobs and streams are faster ways
to the same elements, byte for byte; `tests/equivalence` compares them over random graphs. So this module is short and
slow on purpose: it computes nothing ahead, shares nothing between elements, and has no arrays of positions but where a
table is looked up.
"""

from dataclasses import replace
from typing import assert_never

import numpy as np

from penstock._graph._apply import Context, Location, apply_one, whereabouts
from penstock._graph._cache import cached
from penstock._graph._flat import check_made, flat_elements
from penstock._graph._frames import Span, cut_window, read_windows, reads_spans
from penstock._graph._length import length, rows_per_batch
from penstock._graph._locate import locate
from penstock._graph._mask import with_mask
from penstock._graph._nodes import (
    Batch,
    Bucket,
    Cache,
    Chain,
    Element,
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
from penstock._graph._seed_position import row_seed_position, seed_position
from penstock.batching import split_rows
from penstock.errors import GraphError, InternalError
from penstock.sources import read_records


def element_at(node: Node, epoch: int, position: int, context: Context) -> Element:
    """Return the element at `position` of `epoch` of an indexable node: the definition."""
    match node:
        case Read(source=source):
            return read_records(source, np.array([position], np.int64))[0]
        case Reindex(parent=parent, sampler=sampler):
            return element_at(parent, *sampler(epoch, position), context)
        case Map(parent=parent):
            element = element_at(parent, epoch, position, context)
            return apply_one(node, element, location_of(parent, epoch, position), context, element_at)
        case Batch(parent=parent):
            start, stop = node.size * position, min(node.size * (position + 1), length(parent) or 0)
            rows = [element_at(parent, epoch, row, context) for row in range(start, stop)]
            return merge_rows(node, rows, node.size)
        case Unbatch(parent=parent):
            known = rows_per_batch(parent)
            if known is None:
                raise InternalError("rows of batches that are read in order have no positions")
            batch, row = divmod(position, known.size)
            rows = split_rows(element_at(parent, epoch, batch, context))
            check_row_count(known.total, known.size, batch, len(rows))
            return rows[row]
        case FlatMap(counts=counts) if counts is not None:
            return _one_of_list(node, epoch, position, context)
        case Windows():
            return _window(node, epoch, position, context)
        case Group(parent=parent, grouping=grouping):
            group = np.array([position], np.int64)
            members = grouping.members(group)[1].tolist()
            return grouping.merge(group, [element_at(parent, epoch, member, context) for member in members])[0]
        case Cache(parent=parent):
            return cached(node, [position], lambda _: [element_at(parent, epoch, position, context)])[0]
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return element_at(parts[number], part_epoch, part_position, context)
        case Zip(parts=parts):
            return zipped(node, [element_at(part, epoch, position, context) for part in parts])
        case (
            Filter()
            | Stream()
            | StreamingMix()
            | Chain()
            | FlatMap()
            | Pack()
            | Bucket()
            | WindowShuffle()
            | UserFold()
            | Limit()
        ):
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            assert_never(node)


def _one_of_list(step: FlatMap, epoch: int, position: int, context: Context) -> Element:
    if step.counts is None:
        raise InternalError("a flat_map without counts has no positions")
    parents, ordinals = step.counts.locate(np.array([position], np.int64))
    parent, ordinal = int(parents[0]), int(ordinals[0])
    element = element_at(step.parent, epoch, parent, context)
    made = flat_elements(step, element, location_of(step.parent, epoch, parent), context, element_at)
    check_made(step, parent, len(made))
    return made[ordinal]


def _window(step: Windows, epoch: int, position: int, context: Context) -> Element:
    positions = np.array([position], np.int64)
    read = reads_spans(step)
    if read is not None:
        return read_windows(step, read, np.array([epoch], np.int64), positions)[0]
    span = Span(*(int(part[0]) for part in step.table.locate(positions)))
    return cut_window(step, element_at(step.parent, epoch, span.episode, context), span)


def zipped(step: Zip, elements: list[Element]) -> Element:
    """Return one element of each part as one element."""
    return dict(zip(step.names, elements, strict=True)) if step.as_dict else tuple(elements)


def location_of(node: Node, epoch: int, position: int) -> Location:
    """Return the location of the element at (epoch, position) of an indexable node."""
    _, part, key = locate(node, epoch, position)
    return Location(epoch, position, seed_position(node, epoch, position), key, part=part)


def row_location(batch: Location, row: int) -> Location:
    """Return the location of one row of a batch."""
    return replace(batch, seed=row_seed_position(batch.seed, row))


def keeps(step: Filter, element: Element, location: Location) -> bool:
    """Return whether the predicate is true for the element. An error gets a note with the element's location."""
    try:
        return bool(step.predicate(element))
    except Exception as error:
        error.add_note(whereabouts(step, location))
        raise


def merge_rows(step: Batch, rows: list[Element], size: int) -> Element:
    """Return the rows merged into one batch, padded to `size` and masked as the step says."""
    count = len(rows)
    if step.remainder == "pad":
        rows = rows + [rows[-1]] * (size - count)
    return with_mask(step, step.merge(rows), count, len(rows))


def check_row_count(total: int, size: int, batch: int, found: int) -> None:
    """Raise a GraphError if a function between `batch` and `unbatch` changed the number of rows of a batch."""
    expected = min(size, total - size * batch)
    if found != expected:
        raise GraphError(
            f"unbatch() found {found} rows in batch {batch} instead of {expected}: "
            "a function above batch() must keep the number of rows"
        )
