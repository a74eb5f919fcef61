"""A dataset of pictures with captions and token ids, and a training that is slower than it should be."""

import sys
import threading
from typing import Any

import numpy as np

import penstock as ps
from penstock._seeds import derive

SEED = 7
SIDE = 32
WORDS = ("a", "small", "red", "blue", "green", "square", "disc", "on", "grey", "ground", "below", "the", "sky")
_pause = threading.Event()  # never set: waiting for it simulates work


def decode(number: int) -> dict[str, Any]:
    """Return a picture of a disc or a square, its mask and its caption, after a while."""
    _pause.wait(0.004)
    drawn = np.array([derive(SEED, number, place) % 256 for place in range(13)])
    colour = 80 + drawn[:3] % 176
    across = np.arange(SIDE)
    middle, radius = 10 + drawn[3:5] % 12, 5 + drawn[5] % 4
    y, x = across[:, None] - middle[0], across[None, :] - middle[1]
    mask = np.hypot(x, y) < radius if number % 2 else np.maximum(abs(x), abs(y)) < radius
    ground = np.linspace(30, 110, SIDE).astype(np.uint8)
    image = np.where(mask[:, :, None], colour, ground[:, None, None]).astype(np.uint8)
    ids = drawn[6:] % len(WORDS)
    return {"image": image, "mask": mask, "ids": ids, "label": ("square", "disc")[number % 2]}


def augment(record: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Return the record with the picture as floats, turned over for half of the records."""
    way = rng.choice([-1, 1])
    return record | {"image": record["image"][:, ::way] / np.float32(255), "mask": record["mask"][:, ::way]}


def words(ids: list[int]) -> str:
    """Return the text of token ids."""
    return " ".join(WORDS[each] for each in ids)


train = ps.range(20_000, seed=SEED).shuffle().map(decode).random_map(augment).batch(16)


def main() -> None:
    """Train until the program is ended; print a line when the loader runs."""
    with ps.Loader(train, num_workers=4, workers="threads") as loader:
        for epoch in range(1_000):
            for step, _ in enumerate(loader):
                _pause.wait(0.01)
                if (epoch, step) == (0, 50):
                    sys.stdout.write("ready\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
