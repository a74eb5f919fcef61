"""Rewriting of graphs: an order fixed for all epochs, repeats of streams, seeds of a mixture's part.

A choice of elements above a shuffle (`take`, `split`, `filter(index=)`) must choose the same set in every epoch, or
train and validation would exchange records. So the graph below the choice is rewritten to the order of epoch 0
(`hold_order`), and a `Reorder` above it shuffles the chosen elements in each epoch (`choose`). Random maps still have
other numbers in each epoch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, assert_never

from penstock._graph._describe import chain_text
from penstock._graph._length import is_endless, length
from penstock._graph._nodes import (
    Cache,
    Combine,
    Filter,
    Fold,
    Gather,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
    parents_of,
    root,
)
from penstock._seeds import derive
from penstock.errors import GraphError
from penstock.sampling import (
    Bits,
    FixedEpoch,
    FixedOrder,
    OwnSampler,
    Reorder,
    Repeat,
    ScalarSampler,
    Select,
    Slice,
    facts_of,
)

_LARGEST_CYCLE = 1 << 62

_Seeded = TypeVar("_Seeded", bound=Read | Stream | Map | Combine)


def with_parents(node: Node, parents: tuple[Node, ...]) -> Node:
    """Return a copy of the node with other parents, of the same number."""
    match node:
        case Read() | Stream():
            return node
        case Combine():
            return replace(node, parts=parents)
        case Reindex() | Map() | Filter() | Gather() | Split() | Cache() | Fold():
            return replace(node, parent=parents[0])
        case _:
            assert_never(node)


def varies_by_epoch(node: Node) -> bool:
    """Return whether the order of a node's elements may change from epoch to epoch."""
    match node:
        case Stream():
            return True  # the next pass over an iterable may have another order
        case Fold(value=value) if value.random is not None:
            return True
        case Reindex(parent=parent, sampler=sampler):
            if isinstance(sampler, FixedEpoch):
                return False
            passes_order = isinstance(sampler, Repeat)  # it only chooses the parent's epoch
            return not (passes_order or facts_of(sampler).is_fixed) or varies_by_epoch(parent)
        case _:  # a mixture has the same pattern in every epoch
            return any(map(varies_by_epoch, parents_of(node)))


def hold_order(node: Node, cycle: int = 1) -> Node:
    """Return a node with the orders of the first `cycle` epochs, which repeat; random maps still have every epoch.

    `choose` needs a cycle of 1. Below a repeat of `times` passes, each outer epoch has `times` inner ones, so the cycle
    is `times` as long there; likewise below a mixture without end.
    """
    match node:
        case Read() | Stream():
            return node
        case Reindex(sampler=FixedEpoch()):
            return node
        case Reindex(parent=parent, sampler=Repeat() as repeat):
            return replace(node, parent=hold_order(parent, cycle * repeat.passes if repeat.reshuffle else cycle))
        case Reindex(parent=parent, sampler=sampler):
            below = hold_order(parent, cycle)
            repeats = isinstance(sampler, FixedOrder) and cycle % sampler.cycle == 0
            is_held = repeats or facts_of(sampler).is_fixed
            return replace(node, parent=below, sampler=sampler if is_held else FixedOrder(sampler, cycle))
        case Combine(parts=parts, value=value):
            endless = getattr(value.rule, "endless", False)
            cycles = (cycle * Repeat(length(part) or 0, None).passes if endless else cycle for part in parts)
            held = (hold_order(part, min(many, _LARGEST_CYCLE)) for part, many in zip(parts, cycles, strict=True))
            return replace(node, parts=tuple(held))
        case _:
            return with_parents(node, tuple(hold_order(parent, cycle) for parent in parents_of(node)))


def choose(node: Node, sampler: Slice | Select | Bits, verb: str) -> Node:
    """Return a choice of elements. Above a shuffle it is the same set in every epoch, in a new order each time."""
    if not varies_by_epoch(node):
        return Reindex(node, sampler, verb)
    fixed = Reindex(hold_order(node), sampler, verb)
    return Reindex(fixed, Reorder(len(sampler), derive(root(node).seed, "reorder")), "")


def repeated(node: Node, times: int | None, caller: str, remedy: str = "") -> Node:
    """Return a repeat of a node that is read in order: its block inputs and streams are repeated below its steps.

    So batches and windows continue over the end of a pass.

    Args:
        node: the node.
        times: the number of passes; None is no bound.
        caller: the call that repeats the node, for messages.
        remedy: a further remedy, where the parts of a node would be repeated one by one.

    Raises:
        GraphError: the node has a limit, which would count over all passes, or several parts that are read in order.
    """
    if isinstance(node, Stream):
        return replace(node, times=None if times is None or node.times is None else node.times * times)
    if isinstance(node, Fold) and node.value.limit is not None:
        raise GraphError("repeat() can't follow limit(), which would count over all passes. Use limit after repeat.")
    count = length(node)
    if count is not None:
        if times is not None and is_endless(node):
            return node  # its first pass never ends
        return Reindex(node, Repeat(count, times), f"repeat({'' if times is None else times})")
    if isinstance(node, Combine) and not _is_repeated_by_parts(node, times):
        if is_endless(node):
            return node
        raise GraphError(
            f"{chain_text(node)} reads its parts in order, so {caller} would repeat each of them by itself, and not "
            f"the whole. {node.value.repeat_remedy}.{remedy}"
        )
    return with_parents(node, tuple(repeated(parent, times, caller, remedy) for parent in parents_of(node)))


def _is_repeated_by_parts(node: Combine, times: int | None) -> bool:
    """Return whether repeats of the parts are one of the whole: there is one part, a single pass, or never an end."""
    return len(node.parts) == 1 or times == 1 or all(map(is_endless, node.parts))


def prefixed(node: Node, name: str) -> Node:
    """Return the graph of a mixture's part, with seeds that derive from the part's name.

    So parts with equal steps have different random numbers, which don't depend on the other parts. A shuffle below a
    choice of elements keeps its seed: with another seed the choice would be another set, and train and validation would
    exchange records. So does one below a fixed epoch or a fixed order.
    """
    return _prefixed(node, lambda seed: derive(seed, name), reorders=True)


def _prefixed(node: Node, change: Callable[[int], int], *, reorders: bool) -> Node:
    """Return the graph with changed seeds; a shuffle keeps its seed where a set depends on its order."""
    match node:
        case Reindex(sampler=sampler):
            if reorders:
                node = replace(node, sampler=_reseeded(sampler, change))
            reorders = reorders and facts_of(sampler).keeps_all
        case Fold(value=value):
            if reorders and value.random is not None:
                node = replace(node, value=value.with_seed(change(value.random.seed)))
            reorders = reorders and value.limit is None  # a limit is a choice
        case Read() | Stream() | Map() | Combine():
            node = _with_seed(node, change)
        case Split(value=value):
            reorders = reorders and not value.is_by_position
        case Gather(value=value):
            reorders = reorders and not value.is_planned
        case Cache():
            reorders = False  # a store is by position in the parent
        case Filter():
            pass
        case _:
            assert_never(node)
    return with_parents(node, tuple(_prefixed(parent, change, reorders=reorders) for parent in parents_of(node)))


def _reseeded(sampler: ScalarSampler, change: Callable[[int], int]) -> ScalarSampler:
    return sampler.__penstock_reseeded__(change) if isinstance(sampler, OwnSampler) else sampler


def _with_seed(node: _Seeded, change: Callable[[int], int]) -> _Seeded:
    return replace(node, seed=change(node.seed))
