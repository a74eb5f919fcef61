"""Leaves of elements, elements with other leaves, and whether two are the same in all that counts."""

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock._tree import Structure, flatten, leaf_paths, unflatten
from penstock._tree import map_leaves as map_leaves

Element = Any


def is_array(leaf: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a leaf is an array, in a way that type checkers take for any array."""
    return isinstance(leaf, np.ndarray)


def leaves_of(element: Element) -> list[Any]:
    """Return the leaves of an element, in order."""
    return flatten(element)[0]


def paths_of(element: Element) -> list[str]:
    """Return the path of each leaf, as Python writes it behind the element's name."""
    return list(leaf_paths(flatten(element)[1]))


def structure_of(element: Element) -> Structure:
    """Return an element's containers, with their types and keys in order."""
    return flatten(element)[1]


def with_leaf(element: Element, number: int, leaf: object) -> Element:
    """Return an element with another leaf in the place of one."""
    leaves, structure = flatten(element)
    leaves[number] = leaf
    return unflatten(structure, leaves)


def assert_same(expected: Element, actual: Element) -> None:
    """Fail unless two elements agree in structure, types, dtypes, shapes and bytes."""
    assert structure_of(actual) == structure_of(expected)
    for wanted, leaf in zip(leaves_of(expected), leaves_of(actual), strict=True):
        assert type(leaf) is type(wanted)
        if is_array(wanted):
            assert (leaf.dtype, leaf.shape) == (wanted.dtype, wanted.shape)
            assert leaf.tobytes() == wanted.tobytes()
        else:
            assert leaf == wanted
