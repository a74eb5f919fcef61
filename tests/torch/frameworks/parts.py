"""The parts that the programs share: datasets whose elements show their index, and a list of the engines that ran."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import penstock as ps
import penstock.torch
from penstock.torch._data_loader._iterators import StreamsIterator, WorkersIterator
from tests.torch.conformance.datasets import Made, Streamed
from tests.torch.conformance.untyped import torch

COUNT, BATCH, RANKS, EPOCHS = 32, 4, 2, 2
STEPS = COUNT // BATCH // RANKS
"""Batches of a rank in an epoch."""
IN_THE_MIDDLE = STEPS + STEPS // 2
"""Steps up to the middle of the second epoch."""


def element(index: int) -> dict[str, Any]:
    """Return an element that contains its index and a random number."""
    return {"index": index, "x": torch.full((1,), float(index)), "drawn": torch.rand(())}


NUMBERED = Made(COUNT, element)
WHOLE = Streamed(lambda worker, workers: map(element, range(COUNT)))
"""The same elements in order, for one worker of any rank; the stream has no state."""


def part_of(rank: int) -> Streamed:
    """Return the same elements in order, for one rank and worker."""
    return Streamed(lambda worker, workers: map(element, range(rank + RANKS * worker, COUNT, RANKS * workers)))


def own_loader(*, shuffled: bool = True) -> penstock.torch.Loader:
    """Return a loader of a dataset of ours, which takes its own part; the elements have no tensors."""
    numbers = ps.range(COUNT, seed=3)
    dataset = (numbers.shuffle() if shuffled else numbers).map(lambda index: {"index": index, "x": float(index)})
    return penstock.torch.Loader(dataset.batch(BATCH * RANKS), shard=ps.Shard.from_torch())


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


def write_report(folder: Path, runs: Mapping[str, Callable[[Path], dict[str, Any]]]) -> None:
    """Go through the runs, each with a folder of its own, and write the report of this rank, with the engines."""
    engines = watch_engines()
    report: dict[str, Any] = {}
    for name, run in runs.items():
        engines.clear()
        report[name] = {**run(folder / name), "engines": sorted(set(engines))}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(report))
