"""Lengths of nodes: the number of elements, and whether they have positions or an end."""

from typing import assert_never

from penstock._graph._nodes import Cache, Combine, Filter, Fold, Gather, Map, Node, Read, Reindex, Split, Stream
from penstock.sampling import Repeat, Slice


def length(node: Node) -> int | None:
    """Return the number of elements in an epoch, or None if it is unknown: the dataset is read in order."""
    match node:
        case Read(length=count):
            return count
        case Reindex(sampler=sampler):
            return len(sampler)
        case Map(parent=parent, on_error=on_error):
            return None if on_error == "skip" else length(parent)
        case Gather(parent=parent, value=value) | Split(parent=parent, value=value):
            return value.count(parent)
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
        case Read():
            return False
        case Fold(parent=parent, value=value):
            return value.limit is None and is_endless(parent)
        case Stream(times=times):
            return times is None
        case Reindex(parent=parent, sampler=sampler):
            if isinstance(sampler, Repeat):
                return sampler.endless
            is_part = isinstance(sampler, Slice)  # such as take(n)
            return not is_part and is_endless(parent) and length(parent) == len(sampler)
        case Split(parent=parent, value=value):
            return not value.is_by_position and is_endless(parent)
        case Gather(parent=parent, value=value):
            return not value.is_planned and is_endless(parent)
        case Map(parent=parent) | Filter(parent=parent) | Cache(parent=parent):
            return is_endless(parent)
        case Combine(parts=parts, value=value):
            return value.is_endless(map(is_endless, parts))
        case _:
            assert_never(node)
