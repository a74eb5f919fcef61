"""The rows of a padded batch, written by one call for each leaf. `pad` is the definition."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._tree import Element, flatten, leaf_paths, unflatten
from penstock.batching._layout import LayoutMismatchError, new_column, split_leaves, write_column
from penstock.batching._leaf import LeafKind, LeafSpec, has_padding, kind_of, number_as, values_of
from penstock.batching._merge import Batch, Column, new_array
from penstock.batching._pad import Pad, is_padded
from penstock.batching._stack_arrays import write_padded
from penstock.errors import UsageError


def pad_at_once(elements: Sequence[Element], rule: Pad) -> tuple[Batch] | None:
    """Return the same batch as `pad`, in a tuple; None if that isn't possible, or `pad` raises an error."""
    try:
        return (_padded(elements, rule),)
    except (LayoutMismatchError, UsageError, IndexError):
        return None


def _padded(elements: Sequence[Element], rule: Pad) -> Batch:
    """Return the same batch as `pad`.

    Raises:
        LayoutMismatchError: that isn't possible, or `pad` raises an error.
        UsageError: the same.
        IndexError: there is no element.
    """
    first, structure = flatten(elements[0])
    leaves = split_leaves(structure, elements)
    if leaves is None or (rule.mask is not None and (structure.container is not dict or rule.mask in structure.keys)):
        raise LayoutMismatchError(0)
    kinds = map(kind_of, values_of(first, leaf_paths(structure), 0))
    lengths: list[list[int]] = []  # of each padded leaf's rows
    columns = [
        _padded_run(items, kind, rule, lengths) if is_padded(kind) else _stacked_run(items, kind)
        for kind, items in zip(kinds, leaves, strict=True)
    ]
    batch = unflatten(structure, columns)
    if rule.mask is None:
        return batch
    if not lengths or any(each != lengths[0] for each in lengths):
        raise LayoutMismatchError(0)
    length = max(lengths[0]) if rule.length is None else rule.length
    return {**batch, rule.mask: np.arange(length) < np.array(lengths[0])[:, np.newaxis]}


def _padded_run(items: Sequence[Any], spec: LeafSpec, rule: Pad, lengths: list[list[int]]) -> NDArray[Any]:
    """Return the column of a padded leaf, and append the lengths of its rows.

    Raises:
        LayoutMismatchError: a row may be too long, or is of another kind, or the fill is.
    """
    fill = None if has_padding(spec.dtype) or not spec.dtype.itemsize else number_as(rule.fill, spec.dtype)
    if fill is None:
        raise LayoutMismatchError(0)

    def make(found: list[int]) -> NDArray[Any] | None:
        lengths.append(found)
        longest = max(found)
        length = longest if rule.length is None else rule.length
        return new_array((len(found), length, *spec.shape[1:]), spec.dtype) if longest <= length else None

    column = write_padded(items, make, fill, len(spec.shape))
    if column is None:
        raise LayoutMismatchError(0)
    return column


def _stacked_run(items: Sequence[Any], kind: LeafKind) -> Column:
    """Return the column of a leaf that isn't padded.

    Raises:
        LayoutMismatchError: a row is of another kind.
    """
    column = new_column(kind, len(items))
    if not write_column(kind, items, column, 0):
        raise LayoutMismatchError(0)
    return column
