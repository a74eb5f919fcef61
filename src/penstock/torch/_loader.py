"""A loader whose batches are torch tensors: on the host over the loader's own memory, on a device placed ahead.

To a CUDA device, batches are copied on a stream of their own, from private pinned memory (`CudaCopies`). A batch is
copied into a piece of pinned memory, so the loader's own memory is released at once. From there it is copied to the
device while the caller's stream computes. An event is recorded after the last copy from a piece, and the piece is
written again only after that event. When a batch is delivered, the current stream waits for the event; the processor
doesn't. Memory that users can get a view of is never pinned: torch doesn't know of copies from it, and would reuse it
too early.
"""

import functools
import warnings
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock._dataset import Dataset, explain_methods
from penstock._graph import Element, need_count
from penstock._loader import PlacedLoader
from penstock._memory import aligned
from penstock._plan import Limits, Shard
from penstock._tree import flatten, is_array, leaf_paths, map_leaves, subject, unflatten
from penstock.errors import GraphError, UsageError
from penstock.transport import ITEM_BYTES

if TYPE_CHECKING:
    from penstock._loader import Loader as ArrayLoader
    from penstock._runtime import Workers


_from_numpy: Final[Callable[[NDArray[Any]], torch.Tensor]] = vars(torch)["from_numpy"]  # torch has no types for it
_NO_SAMPLER: Final = (
    "a penstock.torch.Loader takes its rank's part by itself, as set by shard=, and resumes inside an epoch by "
    "load_state_dict, so a framework need not skip batches"
)


