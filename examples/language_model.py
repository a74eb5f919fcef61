"""Trains a small language model on Python's own library. Stop it at any time and run it again: it resumes exactly.

    python language_model.py --checkpoint model.npz

It reads the texts of the standard library as bytes, in two parts: "code", the modules, and "prose", their docstrings
and the licence. It packs each part into sequences of 256 bytes, mixes the two, and learns to predict the next byte from
the eight bytes before it. Needed: pip install penstock
"""

import argparse
import ast
import hashlib
import json
import math
import os
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps

Array = NDArray[Any]
Element = dict[str, Any]
Model = dict[str, Array]
Texts = dict[str, list[tuple[str, Array]]]  # of each part its files' names and bytes
LENGTH = 256  # bytes of a sequence
ROWS = 16  # sequences of a batch
CONTEXT = 8  # bytes that the model sees
NOTHING = 256  # the context before a document's first byte
WEIGHTS = {"code": 2, "prose": 1}
SAVE_EVERY = 20  # steps


def docstrings(code: str) -> str:
    """Return the docstrings of a module, and of its classes and functions, one after the other."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(ast.parse(code)) if isinstance(node, described)]
    return "\n\n".join(filter(None, found))


def load_texts(count: int) -> Texts:
    """Return each part's documents with their file names, from the first `count` modules and the licence."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, list[tuple[str, str]]] = {"code": [], "prose": []}
    for path in sorted(library.glob("*.py"))[:count]:
        code = path.read_text(encoding="utf-8", errors="replace")
        found["code"].append((path.name, code))
        found["prose"].append((path.name, docstrings(code)))
    found["prose"] += [(path.name, path.read_text(errors="replace")) for path in sorted(library.glob("LICENSE*"))]
    return {
        part: [(name, np.frombuffer(text.encode(), np.uint8)) for name, text in documents if text]
        for part, documents in found.items()
    }


def describe(texts: Texts) -> ps.Dataset:
    """Return the training batches, as a description.

    All sequences have the same length, so weights of sequences are weights of bytes.
    """
    parts: dict[str, ps.Dataset] = {}
    for part, documents in texts.items():
        read = ps.read([{"tokens": tokens} for _, tokens in documents], seed=7)
        parts[part] = read.pack(LENGTH, lengths=[len(tokens) for _, tokens in documents]).shuffle()
    return ps.mix(parts, WEIGHTS, stop="never", seed=7).batch(ROWS)


def contexts_of(tokens: Array, positions: Array) -> Array:
    """Return the bytes before each byte in its piece, the nearest first: int (rows, length, CONTEXT)."""
    contexts = np.full((*tokens.shape, CONTEXT), NOTHING)
    for back in range(1, CONTEXT + 1):
        known = positions[:, back:] >= back
        contexts[:, back:, back - 1][known] = tokens[:, :-back][known]
    return contexts


def new_model() -> Model:
    """Return the weights, and Adam's two running means for each."""
    chance = np.random.default_rng(7)
    shapes = {"embedding": (NOTHING + 1, 16), "first": (CONTEXT * 16, 256), "second": (256, 256)}
    weights = {name: chance.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    weights["embedding"] *= 8
    weights["second"] *= 0
    moments = {f"{name}.{kind}": np.zeros_like(array) for name, array in weights.items() for kind in ("mean", "square")}
    return weights | moments


def predict(model: Model, contexts: Array) -> tuple[Array, Array, Array]:
    """Return the context's embeddings, the hidden units and each byte's probability, for contexts (n, CONTEXT)."""
    embedded = model["embedding"][contexts].reshape(len(contexts), -1)
    hidden = np.maximum(embedded @ model["first"], 0)
    logits = hidden @ model["second"]
    likelihood = np.exp(logits - logits.max(axis=1, keepdims=True))
    return embedded, hidden, likelihood / likelihood.sum(axis=1, keepdims=True)


def losses_of(batch: Element, model: Model) -> Array:
    """Return the bits of each byte of a batch: (rows, length), 0 for padding."""
    contexts = contexts_of(batch["tokens"], batch["positions"])
    probability = predict(model, contexts.reshape(-1, CONTEXT))[2]
    actual = probability[np.arange(len(probability)), batch["tokens"].ravel()].reshape(batch["tokens"].shape)
    losses: Array = np.where(batch["segment_ids"] > 0, -np.log2(actual), 0)
    return losses


def gradients_of(batch: Element, model: Model) -> tuple[float, Model]:
    """Return the bits per byte of a batch, and their gradient with respect to the weights."""
    is_data = batch["segment_ids"] > 0
    contexts = contexts_of(batch["tokens"], batch["positions"])[is_data]
    embedded, hidden, error = predict(model, contexts)
    right = np.arange(len(error)), batch["tokens"][is_data]
    loss = -np.log2(error[right]).mean()
    error[right] -= 1
    error /= len(error) * math.log(2)
    hidden_error = error @ model["second"].T * (hidden > 0)
    slopes = {"second": hidden.T @ error, "first": embedded.T @ hidden_error}
    each = (hidden_error @ model["first"].T).reshape(-1, 16)
    slopes["embedding"] = np.zeros_like(model["embedding"])
    np.add.at(slopes["embedding"], contexts.ravel(), each)
    return float(loss), slopes


def train_on(batch: Element, model: Model, step: int) -> float:
    """Return the batch's bits per byte, and take a step of Adam, which changes the model in place."""
    loss, slopes = gradients_of(batch, model)
    for name, slope in slopes.items():
        mean, square = model[f"{name}.mean"], model[f"{name}.square"]
        mean += (slope - mean) * np.float32(0.1)
        square += (slope**2 - square) * np.float32(0.01)
        rate = 0.004 * math.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        model[name] -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-8))
    return loss


