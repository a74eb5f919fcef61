"""Finding the step that isn't a function of its input, by evaluating elements twice."""

import copy
import math
from typing import TYPE_CHECKING, Any, NoReturn, assert_never

import numpy as np

from penstock._graph._apply import DROPPED, Context, Place, apply_one
from penstock._graph._describe import chain_text
from penstock._graph._evaluate import element_at, keeps, place_of
from penstock._graph._length import is_indexable, rows_per_batch
from penstock._graph._nodes import Batch, Element, Filter, Map, Node, Read, Reindex, Unbatch, chain
from penstock._tree import flatten
from penstock.errors import GraphError, InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REMEDY = (
    "What the model sees would depend on who computes it. If it draws random numbers, use random_map, "
    "whose rng is derived from the element's position; otherwise remove the state it keeps."
)


def check_elements(node: Node, positions: list[tuple[int, int]]) -> None:
    """Raise a GraphError naming the first step that gives different results for the same element.

    Args:
        node: the dataset.
        positions: the (epoch, position) of the elements to look at, in the coordinates of the highest indexable step.
    """
    context = Context()
    steps = chain(node)
    top = max(index for index, step in enumerate(steps) if is_indexable(step))
    for epoch, position in positions:
        for step in steps[: top + 1]:
            _check_indexable(step, *_coordinates(steps[top], step, epoch, position), context)
        _check_ordered(steps[top + 1 :], steps[top], epoch, position, context)


def _coordinates(node: Node, step: Node, epoch: int, position: int) -> tuple[int, int]:
    """Return the coordinates at `step` of the element at (epoch, position) of a node above it."""
    while node is not step:
        match node:
            case Reindex(parent=parent, sampler=sampler):
                epoch, position = sampler(epoch, position)
            case Batch(parent=parent, size=size):
                position *= size
            case Unbatch(parent=parent):
                known = rows_per_batch(parent)
                position //= 1 if known is None else known.size
            case Map(parent=parent) | Filter(parent=parent):
                pass
            case Read():
                raise InternalError("the step is part of the graph")
            case _:
                assert_never(node)
        node = parent
    return epoch, position


def _check_indexable(step: Node, epoch: int, position: int, context: Context) -> None:
    if isinstance(step, Read):
        first = copy.deepcopy(element_at(step, epoch, position, context))
        if not same_element(first, element_at(step, epoch, position, context)):
            raise GraphError(f"{chain_text(step)} gave two different records for key {position}. {_REMEDY}")
    elif isinstance(step, Map):
        place = place_of(step.parent, epoch, position)
        element = element_at(step.parent, epoch, position, context)
        before = copy.deepcopy(element)
        _check_map(step, element, place, context)
        apply_one(step, element, place, context, element_at)
        if not same_element(before, element_at(step.parent, epoch, position, context)):
            raise GraphError(
                f"step {step.name!r} in {chain_text(step)} changes its input in place, and that is the source's own "
                f"memory: key {place.key} reads differently afterwards. Return a new array, or copy the input first."
            )


def _check_ordered(steps: list[Node], base: Node, epoch: int, position: int, context: Context) -> None:
    """Follow one element through the maps and filters above the highest indexable step."""
    element = element_at(base, epoch, position, context)
    place = place_of(base, epoch, position)
    for step in steps:
        if isinstance(step, Map):
            element = _check_map(step, element, place, context)
            if element is DROPPED:
                return
        elif isinstance(step, Filter):
            first, second = (keeps(step, copy.deepcopy(element), place) for _ in range(2))
            if first != second:
                _refuse(step, place)
            if not first:
                return
        else:
            return  # what comes out of a fold depends on more than one element


def _check_map(step: Map, element: Element, place: Place, context: Context) -> Element:
    """Return the step's result for an element, or raise if a second call differs."""
    first, second = (
        copy.deepcopy(apply_one(step, copy.deepcopy(element), place, context, element_at)) for _ in range(2)
    )
    if not same_element(first, second):
        _refuse(step, place)
    return first


def _refuse(step: Map | Filter, place: Place) -> NoReturn:
    raise GraphError(
        f"step {step.name!r} in {chain_text(step)} isn't a function of its input: it gave two different results "
        f"for epoch {place.seed.epoch}, position {place.seed.position}, key {place.key}. {_REMEDY}"
    )


def same_element(first: Element, second: Element) -> bool:
    """Return whether two elements have the same structure, types, dtypes, shapes and bytes."""
    leaves, structure = flatten(first)
    other_leaves, other_structure = flatten(second)
    return structure == other_structure and all(map(_same_leaf, leaves, other_leaves))


def _same_leaf(first: object, second: object) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray | np.generic):
        one, other = _array(first), _array(second)
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(one.tolist() == other.tolist()) if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    if hasattr(type(first), "__array__"):
        return _same_leaf(_array(first), _array(second))
    # Objects that define no equality can't be told apart; to accuse their step would be worse than to miss it.
    return type(first).__eq__ is object.__eq__ or bool(first == second)


def _array(leaf: Any) -> "NDArray[Any]":  # noqa: ANN401 - an array or a NumPy scalar
    return np.asarray(leaf)
