"""A loader whose batches are torch tensors: on the host views of the loader's memory, on a device copies made ahead.

`CudaCopies` copies batches to a CUDA device, on a stream of its own. It first copies a batch into a piece of pinned
memory, so that the loader can reuse the batch's own memory at once. From the piece, the batch is copied to the device
while the consumer's stream computes. An event is recorded after the last copy from a piece, and the piece is written
again only after that event. When a batch is delivered, the current stream waits for the event; the consumer's thread
doesn't. With workers, a thread of the loader does all that but the delivery, in turns with the consumer's thread: a
loop that waits for each step leaves the device idle as long as `next` takes, and to copy 38 MB takes 3.5 ms.

The memory of batches on the host is never pinned. A user's copy from pinned memory may still run when the user has
dropped the batch, and the loader would then reuse the memory too early.
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
from penstock._loader import PlacedLoader, PlacementThread
from penstock._memory import aligned
from penstock._plan import Limits, Shard
from penstock._properties import raise_noted
from penstock._tensors import ITEM_BYTES
from penstock._tree import flatten, is_array, is_masked, leaf_paths, map_leaves, subject, unflatten
from penstock.errors import GraphError, UsageError

if TYPE_CHECKING:
    from penstock._loader import Loader as ArrayLoader
    from penstock._runtime import WorkerPool, Workers


_from_numpy: Final[Callable[[NDArray[Any]], torch.Tensor]] = vars(torch)["from_numpy"]  # torch has no types for it
_NO_SAMPLER: Final = (
    "a penstock.torch.Loader reads the rows of its own rank, as set by shard=, and resumes inside an epoch by "
    "load_state_dict, so a framework need not deal or skip batches"
)


class Loader(PlacedLoader):
    """Iterates over a dataset's epochs as `penstock.Loader` does, and yields torch tensors in place of arrays.

    The structure of a batch is kept, and so are leaves that are not arrays: lists of text, Python numbers, tensors that
    a function made. A `penstock.Loader` can load the loader's state, and the reverse. The state counts the batches that
    were delivered, not those that were placed ahead.

    On the host a tensor is a writable view of the loader's memory, without a copy. The loader reuses that memory only
    after the tensor and all views of it were dropped. To a CUDA device, the loader copies batches while the device
    computes, through pinned memory and on a stream of its own; with workers, in a thread of its own, too. On delivery
    the current stream waits for the batch; the program doesn't. To other devices, batches are copied when they are
    placed.

    The loader doesn't detect ranks: in a job of several processes pass `shard=`, such as
    `Shard.from_torch(mesh["dp"])`. Without it every process loads all rows, and the loader warns.

    Args:
        dataset: the dataset to load.
        device: the device of the tensors, in any form that `torch.device` takes; by default the host.
        ahead: the number of batches placed on a device before they are requested, at least 0. On the host it has no
            effect.
        num_workers: as in `penstock.Loader`, like all following arguments.
        workers: the kind of workers.
        isolated: True computes all batches in one helper process.
        ordered: True delivers batches in order.
        shard: the rank whose rows of each global batch to load.
        prefetch: the number of batches made ready before they are requested.
        memory: a bound for the memory of batches that are being computed or are still referenced.
        copy: True delivers copies of the loader's memory.
        limits: bounds that are rarely needed.

    Raises:
        UsageError: an argument is wrong, or torch doesn't find the device.
        GraphError: the dataset can't be run this way. Iteration raises one for an array whose dtype torch doesn't have.
            It also raises the exceptions of the dataset's functions.

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
        workers: "Workers | Literal['ray'] | ArrayLoader[object] | WorkerPool" = "auto",
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
        if self._copies is not None and not self._plan.is_computed_here:
            self._thread = PlacementThread("penstock-placing")
        if shard is None:
            _warn_about_ranks()

    if not TYPE_CHECKING:  # with this method type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            """Raise an error, which explains why the loader lacks attributes by which frameworks deal or skip batches.

            Raises:
                AttributeError: always.
            """
            raise_noted(self, name)
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
        # The device of an empty tensor is the current one if "cuda" was given; without a device this raises an error.
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
    """Return a batch with its arrays as writable tensors over the same memory, and NumPy's scalars as tensors.

    All other leaves are unchanged: tensors, text, bytes, Python numbers. An array that is read-only, or has strides
    that torch doesn't support, is copied.

    Raises:
        GraphError: torch doesn't have the dtype of an array, or the array is masked; the message names the leaf.
    """
    leaves, structure = flatten(batch)
    made = [_as_tensor(leaf) for leaf in leaves]
    if any(map(is_array, made)):
        index, left = next((index, leaf) for index, leaf in enumerate(made) if is_array(leaf))
        raise GraphError(_no_tensor(leaf_paths(structure)[index], left))
    return unflatten(structure, made)


def _as_tensor(leaf: object) -> object:
    """Return a tensor for an array or a NumPy scalar whose dtype torch has; any other leaf unchanged."""
    given: object = np.asarray(leaf) if _is_scalar(leaf) else leaf
    if not is_array(given) or (type(given) is not np.ndarray and is_masked(given)):
        return given
    found = _torch_dtype(given.dtype)
    if found is None:
        return given
    array = given if _can_be_shared(given) else given.copy()
    return _from_numpy(array) if found.bits is None else _from_numpy(array.view(found.bits)).view(found.dtype)


def _is_scalar(leaf: object) -> bool:
    return isinstance(leaf, np.generic) and not isinstance(leaf, str | bytes)


class _TorchDtype(NamedTuple):
    """The torch dtype of a NumPy dtype."""

    dtype: torch.dtype
    bits: np.dtype[Any] | None
    """For a dtype of ml_dtypes, such as bfloat16, the unsigned integers of its size, whose arrays torch accepts."""


@functools.lru_cache(maxsize=256)
def _torch_dtype(dtype: np.dtype[Any]) -> _TorchDtype | None:
    """Return the torch dtype of the same name and size; None if there is none."""
    if not dtype.isnative or ITEM_BYTES.get(dtype.name) != dtype.itemsize:
        return None
    bits = None if dtype.type.__module__ == "numpy" else np.dtype(f"uint{8 * dtype.itemsize}")
    return _TorchDtype(getattr(torch, dtype.name), bits)


def _can_be_shared(array: NDArray[Any]) -> bool:
    # torch looks at the strides of all axes, also of those of one element, which NumPy's `c_contiguous` passes over.
    return array.flags.writeable and all(step >= 0 and step % array.itemsize == 0 for step in array.strides)


def _no_tensor(path: str, array: NDArray[Any]) -> str:
    if is_masked(array):
        return (
            f"{subject(path)} of the batch is a masked array, whose mask a tensor would lose. In a map, return its "
            "data and its mask as two arrays, or fill it: array.filled(0)."
        )
    dtype = array.dtype
    if not dtype.isnative:
        remedy = "this machine's byte order: array.astype(array.dtype.newbyteorder('='))"
    elif dtype.kind in "Mm":
        remedy = "numbers: array.view(np.int64)"
    else:
        remedy = "numbers, or to a list, which is passed on unchanged: array.tolist(). Or leave it out"
    return (
        f"{subject(path)} of the batch has the dtype {dtype}, which torch doesn't have. In a map, convert the array to "
        f"{remedy}."
    )


class _Pinned:
    """A piece of pinned memory, and the event after the last copy from it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.copied: torch.cuda.Event | None = None

    def wait_for(self, size_bytes: int) -> torch.Tensor:
        """Return the memory, of at least this size, after a wait until no copy reads it any more."""
        if self.copied is not None:
            self.copied.synchronize()
        if self._memory.numel() < size_bytes:
            # A quarter more than needed, because each allocation of pinned memory makes the device wait.
            self._memory = torch.empty(size_bytes + size_bytes // 4, dtype=torch.uint8, pin_memory=True)
        return self._memory


class CudaCopies:
    """Copies batches of tensors to one device. Only one thread at a time may use it."""

    def __init__(self, device: torch.device, ahead: int) -> None:
        """Make the stream.

        Args:
            device: the target device.
            ahead: the number of batches copied before they are delivered. There is a piece of pinned memory for each,
                and one more.
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
        memory = piece.wait_for(sum(aligned(_size_bytes(tensor)) for tensor in tensors))
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
                tensor.record_stream(current)  # else later copies may overwrite it once it is dropped
            waiting = iter(placed)
            return unflatten(structure, [next(waiting) if _is_dense(leaf) else self._moved(leaf) for leaf in leaves])

        return hand_over

    def _moved(self, leaf: object) -> object:
        """Return a leaf that pinned memory has no place for: no tensor, one that isn't dense, or one on a device."""
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


def _is_dense(leaf: object) -> bool:
    """Return whether a leaf is a tensor on the host that is its items alone, each by its strides."""
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
        return False
    return leaf.layout is torch.strided and not leaf.is_nested and not leaf.is_quantized


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _staged(tensors: list[torch.Tensor], memory: torch.Tensor) -> list[torch.Tensor]:
    """Return copies of tensors, which are one after the other in the given memory."""
    staged: list[torch.Tensor] = []
    start = 0
    for tensor in tensors:
        stop = start + _size_bytes(tensor)
        place = memory[start:stop].view(tensor.dtype).view(tensor.shape)
        staged.append(place.copy_(tensor.detach()))
        start = aligned(stop)
    return staged
