"""Map-style datasets that take time, read by Penstock's version of torch's loader, and compared with torch's own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.torch import DataLoader
from tests.equivalence.kinds import is_dict, is_list_or_tuple
from tests.faults.chance import Chance
from tests.faults.pace import Pace, pace_for
from tests.faults.places import Place
from tests.faults.work import Payload
from tests.torch.conformance.untyped import torch

_RECORDS: Final = (33, 200)  # so that there is a full batch of any size
_SIZES: Final = (1, 64, 1 << 12, 1 << 16, 1 << 18)
_BATCH_SIZES: Final = (None, 1, 2, 3, 8, 32)


@dataclass(frozen=True)
class Records:
    """Records with a number, text, an array and a tensor; reading one takes its time."""

    count: int
    pace: Pace
    payload: Payload

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.pace.spend()
        half = torch.full((3,), index / 2)
        return {"index": index, "name": f"record {index}", "payload": self.payload.of(index), "more": (half, index / 3)}


class ManyRecords(Records):
    """Records that the loader requests by the batch."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@dataclass(frozen=True)
class Collating:
    """A collate function that takes time."""

    pace: Pace

    def __call__(self, rows: list[Any]) -> Any:
        """Return a batch."""
        self.pace.spend()
        return {
            "indices": torch.tensor([each["index"] for each in rows]),
            "names": [each["name"] for each in rows],
            "bytes": torch.from_numpy(np.concatenate([np.ravel(each["payload"]).view(np.uint8) for each in rows])),
        }


class TorchSubject:
    """A map-style dataset and the arguments of a loader."""

    def __init__(self, chance: Chance) -> None:
        count = chance.between(*_RECORDS)
        pace = pace_for(chance, count)
        form: Any = chance.one_of(["bytes", "image", "strided", "ragged"])
        kind = ManyRecords if chance.is_one_in(4) else Records
        self._dataset = kind(count, pace, Payload(chance.one_of(_SIZES), form))
        self._seed = chance.between(0, 1 << 31)
        batch_size = chance.one_of(_BATCH_SIZES)
        self._is_shuffled = chance.is_one_in(2)
        self._arguments: dict[str, Any] = {"batch_size": batch_size}
        if batch_size is not None:
            self._arguments["drop_last"] = chance.is_one_in(3)
            if form == "ragged" or chance.is_one_in(3):
                self._arguments["collate_fn"] = Collating(pace_for(chance, count))
        self._persistent = chance.is_one_in(2)
        self.can_change_ranks = False

    def epoch(self, number: int, shard: tuple[int, int]) -> Iterator[Any]:  # noqa: ARG002 - there is one rank
        """Yield the batches of torch's own loader without workers."""
        loader = torch.utils.data.DataLoader(self._dataset, sampler=self._sampler(), **self._arguments)
        for _ in range(number):
            for _ in loader:
                pass
        yield from loader

    def accepts(self, place: Place) -> bool:
        """Return whether the place is one of torch's: worker processes, or none."""
        return place.shard[1] == 1 and not place.isolated and (place.has_worker_processes or place.num_workers == 0)

    def has_state(self, place: Place) -> bool:
        """Return whether batches come in order, so that a state can be resumed."""
        return place.ordered or place.num_workers == 0

    def open(self, place: Place) -> Any:
        """Return a loader."""
        dataset: Any = self._dataset
        more: dict[str, Any] = {}
        if place.num_workers:
            more = {"prefetch_factor": place.prefetch, "persistent_workers": self._persistent}
            more |= {"num_batch_workers": place.num_batch_workers, "in_order": place.ordered}
        loader: Any = DataLoader(
            dataset, sampler=self._sampler(), num_workers=place.num_workers, **self._arguments, **more
        )
        return loader

    def _sampler(self) -> Any:
        if not self._is_shuffled:
            return torch.utils.data.SequentialSampler(self._dataset)
        # A generator of its own: the number of seeds that a loader draws depends on the lifetime of its workers.
        generator = torch.Generator().manual_seed(self._seed)
        return torch.utils.data.RandomSampler(self._dataset, generator=generator)

    def plain(self, batch: Any) -> Any:
        """Return the batch with arrays in place of tensors."""
        if isinstance(batch, torch.Tensor):
            return {"tensor": batch.numpy()}
        if is_dict(batch):
            return {key: self.plain(value) for key, value in batch.items()}
        if is_list_or_tuple(batch):
            return type(batch)(self.plain(value) for value in batch)
        return batch
