"""The definition of an indexable dataset: `element_at` computes one element in plain Python.

`elements` in `penstock._streaming` is the definition of a dataset that is read in order. Blocks, jobs and streams are
faster ways to the same elements, byte for byte; `tests/equivalence` compares them over random graphs. So the definition
is short and slow on purpose: it computes nothing ahead, shares nothing between elements, and has no arrays of positions
but where a table is looked up.

The functions of single steps below it are shared with blocks:

- *Caches*: a store that fails costs time, and never an element. The store's key is the parent's position. So the parent
  must have the same order in every epoch and no random step; the verb `cache` checks both. An element that is made of a
  substitute depends on the epoch, and is never stored.
- *Masks* are bool leaves that are true where an element has data and not padding.
"""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias, assert_never

import numpy as np

from penstock._caught import add_note, raised_by_handler
from penstock._graph._apply import Context, Location, apply_one, location_of, whereabouts
from penstock._graph._coordinates import row_seed_position
from penstock._graph._nodes import (
    Cache,
    Combine,
    Element,
    Filter,
    Fold,
    Gather,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
)
from penstock._graph._splitting import splitting_of
from penstock._storage import MISSING, Missing
from penstock._storage import Cache as ElementStore
from penstock.errors import InternalError
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
        case Gather(parent=parent, value=value):
            return value.element_at(parent, position, lambda below: element_at(parent, epoch, below, context))
        case Split():
            return splitting_of(node).piece_at(node, epoch, position, context, element_at)
        case Cache(parent=parent):
            return cached(node, [position], lambda _: [element_at(parent, epoch, position, context)], context)[0]
        case Combine(parts=parts, names=names, value=value) if value.rule is not None:
            number, part_epoch, part_position = value.rule(epoch, position)
            return value.joined(names, [[element_at(parts[number], part_epoch, part_position, context)]])[0]
        case Combine(parts=parts, names=names, value=value) if not value.takes_one:
            return value.joined(names, [[element_at(part, epoch, position, context)] for part in parts])[0]
        case Filter() | Stream() | Combine() | Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            assert_never(node)


class RowStages(NamedTuple):
    """A row of a batch after each step of the dataset that makes it."""

    row: int
    """Its number."""
    stages: list[tuple[Node, Element]]
    """The steps, the first one first, and the element that each of them makes."""


def stages_of(node: Node, epoch: int, position: int, context: Context) -> list[tuple[Node, Element]]:
    """Return an element after each step that makes it, the first step first, and that step.

    Steps that only choose positions have no line of their own. Below a step that makes an element of several there is
    none either.
    """
    below: list[tuple[Node, Element]] = []
    match node:
        case Reindex(parent=parent, sampler=sampler):
            return stages_of(parent, *sampler(epoch, position), context)
        case Map(parent=parent):
            below = stages_of(parent, epoch, position, context)
        case Combine(parts=parts, value=value) if value.rule is not None:
            number, part_epoch, part_position = value.rule(epoch, position)
            below = stages_of(parts[number], part_epoch, part_position, context)
        case _:
            pass
    return [*below, (node, element_at(node, epoch, position, context))]


def row_location(batch: Location, row: int) -> Location:
    """Return the location of one row of a batch."""
    return replace(batch, seed=row_seed_position(batch.seed, row))


def keeps(step: Filter, element: Element, location: Location) -> bool:
    """Return whether the predicate is true for the element. An error gets a note with the element's location."""
    try:
        return bool(step.predicate(element))
    except Exception as error:
        add_note(error, whereabouts(step, location))
        raise


Compute: TypeAlias = Callable[[list[int]], list[Element]]


def cached(step: Cache, positions: Sequence[int], compute: Compute, context: Context) -> list[Element]:
    """Return elements from a cache's store, and compute and store the others, but those that an event is about.

    Args:
        step: the cache.
        positions: of the elements, in the parent.
        compute: returns the elements that the store doesn't hold, given their numbers in `positions`.
        context: of the calling thread, to which events are reported.
    """
    store: ElementStore = step.store
    elements = [_from_store(step, partial(store.get, position)) for position in positions]
    absent = [number for number, element in enumerate(elements) if element is MISSING]
    if absent:
        events = context.kept.events
        computed = compute(absent)
        are_lasting = context.kept.events == events
        for number, element in zip(absent, computed, strict=True):
            elements[number] = element
            if are_lasting:
                _from_store(step, partial(store.put, positions[number], element))
        if not are_lasting and len(absent) > 1:
            _store_singly(step, positions, absent, compute, context)
    return elements


def _store_singly(step: Cache, positions: Sequence[int], absent: list[int], compute: Compute, context: Context) -> None:
    """Compute elements again, each by itself, which shows whether an event is about it, and store the others."""
    for number in absent:
        events = context.kept.events
        try:
            (element,) = compute([number])
        except Exception as error:
            if raised_by_handler(error):
                raise
            continue  # the first call has returned the element, so the caller has it
        is_lasting = context.kept.events == events
        if is_lasting and _from_store(step, partial(step.store.put, positions[number], element)) is not True:
            return  # there is no room for the others either


def _from_store(step: Cache, method: Callable[[], Element | Missing]) -> Element | Missing:
    """Return the result of a method of the store, or `MISSING` if it failed."""
    try:
        return method()
    except Exception as error:
        if raised_by_handler(error):
            raise
        _warn_of_store(step, error)
        return MISSING


def _warn_of_store(step: Cache, error: Exception) -> None:
    """Warn that the store failed and elements are computed again; Python shows the same warning once."""
    with contextlib.suppress(Warning):  # where warnings are errors, this one would lose the element
        warnings.warn(f"{step.verb} can't use its store: {type(error).__name__}", RuntimeWarning, stacklevel=2)
