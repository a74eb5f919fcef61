"""Elements kept in memory, up to so many bytes; once it is full it keeps what it has.

Every element is used once an epoch. A cache that makes room for the newest then throws each one out before it is used
again, and one that keeps what it has answers for its share of the elements in every epoch. The idea is MinIO's in
CoorDL: Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021.

Guarantees:
  - Any thread may call any method. For each key the first element put is kept; those after it change nothing.
  - What is kept is bytes (`_encode`), so nobody can change it: `put` copies an element in, and every `get` makes a new
    one, whose arrays may be written to.
  - The bytes kept, with what a dict takes for each, never exceed the limit.
  - A forked child has what its parent had at the fork, and goes its own way. A copy made by pickle is empty.
"""

import threading
from typing import Final

from penstock._os import renewed_after_fork
from penstock._storage._cache import FULL_SHARE, MISSING, Key, Missing
from penstock._storage._encode import decode, encode
from penstock._tree import Element

_EXTRA_BYTES: Final = 200  # about what CPython takes for a key, the head of a bytes object, and their place in a dict


class MemoryCache:
    """Keeps elements in this process's memory.

    Two are equal if they are described equally, whatever they hold, so that a dataset which has one is equal to another
    of the same description.

    Args:
        limit_bytes: the most bytes that it keeps; not negative.
        identity: what determines the elements, such as a digest.

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
        """How many bytes it keeps now."""
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def get(self, key: Key, /) -> Element | Missing:
        """Return a new copy of the element kept for a key, or `MISSING`."""
        data = self._kept.get(key)
        return MISSING if data is None else decode(data)

    def put(self, key: Key, element: Element, /) -> bool:
        """Keep a copy of an element unless there is one or no room, and return whether the cache has one for the key.

        Raises:
            UsageError: a leaf can't be made bytes.
        """
        if key in self._kept or self._is_full:
            return key in self._kept
        data = encode(element)
        with self._lock:
            held_bytes = self._held_bytes + len(data) + _EXTRA_BYTES
            if key in self._kept:
                return True
            if held_bytes > self._limit_bytes:
                # From here on elements would mostly be encoded in vain, once each in every epoch.
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
