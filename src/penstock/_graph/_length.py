"""How many elements a node has, and whether they can be addressed by position."""

from typing import NamedTuple, assert_never

from penstock._graph._nodes import Batch, Filter, Map, Node, Read, Reindex, Unbatch
from penstock.sampling import Repeat


def length(node: Node) -> int | None:
    """Return the number of elements in an epoch, or None where only evaluating tells: the dataset is *ordered*."""
    match node:
        case Read(length=count):
            return count
        case Reindex(sampler=sampler):
            return len(sampler)
        case Map(parent=parent, on_error=on_error):
            return None if on_error == "skip" else length(parent)
        case Filter():
            return None
        case Batch(parent=parent, size=size, remainder=remainder):
            rows = length(parent)
            if rows is None:
                return None
            return rows // size if remainder == "drop" else -(-rows // size)
        case Unbatch(parent=parent):
            known = rows_per_batch(parent)
            return None if known is None else known.total
        case _:
            assert_never(node)


def is_indexable(node: Node) -> bool:
    """Return whether any element can be computed on its own, from its position alone."""
    return length(node) is not None


def is_endless(node: Node) -> bool:
    """Return whether the node repeats without end."""
    match node:
        case Read():
            return False
        case Reindex(parent=parent, sampler=sampler):
            if isinstance(sampler, Repeat):
                return sampler.endless
            return is_endless(parent) and length(parent) == len(sampler)
        case Map(parent=parent) | Filter(parent=parent) | Batch(parent=parent) | Unbatch(parent=parent):
            return is_endless(parent)
        case _:
            assert_never(node)


class RowsPerBatch(NamedTuple):
    """Batches whose row counts follow from the position alone."""

    size: int
    """Rows of each batch; only the last may have fewer."""
    total: int
    """Rows of all batches."""


def rows_per_batch(node: Node) -> RowsPerBatch | None:
    """Return how rows are spread over the batches of a node, or None where only evaluating tells."""
    match node:
        case Batch(parent=parent, size=size, remainder=remainder):
            rows = length(parent)
            if rows is None:
                return None
            batches = length(node) or 0
            return RowsPerBatch(size, rows if remainder == "keep" else batches * size)
        case Map(parent=parent, on_error=on_error):
            return None if on_error == "skip" else rows_per_batch(parent)
        case Reindex(parent=parent, sampler=sampler):
            known = rows_per_batch(parent)
            if known is None or known.total % known.size:
                return None  # the short batch may now be anywhere
            return RowsPerBatch(known.size, len(sampler) * known.size)
        case Read() | Filter() | Unbatch():
            return None
        case _:
            assert_never(node)
