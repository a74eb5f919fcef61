"""The merge that pads: leaves with axes get the length of the batch's longest row, or a given one."""

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._tree import Element, Structure, flatten, leaf_paths, subject, unflatten
from penstock.batching._layout import LayoutMismatchError, new_column, split_leaves, write_column
from penstock.batching._leaf import (
    OWN_MERGE,
    LeafError,
    LeafKind,
    LeafSpec,
    Value,
    as_value,
    has_padding,
    kind_of,
    number_as,
    write_value,
)
from penstock.batching._merge import Batch, Column, new_array, open_rows, reject_kind, stacked
from penstock.batching._stack_arrays import write_padded
from penstock.errors import UsageError


@frozen
class Pad:
    """The merge of `.padded_batch(n)`, which pads as `pad` does.

    Attributes:
        length: as in `pad`.
        fill: as in `pad`.
        mask: as in `pad`.

    Raises:
        UsageError: the length is negative, or the mask's name is empty.

    Example:
        >>> import numpy as np
        >>> Pad(length=3, fill=-1)([np.array([7]), np.array([8, 9])])
        array([[ 7, -1, -1],
               [ 8,  9, -1]])
    """

    length: int | None = None
    fill: float = 0
    mask: str | None = None

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 0:
            raise UsageError(f"length must be at least 0; got length={self.length!r}. Omit it for the longest row's.")
        if self.mask is not None and not self.mask:
            raise UsageError("mask must name the leaf to add; got mask=''. Pass a name, or omit it.")

    def __call__(self, elements: Sequence[Element], /) -> Batch:
        """Return the result of `pad(elements, length=…, fill=…, mask=…)` or raise its error, in less time."""
        try:
            return _padded_at_once(elements, self)
        except (LayoutMismatchError, LeafError, UsageError, IndexError):
            return _pad(elements, self)


def pad(elements: Sequence[Element], *, length: int | None = None, fill: float = 0, mask: str | None = None) -> Batch:
    """Return the batch of these elements, their leaves padded at the end of the first axis to one length.

    Leaves without axes (numbers, str, bytes, None) are treated as `stack` does. A list of numbers is a container, not a
    leaf: make it an array first. Only the length of the first axis may differ between rows; all other
    axes, and the dtype, must agree.

    Args:
        elements: at least one, as in `stack`.
        length: the length of the first axis; by default each leaf gets the length of its longest row.
        fill: the padding value; it must be a value of the dtype of each padded leaf, except that 0 means any dtype's
            zero (False, the empty str, 1970).
        mask: the name of a leaf to add to the elements' dict: bool, of shape (rows, length), True where there are
            values. All padded leaves of a row must then have one length.

    Returns:
        The batch. Its padded leaves are new arrays of shape (rows, length, *the other axes).

    Raises:
        UsageError: as for `stack`; and if a row is longer than `length`, `fill` isn't a value of a dtype, or the mask
            can't be added.

    Example:
        >>> import numpy as np
        >>> pad([{"tokens": np.array([5])}, {"tokens": np.array([6, 7])}], mask="mask")
        {'tokens': array([[5, 0],
               [6, 7]]), 'mask': array([[ True, False],
               [ True,  True]])}
    """
    return _pad(elements, Pad(length, fill, mask))


