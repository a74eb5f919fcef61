"""A loader whose batches are pytrees of JAX arrays, global ones if a sharding is given."""

import importlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from penstock._dataset import Dataset
from penstock._graph import Element, chain_text, is_endless, need_count
from penstock._loader._placement_thread import PlacementThread, ThreadPlacedLoader
from penstock._plan._plan import Limits, Plan, Shard
from penstock.errors import GraphError
from penstock.jax._arrays import Placing, settings

if TYPE_CHECKING:
    from penstock._loader import Loader as ArrayLoader
    from penstock._plan._choose import Workers

jax: Any = importlib.import_module("jax")  # by name, as in `_arrays`


class Loader(ThreadPlacedLoader):
    """Iterates over a dataset's epochs as `penstock.Loader` does, and yields pytrees of `jax.Array`.

    The structure of a batch is kept; types that are registered with JAX as pytrees are treated as such. As everywhere
    in JAX, 64-bit numbers become 32-bit ones unless `jax_enable_x64` is set; whole numbers that don't fit raise an
    error. Its state is that of `penstock.Loader`, which can load it: it counts delivered batches, not those that were
    placed ahead.

    With a sharding, arrays are global: each process supplies the rows of its devices, and all of them together are the
    global batch. Pass these rows as `shard=Shard.from_jax(sharding, shape)`. The loader doesn't detect ranks: without
    `shard=` every process of a job loads all rows, and the loader warns.

    On CPU devices an array is the loader's own memory, without a copy, if it has the dtype that JAX gives it; it keeps
    that memory as long as it lives. To other devices batches are copied ahead, while the devices compute.

    With workers, a thread of the loader's own makes the arrays, so that the training loop need not. If a step is
    shorter than that takes, the training loop makes them itself. Without workers no thread is started.

    Args:
        dataset: the dataset to load.
        sharding: the placement of global batches: a `jax.sharding.Sharding`, a device, or a pytree of them that has the
            structure of a batch or of its upper part. By default JAX's default device.
        ahead: the number of batches placed before they are requested, at least 0, with memory for as many more. On CPU
            devices no batch is placed ahead without workers, where this gains nothing, or with `memory=`, where placed
            batches might hold all of it.
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
        UsageError: for a wrong argument, or a shard that isn't the sharding's.
        GraphError: for a dataset that can't be run this way. Iterating raises one for a leaf that JAX has no array for,
            or that can't be cut as the sharding says, and the exceptions of the dataset's own functions.

    Example:
        >>> import penstock as ps
        >>> import penstock.jax
        >>> dataset = ps.range(8).map(lambda number: {"x": number / 2}).batch(4)
        >>> for batch in penstock.jax.Loader(dataset):
        ...     print(batch["x"])
        [0.  0.5 1.  1.5]
        [2.  2.5 3.  3.5]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sharding: object = None,
        *,
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
        ahead = need_count("ahead", ahead)
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
        self._placing = Placing(sharding, self._plan.shard)
        self._keeps_memory = self._placing.is_on_host()
        if self._plan.place != "inline" or self._plan.isolated:
            self._thread = PlacementThread("penstock-placing")
        # On the host only that thread can place early, and batches placed there may hold all of `memory=`.
        on_request = self._keeps_memory and (self._thread is None or self._plan.memory is not None)
        self._ahead = 0 if on_request else ahead
        if sharding is not None and not _has_equal_rows(self._plan):
            raise GraphError(
                f"{chain_text(dataset.node)}: the rows of the last batch may not divide by {self._plan.shard.count} "
                'ranks, and global arrays have equal parts. Use batch(…, remainder="drop") or remainder="pad".'
            )
        if shard is None and jax.process_count() > 1:
            warnings.warn(
                f"this job has {jax.process_count()} processes, and each loads all rows of each batch. Pass shard=, as "
                "in Shard.from_jax(sharding, shape), or shard=Shard(0, 1) if that is intended.",
                stacklevel=2,
            )

    def _place(self, batch: Element) -> Callable[[], Element]:
        placed = self._placing(batch)
        return lambda: placed

    def _place_in_thread(self, batch: Element) -> Callable[[], Element]:
        placed = self._placing(batch)
        if not self._placing.depends_on_settings(batch):
            return lambda: placed
        there = settings()
        return lambda: placed if settings() == there else self._placing(batch)


def _has_equal_rows(plan: Plan) -> bool:
    """Return whether all ranks have as many rows of every batch: else they would disagree on the global shape."""
    count = plan.shard.count
    if count == 1 or plan.remainder != "keep" or is_endless(plan.node):
        return True
    rest = plan.program.rest
    return rest is not None and rest % count == 0
