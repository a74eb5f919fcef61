"""The subjects of rounds: a dataset read by our loaders, or a map-style dataset read by our version of torch's."""

from collections.abc import Iterator
from typing import Any, Protocol

import penstock as ps
from penstock._graph._length import length
from penstock.errors import UsageError
from tests.equivalence.definition import epoch_of
from tests.faults.places import Place


class Subject(Protocol):
    """Something that is read in epochs, of which it is known what they must give."""

    can_change_ranks: bool
    """Whether another rank may go on from the state of one."""

    def epoch(self, number: int, shard: tuple[int, int]) -> Iterator[Any]:
        """Yield a rank's batches of an epoch as they must be."""
        ...

    def accepts(self, place: Place) -> bool:
        """Return whether it can be read there."""
        ...

    def has_state(self, place: Place) -> bool:
        """Return whether a state that is saved there amid an epoch tells where the loader is."""
        ...

    def open(self, place: Place) -> Any:
        """Return a loader."""
        ...

    def plain(self, batch: Any) -> Any:
        """Return a batch in a form that can be compared."""
        ...


class DatasetSubject:
    """A dataset, compared with its definition.

    Args:
        dataset: what is read.
    """

    def __init__(self, dataset: ps.Dataset[Any]) -> None:
        self._dataset = dataset
        self._is_indexable = length(dataset.node) is not None
        self.can_change_ranks = self._is_indexable

    def epoch(self, number: int, shard: tuple[int, int]) -> Iterator[Any]:
        """Yield a rank's batches: by the definition, or, of several ranks, as a loader without workers gives them."""
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
        """Return whether the batches can be cut into so many ranks."""
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
