"""An array's identity in 32 digits: what tells two samplers apart that hold large ones, and goes into their repr."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def array_digest(array: NDArray[np.generic]) -> str:
    """Return 32 hexadecimal digits that two contiguous arrays share only if type, shape and content are the same."""
    hasher = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=16)
    if array.size:
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()
