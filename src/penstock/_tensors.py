"""Torch tensors in host memory, as bytes and as arrays; torch is imported when the first one is made."""

import copy
import importlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from penstock._strides import copied_with_strides

if TYPE_CHECKING:
    import types

    import torch

_OF_NUMPY: Final = frozenset(
    f"{kind}{bits}" for kind, sizes in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64))) for bits in sizes
) | {"bool", "float16", "float32", "float64", "complex64", "complex128"}
ITEM_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}
"""The size of an item of each dtype of dense tensors, by the dtype's name in torch."""


def tensor_type() -> "type[torch.Tensor] | None":
    """Return torch's class of tensors; None as long as torch isn't imported."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def is_tensor(leaf: object) -> bool:
    """Return whether a leaf is a torch tensor of any kind, without importing torch."""
    tensor = tensor_type()
    return tensor is not None and isinstance(leaf, tensor)


def detached(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor carries no gradient; its graph can't be sent."""
    return not tensor.requires_grad


def obstacle(tensor: "torch.Tensor") -> str:
    """Return the reason why a tensor can't be sent as its bytes, with the remedy; empty if it can."""
    torch = torch_module()
    if type(tensor) is not torch.Tensor:
        return f"is a {type(tensor).__qualname__}; convert it with .as_subclass(torch.Tensor)"
    if tensor.is_quantized:
        return "is a quantized tensor; convert it with .dequantize()"
    if tensor.is_nested:
        return "is a nested tensor; send its parts, tensor.unbind()"
    if tensor.layout is not torch.strided:
        return f"is a tensor of layout {tensor.layout}; convert it with .to_dense() or send its parts"
    if tensor.device.type not in {"cpu", "cuda"}:
        return f"is a tensor on the device {str(tensor.device)!r}; convert it with .cpu()"
    if dtype_name(tensor) not in ITEM_BYTES:
        return f"is a tensor of the dtype {tensor.dtype}; convert it with .to()"
    return ""


def dtype_name(tensor: "torch.Tensor") -> str:
    """Return the name of a tensor's dtype in torch."""
    return str(tensor.dtype).removeprefix("torch.")


def has_numpy_dtype(tensor: "torch.Tensor") -> bool:
    """Return whether NumPy itself has a tensor's dtype."""
    return _integers_for(tensor.dtype) is None


def on_host(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor is in host memory."""
    return tensor.device.type == "cpu"


def is_strided(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor has its items in memory, each by its strides; a sparse one hasn't."""
    return tensor.layout is torch_module().strided


def is_plain(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor's values are those in its memory, not their conjugates or negatives."""
    return not tensor.is_conj() and not tensor.is_neg()


def tensor_bytes(tensor: "torch.Tensor") -> NDArray[np.uint8]:
    """Return the bytes of a tensor on the host, in C order; a view if they are already in that order."""
    torch = torch_module()
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    if tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)  # torch can't copy all types of one byte
    # A tensor of one item is contiguous with any stride, and has only a view as bytes with a stride of 1.
    flat = tensor.resolve_conj().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,))
    viewed: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return viewed


def tensor_over(memory: object, name: str, shape: tuple[int, ...]) -> object:
    """Return a tensor over memory that starts with its bytes, and keep `memory` alive; over a copy if it is read-only.

    torch has no read-only tensors: a program that wrote to one would crash.
    """
    torch = torch_module()
    dtype = getattr(torch, name)
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    view = memoryview(cast("bytes", memory))
    return torch.frombuffer(bytearray(view) if view.readonly else memory, dtype=dtype, count=count).view(shape)


