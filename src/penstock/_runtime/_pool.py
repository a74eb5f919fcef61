"""A pool of processes on other hosts, as a loader knows it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from penstock._plan import Plan
from penstock._runtime._runtime import Runtime


class RemoteWorkers(NamedTuple):
    """The processes of a pool.

    Attributes:
        text: a description of them.
        open_runtime: returns a runtime whose batches they compute.
    """

    text: str
    open_runtime: Callable[[Plan], Runtime]


@runtime_checkable
class WorkerPool(Protocol):
    """Processes that compute the batches of loaders, such as a `penstock.ray.Pool`."""

    def __penstock_workers__(self) -> RemoteWorkers:
        """Return the processes; a loader calls this."""
        ...
