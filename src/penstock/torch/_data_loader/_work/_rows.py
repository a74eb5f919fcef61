"""Batches equal to those of `default_collate`, from rows that are written directly into shared memory.

Elements of tensors, arrays and numbers in plain containers become the same nested arrays without a copy. If each fits
the layout of the first, their batch equals torch's. All other elements, and those that torch would refuse or convert,
are collated by torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._tree import Structure
from penstock.batching import Column, Layout, LayoutMismatchError, LeafSpec, layout_of, write_rows

_NUMBERS: Final = frozenset({int, float, bool})
_DTYPES: Final = frozenset(
    np.dtype(name) for name in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")
)
_SCALARS: Final = frozenset(dtype.type for dtype in _DTYPES)


@frozen
class RowLayout:
    """The layout of the rows of a batch, and the types of their leaves, which torch doesn't allow to differ."""

    layout: Layout
    types: tuple[type, ...]

    def write(self, elements: Sequence[object], columns: list[Column], start: int) -> None:
        """Write elements into rows from `start` on.

        Raises:
            LayoutMismatchError: an element doesn't fit the layout.
        """
        plain: list[object] = []
        for row, element in enumerate(elements):
            types: list[type] = []
            found = _plain(element, types)
            if found is None or tuple(types) != self.types:
                raise LayoutMismatchError(row)
            plain.append(found[0])
        write_rows(self.layout, plain, columns, start)

    def batch(self, columns: Sequence[Column], copied_bytes: int) -> object:
        """Return the batch, with tensors over the memory of columns.

        Args:
            columns: columns with all rows written.
            copied_bytes: columns up to this size are copied, so that they don't keep the memory of the others.
        """
        from_numpy: Callable[[object], torch.Tensor] = vars(torch)["from_numpy"]
        tensors = [
            from_numpy(column.copy() if column.nbytes <= copied_bytes else column)
            for column in columns
            if isinstance(column, np.ndarray)
        ]
        return _collated(self.layout.structure, tensors[::-1])


def row_layout(element: object) -> RowLayout | None:
    """Return the layout of elements like this one; None if torch has to collate them."""
    types: list[type] = []
    found = _plain(element, types)
    if found is None:
        return None
    with Caught(Exception):
        layout = layout_of(found[0])
        if layout.row_bytes and all(isinstance(kind, LeafSpec) for kind in layout.kinds):
            return RowLayout(layout, tuple(types))
    return None


def _plain(value: object, types: list[type]) -> tuple[Any] | None:
    """Return, in a tuple, an element with arrays for tensors, and append its leaves' types; None if it has others."""
    kind: type[Any] = type(value)
    given: Any = value
    types.append(kind)
    if issubclass(kind, torch.Tensor):
        return _plain_tensor(given) if kind is torch.Tensor else None
    if kind is np.ndarray:
        return (given,) if given.dtype in _DTYPES and _goes_forward(given) else None
    if kind in _NUMBERS or kind in _SCALARS:
        return (given,)
    types.pop()
    if kind is dict:
        items = _plain_items(list(given.values()), types)
        return None if items is None else (dict(zip(given, items, strict=True)),)
    if kind is list:
        items = _plain_items(given, types)
        return None if items is None else (items,)
    make: Any = getattr(kind, "_make", tuple if kind is tuple else None)
    if issubclass(kind, tuple) and make is not None and kind.__base__ in (tuple, object):
        items = _plain_items(given, types)
        return None if items is None else (make(items),)
    return None


def _plain_tensor(tensor: "torch.Tensor") -> tuple[Any] | None:
    is_plain = tensor.layout is torch.strided and not (
        tensor.requires_grad
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.device.type != "cpu"
        or tensor.dtype is torch.bfloat16
    )
    if not is_plain:
        return None
    try:
        return (tensor.numpy(),)
    except (TypeError, RuntimeError):  # a dtype that NumPy doesn't have
        return None


def _goes_forward(array: "np.ndarray[Any, Any]") -> bool:
    """Return whether torch accepts an array: it refuses negative strides."""
    return array.flags.c_contiguous or min(array.strides, default=0) >= 0


def _plain_items(values: Sequence[object], types: list[type]) -> list[object] | None:
    items: list[object] = []
    for value in values:
        found = _plain(value, types)
        if found is None:
            return None
        items.append(found[0])
    return items


def _collated(structure: Structure, tensors: "list[torch.Tensor]") -> object:
    """Return a batch in the structure of torch's batches, with the tensors from the end of the list."""
    container = structure.container
    if container is None:
        return tensors.pop()
    children = [_collated(child, tensors) for child in structure.children]
    if container is dict:
        return dict(zip(structure.keys, children, strict=True))
    if container is list or container is tuple:  # torch makes a list for both
        return children
    return container(*children)
