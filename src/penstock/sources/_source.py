"""The protocol of a source, which has a record for every key in [0, length).

All sources of this package use the functions here, which check keys and name sources in messages.
"""

import operator
import reprlib
from collections.abc import Hashable, Iterable, Sequence, Sized
from typing import Any, Final, Protocol, SupportsIndex, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._caught import Caught
from penstock._printable import printable
from penstock.errors import UsageError

Record = Any  # what a source returns for a key: user code enters here
Keys = NDArray[np.int64]


@runtime_checkable
class Source(Protocol):
    """Random-access records in storage: any object with `__len__` and `__getitem__` is a source.

    A list is a source, and so is a torch map-style dataset. These methods are optional; Penstock uses those that an
    object has:

    - `read(keys)` with keys an int64 array: returns one record for each key, in the order of the keys, which may
      repeat. It must not change `keys`. If there is no `read`, `__getitems__(keys)` with a list of ints, torch's name
      for the same, is used.
    - `async def read(self, keys)`, the same as a coroutine function: all reads of the source run on one event loop in a
      background thread of the process, and a loader with workers awaits many at once. With it, `__getitem__` isn't
      needed. The attribute `keys_per_read`, 1 by default, is the largest number of keys in one call when a loader reads
      ahead.
    - `async def aclose(self)`, for such a source: awaited on that event loop when the last open loader that reads the
      source is closed, and at the end of the program, at most for 5 seconds. A later read must open again what this
      closed.
    - `read_into(keys, out)`: fills `out`, the arrays of one record with a leading axis of `len(keys)` rows, and for a
      text or bytes a list of as many items. It must write every item, zeros too, since `out` may hold any values
      before, and must not replace an array of `out` by another. All records must have equal shapes. A source that only
      sometimes has such records sets the bool attribute `fixed_shape`.
    - `read_spans(keys, starts, stops)`, three int64 arrays: for records whose arrays have a leading axis of frames,
      such as episodes; reads only frames [start, stop). Leaves that aren't arrays are returned whole. `windows` uses
      it.
    - `blocks`, an attribute: the keys at which runs of records that are stored together begin. `BlockSource` describes
      it, and `shuffle(blocks=True)` uses it.
    - `fingerprint()`: returns a short str that changes when the records do. It guards a saved state against other data.
    - `describe_key(key)`: returns a text such as "file 'cat/3.png'", which messages about the key show.

    Reads must be safe from several threads, and a record must depend only on its key: changes of a record must not
    change the next read (a list of arrays can't guarantee that; don't write to its records), nor the records of other
    keys in the same read. Where a key is repeated in one read, its record may be one object; then Penstock reads again.

    Other processes get a source by pickle. A source that holds descriptors or memory maps must leave them out of its
    pickle, and open them again at the first read.
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


@runtime_checkable
class BlockSource(Source, Protocol):
    """A source whose records are stored, and best read, in blocks: row groups, compressed shards, ranges of a file.

    `shuffle(blocks=True)` then reads each block once an epoch, with `live` of them open at a time. A source that
    decodes a block as a whole should keep those that it used last, at least `live` of them.

    A `lengths` method is optional: it returns the length of every record, or of what the method's argument names in
    every record, as int64 of shape (length,), without reading the records. `pack` and `bucket` take what it returns.

    `penstock.testing.BlockSourceTests` checks both.

    Example:
        >>> class Pages:
        ...     blocks = np.array([0, 3, 6, 8])  # pages of three records; the last one has two
        ...
        ...     def __len__(self):
        ...         return 8
        ...
        ...     def __getitem__(self, key):
        ...         if not 0 <= key < 8:
        ...             raise IndexError(key)
        ...         return key
        >>> isinstance(Pages(), BlockSource)
        True
    """

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The key at which each block begins, and, last, the length: int64 of shape (blocks + 1,).

        It begins with 0 and never decreases, and is the same in every copy of the source: the order of a shuffle
        depends on it.
        """
        ...


def as_keys(keys: Sequence[int] | NDArray[Any]) -> Keys:
    """Return `keys` as an int64 array; `check_range` or the native gather checks their range.

    Args:
        keys: integers, one axis.

    Returns:
        The keys, contiguous; the same array if it is that already, of dtype int64 and one axis.

    Raises:
        TypeError: the keys aren't integers along one axis.
    """
    array = np.asarray(keys)
    if array.dtype == np.int64 and array.ndim == 1:
        return array if array.flags.c_contiguous else array.copy()
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        message = f"keys must be integers along one axis; got {array.dtype} of shape {array.shape}"
        raise TypeError(message)
    return array.astype(np.int64, "C")


def check_range(keys: Keys, length: int) -> None:
    """Check that every key is in [0, length).

    Args:
        keys: the result of `as_keys`.
        length: the number of records of the source.

    Raises:
        IndexError: a key is negative, or past the end.
    """
    if len(keys) and keys.view(np.uint64).max() >= length:  # as an unsigned number, a negative key is huge
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


def different_names(argument: str, given: object) -> tuple[str, ...]:
    """Return the names that a user gave of columns or arrays.

    Args:
        argument: its name, for messages.
        given: its value.

    Raises:
        UsageError: it is no sequence of names, or one is there twice.
    """
    names = tuple(cast("Iterable[object]", given)) if isinstance(given, Iterable) else (None,)
    if isinstance(given, str) or not all(isinstance(name, str) for name in names):
        raise UsageError(f'{argument} must be a sequence of names, such as ["a", "b"]; got {argument}={given!r}')
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{argument} must be different names; got {twice!r} twice in {list(names)}. Name it once.")
    return cast("tuple[str, ...]", names)


def dicts_of(names: Sequence[Hashable], columns: Sequence[Sequence[Any]]) -> list[Record]:
    """Return a dict for each row, from the values of each column.

    Args:
        names: the keys of the dicts, at least one.
        columns: for each name the values of all rows.
    """
    # Column by column, which takes a third of the time of a `dict(zip(names, row))` for each row of two columns.
    records = [{names[0]: value} for value in columns[0]]
    for name, column in zip(names[1:], columns[1:], strict=True):
        for record, value in zip(records, column, strict=True):
            record[name] = value
    return records


_CUT: Final = "..."


class _ShortRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxother = 200
        self.maxstring = 200

    def repr_instance(self, x: object, level: int) -> str:
        """Return the repr of an object, or its type if that fails.

        The base class takes the exception of a signal's handler for a failure, and the program would lose it.
        """
        del level
        with Caught(Exception):
            text = repr(x)
            middle = (self.maxother - len(_CUT)) // 2
            return text if len(text) <= self.maxother else text[:middle] + _CUT + text[-middle:]
        return f"<{type(x).__name__} instance at {id(x):#x}>"


def name_of(source: object) -> str:
    """Return the repr of a source on one line of at most 200 characters, however large the source is."""
    if isinstance(source, list | tuple | dict | np.ndarray):
        return f"{type(cast('object', source)).__name__} of length {len(cast('Sized', source))}"
    return printable(" ".join(_ShortRepr().repr(source).split()))