def permuted_tensor_over(memory: object, name: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> object:
    """Return a tensor over its bytes whose axes are in another order: axis `axes[i]` of it is axis i in memory.

    Args:
        memory: as for `tensor_over`.
        name: the name of its dtype.
        shape: its shape in memory.
        axes: those of `memory_order`.
    """
    tensor: Any = tensor_over(memory, name, shape)
    return tensor.permute([axes.index(axis) for axis in range(len(axes))])


def strided_tensor_over(
    memory: memoryview, name: str, shape: tuple[int, ...], strides: tuple[int, ...], *, private: bool
) -> object:
    """Return a tensor with strides over memory that starts with its first item.

    Args:
        memory: exactly the memory that the tensor spans.
        name: the name of its dtype.
        shape: its shape.
        strides: in items, none negative.
        private: copy it into private memory: with its strides or in C order, whichever is smaller.
    """
    torch = torch_module()
    dtype, item_bytes = getattr(torch, name), ITEM_BYTES[name]
    stored = torch.uint8 if item_bytes == 1 else dtype  # torch can't copy all types of one byte
    is_copied = private and (memory.readonly or math.prod(shape) * item_bytes > memory.nbytes)
    whole = torch.frombuffer(
        bytearray(memory) if is_copied else memory, dtype=stored, count=memory.nbytes // item_bytes
    )
    tensor = whole.as_strided(shape, strides)
    return (tensor.clone(memory_format=torch.contiguous_format) if private and not is_copied else tensor).view(dtype)


@cache
def torch_module() -> "types.ModuleType":
    """Return torch; imported when it is first needed."""
    return importlib.import_module("torch")  # an optional dependency


def array_of(tensor: "torch.Tensor") -> NDArray[Any] | None:
    """Return an array over the memory of a tensor, with its strides.

    Its dtype is the tensor's or, if NumPy has no such dtype, that of integers of the same size.

    Returns:
        The array; None if the tensor's values aren't those in the host's memory, or if it carries anything else.
    """
    if type(tensor) is not torch_module().Tensor or tensor.requires_grad or tensor.is_nested or tensor.is_quantized:
        return None
    try:
        if vars(tensor):
            return None
        integers = _integers_for(tensor.dtype)
        array: NDArray[Any] = (tensor if integers is None else tensor.view(integers)).numpy()
    except (RuntimeError, TypeError):  # its values aren't in the host's memory
        return None
    return array


def tensor_layout(tensor: "torch.Tensor") -> tuple[int, tuple[int, ...], tuple[int, ...], int] | None:
    """Return the address of a tensor's first item, its shape, its strides in bytes, and the size of an item.

    Returns:
        These; None if the tensor isn't laid out by strides, or has no memory of its own.
    """
    if tensor.is_nested or not is_strided(tensor):
        return None
    size = tensor.element_size()
    try:
        return tensor.data_ptr(), tuple(tensor.shape), tuple(size * stride for stride in tensor.stride()), size
    except RuntimeError:  # of a subclass that holds others
        return None


def copied_tensor(tensor: "torch.Tensor", memo: dict[int, Any]) -> object:
    """Return a tensor with the same values in new memory, of the same dtype, class and strides.

    Args:
        tensor: any tensor.
        memo: of `copy.deepcopy`, for the attributes of the tensor.
    """
    if type(tensor) is not torch_module().Tensor or vars(tensor):
        return copy.deepcopy(tensor, memo)
    if tensor.requires_grad and tensor.is_leaf:  # a clone would pass gradients on to it
        return copy.deepcopy(tensor, memo) if tensor.grad is not None else tensor.detach().clone().requires_grad_()
    array = array_of(tensor)
    if array is None or array.flags.c_contiguous or memory_order(array):
        return tensor.clone()
    return tensor_of(copied_with_strides(array), dtype_name(tensor))


def memory_order(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the axes of an array in the order in which its items fill its memory, such as channels last.

    Returns:
        The axes, the one with the longest stride first; None if that is C's order, or the memory has gaps.
    """
    if array.flags.c_contiguous:
        return None
    axes = tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return axes if array.transpose(axes).flags.c_contiguous else None


def tensor_order(tensor: "torch.Tensor") -> tuple[int, ...] | None:
    """Return the axes of a tensor as `memory_order` does; None for one of another kind than `array_of` takes, too."""
    array = array_of(tensor)
    return None if array is None else memory_order(array)


def arrays_of(tensors: Sequence[Any]) -> list[NDArray[Any]] | None:
    """Return arrays over the memory of tensors, as NumPy converts them; None if one can't be converted."""
    try:
        return [tensor.numpy() for tensor in tensors]
    except (RuntimeError, TypeError):
        return None


def tensor_of(array: NDArray[Any], name: str) -> "torch.Tensor":
    """Return a tensor over the memory of an array of `array_of`, with its strides; over a copy if that is read-only."""
    return tensors_over([array if array.flags.writeable else copied_with_strides(array)], name)[0]


def tensors_over(arrays: Iterable[NDArray[Any]], name: str) -> "list[torch.Tensor]":
    """Return a tensor of a dtype over each array of `array_of`; each has a count of writes of its own, for autograd."""
    torch: Any = torch_module()
    tensors: list[Any] = list(map(torch.from_numpy, arrays))
    dtype = getattr(torch, name)
    return tensors if _integers_for(dtype) is None else [tensor.view(dtype) for tensor in tensors]


@cache
def _integers_for(dtype: "torch.dtype") -> "torch.dtype | None":
    """Return the integers as which NumPy sees tensors of a dtype; None if it has the dtype itself.

    Packages add dtypes to NumPy, such as bfloat16, so `numpy.dtype` would answer otherwise in another process.
    """
    if str(dtype).removeprefix("torch.") in _OF_NUMPY:
        return None
    integers: torch.dtype = getattr(torch_module(), f"int{8 * dtype.itemsize}")
    return integers
