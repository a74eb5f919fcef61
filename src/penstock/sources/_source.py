"""A source gives a record for every key in [0, length): what any object must have to be one.

The helpers here check keys and name sources in messages; every source of this package uses them.
"""

import operator
import reprlib
from collections.abc import Sequence, Sized
from typing import Any, Protocol, SupportsIndex, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Record = Any  # what a source returns for a key: user code enters here
Keys = NDArray[np.int64]


@runtime_checkable
class Source(Protocol):
    """Random-access records in storage: any object with `__len__` and `__getitem__` is one.

    A list is a source, and so is a torch map-style dataset. What follows is optional; where an object has it, it is
    used:

    - `read(keys)` with keys an int64 array: one record for each key, in the order of the keys. A key may come twice.
      `__getitems__(keys)` with a list of ints, torch's name for the same, is used where there is no `read`.
    - `async def read(self, keys)`, the same as a coroutine function: all reads of the source run on one event loop in a
      background thread, and a loader with workers awaits many at once. `__getitem__` isn't needed then. An attribute
      `keys_per_read`, 1 by default, says how many keys a call gets at most where a loader reads ahead.
    - `read_into(keys, out)` fills `out` instead: the arrays of one record with a leading axis of `len(keys)` rows.
      Records must then have equal shapes; a source for which that depends says so by a bool attribute `fixed_shape`.
    - `read_spans(keys, starts, stops)`, three int64 arrays: records whose arrays have a leading axis of frames, such as
      episodes, of which only frames [start, stop) are read. What isn't an array comes whole. `windows` uses it.
    - `fingerprint()`: a short str that changes when the records do. It guards a saved state against other data.
    - `describe_key(key)`: what a person would look for, such as "file 'cat/3.png'"; messages about the key show it.

    Reading a key must be safe from several threads, and depend on nothing but the key: what is done to a record must
    not change what is read next (a list of arrays can't promise that; don't write to its records). Other processes get
    a source by pickle; one that holds descriptors or memory maps drops them then, and opens them when first read.
    `penstock.testing.SourceTests` checks all this.

    Example:
        >>> class Squares:
        ...     def __len__(self):
        ...         return 10
        ...
        ...     def __getitem__(self, key):
        ...         if not 0 <= key < 10:
        ...             raise IndexError(key)
        ...         return key * key
        >>> isinstance(Squares(), Source)
        True
    """

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, key: int, /) -> Record:
        """Return the record of `key`, which is in [0, length); raise IndexError past the end."""
        ...


def as_keys(keys: Sequence[int] | NDArray[Any]) -> Keys:
    """Return `keys` as an int64 array; whether they are in range is left to `check_range` or the native gather.

    Args:
        keys: integers, one axis.

    Returns:
        The same keys; the same array where it was int64 already.

    Raises:
        TypeError: the keys aren't integers along one axis.
    """
    array = np.asarray(keys)
    if array.dtype == np.int64 and array.ndim == 1:
        return array
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        message = f"keys must be integers along one axis; got {array.dtype} of shape {array.shape}"
        raise TypeError(message)
    return array.astype(np.int64)


def check_range(keys: Keys, length: int) -> None:
    """Check that every key is in [0, length).

    Args:
        keys: as `as_keys` returns them.
        length: the number of records of the source.

    Raises:
        IndexError: a key is negative, or past the end.
    """
    if len(keys) and keys.view(np.uint64).max() >= length:  # a negative key is huge without its sign
        outside = next(int(key) for key in keys if not 0 <= key < length)
        raise IndexError(f"a key must be in [0, {length}); got {outside}")


def as_key(key: SupportsIndex, length: int) -> int:
    """Return `key` in [0, length), counting a negative one from the end as Python's sequences do.

    Args:
        key: an integer.
        length: the number of records of the source.

    Returns:
        The key, not negative.

    Raises:
        IndexError: the key is past either end.
    """
    number = operator.index(key)
    if not -length <= number < length:
        raise IndexError(f"a key must be in [{-length}, {length}); got {number}")
    return number if number >= 0 else number + length


class _ShortRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxother = 200
        self.maxstring = 200


def name_of(source: object) -> str:
    """Return the repr of a source on one line of at most 200 characters, however large the source is."""
    if isinstance(source, list | tuple | dict | np.ndarray):
        return f"{type(cast('object', source)).__name__} of length {len(cast('Sized', source))}"
    return " ".join(_ShortRepr().repr(source).split())
