"""Elements whose arrays are joined: for each leaf one array, and the place of each element in it.

Blocks of documents come so from other processes. `pack` reads the joined arrays, with no Python object for each
document. Any other step takes them for a list: its elements are made when one is first used, each with arrays of its
own, so that an element that a fold keeps doesn't keep the others.
"""

import functools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._tree import Element


class JoinedLeaf(NamedTuple):
    """A leaf of several elements: that of element i is `values[starts[i]:starts[i + 1]]`."""

    values: NDArray[Any]
    starts: NDArray[np.int64]

    def parts(self) -> list[NDArray[Any]]:
        """Return the part of each element."""
        values, starts = self.values, self.starts.tolist()
        return [values[start:stop] for start, stop in pairwise(starts)]


Leaf: TypeAlias = JoinedLeaf | list[Any]


class JoinedElements(Sequence[Element]):
    """A list of elements, which are made on first use.

    Args:
        names: the keys of the elements, which are dicts; None for elements that are arrays.
        leaves: one for each key, or the only one.
    """

    def __init__(self, names: tuple[object, ...] | None, leaves: list[Leaf]) -> None:
        self.names = names
        self.leaves = leaves
        self._count = len(leaves[0].starts) - 1 if isinstance(leaves[0], JoinedLeaf) else len(leaves[0])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex | slice) -> Element:
        return self._elements[index]

    def __iter__(self) -> Iterator[Element]:
        return iter(self._elements)

    @property
    def is_used(self) -> bool:
        """Whether the elements were made, so that a function may have written to them."""
        return "_elements" in self.__dict__

    def shown(self, numbers: Sequence[int]) -> list[Element]:
        """Return some elements to copy from: their arrays may be parts of the joined ones."""
        return self._chosen(numbers, are_kept=False)

    def kept(self, numbers: Sequence[int]) -> list[Element]:
        """Return some elements to keep: none keeps another."""
        return self._chosen(numbers, are_kept=True)

    def _chosen(self, numbers: Sequence[int], *, are_kept: bool) -> list[Element]:
        if self.is_used:
            return [self._elements[number] for number in numbers]
        return self._made(numbers, are_kept=are_kept)

    @functools.cached_property
    def _elements(self) -> list[Element]:
        return self._made(range(self._count), are_kept=True)

    @functools.cached_property
    def _columns(self) -> list[list[Any]]:
        """The values of each leaf; arrays are parts of the joined ones."""
        return [leaf.parts() if isinstance(leaf, JoinedLeaf) else leaf for leaf in self.leaves]

    def _made(self, numbers: Sequence[int], *, are_kept: bool) -> list[Element]:
        columns = [
            [column[number].copy() for number in numbers]
            if are_kept and isinstance(leaf, JoinedLeaf)
            else [column[number] for number in numbers]
            for leaf, column in zip(self.leaves, self._columns, strict=True)
        ]
        if self.names is None:
            return columns[0]
        return [dict(zip(self.names, values, strict=True)) for values in zip(*columns, strict=True)]


def shown(elements: Sequence[Element], numbers: Sequence[int]) -> list[Element]:
    """Return some of a list of elements to copy from, as `JoinedElements.shown` does."""
    if isinstance(elements, JoinedElements):
        return elements.shown(numbers)
    return [elements[number] for number in numbers]


def kept(elements: Sequence[Element], numbers: Sequence[int]) -> list[Element]:
    """Return some of a list of elements to keep, as `JoinedElements.kept` does."""
    if isinstance(elements, JoinedElements):
        return elements.kept(numbers)
    return [elements[number] for number in numbers]
