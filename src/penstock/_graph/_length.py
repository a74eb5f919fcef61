"""Lengths of nodes: the number of elements, whether they have positions or an end, and the rows of batches."""

from typing import NamedTuple, assert_never

from penstock._graph._nodes import Batch, Cache, Combine, Filter, Fold, Group, Map, Node, Read, Reindex, Split, Stream
from penstock.sampling import Repeat


def length(node: Node) -> int | None:
    """Return the number of elements in an epoch, or None if it is unknown: the dataset is read in order."""
    match node:
        case Read(length=count):
            return count
        case Reindex(sampler=sampler):
            return len(sampler)
        case Map(parent=parent, on_error=on_error):
            return None if on_error == "skip" else length(parent)
        case Batch(parent=parent, size=size, remainder=remainder):
            rows = length(parent)
            if rows is None:
                return None
            return rows // size if remainder == "drop" else -(-rows // size)
        case Split(parent=parent, value=value):
            return value.count(parent)
        case Group(parent=parent, grouping=grouping):
            return None if length(parent) is None else len(grouping)
        case Cache(parent=parent):
            return length(parent)
        case Combine(parts=parts, value=value):
            return value.count(parts)
        case Filter() | Stream() | Fold():
            return None
        case _:
            assert_never(node)


def is_indexable(node: Node) -> bool:
    """Return whether each element can be computed by itself, from its position."""
    return length(node) is not None


def is_endless(node: Node) -> bool:
    """Return whether the node repeats without end."""
    match node:
        case Read() | Group():
            return False
        case Fold(parent=parent, value=value):
            return value.limit is None and is_endless(parent)
        case Stream(times=times):
            return times is None
        case Reindex(parent=parent, sampler=sampler):
            if isinstance(sampler, Repeat):
                return sampler.endless
            return is_endless(parent) and length(parent) == len(sampler)
        case Split(parent=parent, value=value):
            return not value.is_by_position and is_endless(parent)
        case Map(parent=parent) | Filter(parent=parent) | Batch(parent=parent) | Cache(parent=parent):
            return is_endless(parent)
        case Combine(parts=parts, value=value):
            return value.is_endless(map(is_endless, parts))
        case _:
            assert_never(node)


class RowsPerBatch(NamedTuple):
    """Batches whose numbers of rows follow from their positions."""

    size: int
    """Rows of each batch; only the last may have fewer."""
    total: int
    """Rows of all batches."""


def rows_per_batch(node: Node) -> RowsPerBatch | None:
    """Return the numbers of rows of a node's batches, or None if they are unknown."""
    match node:
        case Batch(parent=parent, size=size, remainder=remainder):
            rows = length(parent)
            if rows is None:
                return None
            batches = length(node) or 0
            return RowsPerBatch(size, rows if remainder == "keep" else batches * size)
        case Map(parent=parent, on_error=on_error):
            return None if on_error == "skip" else rows_per_batch(parent)
        case Cache(parent=parent):
            return rows_per_batch(parent)
        case Reindex(parent=parent, sampler=sampler):
            known = rows_per_batch(parent)
            if known is None or known.total % known.size:
                return None  # the sampler may move the short batch anywhere
            return RowsPerBatch(known.size, len(sampler) * known.size)
        case Read() | Stream() | Combine() | Filter() | Split() | Group() | Fold():
            return None
        case _:
            assert_never(node)


def outermost_batch(node: Node) -> Batch | Fold | None:
    """Return the batch that ranks share, or None if there is no batch or a step above it needs whole batches.

    If the rows of batches have positions (`unbatch` of an indexable batch), ranks share these rows, and no batch. A
    `pack` above a batch makes sequences of several batches, so there ranks share no batch, either.
    """
    while not (isinstance(node, Batch | Fold) and node.rows):
        if not isinstance(node, Map | Filter | Split | Fold):
            return None
        if isinstance(node, Fold) and not node.value.passes_all:
            return None
        if isinstance(node, Split) and is_indexable(node):
            return None
        node = node.parent
    return node
