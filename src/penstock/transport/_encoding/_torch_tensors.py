"""Torch tensors on the host as bytes, and back. Beside this module only `_cuda` uses torch.

A tensor is its dtype's name, its shape, and its bytes in C order or, in shared memory, with its strides.
"""

import importlib
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import types

    import torch

Tensor: TypeAlias = "torch.Tensor"
Stream: TypeAlias = "torch.cuda.Stream"

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
"""The dtypes of dense tensors by their names in torch, and the size of an item."""


def is_tensor(leaf: object) -> bool:
    """Return whether a leaf is a torch tensor of any kind, without importing torch."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
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
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"is a tensor of layout {tensor.layout}; convert it with .to_dense() or send its parts"
    if tensor.device.type not in {"cpu", "cuda"}:
        return f"is a tensor on the device {str(tensor.device)!r}; convert it with .cpu()"
    if dtype_name(tensor) not in ITEM_BYTES:
        return f"is a tensor of the dtype {tensor.dtype}; convert it with .to()"
    return ""


def dtype_name(tensor: "torch.Tensor") -> str:
    """Return the name of a tensor's dtype in torch."""
    return str(tensor.dtype).removeprefix("torch.")


def on_host(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor is in host memory."""
    return tensor.device.type == "cpu"


def is_plain(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor's values are those in its memory, not their conjugates or negatives."""
    return not tensor.is_conj() and not tensor.is_neg()


def tensor_bytes(tensor: "torch.Tensor") -> NDArray[np.uint8]:
    """Return the bytes of a tensor on the host, in C order; a view if they are already in that order."""
    torch = torch_module()
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    viewed: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return viewed


def tensor_over(memory: object, name: str, shape: tuple[int, ...]) -> object:
    """Return a tensor over writable memory that starts with its bytes; the tensor keeps `memory` alive."""
    torch = torch_module()
    dtype = getattr(torch, name)
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


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
    is_copied = private and (memory.readonly or math.prod(shape) * item_bytes > memory.nbytes)
    whole = torch.frombuffer(bytearray(memory) if is_copied else memory, dtype=dtype, count=memory.nbytes // item_bytes)
    tensor = whole.as_strided(shape, strides)
    return tensor.clone(memory_format=torch.contiguous_format) if private and not is_copied else tensor


def torch_module() -> "types.ModuleType":
    """Return torch; imported when it is first needed."""
    return importlib.import_module("torch")  # an optional dependency
