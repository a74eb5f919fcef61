"""Trains a small transformer with JAX, on any number of processes. Kill it at any time and run it again: it resumes.

    python jax_lm.py --checkpoint runs/lm

and on two processes, each in its own terminal or on its own machine:

    python jax_lm.py --checkpoint runs/lm --coordinator 127.0.0.1:9999 --processes 2 --process 0
    python jax_lm.py --checkpoint runs/lm --coordinator 127.0.0.1:9999 --processes 2 --process 1

It reads Python's own library as bytes, in two parts: "code", its modules, and "prose", their docstrings. It packs each
part into sequences of 128 bytes, and mixes them. The global batch doesn't depend on the number of processes, so neither
do the losses.
Needed: pip install 'penstock[jax]' orbax-checkpoint
"""

import argparse
import ast
import math
import sysconfig
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps
import penstock.jax
from penstock.jax import checkpoint

Array: TypeAlias = jax.Array
Tree = dict[str, Any]  # of arrays, and of lists and dicts of them
LENGTH = 128  # bytes of a sequence
ROWS = 16  # sequences of a global batch
LAYERS, HEADS, WIDTH = 2, 4, 64
SAVE_EVERY = 5  # steps


def describe(count: int) -> ps.Dataset:
    """Return the global training batches, from the first `count` modules of the library."""
    texts: dict[str, list[str]] = {"code": [], "prose": []}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:count]:
        code = path.read_text(encoding="utf-8", errors="replace")
        texts["code"].append(code)
        described = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = [ast.get_docstring(node) for node in ast.walk(ast.parse(code)) if isinstance(node, described)]
        texts["prose"].append("\n\n".join(filter(None, found)))
    parts: dict[str, ps.Dataset] = {}
    for part, listed in texts.items():
        documents = [{"tokens": np.frombuffer(text.encode(), np.uint8)} for text in listed if text]
        lengths = [len(document["tokens"]) for document in documents]
        parts[part] = ps.read(documents, seed=7).pack(LENGTH, lengths=lengths).shuffle()
    return ps.mix(parts, {"code": 2, "prose": 1}, stop="never", seed=7).batch(ROWS)


def new_model() -> Tree:
    """Return the weights."""
    keys = iter(jax.random.split(jax.random.key(7), 3 + 4 * LAYERS))

    def weights(*shape: int) -> Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    layers = [
        {
            "attention": weights(WIDTH, 3 * WIDTH),
            "out": weights(WIDTH, WIDTH),
            "up": weights(WIDTH, 4 * WIDTH),
            "down": weights(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {"bytes": weights(256, WIDTH), "places": weights(LENGTH, WIDTH), "logits": weights(WIDTH, 256), "of": layers}


def normal(x: Array) -> Array:
    """Return vectors of mean 0 and variance 1."""
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def loss_of(model: Tree, batch: Tree) -> Array:
    """Return the mean bits per byte: each byte is predicted from the bytes before it in its document."""
    tokens, segments = batch["tokens"].astype(int), batch["segment_ids"]
    places = jnp.arange(LENGTH)
    seen = (segments[:, :, None] == segments[:, None, :]) & (places[:, None] >= places)
    x = model["bytes"][tokens] + model["places"][batch["positions"] % LENGTH]
    for layer in model["of"]:
        split = (normal(x) @ layer["attention"]).reshape(*tokens.shape, 3, HEADS, WIDTH // HEADS)
        query, key, value = jnp.moveaxis(split, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (WIDTH // HEADS) ** -0.5
        shares = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e9))
        x += jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(x.shape) @ layer["out"]
        x += jax.nn.relu(normal(x) @ layer["up"]) @ layer["down"]
    likelihood = jax.nn.log_softmax(normal(x[:, :-1]) @ model["logits"])
    actual = jnp.take_along_axis(likelihood, tokens[:, 1:, None], -1)[..., 0]
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return -(actual * counts).sum() / counts.sum() / math.log(2)


@jax.jit  # type: ignore[untyped-decorator,unused-ignore] # mypy knows JAX only where it is installed
def train_on(model: Tree, batch: Tree) -> tuple[Tree, Array]:
    """Return the model after a step of gradient descent with momentum, and the batch's loss before it."""
    loss, slopes = jax.value_and_grad(loss_of)(model["weights"], batch)
    speed = jax.tree.map(lambda speed, slope: 0.9 * speed + slope, model["speed"], slopes)
    weights = jax.tree.map(lambda weight, speed: weight - 0.01 * speed, model["weights"], speed)
    return {"weights": weights, "speed": speed}, loss


def train(arguments: argparse.Namespace) -> None:
    """Train from the last checkpoint, or from the beginning."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    weights = new_model()
    model = jax.device_put({"weights": weights, "speed": jax.tree.map(jnp.zeros_like, weights)}, whole)
    shard = ps.Shard.from_jax(rows, (ROWS, LENGTH))
    with (
        penstock.jax.Loader(describe(arguments.modules), rows, shard=shard, num_workers=1, workers="threads") as loader,
        ocp.CheckpointManager(arguments.checkpoint.absolute()) as manager,
    ):
        begun = manager.latest_step()
        if begun is not None:
            saved = ocp.args.Composite(model=ocp.args.StandardRestore(model), data=checkpoint.Restore(loader))
            model = manager.restore(begun, args=saved).model
        for step, batch in enumerate(loader, begun or 0):
            if step == arguments.steps:
                break
            model, loss = train_on(model, batch)
            if jax.process_index() == 0:
                print(f"step {step}: {loss:.4f} bits per byte", flush=True)
            if (step + 1) % SAVE_EVERY == 0:  # saves both, while training continues
                both = ocp.args.Composite(model=ocp.args.StandardSave(model), data=checkpoint.Save(loader))
                manager.save(step + 1, args=both)


def main() -> None:
    """Join the job if there are several processes, and train."""
    parser = argparse.ArgumentParser(description="Train a transformer; resume from the checkpoint.")
    parser.add_argument("--steps", type=int, default=200, help="(default: 200)")
    parser.add_argument("--modules", type=int, default=150, help="number of modules to read (default: 150)")
    parser.add_argument("--checkpoint", type=Path, default="jax-lm", help="a folder (default: jax-lm)")
    parser.add_argument("--coordinator", default="127.0.0.1:9999", help="of process 0 (default: 127.0.0.1:9999)")
    parser.add_argument("--processes", type=int, default=1, help="(default: 1)")
    parser.add_argument("--process", type=int, default=0, help="(default: 0)")
    arguments = parser.parse_args()
    if arguments.processes > 1:
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    train(arguments)


if __name__ == "__main__":
    main()
