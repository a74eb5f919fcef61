"""The merge that pads: leaves with axes get the length of the batch's longest row, or a given one."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock import _lazy
from penstock._frozen import frozen
from penstock._tree import Element, Structure, kind_text, leaf_paths, subject, unflatten
from penstock.batching._leaf import OWN_MERGE, LeafKind, LeafSpec, Value, kind_of, number_as, write_value
from penstock.batching._merge import Batch, new_array, open_rows, reject_kind, stacked
from penstock.errors import UsageError

# A description of a dataset needs none of the writers.
_load: Final[Callable[[str], Any]] = _lazy.from_modules(__name__, pad_at_once="penstock.batching._pad_at_once")


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
        at_once: Callable[[Sequence[Element], Pad], tuple[Batch] | None] = _load("pad_at_once")
        batch = at_once(elements, self)
        return _pad(elements, self) if batch is None else batch[0]


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
        if is_padded(kind)
        else stacked([row_values[leaf] for row_values in values], kind)
        for leaf, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    batch = unflatten(structure, columns)
    if rule.mask is None:
        return batch
    masked, column = next(pair for pair in enumerate(columns) if is_padded(kinds[pair[0]]))
    length = column.shape[1] if isinstance(column, np.ndarray) else 0
    return {**batch, rule.mask: _mask([row_values[masked] for row_values in values], length)}


def is_padded(kind: LeafKind) -> TypeGuard[LeafSpec]:
    """Return whether a leaf of this kind has an axis to pad."""
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
            f"mask={mask!r} names a key to add, so the elements must be dicts; row 0 is {kind_text(structure)}. Return "
            "a dict from .map, or omit the mask."
        )
    if mask in structure.keys:
        raise UsageError(f"mask must be a key that the elements don't have; got mask={mask!r}. Choose another name.")


def _check_lengths(paths: tuple[str, ...], kinds: list[LeafKind], row: int, rule: Pad) -> None:
    lengths = {path: kind.shape[0] for path, kind in zip(paths, kinds, strict=True) if is_padded(kind)}
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
