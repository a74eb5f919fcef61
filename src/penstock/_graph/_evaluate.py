"""What a dataset means: plain Python, one element at a time.

`element_at` is the definition of a dataset that can be indexed, `elements`, in `_in_order`, of one that is read in
order. Everything faster must equal them, byte for byte.
"""

from dataclasses import replace
from typing import Any, TypeGuard, assert_never

import numpy as np

from penstock._graph._apply import Context, Place, apply_one, whereabouts
from penstock._graph._length import length, rows_per_batch
from penstock._graph._nodes import Batch, Element, Filter, Map, Node, Read, Reindex, Unbatch
from penstock._graph._seed_position import key_block, row_seed_position, seed_position
from penstock.batching._rows import split_rows
from penstock.errors import GraphError, InternalError
from penstock.sources._reading import read_records


def element_at(node: Node, epoch: int, position: int, context: Context) -> Element:
    """Return the element at `position` of `epoch`, computed here and now: the meaning of an indexable dataset."""
    match node:
        case Read(source=source):
            return read_records(source, np.array([position], np.int64))[0]
        case Reindex(parent=parent, sampler=sampler):
            return element_at(parent, *sampler(epoch, position), context)
        case Map(parent=parent):
            element = element_at(parent, epoch, position, context)
            return apply_one(node, element, place_of(parent, epoch, position), context, element_at)
        case Batch(parent=parent):
            start, stop = node.size * position, min(node.size * (position + 1), length(parent) or 0)
            rows = [element_at(parent, epoch, row, context) for row in range(start, stop)]
            return merge_rows(node, rows, node.size)
        case Unbatch(parent=parent):
            known = rows_per_batch(parent)
            if known is None:
                raise InternalError("rows of an ordered unbatch have no positions of their own")
            batch, row = divmod(position, known.size)
            rows = split_rows(element_at(parent, epoch, batch, context))
            check_row_count(known.total, known.size, batch, len(rows))
            return rows[row]
        case Filter():
            raise InternalError("a filter has no positions of its own")
        case _:
            assert_never(node)


def place_of(node: Node, epoch: int, position: int) -> Place:
    """Return where the element at (epoch, position) of an indexable node stands."""
    key = key_block(node, np.array([epoch], np.int64), np.array([position], np.int64))
    return Place(epoch, position, seed_position(node, epoch, position), int(key[0]))


def row_place(batch: Place, row: int) -> Place:
    """Return the place of one row that is taken out of a batch."""
    return replace(batch, seed=row_seed_position(batch.seed, row))


def keeps(step: Filter, element: Element, place: Place) -> bool:
    """Return whether the predicate is true of the element."""
    try:
        return bool(step.predicate(element))
    except Exception as error:
        error.add_note(whereabouts(step, place))
        raise


def merge_rows(step: Batch, rows: list[Element], size: int) -> Element:
    """Return the rows merged into one batch, padded to `size` and masked as the step says."""
    count = len(rows)
    if step.remainder == "pad":
        rows = rows + [rows[-1]] * (size - count)
    return with_mask(step, step.merge(rows), count, len(rows))


def with_mask(step: Batch, batch: Element, data_rows: int, rows: int) -> Element:
    """Return the batch with the step's mask leaf: true for the first `data_rows` of its rows."""
    if step.mask is None:
        return batch
    if not _is_dict(batch) or step.mask in batch:
        found = f"a dict that has {step.mask!r} already" if _is_dict(batch) else f"a {type(batch).__name__}"
        raise GraphError(f"mask={step.mask!r} must name a new leaf of a dict; the batch is {found}")
    return {**batch, step.mask: np.arange(rows) < data_rows}


def check_row_count(total: int, size: int, batch: int, found: int) -> None:
    """Raise if a function between `batch` and `unbatch` changed the number of rows."""
    expected = min(size, total - size * batch)
    if found != expected:
        raise GraphError(
            f"unbatch() found {found} rows in batch {batch} instead of {expected}: "
            "a function above batch() must keep the number of rows"
        )


def _is_dict(batch: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(batch, dict)
