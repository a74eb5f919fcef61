"""A loader whose batches are torch tensors: on the host over the loader's own memory, on a device placed ahead."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from penstock._dataset import Dataset
from penstock._graph import Element, need_count
from penstock._loader import PlacedLoader
from penstock._plan import Limits, Shard
from penstock._tree import map_leaves
from penstock.errors import UsageError
from penstock.torch._cuda import CudaCopies
from penstock.torch._tensors import as_tensors

if TYPE_CHECKING:
    from penstock._loader import Loader as ArrayLoader
    from penstock._runtime import Workers


_NO_SAMPLER: Final = (
    "a penstock.torch.Loader takes its rank's part by itself, as set by shard=, and resumes inside an epoch by "
    "load_state_dict, so a framework need not skip batches"
)


class Loader(PlacedLoader):
    """Iterates over a dataset's epochs as `penstock.Loader` does, and yields torch tensors in place of arrays.

    The structure of a batch is kept, and so are leaves that are not arrays: lists of text, Python numbers, tensors that
    a function made. Its state is that of `penstock.Loader`, which can load it: it counts delivered batches, not those
    that were placed ahead.

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
            stacklevel=3,
        )
