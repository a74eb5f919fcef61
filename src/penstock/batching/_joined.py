"""Elements whose arrays are joined: for each leaf one array, and the place of each element in it.

Blocks of documents come so from other processes. `pack` reads the joined arrays, with no Python object for each
document. Any other step takes them for a list: its elements are made when one is first used, each with arrays of its
own, so that an element that a fold keeps doesn't keep the others.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, SupportsIndex, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._tree import Element, flatten, is_array
from penstock.batching._pack import JoinedDocuments, documents_taken
from penstock.errors import UsageError

_KINDS: Final = "biufc"

Leaf: TypeAlias = JoinedDocuments | list[Any]


class JoinedElements(Sequence[Element]):
    """A list of elements, which are made on first use.

    Args:
        names: the keys of the elements, which are dicts; None for elements that are arrays.
        leaves: one for each key, or the only one.
    """

    def __init__(self, names: tuple[object, ...] | None, leaves: Sequence[Leaf]) -> None:
        self.names = names
        self.leaves = leaves
        self._count = len(leaves[0].starts) - 1 if isinstance(leaves[0], JoinedDocuments) else len(leaves[0])

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
        return [self._elements[number] for number in numbers] if self.is_used else self._made(numbers, are_kept=False)

    def kept(self, numbers: Sequence[int]) -> Sequence[Element]:
        """Return some elements to keep: they don't keep the others."""
        if self.is_used:
            return [self._elements[number] for number in numbers]
        at = np.array(numbers, np.int64)
        leaves: list[Leaf] = [
            documents_taken(leaf, at) if isinstance(leaf, JoinedDocuments) else [leaf[number] for number in numbers]
            for leaf in self.leaves
        ]
        return JoinedElements(self.names, leaves)

    @functools.cached_property
    def _elements(self) -> list[Element]:
        return self._made(range(self._count), are_kept=True)

    @functools.cached_property
    def _columns(self) -> list[list[Any]]:
        """The values of each leaf; arrays are parts of the joined ones."""
        return [_parts(leaf) if isinstance(leaf, JoinedDocuments) else leaf for leaf in self.leaves]

    def _made(self, numbers: Sequence[int], *, are_kept: bool) -> list[Element]:
        columns = [
            [column[number].copy() for number in numbers]
            if are_kept and isinstance(leaf, JoinedDocuments)
            else [column[number] for number in numbers]
            for leaf, column in zip(self.leaves, self._columns, strict=True)
        ]
        if self.names is None:
            return columns[0]
        return [dict(zip(self.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _parts(leaf: JoinedDocuments) -> list[NDArray[Any]]:
    tokens, starts = leaf.tokens, leaf.starts.tolist()
    return [tokens[start:stop] for start, stop in itertools.pairwise(starts)]


def joined(elements: Sequence[Element]) -> JoinedElements | None:
    """Return elements that are arrays of one axis, or dicts of such arrays and other leaves, joined; None for others.

    Elements that have an array twice are not joined, and neither are arrays with gaps, which would lose them.

    Example:
        >>> found = joined([{"x": np.arange(2), "y": 3}, {"x": np.arange(1), "y": 4}])
        >>> found is not None and found.leaves[0].tokens.tolist(), list(found)[1]
        ([0, 1, 0], {'x': array([0]), 'y': 4})
    """
    if not elements:
        return None
    names = _names(elements)
    columns = [list(elements)] if names is None else [[element[name] for element in elements] for name in names]
    leaves = [_joined_leaf(column) for column in columns]
    if _repeats([column for column, leaf in zip(columns, leaves, strict=True) if isinstance(leaf, JoinedDocuments)]):
        return None
    return None if names is None and isinstance(leaves[0], list) else JoinedElements(names, leaves)


def _repeats(columns: list[list[Any]]) -> bool:
    """Return whether an element has an array twice; a function that writes to one of the two writes to both."""
    return len(columns) > 1 and any(len(set(map(id, row))) < len(row) for row in zip(*columns, strict=True))


def _names(elements: Sequence[Element]) -> tuple[object, ...] | None:
    """Return the keys of elements that are dicts of the same keys in the same order; None for other elements."""
    if set(map(type, elements)) != {dict} or not elements[0]:
        return None
    names = tuple(elements[0])
    return names if all(tuple(element) == names for element in elements) else None


def _joined_leaf(column: list[Any]) -> Leaf:
    if set(map(type, column)) != {np.ndarray}:
        return column
    dtype: np.dtype[Any] = column[0].dtype
    if dtype.kind not in _KINDS or not dtype.isnative or dtype.metadata is not None:
        return column
    if any(array.dtype is not dtype or array.ndim != 1 or not array.flags.c_contiguous for array in column):
        return column
    return JoinedDocuments(np.concatenate(column), np.cumsum([0, *map(len, column)]))


def together(lists: Sequence[Sequence[Element]]) -> Sequence[Element]:
    """Return the elements of several lists as one; where one is joined, the others are joined with it.

    Example:
        >>> others = JoinedElements(None, [JoinedDocuments(np.arange(3), np.array([0, 1, 3]))])
        >>> found = together([[np.arange(1)], others])
        >>> type(found).__name__, [element.tolist() for element in found]
        ('JoinedElements', [[0], [0], [1, 2]])
    """
    lists = [each for each in lists if each] or [[]]
    if len(lists) == 1:
        return lists[0]
    if any(isinstance(each, JoinedElements) and not each.is_used for each in lists):
        parts = [each if isinstance(each, JoinedElements) and not each.is_used else joined(each) for each in lists]
        alike = _alike([part for part in parts if part is not None])
        if alike is not None and None not in parts:
            return alike
    return [*itertools.chain.from_iterable(lists)]


def _alike(parts: Sequence[JoinedElements]) -> JoinedElements | None:
    """Return the elements of several lists as one; None if these differ in their leaves."""
    if len({part.names for part in parts}) > 1:
        return None
    leaves: list[Leaf] = []
    for each in zip(*(part.leaves for part in parts), strict=True):
        documents = [leaf for leaf in each if isinstance(leaf, JoinedDocuments)]
        if not documents:
            leaves.append([*itertools.chain.from_iterable(cast("tuple[list[Any], ...]", each))])
        elif len(documents) < len(each) or len({leaf.tokens.dtype for leaf in documents}) > 1:
            return None
        else:
            ends = np.cumsum([0, *(len(leaf.tokens) for leaf in documents)])
            starts = [leaf.starts[:-1] + first for leaf, first in zip(documents, ends[:-1], strict=True)]
            tokens = np.concatenate([leaf.tokens for leaf in documents])
            leaves.append(JoinedDocuments(tokens, np.concatenate([*starts, ends[-1:]])))
    return JoinedElements(parts[0].names, leaves)


def array_bytes(elements: Sequence[Element]) -> int:
    """Return about how many bytes the arrays of elements have; those that are not joined count like the first one."""
    if isinstance(elements, JoinedElements):
        return sum(leaf.tokens.nbytes for leaf in elements.leaves if isinstance(leaf, JoinedDocuments))
    leaves: list[Any] = []
    with suppress(UsageError):  # it can't be batched, either, which its step reports
        leaves = flatten(elements[0])[0] if elements else []
    return len(elements) * sum(leaf.nbytes for leaf in leaves if is_array(leaf))


def shown(elements: Sequence[Element], numbers: Sequence[int]) -> list[Element]:
    """Return some of a list of elements to copy from, as `JoinedElements.shown` does."""
    if isinstance(elements, JoinedElements):
        return elements.shown(numbers)
    return [elements[number] for number in numbers]


def kept(elements: Sequence[Element], numbers: Sequence[int]) -> Sequence[Element]:
    """Return some of a list of elements to keep, as `JoinedElements.kept` does."""
    if isinstance(elements, JoinedElements):
        return elements.kept(numbers)
    return [elements[number] for number in numbers]