class Loader(PlacedLoader):
    """Iterates over a dataset's epochs as `penstock.Loader` does, and yields torch tensors in place of arrays.

    The structure of a batch is kept, and so are leaves that are not arrays: lists of text, Python numbers, tensors that
    a function made. The loader's state is that of `penstock.Loader`, which can load it; it counts the batches that were
    delivered, not those that were placed ahead.

    On the host a tensor is a writable view of the loader's memory, without a copy, and keeps it as long as it lives, as
    arrays do. To a CUDA device, batches are copied while the device computes, on a stream of their own and through
    pinned memory of the loader's. On delivery the current stream waits for the batch; the program doesn't. To other
    devices, batches are copied when they are placed.

    The loader doesn't detect ranks: in a job of several processes pass `shard=`, such as
    `Shard.from_torch(mesh["dp"])`. Without it every process loads all rows, and the loader warns.

    Args:
        dataset: the dataset to load.
        device: the device of the tensors, in any form that `torch.device` takes; by default the host.
        ahead: the number of batches placed on a device before they are requested, at least 0. On the host batches need
            no placing.
        num_workers: as in `penstock.Loader`, like all following arguments.
        workers: the kind of workers.
        isolated: True runs all of it in one helper process.
        ordered: True delivers batches in order.
        shard: the rank whose rows of each global batch to load.
        prefetch: the number of batches made ready before they are requested.
        memory: a bound for batches that are being made or held.
        copy: True delivers copies of the loader's memory.
        limits: bounds that are rarely needed.

    Raises:
        UsageError: for a wrong argument, or a device that torch doesn't find.
        GraphError: for a dataset that can't be run this way. Iterating raises one for an array that torch has no dtype
            for, and the exceptions of the dataset's own functions.

    Example:
        >>> import penstock as ps
        >>> import penstock.torch
        >>> dataset = ps.range(8).map(lambda number: {"x": number / 2}).batch(4)
        >>> for batch in penstock.torch.Loader(dataset):
        ...     print(batch["x"])
        tensor([0.0000, 0.5000, 1.0000, 1.5000], dtype=torch.float64)
        tensor([2.0000, 2.5000, 3.0000, 3.5000], dtype=torch.float64)
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        device: torch.device | str | int | None = None,
        ahead: int = 1,
        num_workers: int | Literal["auto"] | None = None,
        workers: "Workers | ArrayLoader[object]" = "auto",
        isolated: bool = False,
        ordered: bool = True,
        shard: Shard | None = None,
        prefetch: int = 2,
        memory: int | str | None = None,
        copy: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._device = _device(device)
        on_host = self._device.type == "cpu"
        self._ahead = 0 if on_host else need_count("ahead", ahead)
        self._copies = CudaCopies(self._device, self._ahead) if self._device.type == "cuda" else None
        super().__init__(
            dataset,
            num_workers=num_workers,
            workers=workers,
            isolated=isolated,
            ordered=ordered,
            shard=shard,
            prefetch=prefetch,
            memory=memory,
            copy=copy,
            limits=limits,
        )
        if shard is None:
            _warn_about_ranks()

    if not TYPE_CHECKING:  # with this method type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            """Explain why the loader lacks the attributes that frameworks use to deal or skip batches.

            Raises:
                AttributeError: always.
            """
            why = f"; {_NO_SAMPLER}" if name in {"dataset", "sampler", "batch_sampler"} else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why}", name=name, obj=self)

    def _place(self, batch: Element) -> Callable[[], Element]:
        tensors = as_tensors(batch)
        if self._copies is not None:
            return self._copies.begin(tensors)
        if self._device.type != "cpu":
            tensors = map_leaves(self._moved, tensors)
        return lambda: tensors

    def _moved(self, leaf: object) -> object:
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


explain_methods(Loader, __init__="ps.torch.Loader")


def _device(given: torch.device | str | int | None) -> torch.device:
    try:
        # An empty tensor resolves "cuda" to the current device, and fails if there is none.
        return torch.empty(0, device=torch.device("cpu" if given is None else given)).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise UsageError(f"device must be one that torch finds here; got {given!r} ({error})") from error


def _warn_about_ranks() -> None:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    count = distributed.get_world_size()
    if count > 1:
        warnings.warn(
            f"torch.distributed has {count} processes, and this loader gives each of them all rows of each batch. Pass "
            'shard=, as in Shard.from_torch(mesh["dp"]), or shard=Shard(0, 1) if that is intended.',
            stacklevel=4,
        )


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
        raise GraphError(_no_dtype(leaf_paths(structure)[index], left.dtype))
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
    """For a dtype of ml_dtypes, such as bfloat16, the integers of its size: torch converts those, but not the dtype."""


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


def _no_dtype(path: str, dtype: np.dtype[Any]) -> str:
    if not dtype.isnative:
        remedy = 'bytes in this machine\'s order: array.astype(array.dtype.newbyteorder("="))'
    elif dtype.kind in "Mm":
        remedy = "numbers: array.view(np.int64)"
    else:
        remedy = "numbers, or a list, which is passed on unchanged: array.tolist(). Or leave it out"
    return (
        f"{subject(path)} of the batch has the dtype {dtype}, which torch doesn't have. Return, from a map, {remedy}."
    )


class _Pinned:
    """A piece of pinned memory, and the event after the last copy from it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.copied: torch.cuda.Event | None = None

    def free(self, size_bytes: int) -> torch.Tensor:
        """Return the memory, of at least this size, once no copy reads it any more."""
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
        """Start copying a batch.

        Returns:
            The function that delivers it to the caller's current stream.
        """
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
        """Return a leaf that isn't copied through pinned memory: a sparse tensor, one on a device, or no tensor."""
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


def _is_dense(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout is torch.strided


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _staged(tensors: list[torch.Tensor], memory: torch.Tensor) -> list[torch.Tensor]:
    """Return copies of tensors in memory, one after the other."""
    staged: list[torch.Tensor] = []
    start = 0
    for tensor in tensors:
        stop = start + _size_bytes(tensor)
        place = memory[start:stop].view(tensor.dtype).view(tensor.shape)
        staged.append(place.copy_(tensor.detach()))
        start = aligned(stop)
    return staged
