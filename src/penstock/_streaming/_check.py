"""The check that each step is a function of its input; it evaluates elements twice and compares.

The results are also compared with those of another process. The hashes of texts and the order of a set are the same at
each call in one process, and others in the next; pickle doesn't keep the order of a set, either. Only numbers, texts
and arrays are compared there: other objects may be of classes that the process has defined again.
"""

import copy
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from penstock._caught import Caught
from penstock._graph import (
    DROPPED,
    Combine,
    Context,
    Element,
    Filter,
    Fold,
    Gather,
    GatherFacts,
    Location,
    Map,
    Node,
    Read,
    Split,
    Stream,
    apply_one,
    chain,
    chain_text,
    element_at,
    inputs_at,
    is_indexable,
    keeps,
    length,
    list_splitting_of,
    location_of,
    root,
    walk,
)
from penstock._streaming._fold import folding_of
from penstock._streaming._in_order import in_order
from penstock._streaming._other_process import result_elsewhere
from penstock._streaming._policy import CHECKED_INPUTS, CHECKED_PER_FOLD
from penstock._streaming._stage import LocatedElement
from penstock._tensors import is_tensor, tensor_bytes
from penstock._tree import flatten
from penstock.batching import Pad, Stack
from penstock.errors import GraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REMEDY = (
    "Batches would depend on the worker that computes them. If the step draws random numbers, use random_map, "
    "which derives its rng from the element's position; otherwise remove the state that the step keeps."
)
_ELSEWHERE = (
    "Worker processes, and a run that is resumed, would have other elements. The usual reason is the order of a set, "
    "or hash() of a text, which are others in each process. Use sorted(texts) and zlib.crc32(text.encode()). If only "
    "hash() is the reason, it is enough to start the program with the environment variable PYTHONHASHSEED=0."
)
_STREAM_REMEDY = (
    "A run that is resumed would have other elements. Let each pass depend on nothing but its epoch, such as by a "
    "random generator with a fixed seed that is made when the pass begins."
)
_CHANGED_REMEDY = "If a function above changes its input in place, return a new array there, or copy the input first."


class _Result(NamedTuple):
    step: Node
    location: Location
    value: Element


def check_graph(node: Node, count: int) -> None:
    """Raise a GraphError that names the first step with different results for the same element.

    A user's fold is resumed after each of its first elements, and compared with an undisturbed run.

    Of parts that are read in order, each is checked, with the maps and filters above the node that has them as parents.
    The first elements of a dataset that is read in order are then computed in two passes, which finds all other steps.

    Args:
        node: the dataset.
        count: the number of elements to check of each part, spread over the part and two epochs; and of a pass.
    """
    found: list[_Result] = []
    _check_chain(node, [], count, found)
    for step in walk(node):
        if isinstance(step, Fold) and not any(isinstance(below, Stream) for below in walk(step)):
            below = in_order(step.parent, 0, Context())
            folding_of(step).check(chain_text(step), below, CHECKED_PER_FOLD * count)
    if not is_indexable(node):
        _check_passes(node, count, found)
    _check_elsewhere(node, count, found)


def _check_elsewhere(node: Node, count: int, found: list[_Result]) -> None:
    others = result_elsewhere(_plain_results, node, count)
    for (step, location, value), other in zip(found, others or (), strict=False):  # a filter that differs is the last
        if not same_element(_plain(value), other):
            raise GraphError(
                f"{_step_text(step)} returned another result in another process for {_location_text(location)}. "
                f"{_ELSEWHERE}"
            )


def _plain_results(node: Node, count: int) -> list[list[object]]:
    """Return the results of all steps, for the program."""
    found: list[_Result] = []
    _check_chain(node, [], count, found)
    if not is_indexable(node):
        found += _first_results(node, count)
    return [_plain(each.value) for each in found]


def _plain(element: Element) -> list[object]:
    """Return the leaves of an element, with None in place of those that are no number, text or array."""
    return [_plain_leaf(leaf) for leaf in flatten(element)[0]]


def _plain_leaf(leaf: object) -> object:
    if type(leaf) in (bool, int, float, complex, str, bytes):
        return leaf
    if isinstance(leaf, np.ndarray | np.generic) or hasattr(type(leaf), "__array__"):
        array = _array(leaf)
        return None if array.dtype.hasobject else array
    return None


