"""JPEG files made from scikit-learn's photographs: crops of them, scaled and mirrored.

The cost of a JPEG depends on its content, so noise or a gradient would not be realistic. There are a thousandth of the
files of a real dataset, but they are read and decoded in the same way. All of them are in the page cache.
"""

import importlib
import importlib.util
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 500, 375
QUALITY = 90
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
SMALLEST = 0.7  # relative to the largest crop of the shape


@cache
def decoder() -> tuple[str, Callable[[bytes], NDArray[np.uint8]]]:
    """Return the name of the fastest installed decoder, and the decoder: from a JPEG to uint8 [h, w, 3]."""
    try:
        simplejpeg: Any = importlib.import_module("simplejpeg")  # may be absent, and has no types
    except ImportError:
        return "Pillow", _decode_with_pillow
    return "simplejpeg", simplejpeg.decode_jpeg


def _decode_with_pillow(encoded: bytes) -> NDArray[np.uint8]:
    from PIL import Image  # noqa: PLC0415 - may be absent

    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))


def write_photographs(folder: Path, count: int) -> int:
    """Write `count` different files, `0.jpg` and so on, and return their total bytes."""
    from PIL import Image  # noqa: PLC0415 - may be absent, and workers have no use for it

    photographs = [_decode_with_pillow(path.read_bytes()) for path in _paths()]
    rng = np.random.default_rng(7)
    num_bytes = 0
    for number in range(count):
        part = Image.fromarray(_part(photographs[number % len(photographs)], rng))
        path = folder / f"{number}.jpg"
        part.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(path, quality=QUALITY)
        num_bytes += path.stat().st_size
    return num_bytes


def _paths() -> list[Path]:
    """Return the files of the photographs, without importing scikit-learn, which takes seconds.

    Raises:
        RuntimeError: if it isn't installed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise RuntimeError("this scenario needs scikit-learn's photographs; install it (the extra `demo`)")
    return [Path(found.origin).parent / "datasets" / "images" / name for name in PHOTOGRAPHS]


def _part(photograph: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a part of a photograph in the shape of all files, mirrored or not."""
    height, width = len(photograph), len(photograph[0])
    scale = float(rng.uniform(SMALLEST, 1)) * min(height / HEIGHT, width / WIDTH)
    rows, columns = round(HEIGHT * scale), round(WIDTH * scale)
    top, left = round(float(rng.uniform(0, height - rows))), round(float(rng.uniform(0, width - columns)))
    part = photograph[top : top + rows, left : left + columns]
    return np.ascontiguousarray(part[:, ::-1] if rng.uniform() < 1 / 2 else part)
