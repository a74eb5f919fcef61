"""Trains a digit classifier from a folder of images. Kill it at any time and run it again: the results don't change.

    python digits.py FOLDER --num-workers 2 --checkpoint digits.npz

FOLDER has one folder of 8x8 grey PNG files per class. Needed: pip install penstock pillow
"""

import argparse
import hashlib
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import penstock as ps

Array = NDArray[Any]
Element = dict[str, Any]
SAVE_EVERY = 20  # steps
GRID = np.mgrid[0:8, 0:8] - 3.5  # each pixel's row and column, seen from the centre


def decode(record: ps.sources.ImageRecord) -> Element:
    """Return a file's bytes as an 8x8 float32 image between 0 and 1, with its label."""
    with Image.open(io.BytesIO(record["bytes"])) as image:
        return {"image": np.asarray(image, np.float32) / 255, "label": record["label"]}


def augment(element: Element, rng: np.random.Generator) -> Element:
    """Return the image rotated by up to 11 degrees and shifted by up to a pixel; all randomness is from `rng`."""
    turn, down, right = rng.uniform(-1, 1, 3)
    sine, cosine = np.sin(turn / 5), np.cos(turn / 5)
    rows = cosine * GRID[0] - sine * GRID[1] + down + 5.5
    columns = sine * GRID[0] + cosine * GRID[1] + right + 5.5
    top, left = rows.astype(int), columns.astype(int)
    canvas = np.zeros((12, 12))
    canvas[2:10, 2:10] = element["image"]
    upper = canvas[top, left] * (left + 1 - columns) + canvas[top, left + 1] * (columns - left)
    lower = canvas[top + 1, left] * (left + 1 - columns) + canvas[top + 1, left + 1] * (columns - left)
    image = upper * (top + 1 - rows) + lower * (rows - top)
    return {"image": image.astype(np.float32), "label": element["label"]}


def describe(folder: Path) -> tuple[ps.Dataset, ps.Dataset]:
    """Return the training batches and the held-out batches, as descriptions: nothing is read yet."""
    parts = ps.read(ps.sources.ImageFolder(folder), seed=7).split({"train": 0.8, "test": 0.2})
    train = parts["train"].shuffle().map(decode).random_map(augment).batch(64)
    return train, parts["test"].map(decode).batch(64)


def predict(model: Element, images: Array) -> tuple[Array, Array, Array]:
    """Return pixels, hidden units and each digit's probability: two layers of weights, 64 to 256 to 10."""
    pixels = images.reshape(-1, 64) - 0.3
    hidden = np.maximum(pixels @ model["first"], 0)
    logits = hidden @ model["second"]
    likelihood = np.exp(logits - logits.max(axis=1, keepdims=True))
    return pixels, hidden, likelihood / likelihood.sum(axis=1, keepdims=True)


def train_on(batch: Element, model: Element, rate: float) -> float:
    """Return the batch's loss, and take a step of gradient descent, which changes the model in place."""
    pixels, hidden, probability = predict(model, batch["image"])
    right = np.arange(len(pixels)), batch["label"]
    loss = -np.log(probability[right]).mean()
    probability[right] -= 1
    error = probability / len(pixels)
    hidden_error = error @ model["second"].T * (hidden > 0)
    model["second"] -= rate * hidden.T @ error
    model["first"] -= rate * pixels.T @ hidden_error
    return float(loss)


def digest(batch: Element) -> str:
    """Return the SHA-256 of a batch's bytes."""
    return hashlib.sha256(batch["image"].tobytes() + batch["label"].tobytes()).hexdigest()


def save(checkpoint: Path, model: Element, state: Element) -> None:
    """Write the model and the loader's state to one file, atomically."""
    unfinished = checkpoint.with_suffix(".unfinished.npz")
    np.savez(unfinished, loader=json.dumps(state), **model)
    os.replace(unfinished, checkpoint)


def main() -> None:
    """Train from the checkpoint, or from the beginning; then test on the held-out digits."""
    parser = argparse.ArgumentParser(description="Train a digit classifier; resume from the checkpoint.")
    parser.add_argument("folder", type=Path, help="one folder of 8x8 grey PNG files per class")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the images (default: 20)")
    parser.add_argument("--num-workers", type=int, default=2, help="0: in this thread (default: 2)")
    parser.add_argument("--workers", choices=["auto", "threads", "processes"], default="auto", help="(default: auto)")
    parser.add_argument("--checkpoint", type=Path, default="digits.npz", help="(default: digits.npz)")
    parser.add_argument("--log", default=os.devnull, help="a file for one JSON line per step (default: none)")
    arguments = parser.parse_args()
    train, test = describe(arguments.folder)
    first = np.random.default_rng(7).normal(0, 0.18, (64, 256)).astype(np.float32)
    model = {"first": first, "second": np.zeros((256, 10), np.float32)}
    num_steps = arguments.epochs * len(train)

    def log(**line: object) -> None:
        with open(arguments.log, "a") as file:
            file.write(json.dumps(line) + "\n")

    with ps.Loader(train, num_workers=arguments.num_workers, workers=arguments.workers) as loader:
        if arguments.checkpoint.exists():
            with np.load(arguments.checkpoint) as saved:
                model, state = {name: saved[name] for name in model}, json.loads(str(saved["loader"]))
            began = time.perf_counter()
            loader.load_state_dict(state)
            log(resumed_at=loader.steps_done, resume_seconds=time.perf_counter() - began)
        for _ in range(loader.epoch, arguments.epochs):
            for batch in loader:
                step = loader.step
                loss = train_on(batch, model, rate=2 * (1 - step / num_steps))
                line = {"step": step, "sha256": digest(batch), "loss": loss.hex(), "rows": len(batch["label"])}
                log(**line, seconds=time.perf_counter(), wait_seconds=loader.stats()["wait_seconds"])
                if loader.steps_done % SAVE_EVERY == 0:
                    save(arguments.checkpoint, model, loader.state_dict())
                    print(f"epoch {loader.epoch}, step {step}: loss {loss:.3f}")
        save(arguments.checkpoint, model, loader.state_dict())
        right = [predict(model, batch["image"])[2].argmax(axis=1) == batch["label"] for batch in test]
        accuracy = float(np.concatenate(right).mean())
        weights = hashlib.sha256(model["first"].tobytes() + model["second"].tobytes()).hexdigest()
        log(accuracy=accuracy, model=weights)
        print(f"{accuracy:.1%} of the held-out digits are classified correctly; the weights' SHA-256 is {weights}")


if __name__ == "__main__":
    main()
