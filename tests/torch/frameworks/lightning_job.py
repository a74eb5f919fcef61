"""One rank of a job that trains with Lightning on loaders of several kinds, from the start and from checkpoints.

What each run saw goes to FOLDER/RANK.json.
"""

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import WeightedRandomSampler

import penstock.torch
from tests.torch.conformance.untyped import torch
from tests.torch.frameworks.parts import (
    BATCH,
    COUNT,
    EPOCHS,
    IN_THE_MIDDLE,
    NUMBERED,
    RANKS,
    STEPS,
    own_loader,
    part_of,
    seen,
    write_report,
)

pl: Any = importlib.import_module("lightning.pytorch")

Making = Callable[[str], Any]
"""Makes a loader to be used "to train" or "to check"."""


class Line(pl.LightningModule):  # type: ignore[misc]  # its types aren't there everywhere
    """A line, which writes down what it is trained on and checked with."""

    def __init__(self, making: Making) -> None:
        parent: Any = super()
        parent.__init__()
        self.line = torch.nn.Linear(1, 1)
        self.making = making
        self.trained: list[Any] = []
        self.sanity: list[Any] = []
        self.checked: list[Any] = []

    def training_step(self, batch: Any, number: int) -> Any:
        """Return the loss of a batch."""
        del number
        self.trained.append(seen(self.current_epoch, batch))
        return self.line(batch["x"].float().reshape(-1, 1)).square().mean() * 1e-4

    def validation_step(self, batch: Any, number: int) -> None:
        """See a batch."""
        del number
        (self.sanity if self.trainer.sanity_checking else self.checked).append(seen(self.current_epoch, batch))

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> Any:
        """Return the loader for training."""
        return self.making("to train")

    def val_dataloader(self) -> Any:
        """Return the loader for checks."""
        return self.making("to check")


def fit(folder: Path, making: Making, checkpoint: Path | None = None, loader: Any = None) -> dict[str, Any]:
    """Train, and return the batches seen."""
    pl.seed_everything(4, verbose=False)
    model = Line(making)
    saving: Any = pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=STEPS // 2, save_top_k=-1)
    trainer: Any = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_epochs=EPOCHS,
        logger=False,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=2,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, loader, ckpt_path=checkpoint)
    (used,) = trainer.fit_loop._combined_loader.flattened  # noqa: SLF001 - there is no other way to it
    return {
        "trained": model.trained,
        "sanity": model.sanity,
        "checked": model.checked,
        "loader": f"{type(used).__module__.split('.')[0]} {type(used).__name__}",
        "num_batch_workers": getattr(used, "num_batch_workers", None),
        "prefetch_factor": getattr(used, "prefetch_factor", None),
        "warnings": sorted({str(each.message) for each in caught}),
    }


def mapped(kind: Any, workers: int, purpose: str, **given: Any) -> Any:
    """Return a loader of a class that has torch's arguments."""
    return kind(NUMBERED, BATCH, shuffle=purpose == "to train", num_workers=workers, **given)


def weighted(kind: Any, purpose: str) -> Any:
    """Return a loader with a sampler that Lightning wraps, and that draws from torch's global generator."""
    del purpose
    return kind(NUMBERED, BATCH, sampler=WeightedRandomSampler([1.0, 2.0] * (COUNT // 2), COUNT))


def streamed(kind: Any, purpose: str) -> Any:
    """Return a loader of a dataset that can only be read in order."""
    del purpose
    return kind(part_of(torch.distributed.get_rank()), BATCH, num_workers=1)


def own(purpose: str) -> Any:
    """Return a loader of a dataset of ours."""
    return own_loader(shuffled=purpose == "to train")


def run(place: Path) -> None:
    """Run one rank."""

    def saved(name: str, step: int = IN_THE_MIDDLE) -> Path:
        return place / name / f"step={step}.ckpt"

    ours = partial(mapped, penstock.torch.DataLoader, 2)
    chosen, stream = partial(weighted, penstock.torch.DataLoader), partial(streamed, penstock.torch.DataLoader)
    runs: dict[str, Callable[[Path], Any]] = {
        "torch": lambda to: fit(to, partial(mapped, TorchLoader, 0)),
        "ours": lambda to: fit(to, ours),
        "ours, resumed": lambda to: fit(to, ours, saved("ours")),
        "ours, resumed after an epoch": lambda to: fit(to, ours, saved("ours", STEPS)),
        "passed": lambda to: fit(to, ours, loader=ours("to train", num_batch_workers=1, prefetch_factor=3)),
        "weighted": lambda to: fit(to, chosen),
        "weighted, resumed": lambda to: fit(to, chosen, saved("weighted")),
        "stream": lambda to: fit(to, stream),
        "stream, resumed": lambda to: fit(to, stream, saved("stream")),
        "own": lambda to: fit(to, own),
        "own, resumed": lambda to: fit(to, own, saved("own")),
    }
    write_report(place, runs)
