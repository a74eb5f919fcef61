"""Copies of batches to a CUDA device, on a stream of their own, from private pinned memory.

A batch is copied into a piece of pinned memory, so the loader's own memory is released at once. From there it is copied
to the device while the caller's stream computes. An event is recorded after the last copy from a piece, and the piece
is written again only after that event. When a batch is delivered, the current stream waits for the event; the
processor doesn't.

Memory that users can get a view of is never pinned: torch doesn't know of copies from it, and would reuse it too early.
"""

from collections import deque
from collections.abc import Callable

import torch

from penstock._graph import Element
from penstock._memory import aligned
from penstock._tree import flatten, unflatten


class _Pinned:
    """A piece of pinned memory, and the event after the last copy from it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.copied: torch.cuda.Event | None = None

    def free(self, size_bytes: int) -> torch.Tensor:
        """Wait until no copy reads the memory any more, and return it, of at least this size."""
        if self.copied is not None:
            self.copied.synchronize()
        if self._memory.numel() < size_bytes:
            # With headroom: allocating pinned memory makes the device wait.
            self._memory = torch.empty(size_bytes + size_bytes // 4, dtype=torch.uint8, pin_memory=True)
        return self._memory


class CudaCopies:
    """Copies batches of tensors to one device; used by one thread."""

    def __init__(self, device: torch.device, ahead: int) -> None:
        """Make the stream.

        Args:
            device: the target device.
            ahead: the number of batches copied before they are delivered; there is one more piece of pinned memory.
        """
        new_stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
        self._device = device
        self._stream = new_stream(device)
        self._pieces = deque(_Pinned() for _ in range(ahead + 1))

    def begin(self, batch: Element) -> Callable[[], Element]:
        """Start copying a batch, and return a function that delivers it to the caller's current stream."""
        leaves, structure = flatten(batch)
        tensors = [leaf for leaf in leaves if _is_dense(leaf)]
        piece = self._pieces[0]
        memory = piece.free(sum(aligned(_size_bytes(tensor)) for tensor in tensors))
        staged = _staged(tensors, memory)
        new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event
        copied = piece.copied = new_event()
        self._pieces.rotate(-1)
        with torch.cuda.stream(self._stream):
            try:
                placed = [each.to(self._device, non_blocking=True) for each in staged]
            finally:
                copied.record(self._stream)

        def hand_over() -> Element:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            for tensor in placed:
                tensor.record_stream(current)  # else the next copies may reuse its memory as soon as it is dropped
            waiting = iter(placed)
            return unflatten(structure, [next(waiting) if _is_dense(leaf) else self._moved(leaf) for leaf in leaves])

        return hand_over

    def _moved(self, leaf: object) -> object:
        """Return a leaf that pinned memory isn't used for: a tensor that is sparse or on a device, or no tensor."""
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


def _is_dense(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout is torch.strided


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _staged(tensors: list[torch.Tensor], memory: torch.Tensor) -> list[torch.Tensor]:
    """Copy tensors into memory, one after the other, and return the copies."""
    staged: list[torch.Tensor] = []
    start = 0
    for tensor in tensors:
        stop = start + _size_bytes(tensor)
        place = memory[start:stop].view(tensor.dtype).view(tensor.shape)
        staged.append(place.copy_(tensor.detach()))
        start = aligned(stop)
    return staged
