"""Torch's tensors as bytes and back, on the host and by CUDA's own sharing; nothing else here knows torch.

A tensor on the host is its dtype's name, its shape and its bytes in C order. One on a device is not copied: what
travels are the handles with which torch opens the memory in another process, as `torch.multiprocessing` does.
"""

import importlib
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError

if TYPE_CHECKING:
    import types

    import torch

Tensor: TypeAlias = "torch.Tensor"

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

_TOKEN: Final = os.urandom(8).hex()  # with the pid it names this process: pids repeat across containers
_HANDLES: Final = ("handle", "ref_counter", "event")


def is_tensor(leaf: object) -> bool:
    """Return whether a leaf is a torch tensor of any kind; torch is not imported for it."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(leaf, tensor)


def detached(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor carries no gradient; one that does would lose its graph on the way."""
    return not tensor.requires_grad


def obstacle(tensor: "torch.Tensor") -> str:
    """Return what is in the way of sending a tensor as its bytes, with the remedy; nothing if all is well."""
    torch = _torch()
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
    """Return whether a tensor's bytes can be read by this process's processor."""
    return tensor.device.type == "cpu"


def is_plain(tensor: "torch.Tensor") -> bool:
    """Return whether a tensor's values are those in its memory, and not their conjugates or negatives."""
    return not tensor.is_conj() and not tensor.is_neg()


def tensor_bytes(tensor: "torch.Tensor") -> NDArray[np.uint8]:
    """Return the bytes of a tensor on the host, in C order; a view where they already lie so."""
    torch = _torch()
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    viewed: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return viewed


def tensor_over(memory: object, name: str, shape: tuple[int, ...]) -> object:
    """Return a tensor over writable memory that starts with its bytes; the tensor keeps `memory` alive."""
    torch = _torch()
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
        memory: all that the tensor spans, and no more.
        name: of its dtype.
        shape: its shape.
        strides: in items, none negative.
        private: copy it, to memory of its own: as it lies there, or in C order, whichever is smaller.
    """
    torch = _torch()
    dtype, item_bytes = getattr(torch, name), ITEM_BYTES[name]
    is_copied = private and (memory.readonly or math.prod(shape) * item_bytes > memory.nbytes)
    whole = torch.frombuffer(bytearray(memory) if is_copied else memory, dtype=dtype, count=memory.nbytes // item_bytes)
    tensor = whole.as_strided(shape, strides)
    return tensor.clone(memory_format=torch.contiguous_format) if private and not is_copied else tensor


def share_cuda(tensor: "torch.Tensor") -> dict[str, object]:
    """Wait for a tensor's memory to be complete, and share it; the sender keeps it until the receiver has opened it.

    Returns:
        What the receiver needs to open it, as a JSON value.
    """
    torch = _torch()
    reductions = torch.multiprocessing.reductions
    torch.cuda.current_stream(tensor.device).synchronize()  # what fills the tensor is done before it is announced
    arguments: tuple[Any, ...] = reductions.reduce_tensor(tensor.resolve_conj().resolve_neg())[1]
    (_, size, stride, offset, _, _, device, handle, size_bytes, offset_bytes, _, counter, counter_offset) = arguments[
        :13
    ]
    event, must_wait = arguments[13:]
    return {
        "pid": os.getpid(),
        "token": _TOKEN,
        "dtype": dtype_name(tensor),
        "shape": list(size),
        "stride": list(stride),
        "offset": offset,
        "device": device,
        "handle": _hex(handle),
        "size_bytes": size_bytes,
        "offset_bytes": offset_bytes,
        "ref_counter": _hex(counter),
        "ref_counter_offset": counter_offset,
        "event": _hex(event),
        "must_wait": bool(must_wait),
    }


def open_cuda(shared: Mapping[str, Any], *, copy: bool) -> object:
    """Return the tensor that another process shared.

    Args:
        shared: the value of its `share_cuda`, not yet checked.
        copy: return a private copy on the device.

    Raises:
        UsageError: this process shared it itself; CUDA can't open memory in the process that made it.
        ValueError: it isn't such a value, or reaches out of its storage.
    """
    _check(shared)
    if (shared["pid"], shared["token"]) == (os.getpid(), _TOKEN):
        raise UsageError(
            "a process can't receive its own CUDA message: CUDA opens shared memory only in other processes. Use the "
            "tensor itself here, or send tensor.cpu()."
        )
    torch = _torch()
    reductions = torch.multiprocessing.reductions
    requires_grad = False
    tensor: Tensor = reductions.rebuild_cuda_tensor(
        torch.Tensor,
        torch.Size(shared["shape"]),
        tuple(shared["stride"]),
        shared["offset"],
        torch.storage.TypedStorage,
        getattr(torch, shared["dtype"]),
        shared["device"],
        _unhex(shared["handle"]),
        shared["size_bytes"],
        shared["offset_bytes"],
        requires_grad,
        _unhex(shared["ref_counter"]),
        shared["ref_counter_offset"],
        _unhex(shared["event"]),
        shared["must_wait"],
    )
    return tensor.clone() if copy else tensor


def _check(shared: Mapping[str, Any]) -> None:
    counts = ("pid", "offset", "device", "size_bytes", "offset_bytes", "ref_counter_offset")
    if set(shared) != {*counts, *_HANDLES, "token", "dtype", "shape", "stride", "must_wait"}:
        raise ValueError("the handles of a CUDA tensor have other entries")
    shape, stride, dtype = shared["shape"], shared["stride"], shared["dtype"]
    if not _is_list(shape) or not _is_list(stride) or not len(shape) == len(stride) <= 64:
        raise ValueError("the handles of a CUDA tensor have no shape")
    if not all(map(_is_count, [*shape, *stride, *(shared[name] for name in counts)])):
        raise ValueError("the handles of a CUDA tensor have sizes that are no sizes")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES or not isinstance(shared["must_wait"], bool):
        raise ValueError("the handles of a CUDA tensor have an unknown dtype")
    for name in _HANDLES:
        if shared[name] is not None and not isinstance(shared[name], str):
            raise ValueError(f"a CUDA tensor's {name} is no handle")
        _unhex(shared[name])
    last: int = shared["offset"] + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * ITEM_BYTES[dtype] > shared["size_bytes"]:
        raise ValueError("a CUDA tensor reaches out of its storage")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _hex(handle: bytes | None) -> str | None:
    return None if handle is None else handle.hex()


def _unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _torch() -> "types.ModuleType":
    return importlib.import_module("torch")  # an optional dependency, in the one file that needs it
