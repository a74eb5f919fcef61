"""One rank of a job that trains with Hugging Face's Trainer, from the start and from checkpoints.

What each run saw goes to FOLDER/RANK.json.
"""

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.torch import DataLoader
from tests.torch.conformance.untyped import torch
from tests.torch.frameworks.parts import BATCH, EPOCHS, IN_THE_MIDDLE, NUMBERED, STEPS, own_loader, seen, write_report

if TYPE_CHECKING:
    from collections.abc import Callable

transformers: Any = importlib.import_module("transformers")


class Line(torch.nn.Module):  # type: ignore[misc]  # `torch` is untyped here
    """A line, with its loss."""

    def __init__(self) -> None:
        parent: Any = super()
        parent.__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x: Any, **others: Any) -> Any:
        """Return the loss of a batch."""
        del others
        return {"loss": self.line(x.float().reshape(-1, 1)).square().mean() * 1e-4}


class Noting(transformers.Trainer):  # type: ignore[misc]  # its types aren't there everywhere
    """Notes what it is trained on and checked with."""

    def __init__(self, *given: Any, **named: Any) -> None:
        parent: Any = super()
        parent.__init__(*given, **named)
        self.trained: list[Any] = []
        self.checked: list[Any] = []

    def training_step(self, model: Any, inputs: Any, *given: Any) -> Any:
        """Train on a batch."""
        self.trained.append(seen(self.state.global_step // STEPS, inputs))
        parent: Any = super()
        return parent.training_step(model, inputs, *given)

    def prediction_step(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """See a batch."""
        del given, named
        self.checked.append(seen(self.state.global_step // STEPS - 1, inputs))
        with torch.no_grad():
            return model(**inputs)["loss"], None, None


class Replacing(Noting):
    """Has our workers load what the Trainer makes loaders for."""

    state_of_loader: Path | None = None

    def get_train_dataloader(self) -> Any:
        """Return a loader of ours in place of the Trainer's."""
        parent: Any = super()
        return going_on(DataLoader.in_place_of(parent.get_train_dataloader()), self.state_of_loader)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a loader of ours in place of the Trainer's."""
        parent: Any = super()
        loader: Any = DataLoader.in_place_of(parent.get_eval_dataloader(eval_dataset))
        return loader


class Owning(Noting):
    """Trains on one of our datasets, whose loader takes its own part."""

    state_of_loader: Path | None = None

    def get_train_dataloader(self) -> Any:
        """Return a loader of ours."""
        return going_on(own_loader(), self.state_of_loader)


def going_on(loader: Any, state: Path | None) -> Any:
    """Return a loader, where a state was saved."""
    if state is not None:
        loader.load_state_dict(json.loads(state.read_text()))
    return loader


class Saving(transformers.TrainerCallback):  # type: ignore[misc]  # its types aren't there everywhere
    """Saves the loader's state with each checkpoint."""

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Write it beside the model's."""
        del control
        if state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            saved = named["train_dataloader"].state_dict()
            path.write_text(json.dumps(saved))


def train(kind: Any, place: Path, workers: int, checkpoint: Path | None = None, *, is_own: bool = False) -> Any:
    """Train, and return the batches seen; `is_own` resumes from the loader's own state."""
    given = transformers.TrainingArguments(
        output_dir=str(place),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=STEPS // 2,
        eval_strategy="epoch",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=4,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=workers,
        dataloader_pin_memory=False,
        ignore_data_skip=is_own,
    )
    callbacks = [] if kind is Noting else [Saving()]  # torch's loader has no state
    trainer = kind(model=Line(), args=given, train_dataset=NUMBERED, eval_dataset=NUMBERED, callbacks=callbacks)
    if is_own and checkpoint is not None:
        trainer.state_of_loader = checkpoint / "loader.json"
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return {"trained": trainer.trained, "checked": trainer.checked, "steps": trainer.state.global_step}


def refused(kind: Any, place: Path, checkpoint: Path) -> dict[str, Any]:
    """Return the error if the Trainer can't skip batches."""
    try:
        train(kind, place, 0, checkpoint)
    except AttributeError as error:
        return {"error": str(error)}
    return {}


def run(place: Path) -> None:
    """Run one rank."""

    def saved(name: str, step: int = IN_THE_MIDDLE) -> Path:
        return place / name / f"checkpoint-{step}"

    runs: dict[str, Callable[[Path], Any]] = {
        "torch": lambda to: train(Noting, to, 0),
        "ours": lambda to: train(Replacing, to, 2),
        "ours, skipped": lambda to: train(Replacing, to, 2, saved("ours", STEPS // 2)),
        "ours, resumed": lambda to: train(Replacing, to, 2, saved("ours"), is_own=True),
        "ours, resumed after an epoch": lambda to: train(Replacing, to, 2, saved("ours", STEPS)),
        "own": lambda to: train(Owning, to, 0),
        "own, skipped": lambda to: refused(Owning, to, saved("own")),
        "own, resumed": lambda to: train(Owning, to, 0, saved("own"), is_own=True),
    }
    write_report(place, runs)
