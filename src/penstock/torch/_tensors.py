"""Arrays as tensors over the same memory, for every dtype that torch has; the tensor holds the array's lease."""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock._graph import Element
from penstock._tree import flatten, is_array, leaf_paths, subject, unflatten
from penstock.errors import GraphError
from penstock.transport import ITEM_BYTES

_from_numpy: Final[Callable[[NDArray[Any]], torch.Tensor]] = vars(torch)["from_numpy"]  # torch says no types of it


def as_tensors(batch: Element) -> Element:
    """Return a batch with its arrays as writable tensors over their memory, and NumPy's scalars as tensors.

    All other leaves are kept, as torch's own collation keeps them: tensors, text, bytes, Python numbers. An array that
    is read-only or has negative strides is copied.

    Raises:
        GraphError: for an array that torch has no dtype for; it names the leaf.
    """
    leaves, structure = flatten(batch)
    made = [_as_tensor(leaf) for leaf in leaves]
    if any(map(is_array, made)):
        index, left = next((index, leaf) for index, leaf in enumerate(made) if is_array(leaf))
        raise _no_dtype(leaf_paths(structure)[index], left.dtype)
    return unflatten(structure, made)


def _as_tensor(leaf: object) -> object:
    """Return a leaf as a tensor, if it is an array and torch has its dtype."""
    given: object = np.asarray(leaf) if _is_scalar(leaf) else leaf
    if not is_array(given):
        return given
    known = _known(given.dtype)
    if known is None:
        return given
    array = given if _can_be_shared(given) else given.copy()
    return _from_numpy(array) if known.bits is None else _from_numpy(array.view(known.bits)).view(known.dtype)


def _is_scalar(leaf: object) -> bool:
    return isinstance(leaf, np.generic) and not isinstance(leaf, str | bytes)


class _Known(NamedTuple):
    """The torch dtype of a NumPy dtype."""

    dtype: torch.dtype
    bits: np.dtype[Any] | None
    """For a dtype of ml_dtypes, such as bfloat16: torch converts its bits, but not the array itself."""


@functools.lru_cache(maxsize=256)
def _known(dtype: np.dtype[Any]) -> _Known | None:
    """Return the torch dtype of the same name and size; None if there is none."""
    if not dtype.isnative or ITEM_BYTES.get(dtype.name) != dtype.itemsize:
        return None
    bits = None if dtype.type.__module__ == "numpy" else np.dtype(f"uint{8 * dtype.itemsize}")
    return _Known(getattr(torch, dtype.name), bits)


def _can_be_shared(array: NDArray[Any]) -> bool:
    flags = array.flags
    if not flags.writeable:
        return False
    return flags.c_contiguous or all(step >= 0 and step % array.itemsize == 0 for step in array.strides)


def _no_dtype(path: str, dtype: np.dtype[Any]) -> GraphError:
    if not dtype.isnative:
        remedy = 'bytes in this machine\'s order: array.astype(array.dtype.newbyteorder("="))'
    elif dtype.kind in "Mm":
        remedy = "numbers: array.view(np.int64)"
    else:
        remedy = "numbers, or a list, which is passed on unchanged: array.tolist(). Or leave it out"
    return GraphError(
        f"{subject(path)} of the batch has the dtype {dtype}, which torch doesn't have. Return, from a map, {remedy}."
    )
