"""Values that MDS and LitData encode alike: arrays, the pixels of an image, and lists of bytes.

Each function takes the bytes of one value, and raises `DamageError` if they aren't such a value.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NUMBER: Final = np.dtype("<u4")
_PIL_MODES: Final[Mapping[str, tuple[str, int]]] = {
    "L": ("u1", 1), "P": ("u1", 1), "LA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3), "HSV": ("u1", 3),
    "LAB": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4), "I;16": ("<u2", 1), "I": ("<i4", 1),
    "F": ("<f4", 1),
}  # fmt: skip

_BITS: Final = "1"  # the mode of Pillow with eight pixels in a byte, the first in the highest bit; a row is whole bytes


class DamageError(Exception):
    """The reason why bytes aren't what the index of their file says."""


def array_of(value: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], begin: int = 0) -> NDArray[Any]:
    """Return the array whose elements are from `begin` to the end of the value.

    Args:
        value: the bytes; elements in C order.
        dtype: of the elements, with their byte order.
        shape: of the array.
        begin: the place of the first element.

    Returns:
        A copy, in the byte order of the machine.

    Raises:
        DamageError: there are more or fewer bytes than the shape needs.
    """
    if math.prod(shape) * dtype.itemsize != len(value) - begin:
        raise DamageError(f"the shape is {shape}")
    return np.frombuffer(value, dtype, offset=begin).reshape(shape).astype(dtype.newbyteorder("="))


def pixels_of(value: bytes) -> NDArray[Any]:
    """Return the array that NumPy makes of an image: its width, height and mode of Pillow, and its pixels.

    Raises:
        DamageError: the value is no image.
    """
    head = 3 * _NUMBER.itemsize
    if len(value) < head:
        raise DamageError("there is no size of an image")
    width, height, mode_bytes = np.frombuffer(value, _NUMBER, 3).tolist()
    mode = value[head : head + mode_bytes].decode()
    if mode == _BITS:
        packed = array_of(value, np.dtype("u1"), (height, -(-width // 8)), head + mode_bytes)
        return np.unpackbits(packed, axis=1, count=width).view(bool)
    if mode not in _PIL_MODES:
        raise DamageError(f"the mode {mode!r} of an image isn't among {_BITS}, {', '.join(_PIL_MODES)}")
    dtype, channels = _PIL_MODES[mode]
    shape = (height, width) if channels == 1 else (height, width, channels)
    return array_of(value, np.dtype(dtype), shape, head + mode_bytes)


def parts_of(begin: int, value: bytes) -> list[bytes]:
    """Return the parts of a list: at `begin` are their number and their sizes, and then the parts.

    Raises:
        DamageError: the value is no list.
    """
    head = begin + _NUMBER.itemsize
    count = int.from_bytes(value[begin:head], "little")
    begin = head + count * _NUMBER.itemsize
    if len(value) < begin:
        raise DamageError("the list is too short")
    parts: list[bytes] = []
    for size in np.frombuffer(value, _NUMBER, count, head).tolist():
        parts.append(value[begin : begin + size])
        begin += size
    if begin != len(value):
        raise DamageError("the list has another size")
    return parts
