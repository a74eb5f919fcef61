"""Sounds of leaves: players of a page, whose data is in the page; encoded ones as they are, samples as WAV."""

import binascii
import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock._tree import is_array

RATE: Final = "sampling_rate"
"""The name of a leaf that has the rate of the samples beside it, as in the datasets of Hugging Face."""
_MOST_BYTES: Final = 1 << 20  # of a sound that is copied into the page
_LEAST_SAMPLES: Final = 256
_FULL: Final = 32_767


def sound_tag(leaf: object, rate: object = None) -> str:
    """Return an `<audio>` of a leaf that is a sound; "" if it is none.

    Args:
        leaf: an encoded sound (WAV, FLAC, Ogg or MP3), or samples: numbers along one axis.
        rate: the samples for a second; None if they aren't known, and the leaf is no sound then.
    """
    if isinstance(leaf, bytes):
        kind = sound_kind(leaf)
        return _tag(kind, leaf) if kind else ""
    if not (is_array(leaf) and leaf.ndim == 1 and leaf.dtype.kind in "fi" and leaf.size >= _LEAST_SAMPLES):
        return ""
    number: NDArray[Any] = np.asarray(rate)
    count = int(number) if number.ndim == 0 and number.dtype.kind in "iu" else 0
    return _tag("wav", _wav(leaf, count)) if count > 0 else ""


def sound_kind(data: bytes) -> str:
    """Return the format of an encoded sound, as browsers name it; "" if the bytes are none."""
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        return "wav"
    starts = {b"fLaC": "flac", b"OggS": "ogg", b"ID3": "mpeg"}
    return next((kind for start, kind in starts.items() if data.startswith(start)), "")


def _tag(kind: str, sound: bytes) -> str:
    if len(sound) > _MOST_BYTES:
        return ""
    data = binascii.b2a_base64(sound, newline=False).decode()
    return f'<audio controls src="data:audio/{kind};base64,{data}"></audio>'


def _wav(samples: NDArray[Any], rate: int) -> bytes:
    """Return samples as WAV of 16 bits. Floats are in [-1, 1]; integers of 16 bits are as they are."""
    if samples.dtype.kind == "f":
        samples = np.clip(np.nan_to_num(samples.astype(np.float64)), -1, 1) * _FULL
    data = np.clip(samples, -_FULL - 1, _FULL).astype("<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    content: bytes = struct.pack("<4sI", b"RIFF", len(body)) + body
    return content
