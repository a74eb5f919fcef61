"""Reads of a block of keys from any source, by its fastest method and with errors that name the key.

Guarantees:
  - There is one record for each key, in the order of the keys. A key that occurs twice in a block has two records that
    share no memory.
  - After a transient failure a read is retried after each wait in `RETRY_WAITS_SECONDS`, about a second in all; other
    failures are raised without a wait. A loader reads the records of a failed batch once more, with the same retries,
    since it computes the batch again to raise its error behind the batches before it.
  - The source's own exception is raised, with a note that names the key. A `SourceError` is raised only if the source
    violates its protocol: it returns another number of records, changes the keys, or raises an IndexError for a key
    below its length.
"""

import errno
import threading
from collections.abc import Callable, Iterable, Mapping, Sized
from collections.abc import Set as AbstractSet
from operator import is_not
from typing import Any, Final, Protocol, cast

import numpy as np

from penstock._caught import add_note, raised_by_handler
from penstock._independent import share_at_a_glance
from penstock._tree import flatten
from penstock.errors import InternalError, SourceError
from penstock.sources._arrays import Arrays
from penstock.sources._as_source import AwaitedSource, check_unchanged, describe_key, source_length
from penstock.sources._mapped import has_repeats
from penstock.sources._range import Range
from penstock.sources._source import Keys, Record, Source, name_of

RETRY_WAITS_SECONDS: Final = (0.05, 0.2, 0.8)
_TRANSIENT: Final = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.ETIMEDOUT,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ESTALE,
        errno.EBUSY,
    }
)
_READ_SINGLY: Final = frozenset({Range, Arrays, list})  # not subclasses, which may read differently


def read_records(source: Source, keys: Keys) -> list[Record]:
    """Return the records of `keys`, read in one call if the source supports it.

    It calls `source.read(keys)` if that exists, else `source.__getitems__(list of ints)`, else `source[key]` for each.
    If a block fails, its keys are read again one by one, to find the key that fails.

    Args:
        source: any source.
        keys: int64, one axis, in [0, length); keys may repeat.

    Returns:
        One record for each key, in order.

    Raises:
        SourceError: the source returned another number of records, or raised an IndexError for a key below its length.

    Example:
        >>> import numpy as np
        >>> read_records(["a", "b", "c"], np.array([2, 0]))
        ['c', 'a']
    """
    return _read_block(source, _reader(source), keys)


def read_record(source: Source, key: int) -> Record:
    """Return the record of one key, as `read_records` does; for some sources this takes less time.

    Args:
        source: any source.
        key: in [0, length).

    Raises:
        SourceError: as `read_records`.

    Example:
        >>> read_record(["a", "b", "c"], 2)
        'c'
    """
    if type(source) not in _READ_SINGLY:
        return read_records(source, np.array([key], np.int64))[0]
    try:
        return source[key]
    except IndexError:
        keys = np.array([key], np.int64)
    return read_records(source, keys)[0]  # it raises the error, with a note of the key


def is_read_singly(source: Source) -> bool:
    """Return whether `source[key]` is known to return the record that `source.read` returns, in less time."""
    return type(source) in _READ_SINGLY


def read_spans(source: Source, keys: Keys, starts: Keys, stops: Keys) -> list[Record]:
    """Return frames of the records of `keys`, read in one call of `read_spans`.

    Args:
        source: a source with `read_spans`.
        keys: int64, one axis, in [0, length); keys may repeat.
        starts: int64, the first frame of each.
        stops: int64, the frame after the last of each.

    Returns:
        A record for each key, in order; its arrays hold frames [start, stop).

    Raises:
        SourceError: as `read_records`.

    Example:
        >>> import numpy as np
        >>> from penstock.sources import Arrays
        >>> read_spans(Arrays(np.arange(6).reshape(2, 3)), np.array([1]), np.array([0]), np.array([2]))
        [array([3, 4])]
    """

    def read(spans: Keys) -> list[Record]:
        columns = [np.array(column) for column in spans.T]
        returned = cast("_Spans", source).read_spans(*columns)
        check_unchanged(source, columns[0], spans[:, 0])
        return checked(source, returned, spans)

    return _read_block(source, read, np.stack([keys, starts, stops], axis=1))


