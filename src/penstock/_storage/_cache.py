"""What every cache of elements can do: look an element up by its key, and keep another if there is room."""

import enum
from typing import Final, Protocol, TypeAlias

from penstock._tree import Element

Key: TypeAlias = int | tuple[int, ...]
"""A position, or up to three integers such as (epoch, position, ordinal), each within 64 bits."""


class Missing(enum.Enum):
    """The type of `MISSING`, the answer for what a cache doesn't hold; None may be an element."""

    MISSING = enum.auto()


MISSING: Final = Missing.MISSING

FULL_SHARE: Final = 15 / 16
"""A cache that holds this share of its limit when it declines an element declines all from then on."""


class Cache(Protocol):
    """Keeps elements by key. Any thread may call it; what it hands out is the caller's own, to change as it likes."""

    def get(self, key: Key, /) -> Element | Missing:
        """Return a copy of the element kept for a key, or `MISSING`."""
        ...

    def put(self, key: Key, element: Element, /) -> bool:
        """Keep a copy of an element, and return whether the cache now holds one for the key."""
        ...
