"""Pictures of leaves: PNG in data addresses, for pages, and half blocks of characters, for terminals."""

import binascii
import struct
import zlib
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._tree import is_array

Pixels: TypeAlias = NDArray[np.uint8]
"""Grey of shape (height, width), or RGB of shape (height, width, 3)."""
Colours: TypeAlias = Literal["true", "256"]
"""The colours of a terminal: any, or a palette of 256."""

_LEAST_SIDE: Final = 4  # pixels
_MOST_SIDE: Final = 512  # pixels; of larger pictures every second, third and so on is shown
_LARGEST_SIDE: Final = 1 << 14
_ENCODED: Final = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png", b"GIF8": "gif"}  # browsers decode them
_ENCODED_BYTES: Final = 1 << 18  # of a picture that is copied into the page
_CUBE: Final = 16  # the first colour of the cube of 6 x 6 x 6 in a palette of 256


def pixels_of(leaf: object, *, channels_first: bool) -> Pixels | None:
    """Return a leaf as a picture; None if it is none.

    Numbers other than bytes are scaled from their own range.

    Args:
        leaf: an array of shape (height, width) or (height, width, 1 or 3) is a picture.
        channels_first: whether one of shape (1 or 3, height, width) is, too.
    """
    if not (is_array(leaf) and leaf.dtype.kind in "fui" and leaf.ndim in {2, 3}):
        return None
    array = leaf
    if channels_first and array.ndim == 3 and array.shape[0] in {1, 3} and array.shape[2] not in {1, 3}:
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] not in {1, 3}:
        return None
    sides = array.shape[:2]
    if min(sides) < _LEAST_SIDE or max(sides) > _LARGEST_SIDE:
        return None
    each = -(-max(sides) // _MOST_SIDE)
    array = array[::each, ::each]
    scaled = array if array.dtype == np.uint8 else _scaled(array)
    return scaled[:, :, 0] if scaled.ndim == 3 and scaled.shape[2] == 1 else scaled


def _scaled(array: NDArray[Any]) -> Pixels:
    floats = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(floats.min()), float(floats.max())
    scaled: Pixels = ((floats - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    return scaled


def image_tag(leaf: object, *, channels_first: bool) -> str:
    """Return an `<img>` of a leaf that is a picture, as an array or encoded; "" if it is none."""
    if isinstance(leaf, bytes):
        kind = encoded_kind(leaf)
        return "" if not kind or len(leaf) > _ENCODED_BYTES else _tag(kind, leaf)
    pixels = pixels_of(leaf, channels_first=channels_first)
    return "" if pixels is None else _tag("png", _png(pixels))


def encoded_kind(data: bytes) -> str:
    """Return the format of an encoded picture; "" if the bytes are none."""
    return next((kind for start, kind in _ENCODED.items() if data.startswith(start)), "")


def _tag(kind: str, image: bytes) -> str:
    data = binascii.b2a_base64(image, newline=False).decode()
    return f'<img src="data:image/{kind};base64,{data}" style="height:64px;margin:2px;image-rendering:pixelated">'


def _png(pixels: Pixels) -> bytes:
    """Return a picture as PNG (ISO/IEC 15948) of 8 bits."""
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    raw = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(raw)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def block_lines(pixels: Pixels, columns: int, rows: int, colours: Colours) -> list[str]:
    """Return a picture as lines of half blocks: each character shows two pixels, one above the other.

    Args:
        pixels: the picture.
        columns: the most characters in a line.
        rows: the most lines.
        colours: those of the terminal.
    """
    height, width = pixels.shape[:2]
    scale = min(columns / width, 2 * rows / height, 1.0)
    wide, high = max(round(width * scale), 1), max(2 * round(height * scale / 2), 2)
    across = [column * width // wide for column in range(wide)]
    down = [row * height // high for row in range(high)]
    small = pixels[down][:, across]
    rgb = np.stack([small] * 3, axis=2) if small.ndim == 2 else small
    return [_blocks(rgb[row].tolist(), rgb[row + 1].tolist(), colours) for row in range(0, high, 2)]


def _blocks(upper: list[list[int]], lower: list[list[int]], colours: Colours) -> str:
    pairs = zip(upper, lower, strict=True)
    return "".join(f"\x1b[38;{_code(top, colours)};48;{_code(low, colours)}m▀" for top, low in pairs) + "\x1b[0m"


def _code(rgb: list[int], colours: Colours) -> str:
    if colours == "true":
        return f"2;{rgb[0]};{rgb[1]};{rgb[2]}"
    red, green, blue = (round(value / 51) for value in rgb)
    return f"5;{_CUBE + 36 * red + 6 * green + blue}"
