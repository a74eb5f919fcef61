"""One rank of a job that prepares loaders of several kinds by Accelerate, from the start and from checkpoints.

What each run saw goes to FOLDER/RANK.json.
"""

import importlib
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler

import penstock.torch
from penstock.errors import UsageError
from penstock.torch import DataLoader
from tests.torch.conformance.untyped import torch
from tests.torch.frameworks.parts import BATCH, EPOCHS, NUMBERED, STEPS, WHOLE, own_loader, seen, write_report

accelerate: Any = importlib.import_module("accelerate")


def accelerator(**given: Any) -> Any:
    """Return an accelerator of this rank, with random numbers as at the start."""
    made = accelerate.Accelerator(cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**given))
    accelerate.utils.set_seed(4)
    return made


def mapped(workers: int, kind: Any = TorchLoader) -> Any:
    """Return a loader that is not prepared."""
    return kind(NUMBERED, BATCH, shuffle=True, num_workers=workers)


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


def trained(loader: Any, saved: Path, *, resumes: bool = False, **given: Any) -> list[Any]:
    """Go through both epochs by our workers, or through the rest from the middle of the second."""
    made = accelerator(**given)
    is_own = isinstance(loader, penstock.torch.Loader)
    loader = made.prepare(loader) if is_own else DataLoader.in_place_of(made.prepare(loader))
    made.register_for_checkpointing(loader)
    if not resumes:
        return go(loader, range(EPOCHS), made, saved)
    made.wait_for_everyone()  # rank 0 saved
    made.load_state(str(saved))
    return go(loader, range(1, EPOCHS), made)


def skipped(**given: Any) -> list[Any]:
    """Resume in the middle of the second epoch by Accelerate's own skipping of batches."""
    made = accelerator(**given)
    loader: Any = made.prepare(mapped(2))
    loader.set_epoch(1)
    return go(DataLoader.in_place_of(made.skip_first_batches(loader, STEPS // 2)), range(1, EPOCHS), made)


def plainly() -> list[Any]:
    """Go through both epochs by what Accelerate makes of a loader."""
    made = accelerator()
    return go(made.prepare(mapped(0)), range(EPOCHS), made)


def streamed() -> list[Any]:
    """Go through a stream twice, of which Accelerate gives each rank its part."""
    made = accelerator(dispatch_batches=False)
    return go(DataLoader.in_place_of(made.prepare(TorchLoader(WHOLE, BATCH, num_workers=1))), range(EPOCHS), made)


def refused(loader: Any, **given: Any) -> str:
    """Return the error for a loader that can't be replaced."""
    made = accelerator(**given)
    try:
        DataLoader.in_place_of(made.prepare(loader))
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
    torch.set_num_threads(1)
    ours, seeded, own = place / "saved", place / "saved, seeded", place / "saved, own"
    by_seed = {"use_seedable_sampler": True}
    sampler: Any = DistributedSampler
    runs: dict[str, Any] = {
        "torch": plainly,
        "ours": lambda: trained(mapped(2), ours),
        "ours, resumed": lambda: trained(mapped(2), ours, resumes=True),
        "seeded": lambda: trained(mapped(2), seeded, **by_seed),
        "seeded, resumed": lambda: trained(mapped(2), seeded, resumes=True, **by_seed),
        "seeded, skipped": lambda: skipped(**by_seed),
        "stream": streamed,
        "own": lambda: trained(own_loader(), own),
        "own, resumed": lambda: trained(own_loader(), own, resumes=True),
        "refused": lambda: refused(mapped(0), dispatch_batches=True),  # rank 0 reads for all ranks
        "dealt twice": lambda: refused(TorchLoader(NUMBERED, BATCH, sampler=sampler(NUMBERED))),
        "warned": warned,
    }
    write_report(place, {name: partial(result_of, program) for name, program in runs.items()})


def result_of(program: Any, folder: Path) -> dict[str, Any]:
    """Return the result of a run, which needs no folder of its own."""
    del folder
    return {"trained": program()}
