"""Torch tensors in shared memory of CUDA devices.

A tensor on a CUDA device is sent in a *slot*: memory of the device and two events, by which the streams of the two
processes wait for each other. The writer creates a slot, and the reader opens it once, by CUDA IPC. Then a message
costs one copy on the device:

    writer's stream   wait for `released` │ copy the tensors into the slot │ record `filled`
    reader's stream   wait for `filled`   │ use the tensors                │ record `released`

The arena counts the slots of which the reader has views, as it does for host memory: each slot has a small lease there,
its *ticket*, which the writer holds on the reader's behalf for each message.

Guarantees:
  - No host thread waits for a device: streams wait for events, and the message is sent before the copy has run.
  - The writer fills a slot again only after the reader has dropped its last view, and the writer's stream waits for the
    work that the reader's stream had on that view by then.
  - A process that opens its own memory gets a UsageError; CUDA would crash.
  - CUDA is not used before a tensor on a device is sent or received, and only through torch's interface.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from penstock._tensors import torch_module
from penstock.errors import MessageError, UsageError

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "torch.Tensor"
Stream: TypeAlias = "torch.cuda.Stream"

_ALIGNMENT: Final = 512  # of tensors in a slot, in bytes; the alignment of torch's allocator
MIN_SLOT_BYTES: Final = 1 << 20
_TOKEN: Final = os.urandom(8).hex()  # identifies this process, with its pid: pids repeat across containers
_HANDLES: Final = ("handle", "ref_counter", "event")
_COUNTS: Final = ("pid", "device", "size_bytes", "offset_bytes", "ref_counter_offset", "bytes")


class OnDevice(NamedTuple):
    """A tensor on a device that must be copied into a slot.

    Attributes:
        tensor: the tensor.
        device: the number of its device.
        offset_bytes: its offset in the slot; a multiple of 512.
        size_bytes: its size in C order.
    """

    tensor: Tensor
    device: int
    offset_bytes: int
    size_bytes: int


class WriterSlot:
    """The writer's side of a slot: memory of a device, and the two events.

    Args:
        device: the device's number.
        size_bytes: the size of the memory.
    """

    def __init__(self, device: int, size_bytes: int) -> None:
        torch = torch_module()
        self.device: Final = device
        self.size_bytes: Final = size_bytes
        with torch.cuda.device(device):  # events belong to the current device
            self._memory: Any = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")
            self._filled: Any = torch.cuda.Event(interprocess=True)
            self._released: Any = torch.cuda.Event(interprocess=True)

    def shared(self) -> bytes:
        """Return the handles that the reader needs to open the slot, as JSON."""
        torch = torch_module()
        with torch.cuda.device(self.device):
            arguments: tuple[Any, ...] = torch.multiprocessing.reductions.reduce_tensor(self._memory)[1]
            device, handle, size_bytes, offset_bytes, _, counter, counter_offset, event, must_wait = arguments[6:15]
            value = {
                "pid": os.getpid(),
                "token": _TOKEN,
                "device": device,
                "bytes": self.size_bytes,
                "handle": handle.hex(),
                "size_bytes": size_bytes,
                "offset_bytes": offset_bytes,
                "ref_counter": counter.hex(),
                "ref_counter_offset": counter_offset,
                "event": event.hex(),
                "must_wait": bool(must_wait),
                "filled": self._filled.ipc_handle().hex(),
                "released": self._released.ipc_handle().hex(),
            }
        return json.dumps(value, separators=(",", ":")).encode()

    def fill(self, leaves: Sequence[OnDevice]) -> None:
        """Copy tensors into the slot on the device's current stream, after all earlier work on its contents."""
        torch = torch_module()
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(self._filled)  # another stream may have filled it for a message that was never sent
            stream.wait_event(self._released)
            for leaf in leaves:
                if leaf.size_bytes:
                    there = self._memory[leaf.offset_bytes : leaf.offset_bytes + leaf.size_bytes]
                    there.view(leaf.tensor.dtype).view(leaf.tensor.shape).copy_(leaf.tensor, non_blocking=True)
            self._filled.record(stream)


@dataclass(eq=False)
class _Opened:
    """The memory and the events of a slot that the reader has opened."""

    memory: Any
    filled: Any
    released: Any


