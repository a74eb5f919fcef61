"""Rewriting a graph: the same steps over other parents, an order held fixed over epochs, seeds of a mixture's part."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, assert_never

from penstock._graph._length import length
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
    parents_of,
    root,
)
from penstock._seeds import derive
from penstock.errors import GraphError
from penstock.sampling import (
    Bits,
    CheckedSampler,
    FixedEpoch,
    FixedOrder,
    Reorder,
    Repeat,
    ScalarSampler,
    Select,
    Shuffle,
    Slice,
)

_LARGEST_CYCLE = 1 << 62

_Seeded = TypeVar("_Seeded", bound=Read | Stream | Map | Mix | StreamingMix | Chain | Zip | WindowShuffle)


def with_parents(node: Node, parents: tuple[Node, ...]) -> Node:
    """Return the step over other parents, as many as it has."""
    match node:
        case Read() | Stream():
            return node
        case Mix() | StreamingMix() | Chain() | Zip():
            return replace(node, parts=parents)
        case Reindex() | Map() | Filter() | Batch() | Unbatch() | FlatMap() | Windows() | Group() | Cache():
            return replace(node, parent=parents[0])
        case Pack() | Bucket() | WindowShuffle() | UserFold() | Limit():
            return replace(node, parent=parents[0])
        case _:
            assert_never(node)


def varies_by_epoch(node: Node) -> bool:
    """Return whether the order of the node's elements changes from epoch to epoch."""
    match node:
        case Stream():
            return True  # nothing is known of what an iterable gives next time
        case WindowShuffle():
            return True
        case Reindex(parent=parent, sampler=sampler):
            match _unchecked(sampler):
                case FixedEpoch():
                    return False
                case Slice() | Select() | Bits() | FixedOrder(cycle=1):
                    return varies_by_epoch(parent)
                case Repeat(reshuffle=reshuffle) if not reshuffle:
                    return varies_by_epoch(parent)
                case _:
                    return True  # a shuffle, or a sampler of the user's, which may
        case _:  # the rule of a mixture gives every epoch the same pattern
            return any(map(varies_by_epoch, parents_of(node)))


def _unchecked(sampler: ScalarSampler) -> ScalarSampler:
    return sampler.sampler if isinstance(sampler, CheckedSampler) else sampler


def hold_order(node: Node, cycle: int = 1) -> Node:
    """Return the node with its order fixed: the same every `cycle` epochs, while random maps still see every epoch.

    A slice of a shuffle stands above this, so that its *set* is that of epoch 0 for ever. A repeat below it has
    `times` inner epochs to every outer one, so their orders return with that cycle; likewise a mixture without end.
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
            fixed = isinstance(_unchecked(sampler), Slice | Select | Bits | FixedOrder)
            return replace(node, parent=below, sampler=sampler if fixed else FixedOrder(sampler, cycle))
        case Mix(parts=parts, rule=rule):
            endless = getattr(rule, "endless", False)
            cycles = [cycle * Repeat(length(part) or 0, None).passes if endless else cycle for part in parts]
            held = (hold_order(part, min(many, _LARGEST_CYCLE)) for part, many in zip(parts, cycles, strict=True))
            return replace(node, parts=tuple(held))
        case _:
            return with_parents(node, tuple(hold_order(parent, cycle) for parent in parents_of(node)))


def choose(node: Node, sampler: Slice | Select | Bits, verb: str) -> Node:
    """Return the elements that a sampler chooses; above a shuffle their set is fixed, and reordered inside itself."""
    if not varies_by_epoch(node):
        return Reindex(node, sampler, verb)
    fixed = Reindex(hold_order(node), sampler, verb)
    return Reindex(fixed, Reorder(len(sampler), derive(root(node).seed, "reorder")), "")


def repeated(node: Node, times: int | None) -> Node:
    """Return a node that is read in order over and over: each of its leaves is repeated, the steps above go on.

    Raises:
        GraphError: over a limit, whose meaning would change.
    """
    if isinstance(node, Stream):
        return replace(node, times=None if times is None or node.times is None else node.times * times)
    if isinstance(node, Limit):
        raise GraphError("repeat() can't stand above limit(), which counts over all passes. Use limit after repeat.")
    count = length(node)
    if count is not None:
        return Reindex(node, Repeat(count, times), f"repeat({'' if times is None else times})")
    return with_parents(node, tuple(repeated(parent, times) for parent in parents_of(node)))


def prefixed(node: Node, name: str) -> Node:
    """Return the graph of a mixture's part: all its random streams are those of the part's name.

    So parts with equal steps share no randomness, and a part's doesn't depend on the other parts. What a choice of a
    set stands on keeps its order, since another order would be another set: train and validation would mix.
    """
    return _prefixed(node, lambda seed: derive(seed, name), reorders=True)


def _prefixed(node: Node, change: Callable[[int], int], *, reorders: bool) -> Node:
    """Return the graph with its seeds changed; those of its shuffles only where no set depends on their order."""
    match node:
        case Reindex(sampler=sampler):
            if reorders:
                node = replace(node, sampler=_changed(sampler, change))
            reorders = reorders and isinstance(sampler, Shuffle | Reorder | Repeat)
        case WindowShuffle():
            node = _with_seed(node, change) if reorders else node
        case Read() | Stream() | Map() | Mix() | StreamingMix() | Chain() | Zip():
            node = _with_seed(node, change)
        case FlatMap(counts=counts):
            reorders = reorders and counts is None
        case Windows() | Group() | Cache() | Limit():
            reorders = False  # tables and stores go by the parent's position, and a limit is a choice
        case Filter() | Batch() | Unbatch() | Pack() | Bucket() | UserFold():
            pass
        case _:
            assert_never(node)
    return with_parents(node, tuple(_prefixed(parent, change, reorders=reorders) for parent in parents_of(node)))


def _changed(sampler: ScalarSampler, change: Callable[[int], int]) -> ScalarSampler:
    if isinstance(sampler, Shuffle | Reorder):
        return replace(sampler, seed=change(sampler.seed))
    return sampler


def _with_seed(node: _Seeded, change: Callable[[int], int]) -> _Seeded:
    return replace(node, seed=change(node.seed))
