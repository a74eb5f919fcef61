"""Arrays as tensors over the same memory: what torch has a dtype for, with the array's lease held by the tensor."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock._graph._nodes import Element
from penstock._tree import flatten, is_array, leaf_paths, subject, unflatten
from penstock.errors import GraphError
from penstock.transport._encoding._torch_tensors import ITEM_BYTES


def as_tensors(batch: Element) -> Element:
    """Return a batch with its arrays as writable tensors over their memory, and NumPy's scalars as tensors.

    All else stays as it is, as torch's own collation leaves it: tensors, text, bytes, Python's numbers. An array that
    can't be written to, or runs backwards, is copied.

    Raises:
        GraphError: for an array that torch has no dtype for; it names the leaf.
    """
    leaves, structure = flatten(batch)
    made = [_as_tensor(leaf) for leaf in leaves]
    for index, leaf in enumerate(made):
        if is_array(leaf):
            raise _no_dtype(leaf_paths(structure)[index], leaf.dtype)
    return unflatten(structure, made)


def _as_tensor(leaf: object) -> object:
    """Return a leaf as a tensor, if it is an array and torch has its dtype."""
    given: object = np.asarray(leaf) if _is_scalar(leaf) else leaf
    if not is_array(given) or not given.dtype.isnative or ITEM_BYTES.get(given.dtype.name) != given.dtype.itemsize:
        return given
    array = given if _can_be_shared(given) else given.copy()
    if array.dtype.type.__module__ == "numpy":
        return torch.as_tensor(array)
    # One of those that ml_dtypes brings, such as bfloat16: torch knows it by the same name, and not by the array.
    bits = torch.as_tensor(array.view(np.dtype(f"uint{8 * array.dtype.itemsize}")))
    return bits.view(getattr(torch, array.dtype.name))


def _is_scalar(leaf: object) -> bool:
    return isinstance(leaf, np.generic) and not isinstance(leaf, str | bytes)


def _can_be_shared(array: NDArray[Any]) -> bool:
    return array.flags.writeable and all(step >= 0 and step % array.itemsize == 0 for step in array.strides)


def _no_dtype(path: str, dtype: np.dtype[Any]) -> GraphError:
    if not dtype.isnative:
        remedy = 'bytes in this machine\'s order: array.astype(array.dtype.newbyteorder("="))'
    elif dtype.kind in "Mm":
        remedy = "numbers: array.view(np.int64)"
    else:
        remedy = "numbers, or a list, which is passed on as it is: array.tolist(). Or leave it out"
    return GraphError(
        f"{subject(path)} of the batch has the dtype {dtype}, and torch has none like it. Return, from a map, {remedy}."
    )
