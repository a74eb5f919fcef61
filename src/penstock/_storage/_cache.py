"""The protocol of a cache of elements, and the cache in memory. Once a cache is full, it keeps its elements.

Every element is used once an epoch. A cache that evicts old elements for new ones (LRU) evicts each before its next
use, so it never hits; a cache without eviction hits for its share of the elements in every epoch. The idea is that of
MinIO in CoorDL: Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and Mitigating Data Stalls in DNN Training",
VLDB 2021.

Guarantees of `MemoryCache`:
  - Any thread may call any method. For each key the first element is kept; later ones change nothing.
  - Elements are kept as bytes (`_encode`), which no caller can change: `put` copies an element, and every `get` returns
    a new one.
  - The bytes of the elements, with the cost of their entries in a dict, never exceed the limit.
  - A forked child begins with its parent's elements, and is independent from then on. A pickled copy is empty.
"""

import enum
import threading
from typing import Final, Protocol, TypeAlias

from penstock._os import renewed_after_fork
from penstock._storage._encode import decode, encode
from penstock._tree import Element

Key: TypeAlias = int | tuple[int, ...]
"""A position, or up to three integers such as (epoch, position, ordinal), each within 64 bits."""


class Missing(enum.Enum):
    """The type of `MISSING`, the result for a key that a cache doesn't hold; None may be an element."""

    MISSING = enum.auto()


MISSING: Final = Missing.MISSING

FULL_SHARE: Final = 15 / 16
"""A cache that is full to this share of its limit when it has no room for an element takes no more elements."""


class Cache(Protocol):
    """Keeps elements by key. Any thread may call it; a returned element is a copy that the caller may change."""

    def get(self, key: Key, /) -> Element | Missing:
        """Return a copy of the element kept for a key, or `MISSING`."""
        ...

    def put(self, key: Key, element: Element, /) -> bool:
        """Keep a copy of an element, and return whether the cache now holds one for the key."""
        ...


_EXTRA_BYTES: Final = 200  # about the size of a key, a bytes object's header, and their entry in a dict


class MemoryCache:
    """Keeps elements in this process's memory.

    Two caches with equal arguments are equal, whatever elements they hold, so that datasets with equal descriptions are
    equal.

    Args:
        limit_bytes: the limit in bytes; not negative.
        identity: a text that identifies the elements, such as a digest.

    Example:
        >>> cache = MemoryCache(1 << 20)
        >>> cache.put(3, {"label": 7}), cache.get(3), cache.get(4)
        (True, {'label': 7}, <Missing.MISSING: 1>)
    """

    def __init__(self, limit_bytes: int, identity: str = "") -> None:
        self._limit_bytes = limit_bytes
        self._identity = identity
        self._held_bytes = 0
        self._is_full = False
        self._kept: dict[Key, bytes] = {}
        self._lock = threading.Lock()  # guards changes of the three above
        renewed_after_fork(self)

    @property
    def held_bytes(self) -> int:
        """The number of bytes that it keeps now."""
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def get(self, key: Key, /) -> Element | Missing:
        """Return a new copy of the element kept for a key, or `MISSING`."""
        data = self._kept.get(key)
        return MISSING if data is None else decode(data)

    def put(self, key: Key, element: Element, /) -> bool:
        """Keep a copy of an element if there is room and none is kept; return whether the cache has one for the key.

        Raises:
            UsageError: a leaf can't be converted to bytes.
        """
        if key in self._kept or self._is_full:
            return key in self._kept
        data = encode(element)
        with self._lock:
            held_bytes = self._held_bytes + len(data) + _EXTRA_BYTES
            if key in self._kept:
                return True
            if held_bytes > self._limit_bytes:
                # Otherwise all further elements would be encoded in every epoch, and most of them refused.
                self._is_full = self._held_bytes >= self._limit_bytes * FULL_SHARE
                return False
            self._kept[key] = data
            self._held_bytes = held_bytes
        return True

    def renew_after_fork(self) -> None:
        """Make a new lock: another thread may have held this one at the fork."""
        self._lock = threading.Lock()
        self._held_bytes = sum(map(len, self._kept.values())) + _EXTRA_BYTES * len(self._kept)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryCache):
            return NotImplemented
        return (self._limit_bytes, self._identity) == (other._limit_bytes, other._identity)

    def __hash__(self) -> int:
        return hash((self._limit_bytes, self._identity))

    def __reduce__(self) -> tuple[type["MemoryCache"], tuple[int, str]]:
        return MemoryCache, (self._limit_bytes, self._identity)

    def __repr__(self) -> str:
        return f"MemoryCache({self._limit_bytes}, {self._identity!r})"
