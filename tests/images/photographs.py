"""Photographs of any size, and JPEG files of them."""

import functools
import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest

PHOTOGRAPH = Path("datasets") / "images" / "china.jpg"


def pillow() -> Any:
    """Return `PIL.Image`, or skip the test."""
    return pytest.importorskip("PIL.Image")


@functools.cache
def _original() -> Any:
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        pytest.skip("scikit-learn's photographs are not installed")
    return pillow().open(Path(found.origin).parent / PHOTOGRAPH).convert("RGB")


def photograph(width: int, height: int) -> Any:
    """Return a photograph, resized."""
    return _original().resize((width, height), pillow().Resampling.LANCZOS)


def encoded(image: Any, **options: object) -> bytes:
    """Return an image as a JPEG file."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90, **options)
    return stream.getvalue()
