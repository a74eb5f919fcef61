"""Elements of caches on disk: every element tells its position, so that one read wrongly is seen."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.storage.caches import DiskCache

IDENTITY = "abc123"
LIMIT_BYTES = 1 << 30


def opened(path: Path | str, limit_bytes: int = LIMIT_BYTES, identity: str = IDENTITY) -> DiskCache:
    """Return a cache that hasn't been used yet."""
    return DiskCache(path, identity, limit_bytes)


def element_of(position: int) -> dict[str, Any]:
    """Return the element at a position; most are small, some have many pages."""
    size = 300_000 if position % 5 == 0 else position % 50
    return {"position": position, "array": np.arange(position, position + size, dtype=np.int32)}


def is_element(position: int, element: Any) -> bool:
    """Return whether this is the element at a position."""
    expected = element_of(position)
    return bool(element["position"] == position and np.array_equal(element["array"], expected["array"]))
