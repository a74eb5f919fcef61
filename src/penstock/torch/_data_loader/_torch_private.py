"""The private names of torch that the DataLoader uses: in one module, since a version of torch may move them.

torch 2.5 to 2.13 have all of them.
"""

import importlib
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from penstock._caught import Caught
from penstock._tracebacks import raise_caught
from penstock.torch._data_loader._seeding import seed_worker

_worker: Final[dict[str, Any]] = vars(importlib.import_module("torch.utils.data._utils.worker"))
_collate: Final[Mapping[str, Any]] = vars(importlib.import_module("torch.utils.data._utils.collate"))
_pinning: Final[Mapping[str, Any]] = vars(importlib.import_module("torch.utils.data._utils.pin_memory"))
_data_loader: Final[Mapping[str, Any]] = vars(importlib.import_module("torch.utils.data.dataloader"))
_RANKS: Final = "penstock_ranks"  # the backend of a worker's process group, which only has the program's rank in it
_BARRIER: Final = "TORCH_DIST_INIT_BARRIER"  # with 1, a new process group waits for all of its ranks
_error_wrapper: Final[Callable[..., Any]] = vars(importlib.import_module("torch._utils"))["ExceptionWrapper"]
_is_profiled: Final[Callable[[], bool]] = vars(torch.autograd)["_profiler_enabled"]
_NEW_SHARED: Final = "_new_shared"
_SHARE: Final = "_share_fd_cpu_"
_OPEN_SHARED: Final = "_new_shared_fd_cpu"

default_collate: Final[Callable[[Any], Any]] = _collate["default_collate"]


class IteratorStart(NamedTuple):
    """The values with which a torch iterator begins.

    Attributes:
        base_seed: drawn from the loader's generator, or from torch's global one.
        pin_device: the kind of device that batches are pinned for; None if they aren't pinned.
    """

    base_seed: int
    pin_device: str | None


def begin(loader: object) -> IteratorStart:
    """Begin an iterator as torch does: warn, iterate over the sampler, and draw a seed."""
    iterator: object = _data_loader["_BaseDataLoaderIter"](loader)
    base: dict[str, Any] = vars(iterator)
    pins = bool(base["_pin_memory"])
    return IteratorStart(base_seed_of(iterator), str(base["_pin_memory_device"]) if pins else None)


def base_seed_of(iterator: object) -> int:
    """Return the seed that one of torch's iterators has drawn."""
    parts: dict[str, Any] = vars(iterator)
    return int(parts["_base_seed"])


def check_prefetch(prefetch_factor: int | None) -> int:
    """Return the number of batches loaded ahead; torch checks that it is positive only when iteration begins."""
    if not prefetch_factor or prefetch_factor < 0:
        raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
    return operator.index(prefetch_factor)  # a TypeError for a float, as torch's loop over a range raises


def reported_length(loader: object) -> int | None:
    """Return the length that `len(loader)` last got from an iterable dataset; None if it wasn't called."""
    parts: dict[str, Any] = vars(loader)
    length: int | None = parts["_IterableDataset_len_called"]
    return length


def watch_indices(iterator: object, watched: Callable[[Iterator[object]], object]) -> None:
    """Replace the sampler's iterator inside one of torch's iterators: `watched` takes it, and returns the new one."""
    parts: dict[str, Any] = vars(iterator)
    parts["_sampler_iter"] = watched(parts["_sampler_iter"])


def watch_elements(iterator: object, watched: Callable[[Iterator[object]], object]) -> None:
    """Replace an iterable dataset's iterator inside one of torch's, as `watch_indices` does for a sampler's."""
    parts: dict[str, Any] = vars(iterator)
    fetcher: Any = parts["_dataset_fetcher"]
    fetcher.dataset_iter = watched(fetcher.dataset_iter)


def watch_batches(iterator: object, watched: Callable[[object], object]) -> None:
    """Replace what one of torch's iterators without workers calls for a batch, as `watch_indices` does for indices."""
    parts: dict[str, Any] = vars(iterator)
    parts["_dataset_fetcher"] = watched(parts["_dataset_fetcher"])


def shown(name: str) -> AbstractContextManager[object]:
    """Return a scope that torch's profiler shows; where none runs, an empty one, which costs a tenth."""
    return torch.autograd.profiler.record_function(name) if _is_profiled() else nullcontext()


def is_data_pipe(dataset: object) -> bool:
    """Return whether a dataset is one of torch's data pipes, which torch seeds and shards."""
    return isinstance(dataset, IterDataPipe | MapDataPipe)


