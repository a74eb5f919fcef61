"""Photographs of any size, and JPEG files of them."""

import functools
import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest

from penstock import _native

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


def need_jpeg() -> None:
    """Skip the test if Penstock was built without libjpeg-turbo."""
    if not _native.has_jpeg():
        pytest.skip("this build has no libjpeg-turbo")


def encoded(image: Any, **options: object) -> bytes:
    """Return an image as a JPEG file, or skip the test if this build can't decode it."""
    need_jpeg()
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90, **options)
    return stream.getvalue()
