"""Trains on as many processes as there are, and continues with more or fewer of them.

    torchrun --nnodes 1:4 --max-restarts 100 --rdzv-backend c10d --rdzv-endpoint HOST:29400 elastic.py --checkpoint F

Start that on one to four hosts, with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment: with torch's default a
host that joins later waits for an address that is published only once. When a process crashes, or a host comes or goes,
torchrun starts the processes again, with new ranks. They load the last checkpoint and take the steps after it. A step
trains on the same rows with any number of processes, so no row is lost or repeated, and the losses differ only by the
rounding of sums.

The model learns the classes of generated points. Needed: pip install 'penstock[torch]'
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import penstock as ps
import penstock.torch

ROWS = 4_000
BATCH = 60  # rows of the global batch, over all processes; it divides by 1, 2, 3 and 4
CLASSES = 5


def describe() -> ps.Dataset[Any]:
    """Return the dataset: points around one centre for each class, in another order in each epoch."""
    chance = np.random.default_rng(7)
    labels = chance.integers(0, CLASSES, ROWS)
    points = chance.normal(0, 2, (CLASSES, 8))[labels] + chance.normal(0, 1, (ROWS, 8))
    columns = {"point": points.astype(np.float32), "label": labels, "row": np.arange(ROWS)}
    return ps.read(columns, seed=7).shuffle().batch(BATCH, remainder="drop")


def train_on(batch: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Return the mean loss of this process's part of a global batch, and take a step with it.

    All parts have the same number of rows, so the mean of their gradients is the gradient of the global batch.
    """
    optimizer.zero_grad()
    loss = cross_entropy(model(batch["point"]), batch["label"])
    loss.backward()
    optimizer.step()
    return loss.item()


def save(path: Path, parts: dict[str, Any]) -> None:
    """Write a checkpoint under another name, then rename it: a crash leaves the old checkpoint or the new one."""
    unfinished = path.with_suffix(".unfinished")
    torch.save({name: part.state_dict() for name, part in parts.items()}, unfinished)
    os.replace(unfinished, path)


def record_step(path: Path, step: int, loss: float, rows: list[int]) -> None:
    """Append a line with the loss and the rows of all processes to a file. Every process must call this."""
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, (loss, rows))
    if distributed.get_rank() == 0:
        mean = sum(loss for loss, _ in parts) / len(parts)
        line = {"step": step, "loss": mean, "ranks": len(parts), "rows": [row for _, rows in parts for row in rows]}
        with path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")


def train(checkpoint: Path, epochs: int, save_every: int, num_workers: int = 0, record: Path | None = None) -> None:
    """Train from the checkpoint, or from the beginning, as one process of a job whose group is initialised."""
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with penstock.torch.Loader(describe(), num_workers=num_workers, shard=ps.Shard.from_torch()) as loader:
        parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
        if checkpoint.exists():
            for name, state in torch.load(checkpoint).items():
                parts[name].load_state_dict(state)
        for _ in range(loader.epoch, epochs):
            for batch in loader:
                step = loader.steps_done
                loss = train_on(batch, model, optimizer)
                if record is not None:
                    record_step(record, step, loss, batch["row"].tolist())
                if step % save_every == 0 and distributed.get_rank() == 0:
                    save(checkpoint, parts)
        if distributed.get_rank() == 0:
            print(f"{loader.steps_done} steps; the last with {distributed.get_world_size()} processes")


def main() -> None:
    """Train as one process of torchrun."""
    parser = argparse.ArgumentParser(description="Train on a number of processes that may change.")
    parser.add_argument("--epochs", type=int, default=3, help="(default: 3)")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS", help="(default: 10)")
    parser.add_argument("--num-workers", type=int, default=0, help="0: in this thread (default: 0)")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a path that all hosts see")
    parser.add_argument("--record", type=Path, help="write each step's loss and rows to this file")
    distributed.init_process_group("gloo")
    train(**vars(parser.parse_args()))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