def _pad(elements: Sequence[Element], rule: Pad) -> Batch:
    structure, rows = open_rows(elements)
    if rule.mask is not None:
        _check_mask(structure, rule.mask)
    paths = leaf_paths(structure)
    values: list[list[Value]] = []
    kinds: list[LeafKind] = []
    for row, row_values in enumerate(rows):
        row_kinds = [kind_of(value) for value in row_values]
        kinds = kinds or row_kinds
        for path, kind, row_kind in zip(paths, kinds, row_kinds, strict=True):
            if not _agree(kind, row_kind):
                reject_kind(path, kind, row_kind, row)
        _check_lengths(paths, row_kinds, row, rule)
        values.append(row_values)
    columns = [
        _padded([row_values[leaf] for row_values in values], kind, path, rule)
        if _is_padded(kind)
        else stacked([row_values[leaf] for row_values in values], kind)
        for leaf, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    batch = unflatten(structure, columns)
    if rule.mask is None:
        return batch
    masked, column = next(pair for pair in enumerate(columns) if _is_padded(kinds[pair[0]]))
    length = column.shape[1] if isinstance(column, np.ndarray) else 0
    return {**batch, rule.mask: _mask([row_values[masked] for row_values in values], length)}


def _is_padded(kind: LeafKind) -> TypeGuard[LeafSpec]:
    return isinstance(kind, LeafSpec) and len(kind.shape) > 0


def _agree(kind: LeafKind, row_kind: LeafKind) -> bool:
    """Return whether two rows' leaves can be in one column: equal but for the length of the first axis."""
    if isinstance(kind, LeafSpec) and isinstance(row_kind, LeafSpec):
        same_rank = len(kind.shape) == len(row_kind.shape)
        return same_rank and kind.dtype == row_kind.dtype and kind.shape[1:] == row_kind.shape[1:]
    return kind == row_kind


def _check_mask(structure: Structure, mask: str) -> None:
    if structure.container is not dict:
        raise UsageError(
            f"mask={mask!r} names a key to add, so the elements must be dicts; row 0 is "
            f"{'a leaf' if structure.container is None else f'a {structure.container.__qualname__}'}. "
            "Return a dict from .map, or omit the mask."
        )
    if mask in structure.keys:
        raise UsageError(f"mask must be a key that the elements don't have; got mask={mask!r}. Choose another name.")


def _check_lengths(paths: tuple[str, ...], kinds: list[LeafKind], row: int, rule: Pad) -> None:
    lengths = {path: kind.shape[0] for path, kind in zip(paths, kinds, strict=True) if _is_padded(kind)}
    for path, length in lengths.items():
        if rule.length is not None and length > rule.length:
            raise UsageError(
                f"no row may be longer than length={rule.length}; {subject(path)} of row {row} has {length}. "
                "Raise length, or shorten the row in .map."
            )
    if rule.mask is None:
        return
    if not lengths:
        raise UsageError(
            f"mask={rule.mask!r} needs a padded leaf, an array with at least one axis; row {row} has none. "
            "Return arrays from .map, or omit the mask."
        )
    first_path, first_length = next(iter(lengths.items()))
    for path, length in lengths.items():
        if length != first_length:
            raise UsageError(
                f"with mask={rule.mask!r} all padded leaves of a row must have one length; in row {row} "
                f"{subject(first_path)} has {first_length} and {subject(path)} has {length}. "
                f"Make them of one length in .map, omit the mask, or {OWN_MERGE}."
            )


def _padded(values: list[Any], spec: LeafSpec, path: str, rule: Pad) -> NDArray[Any]:
    length = max(len(value) for value in values) if rule.length is None else rule.length
    column = new_array((len(values), length, *spec.shape[1:]), spec.dtype)
    column[...] = _fill_value(spec.dtype, rule.fill, path)
    for row, value in enumerate(values):
        write_value(value, column[row, : len(value)])
    return column


def _mask(values: list[Any], length: int) -> NDArray[np.bool_]:
    mask = np.zeros((len(values), length), np.bool_)
    for row, value in enumerate(values):
        mask[row, : len(value)] = True
    return mask


def _fill_value(dtype: np.dtype[Any], fill: float, path: str) -> NDArray[Any]:
    """Return `fill` as a value of this dtype; only floats may be rounded.

    Raises:
        UsageError: there is no such value.
    """
    value = number_as(fill, dtype)
    if value is None:
        raise UsageError(
            f"fill must be a value of each padded leaf's dtype; got fill={fill!r} for {subject(path)}, "
            f"which is {dtype}. Choose another fill, convert the leaf in .map, or {OWN_MERGE}."
        )
    return value


# ---------------------------------------------------------------------- all rows at once


def _padded_at_once(elements: Sequence[Element], rule: Pad) -> Batch:
    """Return the same batch as `_pad`, without a look at each leaf of each row.

    Raises:
        LayoutMismatchError: that isn't possible, or `_pad` raises an error.
        LeafError: the same.
        UsageError: the same.
        IndexError: there is no element.
    """
    first, structure = flatten(elements[0])
    leaves = split_leaves(structure, elements)
    if leaves is None or (rule.mask is not None and (structure.container is not dict or rule.mask in structure.keys)):
        raise LayoutMismatchError(0)
    lengths: list[list[int]] = []  # of each padded leaf's rows
    columns = [
        _padded_run(items, kind, rule, lengths) if _is_padded(kind) else _stacked_run(items, kind)
        for kind, items in zip(map(kind_of, map(as_value, first)), leaves, strict=True)
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
