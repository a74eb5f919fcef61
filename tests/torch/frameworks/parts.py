"""The parts that the programs share: datasets whose elements show their index, and a list of the engines that ran."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.torch._data_loader._iterators import StreamsIterator, WorkersIterator
from tests.torch.conformance.untyped import torch

COUNT, BATCH, RANKS = 32, 4, 2
STEPS = COUNT // BATCH // RANKS
"""Batches of a rank in an epoch."""


class Numbered(Dataset[Any]):
    """Elements that contain their index and a random number."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return element(index)


class Streamed(IterableDataset[Any]):
    """The same elements in order, for one rank and worker; the stream has no state."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return map(element, range(self.rank + RANKS * worker, COUNT, RANKS * workers))


class Whole(IterableDataset[Any]):
    """The same elements in order, for one worker of any rank."""

    def __iter__(self) -> Iterator[Any]:
        return map(element, range(COUNT))


def plain(index: int) -> dict[str, Any]:
    """Return an element without a tensor, for a dataset of ours."""
    return {"index": index, "x": float(index)}


def element(index: int) -> dict[str, Any]:
    """Return an element."""
    return {"index": index, "x": torch.full((1,), float(index)), "drawn": torch.rand(())}


def seen(epoch: int, batch: Any) -> dict[str, Any]:
    """Return a value that identifies a batch."""
    drawn = batch.get("drawn")
    return {"epoch": epoch, "index": batch["index"].tolist(), "drawn": [] if drawn is None else drawn.tolist()}


def watch_engines() -> list[str]:
    """Return a list of the names of all iterators with workers that are made from now on."""
    made: list[str] = []
    theirs = torch.utils.data.dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001 - what must not run
    kinds: tuple[Any, ...] = (theirs, WorkersIterator, StreamsIterator)
    for kind in kinds:
        kind.__init__ = _telling(kind.__name__, kind.__init__, made)
    return made


def _telling(name: str, begins: Callable[..., None], made: list[str]) -> Callable[..., None]:
    def begin(self: object, *given: Any, **named: Any) -> None:
        made.append(name)
        begins(self, *given, **named)

    return begin


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """Write the report of this rank."""
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(report))