def pinned(batch: object, device: str) -> object:
    """Return a batch in pinned memory, as torch's loader pins it."""
    return _pinning["pin_memory"](batch, device)


def collates_plainly() -> bool:
    """Return whether `default_collate` is unchanged: users may register functions for other types."""
    functions: Mapping[Any, object] = _collate["default_collate_fn_map"]
    return all(getattr(each, "__module__", "") == default_collate.__module__ for each in functions.values())


def own_collating() -> "dict[Any, Any] | None":
    """Return the functions that `default_collate` calls, by type, if the program changed them; otherwise None."""
    return None if collates_plainly() else dict(_collate["default_collate_fn_map"])


def ranks_of_program() -> tuple[int, int] | None:
    """Return this process's rank and the number of ranks in torch.distributed; None without a process group."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


class SentError(NamedTuple):
    """An exception from a worker, as torch sends it: its type, and its traceback as text.

    Attributes:
        kind: the type.
        text: the traceback; the whole message where `where` is empty.
        where: names the worker, in torch's words.
    """

    kind: type[BaseException]
    text: str
    where: str

    def raise_again(self) -> NoReturn:
        """Raise it as torch does."""
        if not self.where:
            raise_caught(self.kind(self.text))
        wrapper = _error_wrapper((self.kind, None, None), where=self.where)
        wrapper.exc_type, wrapper.exc_msg = self.kind, self.text
        with Caught() as caught:
            wrapper.reraise()
        # torch's frame refers to the exception; with the traceback, the exception would keep that frame and the
        # iterator alive.
        raise_caught(caught.taken().with_traceback(None))


def become_worker(number: int, num_workers: int, base_seed: int, dataset: object) -> None:
    """Set up this process as torch sets up its workers: one thread, seeded generators, `get_worker_info()`."""
    torch.set_num_threads(1)
    seed = base_seed + number
    seed_worker(seed, _worker["_generate_state"](base_seed, number))
    _worker["_worker_info"] = _worker["WorkerInfo"](id=number, num_workers=num_workers, seed=seed, dataset=dataset)
    # In a worker, default_collate allocates tensors in /dev/shm, for torch's queues. These workers have no such queues,
    # containers have little of that memory, and a tensor that doesn't fit is a bus error.
    setattr(torch.UntypedStorage, _NEW_SHARED, classmethod(_new_private))


def collate_by(functions: "dict[Any, Any] | None") -> None:
    """Let `default_collate` call the functions that `own_collating` returned in the program."""
    if functions is not None:
        known: dict[Any, Any] = _collate["default_collate_fn_map"]
        known.clear()  # the order counts, too: `default_collate` calls the first function whose type fits
        known.update(functions)


def take_ranks(ranks: tuple[int, int] | None) -> None:
    """Give this process a process group of torch.distributed with the program's rank.

    A dataset that asks for its rank gets it, as it would in a fork. The group sends nothing: collectives raise a
    RuntimeError.

    Args:
        ranks: the rank, and the number of ranks; None for no group.
    """
    distributed: Any = torch.distributed
    if ranks is None or distributed.is_initialized():  # by a module that it has imported
        return

    def made(_store: object, rank: int, count: int, _timeout: object) -> object:
        kind: Any = type("RankGroup", (distributed.ProcessGroup,), {"getBackendName": _ranks_name})
        return kind(rank, count)

    distributed.Backend.register_backend(_RANKS, made, devices=["cpu"])
    waits = os.environ.pop(_BARRIER, None)
    try:
        distributed.init_process_group(_RANKS, store=distributed.HashStore(), rank=ranks[0], world_size=ranks[1])
    finally:
        if waits is not None:
            os.environ[_BARRIER] = waits


def _ranks_name(group: object) -> str:
    del group
    return _RANKS


def _new_private(kind: "type[torch.UntypedStorage]", size: int, *, device: object = "cpu") -> "torch.UntypedStorage":
    del device
    return kind(size)


def worker_number() -> int:
    """Return this worker's number."""
    return int(_worker["_worker_info"].id)


def shared_descriptor(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Return the descriptor of a storage that processes share, open as long as the storage lives, and its bytes."""
    descriptor, size_bytes = getattr(storage, _SHARE)()
    return descriptor, size_bytes


def storage_of_process(process: int, descriptor: int, size_bytes: int) -> object:
    """Return the storage that another process has a descriptor of: each sees what the other writes."""
    opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return getattr(torch.UntypedStorage, _OPEN_SHARED)(opened, size_bytes)
    finally:
        os.close(opened)
