"""The protocol of a cache of elements: get an element by its key, and put one if there is room."""

import enum
from typing import Final, Protocol, TypeAlias

from penstock._tree import Element

Key: TypeAlias = int | tuple[int, ...]
"""A position, or up to three integers such as (epoch, position, ordinal), each within 64 bits."""


class Missing(enum.Enum):
    """The type of `MISSING`, the result for a key that a cache doesn't hold; None may be an element."""

    MISSING = enum.auto()


MISSING: Final = Missing.MISSING

FULL_SHARE: Final = 15 / 16
"""A cache that holds this share of its limit when it refuses an element refuses all later ones."""


class Cache(Protocol):
    """Keeps elements by key. Any thread may call it; a returned element is a copy that the caller may change."""

    def get(self, key: Key, /) -> Element | Missing:
        """Return a copy of the element kept for a key, or `MISSING`."""
        ...

    def put(self, key: Key, element: Element, /) -> bool:
        """Keep a copy of an element, and return whether the cache now holds one for the key."""
        ...
