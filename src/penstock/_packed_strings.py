"""Texts and bytes on their way to another process: one block of memory for all, of which the reader makes the objects.

A pickle has each text by itself. Its writer copies each one four times: into the pickle's frame, to its stream, to a
block and to shared memory. `PackedStrings` copy it once, and are one buffer of a pickle.
"""

import pickle
from collections.abc import Callable
from typing import Any, Final, TypeGuard, cast

from penstock import _native

_KINDS: Final = frozenset({str, bytes})


class PackedStrings(_native.PackedStrings):
    """Texts or bytes, for a pickle of protocol 5; a list of them is rebuilt.

    An object that is there twice is so in the list, too.

    Example:
        >>> made = packed(["one", "two"])
        >>> type(made).__name__, pickle.loads(pickle.dumps(made, protocol=5))
        ('PackedStrings', ['one', 'two'])
    """

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        memory = [pickle.PickleBuffer(cast("bytes", part)) for part in (self.places, self.content)]
        return _texts if self.is_text else _bytes, (*memory,)


def _texts(places: object, content: object) -> list[str]:
    return _native.unpacked_texts(places, content)


def _bytes(places: object, content: object) -> list[bytes]:
    return _native.unpacked_bytes(places, content)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether an object is a list, and of no subclass."""
    return type(value) is list


def packed(values: object) -> object:
    """Return a list of texts or bytes packed; any other object itself."""
    if not is_list(values) or not values or type(values[0]) not in _KINDS:
        return values
    made = PackedStrings(len(values), type(values[0]) is str)
    return made if made.pack(values) else values
