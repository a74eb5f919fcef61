"""`Pool`: processes of a Ray cluster that compute the batches of loaders.

The host of a trainer often has too few processors to feed its accelerators, and the cluster has others. `_spans` has
the rules by which the batches stay the same.
"""

import importlib
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from penstock._graph import need_count
from penstock._os import Closer
from penstock._runtime._pool import RemoteWorkers
from penstock.errors import ClosedError, UsageError
from penstock.ray._sent import checked_options
from penstock.ray._spans import PoolRuntime
from penstock.ray._team import Team

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed

_OPTIONS: Final = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}


class Pool:
    """Processes of a Ray cluster that compute the batches of loaders: `penstock.Loader(dataset, workers=pool)`.

    Batches and states are those of any other loader. Of a dataset with positions, the processes compute whole batches.
    Of one that is read in order, they compute the elements below the steps that take one after the other, such as
    `pack`; a thread of the trainer runs those steps and all above them ahead. Several loaders may share a pool. All
    hosts need Penstock in the same version, the modules of the dataset, and its files.

    It uses the cluster that `ray.init` has connected to. Without that, Ray looks for one by its own rules, and
    otherwise starts one on this host. The processes start in the background, wherever Ray has free processors. If hosts
    are lost, their processes start elsewhere, as soon as there is room. Leaving the `with` block, `close()` and garbage
    collection end them, unless they have a name.

    With `ordered=False` batches of a dataset with positions come as they become ready. A slow one delays only those
    that its process got together with it, 0.05 to 0.1 seconds of work.

    Args:
        num_workers: the number of processes, at least 1. Each takes one processor. Default: one for each processor of
            the cluster that is free now.
        name: shares the processes with other programs of the cluster, such as the ranks of a job: pools of one name
            have the same processes, which the first one starts. They outlive the programs. Each ends itself when it had
            no work for ten minutes, and starts again when a pool needs it. Programs that request the same batches at
            about the same time, such as two that train on one dataset, get those of one computation: the processes
            keep the last results, at most `memory=` of the loader over all of them.
        options: options of the processes, as `ray.remote` takes them for actors, such as
            `{"resources": {"decoders": 1}}` to choose hosts. Default: one processor, spread over the hosts. Processes
            of a name have those of the pool that started them.

    Raises:
        UsageError: for a wrong argument.

    Example:
        >>> import penstock as ps
        >>> import penstock.ray
        >>> dataset = ps.range(8, seed=7).shuffle().batch(4)
        >>> with penstock.ray.Pool(1) as pool, ps.Loader(dataset, workers=pool) as loader:
        ...     batches = [batch.tolist() for batch in loader]
        >>> batches == [batch.tolist() for batch in dataset]
        True
    """

    def __init__(
        self, num_workers: int | None = None, *, name: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        actor_options = {**_OPTIONS, **checked_options(options)}
        count = _free(actor_options) if num_workers is None else need_count("num_workers", num_workers, 1)
        self._team = Team(count, actor_options, _checked_name(name))
        self._closer = Closer(self._team.close)

    def __penstock_workers__(self) -> RemoteWorkers:
        """Return the processes; a loader calls this.

        Raises:
            ClosedError: the pool was closed.
        """
        if self._team.is_closed:
            raise ClosedError("the pool was closed; make a new one")
        team = self._team
        return RemoteWorkers(team.text, team.count, partial(PoolRuntime, team=team, closer=self._closer))

    def close(self) -> None:
        """End the processes, unless they have a name. Loaders of this pool raise a ClosedError at their next batch."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Pool({self._team.text}, {self._team.ready} ready)"


def _checked_name(name: object) -> str | None:
    if name is None or (isinstance(name, str) and name):
        return name
    raise UsageError(f"name must be a text that identifies the pool in the cluster, or None; got name={name!r}")


def _free(options: Mapping[str, Any]) -> int:
    """Return how many processes the free processors of the cluster suffice for, at least 1."""
    if not ray.is_initialized():
        ray.init()
    processors = options["num_cpus"]
    if not processors:
        raise UsageError('options={"num_cpus": 0} leaves open how many processes fit the cluster; pass num_workers')
    return max(int(ray.available_resources().get("CPU", 0) // processors), 1)
