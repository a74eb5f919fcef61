"""What becomes of memory that a process of ours frees: it is kept for what is allocated next.

The C library gives memory at the end of its heap back to the system as soon as a little of it is free, twice the size
of the largest block it has seen. What decodes images allocates and frees a few such blocks again and again, so that in
some processes, as their heap happens to lie, every image's memory is given back and got again, page by page: of eight
workers on two cores one spent a third as long on that as on decoding. Whoever sets one of the C library's variables
decides for themselves.
"""

import ctypes
import os
import sys
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in malloc.h
_LARGEST_BYTES: Final = 32 << 20  # of a block that isn't the system's own again when it is freed; as large as may be
_KEPT_BYTES: Final = 2 * _LARGEST_BYTES  # where the C library itself ends up, once it has seen such a block
_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Have this process keep up to 64 MB that it frees, where the C library is told how much."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not any(map(os.environ.get, _VARIABLES)):
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
