"""A loader whose batches are pytrees of JAX's arrays, global ones where a sharding is given."""

import importlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from penstock._dataset import Dataset
from penstock._graph._describe import chain_text
from penstock._graph._length import is_endless
from penstock._graph._nodes import Element
from penstock._graph._verify import need_count
from penstock._loader._placement_thread import PlacementThread, ThreadPlacedLoader
from penstock._plan._plan import Limits, Plan, Shard
from penstock.errors import GraphError
from penstock.jax._arrays import Placing, settings

if TYPE_CHECKING:
    from penstock._loader import Loader as ArrayLoader
    from penstock._plan._choose import Workers

jax: Any = importlib.import_module("jax")  # by name, as in `_arrays`


class Loader(ThreadPlacedLoader):
    """Goes through a dataset's epochs as `penstock.Loader` does, and yields pytrees of `jax.Array`.

    The structure of a batch stays; what is registered with JAX as a pytree is taken for one. As everywhere in JAX,
    64-bit numbers become 32-bit ones unless `jax_enable_x64` is set; whole numbers that don't fit are an error. Its
    state is that of `penstock.Loader`, which can load it: what was handed out counts, whatever was placed ahead.

    With a sharding, arrays are global: each process gives the rows that its devices hold, and all of them together are
    the global batch. Say which rows by `shard=Shard.from_jax(sharding, shape)`. Nothing is found out silently: without
    `shard=` every process of a job loads all rows, with a warning.

    On CPU devices an array is the loader's own memory, without a copy, where it has the dtype that JAX gives it; it
    keeps that memory as long as it lives. To other devices batches are copied ahead, while these compute.

    Where there are workers, making the arrays is left to a thread of the loader's own as well, so that the training
    loop finds them made. Steps that are shorter than that takes make their own. Without workers no thread is started.

    Args:
        dataset: what to load.
        sharding: where global batches lie: a `jax.sharding.Sharding`, a device, or a pytree of them that has the
            structure of a batch or of its upper part. By default JAX's default device.
        ahead: how many batches are placed before they are asked for, at least 0: there is memory for so many more. On
            CPU devices none is without workers, where nothing is gained by it, nor with `memory=`, where they might
            hold all of it.
        num_workers: as in `penstock.Loader`, as is all that follows.
        workers: who computes.
        isolated: have one helper process run all of it.
        ordered: hand batches out in order.
        shard: which rank's rows of each global batch to load.
        prefetch: how many batches are made ready before they are asked for.
        memory: a bound for batches that are being made or held.
        copy: hand out copies of the loader's memory.
        limits: the rarer bounds.

    Raises:
        UsageError: for a wrong argument, or a shard that isn't the sharding's.
        GraphError: for a dataset that can't be run so. Iterating raises one for a leaf that JAX has no array for, or
            that can't be cut as the sharding says, and what the dataset's own functions raise.

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
        # On the host there is nothing to begin early but in that thread, and what lies ready there may be all memory.
        on_request = self._keeps_memory and (self._thread is None or self._plan.memory is not None)
        self._ahead = 0 if on_request else ahead
        if sharding is not None and not _has_equal_rows(self._plan):
            raise GraphError(
                f"{chain_text(dataset.node)}: the rows of the last batch may not divide by {self._plan.shard.count} "
                'ranks, and global arrays have equal parts. Use batch(…, remainder="drop") or remainder="pad".'
            )
        if shard is None and jax.process_count() > 1:
            warnings.warn(
                f"this job has {jax.process_count()} processes, and each loads all rows of each batch. Say shard=, as "
                "in Shard.from_jax(sharding, shape), or shard=Shard(0, 1) if that is meant.",
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
    """Return whether every batch gives every rank as many rows: else ranks would disagree on a global one's shape."""
    count = plan.shard.count
    if count == 1 or plan.remainder != "keep" or is_endless(plan.node):
        return True
    rest = plan.program.rest
    return rest is not None and rest % count == 0