def _check_chain(node: Node, above: list[Node], count: int, found: list[_Result]) -> None:
    steps = chain(node)
    base = next((step for step in reversed(steps) if is_indexable(step)), None)
    if base is not None:
        total = length(base) or 0
        positions = {(index % 2, total * index // count) for index in range(count)} if total else set[tuple[int, int]]()
        _check_at(base, steps[steps.index(base) + 1 :] + above, sorted(positions), found)
        return
    combine = root(node)
    if isinstance(combine, Combine):  # the elements of a stream have no positions
        for part in combine.parts:
            _check_chain(part, steps[1:] + above if combine.value.takes_one else [], count, found)


def _check_at(base: Node, above: list[Node], positions: list[tuple[int, int]], found: list[_Result]) -> None:
    context = Context()
    for epoch, position in positions:
        _check_down(base, epoch, position, context, found)
        _check_ordered(above, base, (epoch, position), context, found)


def _check_down(node: Node, epoch: int, position: int, context: Context, found: list[_Result]) -> None:
    """Check the steps that an element of an indexable node is made by, from the source up to the node."""
    for below in inputs_at(node, epoch, position):
        _check_down(*below, context, found)
    _check_indexable(node, epoch, position, context, found)


def _check_indexable(step: Node, epoch: int, position: int, context: Context, found: list[_Result]) -> None:
    if isinstance(step, Read):
        first = copy.deepcopy(element_at(step, epoch, position, context))
        if not same_element(first, element_at(step, epoch, position, context)):
            raise GraphError(f"{chain_text(step)} returned two different records for key {position}. {_REMEDY}")
        found.append(_Result(step, location_of(step, epoch, position), first))
        return
    if isinstance(step, Gather):
        _check_gather(step, epoch, position, context, found)
        return
    if isinstance(step, Split) and step.value.functions:
        (_, epoch, position), *_ = inputs_at(step, epoch, position)
    if isinstance(step, Map) or (isinstance(step, Split) and step.value.functions):
        location = location_of(step.parent, epoch, position)
        element = element_at(step.parent, epoch, position, context)
        before = copy.deepcopy(element)
        _check_map(step, element, location, context, found)
        _applied(step, element, location, context)
        if not same_element(before, element_at(step.parent, epoch, position, context)):
            raise GraphError(
                f"step {step.name!r} in {chain_text(step)} changes its input in place, which is the source's own "
                f"memory: key {location.key} reads differently afterwards. Return a new array, or copy the input first."
            )


def _check_gather(step: Gather[GatherFacts], epoch: int, position: int, context: Context, found: list[_Result]) -> None:
    """Check a merge function of the user's."""
    if all(isinstance(function, Stack | Pad) for _, function in step.value.functions):
        return
    inputs: dict[int, Element] = {}

    def input_at(below: int) -> Element:
        if below not in inputs:
            inputs[below] = copy.deepcopy(element_at(step.parent, epoch, below, context))
        return copy.deepcopy(inputs[below])

    first, second = (copy.deepcopy(step.value.element_at(step.parent, position, input_at)) for _ in range(2))
    location = location_of(step, epoch, position)
    if not same_element(first, second):
        _refuse(step, location)
    found.append(_Result(step, location, first))


def _check_ordered(steps: list[Node], base: Node, at: tuple[int, int], context: Context, found: list[_Result]) -> None:
    """Check one element's maps and filters above the highest indexable step."""
    element = element_at(base, *at, context)
    location = location_of(base, *at)
    for step in steps:
        if isinstance(step, Map):
            element = _check_map(step, element, location, context, found)
            if element is DROPPED:
                return
        elif isinstance(step, Filter):
            first, second = (keeps(step, copy.deepcopy(element), location) for _ in range(2))
            if first != second:
                _refuse(step, location)
            found.append(_Result(step, location, first))
            if not first:
                return
        else:
            return  # the elements of a fold depend on more than one element, so passes are compared


def _check_map(
    step: Map | Split, element: Element, location: Location, context: Context, found: list[_Result]
) -> Element:
    """Return the step's result for an element, or raise if a second call differs."""
    first, second = (copy.deepcopy(_applied(step, copy.deepcopy(element), location, context)) for _ in range(2))
    if not same_element(first, second):
        _refuse(step, location)
    found.append(_Result(step, location, first))
    return first


def _check_passes(node: Node, count: int, found: list[_Result]) -> None:
    """Compute the first elements in two passes, and raise if they differ."""
    first, second = (_first_results(node, count) for _ in range(2))
    if not _are_same([each.value for each in first], [each.value for each in second]):
        _refuse_pass(node, count, (first or second)[0].location)
    found += first


def _first_results(
    node: Node, count: int, noted: list[tuple[Node, list[LocatedElement | None]]] | None = None
) -> list[_Result]:
    """Return the first elements of epoch 0, as if the inputs had no more elements than a check reads of each.

    Args:
        node: the dataset.
        count: the number of elements.
        noted: gets each step, the lower one first, with the elements that it has made; None is its end.
    """
    are_limited = all(step.value.takes_one for step in walk(node) if isinstance(step, Combine))  # no part gets shorter

    def passing(step: Node, made: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        if are_limited and (isinstance(step, Stream) or is_indexable(step)):
            made = itertools.islice(made, CHECKED_INPUTS * count)
        if noted is None:
            return made
        noted.append((step, []))
        return _noting(made, noted[-1][1])

    first = itertools.islice(in_order(node, 0, Context(), passing=passing), count)
    return [_Result(node, location, _copied(element)) for element, location in first]


def _copied(element: Element) -> Element:
    """Return a copy of an element; the element itself if it can't be copied, such as a lock."""
    with Caught(Exception):
        return copy.deepcopy(element)
    return element


def _noting(made: Iterator[LocatedElement], noted: list[LocatedElement | None]) -> Iterator[LocatedElement]:
    for element, location in made:
        noted.append((_copied(element), location))
        yield element, location
    noted.append(None)


def _refuse_pass(node: Node, count: int, location: Location) -> NoReturn:
    """Name the lowest step that makes other elements in another pass."""
    passes: list[list[tuple[Node, list[LocatedElement | None]]]] = [[], []]
    for noted in passes:
        _first_results(node, count, noted)
    for (step, first), (_, second) in zip(*passes, strict=True):
        for one, other in zip(first, second, strict=False):  # the steps above may read further in one of the passes
            known = one or other
            if known and not (one and other and same_element(one[0], other[0])):
                _refuse_step(step, known[1])
    _refuse(node, location)


def _refuse_step(step: Node, location: Location) -> NoReturn:
    if not (isinstance(step, Stream) or is_indexable(step)):
        _refuse(step, location)
    remedy = _STREAM_REMEDY if isinstance(step, Stream) else _REMEDY
    raise GraphError(
        f"{_step_text(step)} returned another element for {_location_text(location)} when the epoch was read again. "
        f"{remedy} {_CHANGED_REMEDY}"
    )


def _are_same(first: list[Element], second: list[Element]) -> bool:
    return len(first) == len(second) and all(map(same_element, first, second))


def _applied(step: Map | Split, element: Element, location: Location, context: Context) -> Element:
    if isinstance(step, Split):
        return list_splitting_of(step).split(step, element, lambda: location, context, element_at)
    return apply_one(step, element, location, context, element_at)


def _refuse(step: Node, location: Location) -> NoReturn:
    raise GraphError(
        f"{_step_text(step)} isn't a function of its input: it returned two different results for "
        f"{_location_text(location)}. {_REMEDY}"
    )


def _step_text(step: Node) -> str:
    name = f"step {step.name!r} in " if isinstance(step, Map | Split | Filter) else ""
    return name + chain_text(step)


def _location_text(location: Location) -> str:
    return f"epoch {location.seed.epoch}, position {location.seed.position}, key {location.key}"


def same_element(first: Element, second: Element) -> bool:
    """Return whether two elements have the same structure, types, dtypes, shapes and bytes."""
    leaves, structure = flatten(first)
    other_leaves, other_structure = flatten(second)
    return structure == other_structure and all(map(_same_leaf, leaves, other_leaves))


def _same_leaf(first: object, second: object) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray | np.generic):
        return _same_array(_array(first), _array(second))
    if is_tensor(first):
        return _tensor_content(first) == _tensor_content(second)
    if hasattr(type(first), "__array__"):
        return _same_leaf(_array(first), _array(second))
    return _are_equal(first, second)


def _same_array(first: "NDArray[Any]", second: "NDArray[Any]") -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype.names is not None:  # between its fields there may be bytes without a meaning
        return all(_same_array(first[name], second[name]) for name in first.dtype.names)
    if first.dtype.hasobject:
        return same_element(first.tolist(), second.tolist())
    return first.tobytes() == second.tobytes()


def _are_equal(first: object, second: object) -> bool:
    """Return whether two objects of one type are equal.

    Some can't be compared: objects without `__eq__`, two that don't equal themselves, such as NaN, and those whose
    comparison fails or isn't a bool, as that of arrays. A false accusation of their step would be worse than a miss.
    """
    if type(first).__eq__ is object.__eq__:
        return True
    with Caught(Exception):
        return bool(first == second) or not (bool(first == first) or bool(second == second))
    return True


def _array(leaf: Any) -> "NDArray[Any]":  # noqa: ANN401 - an array or a NumPy scalar
    return np.asarray(leaf)


def _tensor_content(leaf: object) -> tuple[object, ...]:
    """Return what of a tensor can be compared; nothing of one whose items aren't in host memory, as a sparse one."""
    tensor: Any = leaf
    if tensor.is_quantized:  # torch would crash
        return ()
    with Caught(Exception):  # by which torch refuses such a tensor
        return str(tensor.dtype), tuple(tensor.shape), tensor_bytes(tensor.detach()).tobytes()
    return ()
