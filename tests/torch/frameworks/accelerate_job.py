"""One rank of a job that prepares loaders of several kinds by Accelerate, from the start and from checkpoints.

What each run saw goes to FOLDER/RANK.json.
"""

import importlib
import warnings
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler

import penstock as ps
import penstock.torch
from penstock.errors import UsageError
from penstock.torch import DataLoader
from tests.torch.conformance.untyped import torch
from tests.torch.frameworks.parts import (
    BATCH,
    COUNT,
    RANKS,
    STEPS,
    Numbered,
    Whole,
    plain,
    seen,
    watch_engines,
    write_report,
)

accelerate: Any = importlib.import_module("accelerate")

EPOCHS = 2


def accelerator(**given: Any) -> Any:
    """Return an accelerator of this rank, with random numbers as at the start."""
    made = accelerate.Accelerator(cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**given))
    accelerate.utils.set_seed(4)
    return made


def mapped(workers: int, kind: Any = TorchLoader) -> Any:
    """Return a loader that is not prepared."""
    return kind(Numbered(), BATCH, shuffle=True, num_workers=workers)


def go(loader: Any, epochs: range, given: Any, saved: Path | None = None) -> list[Any]:
    """Train for some epochs, save while a loader is in the middle of the second, and return the batches seen."""
    found: list[Any] = []
    for epoch in epochs:
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        for step, batch in enumerate(loader):
            found.append(seen(epoch, batch))
            if saved is not None and (epoch, step) == (1, STEPS // 2 - 1):
                given.save_state(str(saved))
    return found


def whole(place: Path, **given: Any) -> list[Any]:
    """Go through both epochs by our workers."""
    made = accelerator(**given)
    loader = DataLoader.in_place_of(made.prepare(mapped(2)))
    made.register_for_checkpointing(loader)
    return go(loader, range(EPOCHS), made, place)


def rest(place: Path, **given: Any) -> list[Any]:
    """Resume in the middle of the second epoch, and return the batches seen."""
    made = accelerator(**given)
    loader = DataLoader.in_place_of(made.prepare(mapped(2)))
    made.register_for_checkpointing(loader)
    made.wait_for_everyone()  # rank 0 saved
    made.load_state(str(place))
    return go(loader, range(1, EPOCHS), made)


def skipped(**given: Any) -> list[Any]:
    """Resume in the middle of the second epoch by Accelerate's own skipping of batches."""
    made = accelerator(**given)
    loader: Any = made.prepare(mapped(2))
    loader.set_epoch(1)
    return go(DataLoader.in_place_of(made.skip_first_batches(loader, STEPS // 2)), range(1, EPOCHS), made)


def plainly(loader: Any, **given: Any) -> list[Any]:
    """Go through both epochs by what Accelerate makes of a loader."""
    made = accelerator(**given)
    return go(made.prepare(loader), range(EPOCHS), made)


def streamed() -> list[Any]:
    """Go through a stream twice, of which Accelerate gives each rank its part."""
    made = accelerator(dispatch_batches=False)
    return go(DataLoader.in_place_of(made.prepare(TorchLoader(Whole(), BATCH, num_workers=1))), range(EPOCHS), made)


def own(place: Path) -> list[Any]:
    """Go through both epochs of a dataset of ours."""
    made = accelerator()
    loader = made.prepare(own_loader())
    made.register_for_checkpointing(loader)
    return go(loader, range(EPOCHS), made, place)


def own_rest(place: Path) -> list[Any]:
    """Resume inside the second epoch of one of our datasets."""
    made = accelerator()
    loader = made.prepare(own_loader())
    made.register_for_checkpointing(loader)
    made.wait_for_everyone()  # rank 0 saved
    made.load_state(str(place))
    return go(loader, range(1, EPOCHS), made)


def own_loader() -> penstock.torch.Loader:
    """Return a loader of a dataset of ours, which takes its own part."""
    dataset = ps.range(COUNT, seed=3).shuffle().map(plain).batch(BATCH * RANKS)
    return penstock.torch.Loader(dataset, shard=ps.Shard.from_torch())


def refused() -> str:
    """Return the error for a loader that rank 0 reads for all ranks."""
    made = accelerator(dispatch_batches=True)
    try:
        DataLoader.in_place_of(made.prepare(mapped(0)))
    except UsageError as error:
        return str(error)
    return ""


def dealt_twice() -> str:
    """Return the error for a loader that takes a rank's part already."""
    made = accelerator()
    kind: Any = DistributedSampler
    try:
        DataLoader.in_place_of(made.prepare(TorchLoader(Numbered(), BATCH, sampler=kind(Numbered()))))
    except UsageError as error:
        return str(error)
    return ""


def warned() -> list[str]:
    """Return the warning when Accelerate makes a torch loader of one of ours."""
    made = accelerator()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = made.prepare(mapped(2, DataLoader))
    next(iter(loader))
    return [str(each.message) for each in caught]


def run(place: Path) -> None:
    """Run one rank."""
    engines = watch_engines()
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    runs: dict[str, Any] = {
        "torch": lambda: plainly(mapped(0)),
        "ours": lambda: whole(place / "ours"),
        "ours, resumed": lambda: rest(place / "ours"),
        "seeded": lambda: whole(place / "seeded", use_seedable_sampler=True),
        "seeded, resumed": lambda: rest(place / "seeded", use_seedable_sampler=True),
        "seeded, skipped": lambda: skipped(use_seedable_sampler=True),
        "stream": streamed,
        "own": lambda: own(place / "own"),
        "own, resumed": lambda: own_rest(place / "own"),
        "refused": refused,
        "dealt twice": dealt_twice,
        "warned": warned,
    }
    for name, program in runs.items():
        engines.clear()
        report[name] = {"trained": program(), "engines": sorted(set(engines))}
    write_report(place, report)