def fill_rows(source: Source, keys: Keys, out: Record) -> None:
    """Fill the arrays of a batch with the records of `keys`, by `read_into` of a source.

    Args:
        source: a source with `read_into`.
        keys: int64, one axis, in [0, length); keys may repeat.
        out: its arrays have one row for each key.

    Raises:
        SourceError: the source changed the keys; or replaced an array of `out`, which then has no records.
    """
    reads_into = cast("_RowSource", source).read_into
    if _is_own(source):
        reads_into(keys, out)
        return
    before, given = flatten(out)[0], keys.copy()
    reads_into(given, out)
    check_unchanged(source, given, keys)
    after = flatten(out)[0]
    if len(after) != len(before) or any(map(is_not, after, before)):
        raise SourceError(
            "read_into() of a source must write into the arrays of out, and not replace them; "
            f"{name_of(source)} replaced one. Assign to its items: out[name][:] = values.",
            source=name_of(source),
            keys=keys[:8].tolist(),
        )


def fills_packed(source: Source) -> bool:
    """Return whether `read_into` of a source can fill `PackedStrings` in place of a list."""
    return _is_own(source)


class _RowSource(Protocol):
    """A source with `read_into`."""

    def read_into(self, keys: Keys, out: Record) -> None:
        """Fill rows with records."""
        ...


class _Spans(Protocol):
    """A source with `read_spans`."""

    def read_spans(self, *columns: Keys) -> object:
        """Return frames of records: keys, starts, stops."""
        ...


def _read_block(source: Source, read: Callable[[Keys], list[Record]], keys: Keys) -> list[Record]:
    """Return the records of keys, or of rows (key, start, stop); if a block fails, read one by one."""
    if len(keys) == 0:
        return []  # without a call: some sources refuse empty keys
    if len(keys) == 1:
        return [_read_one(source, read, keys)]
    try:
        return read(keys)
    except _SharedError:
        return _read_distinct(source, read, keys)
    except Exception as error:
        if raised_by_handler(error):
            raise
        block_error = error
    records = [_read_one(source, read, keys[i : i + 1]) for i in range(len(keys))]
    if is_transient(block_error):
        return records
    add_note(block_error, f"while reading {len(keys)} keys at once from {name_of(source)}; each can be read alone")
    raise block_error


def is_transient(error: BaseException) -> bool:
    """Return whether `error` is transient: a timeout, a lost connection, or an I/O error of the storage.

    Args:
        error: the exception of a read. A missing file or a denied permission is not transient.

    Returns:
        True if a retry may succeed.
    """
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def _reader(source: Source) -> Callable[[Keys], list[Record]]:
    read = getattr(source, "read", None)
    if callable(read):
        if _is_own(source):
            return lambda keys: checked(source, read(keys), keys)
        return lambda keys: _need_own(_listed(source, _by_copy(source, read, keys), keys), keys)
    get_items = getattr(source, "__getitems__", None)
    if callable(get_items):
        return lambda keys: _need_own(_listed(source, _by_copy(source, get_items, keys.tolist()), keys), keys)
    return lambda keys: [source[key] for key in keys.tolist()]


def _by_copy(source: Source, read: Callable[[Any], object], keys: Keys | list[int]) -> object:
    given = keys.copy()
    returned = read(given)
    check_unchanged(source, given, keys)
    return returned


def checked(source: Source, returned: object, keys: Keys) -> list[Record]:
    """Return the result of a source's `read` as a list.

    Args:
        source: any source.
        returned: the result.
        keys: int64, one axis; or two axes, and the first column has the keys.

    Returns:
        One record for each key.

    Raises:
        SourceError: it isn't a list of one record for each key.
        _SharedError: a key occurs more than once, and its records share memory.
    """
    records = _listed(source, returned, keys)
    return records if _is_own(source) and not isinstance(source, AwaitedSource) else _need_own(records, keys)