class ReaderSlot:
    """The reader's side of a slot; it opens the slot when the first tensor is received.

    Args:
        shared: the result of the writer's `WriterSlot.shared`, not yet checked.

    Raises:
        MessageError: a writer can't have written it.
    """

    def __init__(self, shared: bytes) -> None:
        try:
            self._shared: Mapping[str, Any] = _checked(json.loads(shared))
        except (ValueError, TypeError, RecursionError) as error:
            raise MessageError(f"the handles of a device slot are damaged ({error})") from error
        self._opened: _Opened | None = None

    def tensor(self, lease: object, name: str, shape: tuple[int, ...], offset_bytes: int, size_bytes: int) -> object:
        """Return a tensor in the slot; the device's current stream waits for its data.

        Args:
            lease: kept until the tensor's last view is dropped.
            name: the name of its dtype.
            shape: its shape.
            offset_bytes: its start in the slot.
            size_bytes: its size.

        Raises:
            MessageError: it is not inside the slot.
            UsageError: this process created the slot itself.
        """
        total: int = self._shared["bytes"]
        if offset_bytes % _ALIGNMENT or offset_bytes + size_bytes > total:
            raise MessageError(
                f"a tensor must be inside its device slot of {total} bytes, aligned; got {size_bytes} bytes at "
                f"{offset_bytes}"
            )
        torch, device = torch_module(), self._shared["device"]
        opened = self._opened = self._opened or self._open()
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream(device)
            stream.wait_event(opened.filled)
            if not size_bytes:
                return torch.empty(shape, dtype=getattr(torch, name), device=f"cuda:{device}")
            part = _SlotView(opened, lease, stream, opened.memory.data_ptr() + offset_bytes, size_bytes)
            flat = torch.as_tensor(part, device=f"cuda:{device}")  # its storage references the part
            return flat.view(getattr(torch, name)).view(shape)

    def _open(self) -> _Opened:
        shared = self._shared
        if (shared["pid"], shared["token"]) == (os.getpid(), _TOKEN):
            raise UsageError(
                "a process can't receive its own CUDA message: CUDA opens shared memory only in other processes. Use "
                "the tensor itself here, or send tensor.cpu()."
            )
        torch, device, requires_grad = torch_module(), shared["device"], False
        with torch.cuda.device(device):
            memory = torch.multiprocessing.reductions.rebuild_cuda_tensor(
                torch.Tensor,
                torch.Size((shared["bytes"],)),
                (1,),
                0,
                torch.storage.TypedStorage,
                torch.uint8,
                device,
                *(bytes.fromhex(shared["handle"]), shared["size_bytes"], shared["offset_bytes"]),
                requires_grad,
                *(bytes.fromhex(shared["ref_counter"]), shared["ref_counter_offset"]),
                *(bytes.fromhex(shared["event"]), shared["must_wait"]),
            )
            filled, released = (
                torch.cuda.Event.from_ipc_handle(memory.device, bytes.fromhex(shared[name]))
                for name in ("filled", "released")
            )
        return _Opened(memory, filled, released)


class DevicePlace(NamedTuple):
    """The place of a tensor of a message: the slot, and the message's lease on it."""

    slot: ReaderSlot
    lease: object


class _SlotView:
    """The part of a slot under a tensor; it keeps the lease until the tensor's last view is dropped."""

    def __init__(self, opened: _Opened, lease: object, stream: Stream, address: int, size_bytes: int) -> None:
        self._opened = opened
        self._lease: object = lease
        self._stream = stream
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }

    def __del__(self) -> None:
        # `released` is recorded before the lease is dropped: after that the writer's stream waits for it. The view may
        # have been used on the current stream, as well as on the stream that received it. An exception would have no
        # caller.
        with contextlib.suppress(Exception):
            current = torch_module().cuda.current_stream(self._stream.device)
            if current != self._stream:
                self._stream.wait_stream(current)
            self._opened.released.record(self._stream)
        self._lease = None


def offset_after(end_bytes: int) -> int:
    """Return the start of the tensor in a slot that follows one with this end."""
    return -(-end_bytes // _ALIGNMENT) * _ALIGNMENT


def _checked(value: object) -> Mapping[str, Any]:
    names = {*_COUNTS, *_HANDLES, "filled", "released", "token", "must_wait"}
    shared = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if set(shared) != names:
        raise ValueError("they must have exactly the entries of a writer")
    if not all(_is_count(shared[name]) for name in _COUNTS) or not isinstance(shared["must_wait"], bool):
        raise ValueError("each size must be a whole number")
    for name in (*_HANDLES, "filled", "released", "token"):
        if not isinstance(shared[name], str):
            raise TypeError(f"{name} must be a handle")
    for name in (*_HANDLES, "filled", "released"):
        bytes.fromhex(shared[name])
    if shared["bytes"] > shared["size_bytes"]:
        raise ValueError("a slot must fit into its storage")
    return shared


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
