"""The subjects of rounds: a dataset read by our loaders, or a map-style dataset read by our version of torch's."""

from collections.abc import Iterator
from typing import Any, Protocol

import penstock as ps
from penstock.errors import UsageError
from tests.equivalence.definition import epoch_of, positions_of
from tests.faults.places import Place


class Subject(Protocol):
    """Epochs of batches that a loader must deliver."""

    can_change_ranks: bool
    """Whether another rank may resume from a rank's state."""

    def epoch(self, number: int, shard: tuple[int, int]) -> Iterator[Any]:
        """Yield the right batches of a rank's epoch."""
        ...

    def accepts(self, place: Place) -> bool:
        """Return whether the subject can be read in this place."""
        ...

    def has_state(self, place: Place) -> bool:
        """Return whether a state that is saved in this place within an epoch can be resumed."""
        ...

    def open(self, place: Place) -> Any:
        """Return a loader."""
        ...

    def plain(self, batch: Any) -> Any:
        """Return a batch in a form that can be compared."""
        ...


class DatasetSubject:
    """A dataset, compared with its definition."""

    def __init__(self, dataset: ps.Dataset[Any]) -> None:
        self._dataset = dataset
        self._is_indexable = positions_of(dataset) is not None
        self.can_change_ranks = self._is_indexable

    def epoch(self, number: int, shard: tuple[int, int]) -> Iterator[Any]:
        """Yield a rank's batches: by the definition, or, of several ranks, by a loader without workers."""
        if shard[1] == 1:
            yield from epoch_of(self._dataset, number)
            return
        with ps.Loader(self._dataset, shard=ps.Shard(*shard)) as loader:
            if self._is_indexable:
                loader.seek(number * len(loader))
            else:
                for _ in range(number):
                    for _ in loader:
                        pass
            yield from loader

    def accepts(self, place: Place) -> bool:
        """Return whether the batches can be divided among so many ranks."""
        if place.shard[1] == 1:
            return True
        try:
            ps.Loader(self._dataset, shard=ps.Shard(*place.shard)).close()
        except UsageError:
            return False
        return True

    def has_state(self, place: Place) -> bool:  # noqa: ARG002 - it always does
        """Return True."""
        return True

    def open(self, place: Place) -> ps.Loader[Any]:
        """Return a loader."""
        return place.open(self._dataset)

    def plain(self, batch: Any) -> Any:
        """Return the batch."""
        return batch
