"""Rewriting a graph: the same steps over another parent, and an order held fixed over epochs."""

from dataclasses import replace
from typing import assert_never

from penstock._graph._nodes import Batch, Filter, Map, Node, Read, Reindex, Unbatch
from penstock.sampling import FixedEpoch, FixedOrder, Repeat, Select, Slice


def with_parent(node: Node, parent: Node) -> Node:
    """Return the step over another parent."""
    match node:
        case Read():
            return node
        case Reindex() | Map() | Filter() | Batch() | Unbatch():
            return replace(node, parent=parent)
        case _:
            assert_never(node)


def varies_by_epoch(node: Node) -> bool:
    """Return whether the order of the node's elements changes from epoch to epoch."""
    while not isinstance(node, Read):
        if isinstance(node, Reindex):
            match node.sampler:
                case FixedEpoch():
                    return False
                case Slice() | Select():
                    pass
                case Repeat(reshuffle=reshuffle) if not reshuffle:
                    pass
                case FixedOrder(cycle=1):
                    pass
                case _:
                    return True  # a shuffle, or a sampler of the user's, which may
        node = node.parent
    return False


def hold_order(node: Node, cycle: int = 1) -> Node:
    """Return the node with its order fixed: the same every `cycle` epochs, while random maps still see every epoch.

    A slice of a shuffle stands above this, so that its *set* is that of epoch 0 for ever. A repeat below it has
    `times` inner epochs to every outer one, so their orders return with that cycle.
    """
    match node:
        case Read():
            return node
        case Reindex(sampler=FixedEpoch()):
            return node
        case Reindex(parent=parent, sampler=Repeat() as repeat):
            return replace(node, parent=hold_order(parent, cycle * repeat.passes if repeat.reshuffle else cycle))
        case Reindex(parent=parent, sampler=sampler):
            below = hold_order(parent, cycle)
            fixed = isinstance(sampler, Slice | Select | FixedOrder)
            return replace(node, parent=below, sampler=sampler if fixed else FixedOrder(sampler, cycle))
        case Map(parent=parent) | Filter(parent=parent) | Batch(parent=parent) | Unbatch(parent=parent):
            return with_parent(node, hold_order(parent, cycle))
        case _:
            assert_never(node)
