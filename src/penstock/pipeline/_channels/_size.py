"""How many bytes an item holds, as far as limits need to know it."""

import sys
from typing import Final

from penstock._tree import flatten

_PLAIN: Final = frozenset({int, float, bool, complex, str, bytes, bytearray, type(None)})


def size_of(item: object) -> int:
    """Return the bytes of an item: of its arrays what they hold, of everything else what Python says."""
    if type(item) in _PLAIN:
        return sys.getsizeof(item)
    return sum(_leaf_size(leaf) for leaf in flatten(item)[0])


def _leaf_size(leaf: object) -> int:
    nbytes = getattr(leaf, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(leaf)