def _listed(source: Source, returned: object, keys: Keys) -> list[Record]:
    kind = type(returned)
    if kind is list and len(cast("Sized", returned)) == len(keys):  # usual; the checks below take ten times as long
        return cast("list[Record]", returned)
    records = list(cast("Iterable[Record]", returned)) if _is_list_of_records(returned) else None
    if records is None or len(records) != len(keys):
        got = f"one {kind.__name__}" if records is None else f"{len(records)} of them"
        raise SourceError(
            f"a source must return one record for each of {len(keys)} keys, as a list; got {got} from "
            f"{name_of(source)}. Return a list of records, in the order of the keys.",
            source=name_of(source),
            keys=keys.reshape(len(keys), -1)[:8, 0].tolist(),
        )
    return records


def _is_list_of_records(returned: object) -> bool:
    """Return whether an object has records in an order: a list, an array of rows; no table, whose items are columns."""
    is_list = isinstance(returned, Sized) and isinstance(returned, Iterable) and not hasattr(returned, "columns")
    return is_list and not isinstance(returned, Mapping | AbstractSet | str | bytes | bytearray)


class _SharedError(Exception):
    """The records of a repeated key share memory; read by calls with distinct keys, they don't."""


def _need_own(records: list[Record], keys: Keys) -> list[Record]:
    """Return records of which no two of one key share memory, as far as they show it.

    A source may read each distinct key once, and return that record wherever the key occurs. A function above may write
    to its input, so each place needs what a read of its own gives.

    Raises:
        _SharedError: two share memory.
    """
    column = _column(keys)
    if len(keys) == 1 or not has_repeats(column):  # mostly so
        return records
    values, counts = np.unique(column, return_counts=True)
    places: list[int] = np.flatnonzero(np.isin(column, values[counts > 1])).tolist()
    if share_at_a_glance([records[place] for place in places]):
        raise _SharedError
    return records


def _read_distinct(source: Source, read: Callable[[Keys], list[Record]], keys: Keys) -> list[Record]:
    """Return the records of keys, some of them repeated, by reads of distinct keys: of the first places, and so on."""
    column = _column(keys)
    order = np.argsort(column, kind="stable")
    is_first = np.diff(column[order], prepend=-1) != 0
    places = np.arange(len(keys))
    number = np.empty(len(keys), np.int64)  # of a key's occurrences before this one
    number[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    found: list[Record] = [None] * len(keys)
    for each in range(int(number.max()) + 1):
        chosen = np.flatnonzero(number == each)
        for place, record in zip(chosen.tolist(), _read_block(source, read, keys[chosen]), strict=True):
            found[place] = record
    return found


def _column(keys: Keys) -> Keys:
    return keys if keys.ndim == 1 else keys[:, 0]


def _is_own(source: Source) -> bool:
    """Return whether a source is one of Penstock's, which keep the rules for sources."""
    return type(source).__module__.startswith("penstock.")


def _read_one(source: Source, read: Callable[[Keys], list[Record]], key: Keys) -> Record:
    for seconds in (*RETRY_WAITS_SECONDS, None):
        try:
            return read(key)[0]
        except Exception as error:
            if raised_by_handler(error):
                raise
            if seconds is None or not is_transient(error):
                _add_key(source, int(key.flat[0]), error)
                raise
        threading.Event().wait(seconds)
    raise InternalError("the last attempt must return or raise")


def _add_key(source: Source, key: int, error: Exception) -> None:
    name = name_of(source)
    if isinstance(error, IndexError):
        length = source_length(source)
        violation = (
            f"the source says that its length is {length}, but it raised IndexError for {describe_key(source, key)}"
            if key < length
            else f"key {key} is past the end of the source, whose length is {length} now"
        )
        raise SourceError(
            f"{violation}: {name}. A source must have a record for every key below its length, and must not change "
            "while it is read; a sampler of reindex() must give keys below the length of its dataset.",
            source=name,
            keys=[key],
        ) from error
    if not (isinstance(error, SourceError) and error.keys):  # errors of our own sources name the key already
        add_note(error, f"while reading {describe_key(source, key)} of {name}")
