"""Memory of CUDA devices that two processes share: slots with two events each, by which streams wait for one another.

A slot is made by the writer and opened once by the reader, by CUDA IPC. Then a message costs one copy on the device:

    writer's stream   wait for `released` │ copy the tensors into the slot │ record `filled`
    reader's stream   wait for `filled`   │ what the reader does with them │ record `released`

Guarantees:
  - No host thread waits for a device: streams wait for events, and the message goes out while the copy is still to run.
  - The writer fills a slot again only after the reader has dropped its last view, and its stream waits for what the
    reader's stream had to do with that view by then.
  - A process that opens memory of its own gets a UsageError; CUDA would crash.

The arena counts which slots the reader has views of, as it does for host memory: each slot has a small lease there, its
*ticket*, which the writer holds on the reader's behalf for each message.

Nothing here is asked of CUDA before a tensor on a device is sent or received. All of it is by torch's own interface.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from penstock.errors import MessageError, UsageError
from penstock.transport._encoding import _torch_tensors as tensors

ALIGNMENT: Final = 512  # of tensors in a slot; as torch's own allocator aligns
MIN_SLOT_BYTES: Final = 1 << 20
_TOKEN: Final = os.urandom(8).hex()  # with the pid it names this process: pids repeat across containers
_HANDLES: Final = ("handle", "ref_counter", "event")
_COUNTS: Final = ("pid", "device", "size_bytes", "offset_bytes", "ref_counter_offset", "bytes")


class OnDevice(NamedTuple):
    """A tensor on a device that is to be copied into a slot.

    Attributes:
        tensor: it.
        device: the number of its device.
        offset_bytes: where in the slot it goes; a multiple of 512.
        size_bytes: how long it is there, in C order.
    """

    tensor: tensors.Tensor
    device: int
    offset_bytes: int
    size_bytes: int


class WriterSlot:
    """A slot as its writer has it: memory of a device, and the two events.

    Args:
        device: the device's number.
        size_bytes: how much memory.
    """

    def __init__(self, device: int, size_bytes: int) -> None:
        torch = tensors.torch_module()
        self.device: Final = device
        self.size_bytes: Final = size_bytes
        with torch.cuda.device(device):  # where the events are made
            self._memory: Any = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")
            self._filled: Any = torch.cuda.Event(interprocess=True)
            self._released: Any = torch.cuda.Event(interprocess=True)

    def shared(self) -> bytes:
        """Return what the reader needs to open it, as JSON."""
        torch = tensors.torch_module()
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
        """Copy tensors into it on the device's current stream, after all that was done with its contents before."""
        torch = tensors.torch_module()
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
    """A slot as its reader has it: the same memory and events."""

    memory: Any
    filled: Any
    released: Any


class ReaderSlot:
    """A slot that a writer has described; opened when its first tensor is received.

    Args:
        shared: what the writer's `WriterSlot.shared` gave, not yet checked.

    Raises:
        MessageError: it couldn't have been written.
    """

    def __init__(self, shared: bytes) -> None:
        try:
            self._shared: Mapping[str, Any] = _checked(json.loads(shared))
        except (ValueError, TypeError, RecursionError) as error:
            raise MessageError(f"a device slot must come with its handles; they are damaged ({error})") from error
        self._opened: _Opened | None = None

    def tensor(self, lease: object, name: str, shape: tuple[int, ...], offset_bytes: int, size_bytes: int) -> object:
        """Return a tensor in the slot, for which the device's current stream waits.

        Args:
            lease: given back when the tensor's last view is dropped.
            name: of its dtype.
            shape: its shape.
            offset_bytes: where it starts.
            size_bytes: how long it is.

        Raises:
            MessageError: it reaches out of the slot.
            UsageError: this process made the slot itself.
        """
        total: int = self._shared["bytes"]
        if offset_bytes % ALIGNMENT or offset_bytes + size_bytes > total:
            raise MessageError(
                f"a tensor must lie in its device slot of {total} bytes, aligned; got {size_bytes} bytes at "
                f"{offset_bytes}"
            )
        torch, device = tensors.torch_module(), self._shared["device"]
        opened = self._opened = self._opened or self._open()
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream(device)
            stream.wait_event(opened.filled)
            if not size_bytes:
                return torch.empty(shape, dtype=getattr(torch, name), device=f"cuda:{device}")
            loan = _Loan(opened, lease, stream, opened.memory.data_ptr() + offset_bytes, size_bytes)
            flat = torch.as_tensor(loan, device=f"cuda:{device}")  # its storage refers to the loan
            return flat.view(getattr(torch, name)).view(shape)

    def _open(self) -> _Opened:
        shared = self._shared
        if (shared["pid"], shared["token"]) == (os.getpid(), _TOKEN):
            raise UsageError(
                "a process can't receive its own CUDA message: CUDA opens shared memory only in other processes. Use "
                "the tensor itself here, or send tensor.cpu()."
            )
        torch, device, requires_grad = tensors.torch_module(), shared["device"], False
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
    """Where a tensor of a message is: the slot, and the lease that the message has on it."""

    slot: ReaderSlot
    lease: object


class _Loan:
    """Part of a slot that a tensor was made of; it refers to the lease until the tensor's last view is dropped."""

    def __init__(self, opened: _Opened, lease: object, stream: tensors.Stream, address: int, size_bytes: int) -> None:
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
        # Dropping the lease lets the writer's stream wait for `released`; so that is recorded first. The view may have
        # been used on the stream that is current now, as well as on that of its receipt. Nobody is left to raise to.
        with contextlib.suppress(Exception):
            current = tensors.torch_module().cuda.current_stream(self._stream.device)
            if current != self._stream:
                self._stream.wait_stream(current)
            self._opened.released.record(self._stream)
        self._lease = None


def offset_after(end_bytes: int) -> int:
    """Return where the next tensor of a slot starts."""
    return -(-end_bytes // ALIGNMENT) * ALIGNMENT


def _checked(value: object) -> Mapping[str, Any]:
    names = {*_COUNTS, *_HANDLES, "filled", "released", "token", "must_wait"}
    shared = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if set(shared) != names:
        raise ValueError("they have other entries")
    if not all(_is_count(shared[name]) for name in _COUNTS) or not isinstance(shared["must_wait"], bool):
        raise ValueError("a size is no size")
    for name in (*_HANDLES, "filled", "released", "token"):
        if not isinstance(shared[name], str):
            raise TypeError(f"{name} is no handle")
    for name in (*_HANDLES, "filled", "released"):
        bytes.fromhex(shared[name])
    if shared["bytes"] > shared["size_bytes"]:
        raise ValueError("the slot reaches out of its storage")
    return shared


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
