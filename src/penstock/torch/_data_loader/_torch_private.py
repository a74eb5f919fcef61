"""What is used of torch beside its public names, in one place: it may be elsewhere in another version.

All of it is in torch 2.5 to 2.13.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from penstock._caught import Caught
from penstock.torch._data_loader._seeding import seed_worker

_worker: Final[dict[str, Any]] = vars(importlib.import_module("torch.utils.data._utils.worker"))
_collate: Final[Mapping[str, Any]] = vars(importlib.import_module("torch.utils.data._utils.collate"))
_pinning: Final[Mapping[str, Any]] = vars(importlib.import_module("torch.utils.data._utils.pin_memory"))
_data_loader: Final[Mapping[str, Any]] = vars(importlib.import_module("torch.utils.data.dataloader"))
_error_wrapper: Final[Callable[..., Any]] = vars(importlib.import_module("torch._utils"))["ExceptionWrapper"]
_NEW_SHARED: Final = "_new_shared"

default_collate: Final[Callable[[Any], Any]] = _collate["default_collate"]


class Begun(NamedTuple):
    """What each of torch's iterators begins with.

    Attributes:
        base_seed: drawn from the loader's generator, or from torch's global one.
        pin_device: the kind of device that batches are pinned for; None where they aren't.
    """

    base_seed: int
    pin_device: str | None


def begin(loader: object) -> Begun:
    """Begin an iterator as torch does: give its warnings, ask the sampler for an iterator, and draw a seed."""
    iterator: object = _data_loader["_BaseDataLoaderIter"](loader)
    base: dict[str, Any] = vars(iterator)
    pins = bool(base["_pin_memory"])
    return Begun(base_seed_of(iterator), str(base["_pin_memory_device"]) if pins else None)


def base_seed_of(iterator: object) -> int:
    """Return the seed that one of torch's iterators has drawn."""
    parts: dict[str, Any] = vars(iterator)
    return int(parts["_base_seed"])


def check_prefetch(prefetch_factor: int | None) -> int:
    """Return how many batches are loaded ahead; torch refuses none of them only when iteration begins."""
    if not prefetch_factor or prefetch_factor < 0:
        raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
    return prefetch_factor


def told_length(loader: object) -> int | None:
    """Return how long an iterable dataset said it is, when its loader was last asked; None if it wasn't."""
    parts: dict[str, Any] = vars(loader)
    length: int | None = parts["_IterableDataset_len_called"]
    return length


def watch_indices(iterator: object, watched: Callable[[Iterator[object]], object]) -> None:
    """Have one of torch's iterators draw its indices from what `watched` makes of its sampler's iterator."""
    parts: dict[str, Any] = vars(iterator)
    parts["_sampler_iter"] = watched(parts["_sampler_iter"])


def watch_elements(iterator: object, watched: Callable[[Iterator[object]], object]) -> None:
    """Have one of torch's iterators over an iterable dataset read what `watched` makes of the dataset's iterator."""
    parts: dict[str, Any] = vars(iterator)
    fetcher: Any = parts["_dataset_fetcher"]
    fetcher.dataset_iter = watched(fetcher.dataset_iter)


def is_data_pipe(dataset: object) -> bool:
    """Return whether a dataset is one of torch's pipes, which it seeds and shards by itself."""
    return isinstance(dataset, IterDataPipe | MapDataPipe)


def pinned(batch: object, device: str) -> object:
    """Return a batch in pinned memory, as torch's loader pins it."""
    return _pinning["pin_memory"](batch, device)


def collates_plainly() -> bool:
    """Return whether `default_collate` is as torch made it: users may teach it other types."""
    functions: Mapping[Any, object] = _collate["default_collate_fn_map"]
    return all(getattr(each, "__module__", "") == default_collate.__module__ for each in functions.values())


class SentError(NamedTuple):
    """An exception on its way from a worker, as torch sends it: its type, and its traceback as text."""

    kind: type[BaseException]
    text: str
    where: str

    def raise_again(self) -> None:
        """Raise it as torch does."""
        wrapper = _error_wrapper((self.kind, None, None), where=self.where)
        wrapper.exc_type, wrapper.exc_msg = self.kind, self.text
        with Caught() as caught:
            wrapper.reraise()
        # Torch's frame keeps the exception, which by its traceback would keep that frame, and the iterator.
        raise caught.taken().with_traceback(None)


def become_worker(number: int, num_workers: int, base_seed: int, dataset: object) -> None:
    """Make this process what torch makes of its workers: one thread, seeded generators, `get_worker_info()`."""
    torch.set_num_threads(1)
    seed = base_seed + number
    seed_worker(seed, _worker["_generate_state"](base_seed, number))
    _worker["_worker_info"] = _worker["WorkerInfo"](id=number, num_workers=num_workers, seed=seed, dataset=dataset)
    # In a worker, default_collate makes its tensors in /dev/shm, for torch's queues. Ours need no such memory, of which
    # containers have little: what doesn't fit there is a bus error.
    setattr(torch.UntypedStorage, _NEW_SHARED, classmethod(_new_private))


def _new_private(kind: "type[torch.UntypedStorage]", size: int, *, device: object = "cpu") -> "torch.UntypedStorage":
    del device
    return kind(size)


def worker_number() -> int:
    """Return the number of the worker that this process is."""
    return int(_worker["_worker_info"].id)
