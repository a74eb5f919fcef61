"""A pool of processes on other hosts, as a loader knows it."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from penstock._runtime._runtime import Runtime


class RemoteWorkers(NamedTuple):
    """The processes of a pool.

    Attributes:
        text: a description of them.
        num_workers: their number.
        open_runtime: returns a runtime whose batches they compute. With `is_owner=True` they end with it.
    """

    text: str
    num_workers: int
    open_runtime: Callable[..., Runtime]


class WorkerPool(Protocol):
    """Processes that compute the batches of loaders, such as a `penstock.ray.Pool`."""

    def __penstock_workers__(self) -> RemoteWorkers:
        """Return the processes; a loader calls this."""
        ...


def pool_of(workers: object, num_workers: object) -> RemoteWorkers | None:
    """Return the processes that a loader's argument `workers` names; None if they are none of a pool.

    Args:
        workers: the argument.
        num_workers: the argument beside it: of "ray", the number of processes; None or "auto" for all that are free.
    """
    if workers == "ray":
        door: Any = importlib.import_module("penstock.ray")  # by name: it needs Ray
        pool = cast("WorkerPool", door.Pool(None if num_workers == "auto" else num_workers)).__penstock_workers__()
        return pool._replace(open_runtime=partial(pool.open_runtime, is_owner=True))
    found: Callable[[], RemoteWorkers] | None = getattr(workers, "__penstock_workers__", None)
    return None if found is None else found()
