"""The digits of scikit-learn as PNG files, by the script that learns them."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

SCRIPT: Final = Path(__file__).parents[2] / "examples" / "digits.py"
NEEDS_DIGITS: Final = pytest.mark.skipif(
    find_spec("sklearn") is None or find_spec("PIL") is None,  # importing them takes every process seconds
    reason="the digits are scikit-learn's, and Pillow writes them",
)


def digits() -> tuple[Any, Any]:
    """Return the digits as levels from 0 to 16, of shape (1797, 8, 8), and their labels."""
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    return bunch.images.astype(np.uint8), bunch.target


def write_digits(folder: Path, every: int) -> None:
    """Write every so many of the digits to `folder/LABEL/NUMBER.png`, in steps of 15."""
    image_module = pytest.importorskip("PIL.Image")
    for number, (levels, label) in enumerate(zip(*digits(), strict=True)):
        if number % every == 0:
            (folder / str(label)).mkdir(parents=True, exist_ok=True)
            image_module.fromarray(levels * np.uint8(15)).save(folder / str(label) / f"{number:04}.png")
