"""A loader whose batches a thread places ahead."""

from collections.abc import Callable
from typing import Any

from penstock._loader._placement import PlacedLoader as PlacedLoader
from penstock._loader._placement import PlacementThread


class PlacedByThread(PlacedLoader):
    """Delivers batches unchanged; all keep the memory that they were computed in."""

    def __init__(self, dataset: Any, ahead: int = 1, **arguments: Any) -> None:
        super().__init__(dataset, **arguments)
        self._ahead = ahead
        self._keeps_memory = True
        self._thread = PlacementThread("placing")

    def _place(self, batch: Any) -> Callable[[], Any]:
        return lambda: batch
