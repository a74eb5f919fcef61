"""The hints of a `DataLoader` in the log, as those of a `Loader` (`penstock._loader._hints`).

Without workers torch's own iterator computes the batches, in the training's thread. The object that it calls for a
batch is timed here, for the hints alone: such batches don't count in `stats()`.
"""

import logging
from collections.abc import Sized
from math import ceil
from time import perf_counter
from typing import Any, Final, cast

from penstock._caught import Caught
from penstock._loader._hints import Counted, WaitHints
from penstock._loader._iterator import Clock
from penstock._loader._policy import MOSTLY_SHARE
from penstock._runtime import usable_processors
from penstock.observe._measured import LEAST_BATCHES
from penstock.observe._verdict import Model

_LISTED: Final = 8  # indices of a batch
_logger = logging.getLogger("penstock")


class Hints(WaitHints):
    """The hints of a loader without workers.

    Attributes:
        indices: those of the batch that is computed; None for a dataset without indices.
    """

    def __init__(self) -> None:
        super().__init__(is_inline=True, helps=True)
        self.indices: object = None

    def _computed(self, clock: Counted) -> tuple[int, str]:
        found = self.indices
        if not isinstance(found, list):
            return clock.batches, "the next element" if found is None else f"index {found}"
        listed = cast("list[object]", found)
        if None in listed:  # of an iterable dataset
            return clock.batches, f"the next {len(listed)} elements"
        more = ", …" if len(listed) > _LISTED else ""
        return clock.batches, f"indices {', '.join(map(str, listed[:_LISTED]))}{more}"

    def _looked(self, clock: Counted) -> bool:
        model = _model(clock)
        if clock.batches < LEAST_BATCHES or model.wait_share < MOSTLY_SHARE:
            return False
        _logger.warning(
            "the training has waited for %.0f of %.0f s: DataLoader computes its batches in the training's own thread, "
            "without workers. To change: %s",
            clock.wait_seconds,
            clock.elapsed_seconds,
            _advice(model),
        )
        return True


def _model(clock: Counted) -> Model:
    """Return the model of a loader whose items are computed, and don't wait."""
    elapsed, batches = clock.elapsed_seconds, max(clock.batches, 1)
    own = clock.wait_seconds / batches
    return Model(
        names=("item",),
        seconds=(own,),
        cpu_seconds=(own,),
        work_seconds=own,
        order_seconds=0.0,
        are_in_order=(False,),
        consumer_seconds=max(elapsed - clock.wait_seconds, 0.0) / max(batches - 1, 1),
        rate=batches / elapsed if elapsed else 0.0,
        wait_share=min(clock.wait_seconds / elapsed, 1.0) if elapsed else 0.0,
        workers=0,
        has_threads=False,
        processors=usable_processors(),
    )


def _advice(model: Model) -> str:
    if model.processors == 1:
        return "make items cheaper, or, where they wait for storage, pass num_workers"
    count = min(ceil(model.work_seconds / max(model.consumer_seconds, 1e-9)), model.processors)
    gain = model.with_workers(count)
    return "make items cheaper" if gain.times == 1 else f"pass num_workers={count}: up to {gain.times_text}"


class TimedFetcher:
    """The object that torch's iterator calls for each batch; it times torch's own fetcher.

    Args:
        fetcher: torch's own.
        clock: counts the batches.
        hints: those of the clock.
    """

    def __init__(self, fetcher: object, clock: Clock, hints: Hints) -> None:
        self._fetcher: Any = fetcher
        self._clock = clock
        self._hints = hints

    def fetch(self, indices: object) -> object:
        """Return a batch."""
        requested = perf_counter()
        batch: object = self._fetcher.fetch(indices)
        self._hints.indices = indices
        self._clock.count(requested, perf_counter())
        return batch

    def __getattr__(self, name: str) -> object:
        return getattr(self._fetcher, name)


def name_empty(loader: Sized, dataset: object, batch_size: int | None) -> bool:
    """Log that an epoch has no batch, and return whether that is so.

    Args:
        loader: the loader, whose length is the number of batches.
        dataset: the dataset.
        batch_size: the number of rows of a batch; None if it isn't known.
    """
    batches = rows = None
    with Caught(Exception):  # of a length of the user's, or a log's filter
        batches = len(loader)
        rows = len(cast("Sized", dataset))
    if batches != 0:
        return False
    why = "its sampler has no indices"
    if rows == 0:
        why = "the dataset has no elements"
    elif rows and batch_size and rows < batch_size:
        count = "its only element is" if rows == 1 else f"its {rows:,} elements are"
        why = f"{count} fewer than a batch of {batch_size:,}, and drop_last=True leaves such a rest out"
    with Caught(Exception):
        _logger.warning("a whole epoch of DataLoader gives no batch: %s", why)
    return True