def sample(model: Model, count: int, start: str = "def ") -> str:
    """Return a text sampled from the model, beginning with `start`."""
    text = list(start.encode())
    chance = np.random.default_rng(7)
    for _ in range(count):
        nearest = text[::-1][:CONTEXT]
        context = np.array([nearest + [NOTHING] * (CONTEXT - len(nearest))])
        probability = predict(model, context)[2][0].astype(float)
        text.append(int(chance.choice(256, p=probability / probability.sum())))
    return bytes(text).decode("utf-8", "replace")


def digest(model: Model) -> str:
    """Return the SHA-256 of the weights."""
    return hashlib.sha256(b"".join(model[name].tobytes() for name in sorted(model))).hexdigest()


def save(checkpoint: Path, model: Model, losses: list[float], state: Element) -> None:
    """Write the model, the losses so far and the loader's state to one file, atomically."""
    unfinished = checkpoint.with_suffix(".unfinished.npz")
    arrays: dict[str, Any] = {**model, "losses": losses, "loader": json.dumps(state)}
    np.savez(unfinished, **arrays)
    os.replace(unfinished, checkpoint)


def replay(loader: ps.Loader[Any], texts: Texts, model: Model, losses: list[float]) -> None:
    """Print the worst row of the worst step, and its file: the loader can compute the batch of any step again."""
    learnt = len(losses) * 3 // 4  # before that all losses are high
    step = learnt + int(np.argmax(losses[learnt:]))
    batch = loader.batch_at(step)
    row = int(losses_of(batch, model).sum(axis=1).argmax())
    origin = loader.origin(step, row)
    name, tokens = texts[origin.component][origin.key]
    shown = batch["tokens"][row][batch["segment_ids"][row] == 1].tobytes()
    assert shown in tokens.tobytes()
    print(f"the worst step since {learnt} is {step}, with {losses[step]:.2f} bits per byte; its worst row is of {name}")
    print(f"  ({origin.component}, record {origin.key}, epoch {origin.epoch}): {shown[:80]!r}")


def main() -> None:
    """Train from the checkpoint, or from the beginning; then print a sample and the worst step."""
    parser = argparse.ArgumentParser(description="Train a language model; resume from the checkpoint.")
    parser.add_argument("--steps", type=int, default=400, help="(default: 400)")
    parser.add_argument("--stop-after", type=int, default=None, help="stop after this many steps")
    parser.add_argument("--modules", type=int, default=150, help="number of modules to read (default: 150)")
    parser.add_argument("--num-workers", type=int, default=2, help="0: in this thread (default: 2)")
    parser.add_argument("--checkpoint", type=Path, default="language-model.npz", help="(default: language-model.npz)")
    arguments = parser.parse_args()
    texts = load_texts(arguments.modules)
    model, losses = new_model(), list[float]()
    with ps.Loader(describe(texts), num_workers=arguments.num_workers) as loader:
        if arguments.checkpoint.exists():
            with np.load(arguments.checkpoint) as saved:
                model = {name: saved[name] for name in model}
                losses = saved["losses"].tolist()
                loader.load_state_dict(json.loads(str(saved["loader"])))
            print(f"resuming at step {loader.steps_done}")
        else:
            size = {part: sum(len(tokens) for _, tokens in documents) for part, documents in texts.items()}
            print(f"{size['code']:,} bytes of code, {size['prose']:,} of prose; before: {sample(model, 40)!r}")
        began = time.perf_counter()
        batches = iter(loader)
        for step in range(loader.steps_done, min(arguments.steps, arguments.stop_after or arguments.steps)):
            losses.append(train_on(next(batches), model, step))
            if loader.steps_done % SAVE_EVERY == 0:
                save(arguments.checkpoint, model, losses, loader.state_dict())
                print(f"step {step}: {np.mean(losses[-SAVE_EVERY:]):.2f} bits per byte")
        print(f"{time.perf_counter() - began:.1f} s, {loader.stats()['wait_share']:.0%} of it waiting for data")
        if len(losses) == arguments.steps:
            print(f"after: {sample(model, 160)!r}")
            replay(loader, texts, model, losses)
            print(f"the weights' SHA-256 is {digest(model)}")


if __name__ == "__main__":
    main()
