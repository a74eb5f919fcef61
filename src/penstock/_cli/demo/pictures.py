"""Pictures as bytes and arrays; the one file of the demo that uses Pillow."""

import base64
import io
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._optional import need

Pixels = NDArray[np.uint8]


def require_pillow() -> ModuleType:
    """Return Pillow's `Image` module.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    return need("PIL.Image", "Pillow", extra="demo")


def encode_png(pixels: Pixels) -> bytes:
    """Return the pixels, of shape (height, width) or (height, width, 3), as a PNG file's bytes, without loss."""
    file = io.BytesIO()
    require_pillow().fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def decode_picture(data: bytes, size: int) -> Pixels:
    """Return any image that Pillow can decode as (size, size, 3) uint8, resized bilinearly.

    A much larger JPEG is decoded at a half, a quarter or an eighth of its size, which its format supports.
    """
    image_module = require_pillow()
    with image_module.open(io.BytesIO(data)) as image:
        image.draft("RGB", (size, size))
        scaled: Any = image.convert("RGB").resize((size, size), image_module.Resampling.BILINEAR)
        return np.asarray(scaled)


def as_data_address(png: bytes) -> str:
    """Return a data URL that contains the whole picture."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
