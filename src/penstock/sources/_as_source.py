"""The conversion of a user's object to a source, and the properties of a source besides its records.

An object with an async `read` becomes an `AwaitedSource`, which plain code reads like any other source: its coroutines
run on the source's own event loop. Code that reads ahead awaits `read_async`.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, SupportsIndex, TypeGuard, cast

import numpy as np

from penstock import _lazy
from penstock._printable import printable
from penstock.errors import SourceError, UsageError
from penstock.sources._arrays import Arrays
from penstock.sources._content import sample, sample_digest
from penstock.sources._source import Keys, Record, Source, as_key, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sources._source_loop import Call, Loops, SourceLoop, Work

_load: Final = _lazy.from_modules(
    __name__,
    source_of_path="penstock.sources._path",  # it loads all sources of files
    source_of_table="penstock.sources._tables",
)


def as_source(value: object) -> Source:
    """Return `value` as a source.

    A path becomes the source of the files that are there, by their names and first bytes: a file, a glob or a folder in
    one of the formats of `penstock.sources`. A dict of arrays, or an array, becomes `Arrays`, and so does a data frame
    of pandas, without its index. A `pyarrow.Table`, a data frame of polars, and any other table that exports Arrow's C
    stream becomes a source of its rows as dicts. A Hugging Face `Dataset` becomes a source of the same records that
    reads the dataset's table. Any other object with `__len__` and `__getitem__` is returned unchanged: a list, a torch
    map-style dataset, an ArrayRecord data source. An object with an async `read` needs no `__getitem__`; it becomes a
    source that any code can read.

    Args:
        value: the user's object.

    Returns:
        A source.

    Raises:
        UsageError: it is no source, or a path whose format is unknown. The message has a remedy.
        SourceError: a file can't be read.
        MissingDependencyError: it is a table that only pyarrow reads, which isn't installed.

    Example:
        >>> as_source({"x": np.arange(3)})
        Arrays({'x': int64[3]})
        >>> as_source(["a", "b"])
        ['a', 'b']
    """
    if isinstance(value, str | os.PathLike):
        source_of_path = cast("Callable[[object], Source]", _load("source_of_path"))
        return source_of_path(cast("object", value))
    if isinstance(value, dict | np.ndarray):
        return Arrays(cast("dict[str, Any]", value))
    if is_async(value):
        return AwaitedSource(value)
    if _is_table(value):
        source_of_table = cast("Callable[[object], Source]", _load("source_of_table"))
        return source_of_table(value)
    remedy = _remedy(value)
    if remedy is not None:
        raise UsageError(
            f"a source must have __len__ and __getitem__ with keys from 0 on; got {name_of(value)}, a "
            f"{type(value).__name__}. {remedy}"
        )
    return cast("Source", value)


def _is_table(value: object) -> bool:
    """Return whether an object is a table of another library, which isn't imported for the answer."""
    kind = type(value)
    return not isinstance(value, type) and (
        (kind.__module__, kind.__qualname__) == ("datasets.arrow_dataset", "Dataset")  # a subclass may read differently
        or (hasattr(value, "iloc") and hasattr(value, "columns"))
        or hasattr(value, "__arrow_c_stream__")
        or hasattr(value, "__arrow_c_array__")
    )


def _remedy(value: object) -> str | None:
    if isinstance(value, bytes | bytearray):
        return "Bytes have no records: pass a path as a str, or a list of such bytes."
    if isinstance(value, type):
        return "That is the class itself: create an instance of it."
    if isinstance(value, Mapping):
        return "Its keys are names: pass a dict of arrays, or one of its values."
    if inspect.isasyncgenfunction(read := getattr(value, "read", None)):
        return "Its read is an async generator: make it return a list of the records, without yield."
    if read is None and inspect.iscoroutinefunction(getattr(value, "__getitem__", None)):
        return (
            "Its __getitem__ is a coroutine function: write async def read(self, keys) instead, which returns a list."
        )
    if callable(read) and hasattr(value, "__len__") and not hasattr(value, "__getitem__"):
        return "Add a __getitem__; or, if its read returns a coroutine, write it as async def read(self, keys)."
    if not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return (
            "Pass a list, a dict of arrays or one of ps.sources, or write a class with these two methods; "
            "pass an iterable that fits into memory as list(iterable)."
        )
    return None


def source_length(source: Source) -> int:
    """Return the number of records of `source`.

    Args:
        source: any source.

    Returns:
        `len(source)`.

    Raises:
        UsageError: the source has no usable length.

    Example:
        >>> source_length(["a", "b"])
        2
    """
    try:
        return len(source)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise UsageError(
            f"the length of a source must be an int of at least 0; len() of {name_of(source)} raised "
            f"{type(error).__name__}: {error}. Give it a __len__ that returns the number of its records."
        ) from error


def check_length(source: Source, expected: int) -> None:
    """Check that `source` still has its first length.

    Args:
        source: any source.
        expected: the first length.

    Raises:
        SourceError: the length has changed.

    Example:
        >>> check_length(["a", "b"], 3)
        Traceback (most recent call last):
        penstock.errors.SourceError: the source changed its length from 3 to 2: list of length 2. ...
    """
    length = source_length(source)
    if length != expected:
        name = name_of(source)
        raise SourceError(
            f"the source changed its length from {expected} to {length}: {name}. Sources must not change while they "
            "are read: copy the data that you append to, and create the dataset again.",
            source=name,
        )


def check_unchanged(source: Source, given: Keys | list[int], keys: Keys | list[int]) -> None:
    """Check that a read left its keys as they are: the records of keys that it sorts come in another order.

    Args:
        source: any source.
        given: a copy of the keys, which the source was given.
        keys: the keys.

    Raises:
        SourceError: it has changed them.
    """
    if given == keys if isinstance(given, list) else given.tobytes() == np.asarray(keys).tobytes():
        return
    name = name_of(source)
    raise SourceError(
        f"the read of a source must not change its keys, since its records must come in their order; that of {name} "
        "changed them. Change a copy of them, such as np.sort(keys).",
        source=name,
        keys=np.asarray(keys)[:8].tolist(),
    )


def source_fingerprint(source: Source) -> str:
    """Return a short str that changes when the records of `source` do, as far as the source shows it.

    Args:
        source: any source; without a method `fingerprint()`, only its type and length count.

    Returns:
        The same str for equal sources, in every process.

    Raises:
        UsageError: `fingerprint()` of the source didn't return a str.

    Example:
        >>> source_fingerprint(["a", "b"])
        'builtins.list-2'
    """
    own = getattr(source, "fingerprint", None)
    if not callable(own):
        return f"{type(source).__module__}.{type(source).__qualname__}-{source_length(source)}"
    fingerprint = own()
    if not isinstance(fingerprint, str):
        raise UsageError(
            f"fingerprint() of a source must return a str; got {fingerprint!r} from {name_of(source)}. "
            "Return a str that changes when the records do."
        )
    return fingerprint


def can_read_into(source: Source) -> bool:
    """Return whether `source` can fill rows of arrays: it has `read_into`, and `fixed_shape` isn't False.

    Args:
        source: any source.

    Returns:
        True if `source.read_into(keys, out)` may be called.

    Example:
        >>> can_read_into(Arrays(np.zeros(3))), can_read_into([0.0, 0.0, 0.0])
        (True, False)
    """
    return callable(getattr(source, "read_into", None)) and bool(getattr(source, "fixed_shape", True))


def can_read_spans(source: Source) -> bool:
    """Return whether `source` can read spans of frames: it has `read_spans`.

    Args:
        source: any source.

    Returns:
        True if `source.read_spans(keys, starts, stops)` may be called.

    Example:
        >>> can_read_spans(Arrays(np.zeros((3, 4)))), can_read_spans([[0.0], [0.0]])
        (True, False)
    """
    return callable(getattr(source, "read_spans", None))


def describe_key(source: Source, key: int) -> str:
    """Return a text that helps a person find the record of `key`.

    Args:
        source: any source; its own `describe_key` is called if it has one.
        key: in [0, length).

    Returns:
        For example "key 3 (file 'cat/3.png')", or "key 3" without `describe_key`.

    Example:
        >>> describe_key(["a", "b"], 1)
        'key 1'
    """
    own = getattr(source, "describe_key", None)
    return printable(f"key {key} ({own(key)})") if callable(own) else f"key {key}"


class AsyncReader(Protocol):
    """The methods of an async source."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    async def read(self, keys: Keys, /) -> object:
        """Return one record for each key, in order."""
        ...


def is_async(value: object) -> TypeGuard[AsyncReader]:
    """Return whether an object has `async def read(self, keys)`.

    Args:
        value: any object.

    Returns:
        True if its `read` is a coroutine function, and it is no class.
    """
    return not isinstance(value, type) and inspect.iscoroutinefunction(getattr(value, "read", None))


class AwaitedSource:
    """A plain source over an async one. Copies in other processes and in forked children get their own event loop.

    Attributes:
        source: the user's source.
        keys_per_read: the largest number of keys in one call of its `read`, when records are read ahead.
        describe_key: the `describe_key` of the user's source, if it has one.
    """

    def __init__(self, source: AsyncReader) -> None:
        """Wrap a source.

        Args:
            source: an object for which `is_async` is true.

        Raises:
            UsageError: it has no length, or its `keys_per_read` is invalid.
        """
        if not hasattr(source, "__len__"):
            raise UsageError(
                f"an async source must have __len__ besides `async def read(self, keys)`; got {name_of(source)}, a "
                f"{type(source).__name__}. Give it a __len__ that returns the number of its records."
            )
        keys_per_read: object = getattr(source, "keys_per_read", 1)
        if not isinstance(keys_per_read, int) or keys_per_read < 1:
            raise UsageError(
                f"keys_per_read of a source must be an int of at least 1; got {keys_per_read!r} from "
                f"{name_of(source)}. Set it to the number of keys for one call of read, or omit it for 1."
            )
        self.source = source
        self.keys_per_read: int = keys_per_read
        describe_key: Callable[[int], str] | None = getattr(source, "describe_key", None)
        if callable(describe_key):
            self.describe_key = describe_key

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SupportsIndex) -> Record:
        records = self.read(np.array([as_key(key, len(self))], np.int64))
        return records[0]

    def read(self, keys: Keys) -> Record:
        """Wait for the result of the source's `read`, and return it.

        Args:
            keys: int64, one axis.

        Returns:
            The result, unchecked, as of any source.

        Raises:
            UsageError: the source's own `read` called this, which would wait for itself.
        """
        return self._loop().run(partial(self._read_copy, keys))

    async def read_async(self, keys: Keys) -> object:
        """Return the result of the source's `read`, from a coroutine of any loop, without blocking that loop.

        Args:
            keys: as for `read`.

        Returns:
            As for `read`.
        """
        return await self._loop().run_elsewhere(partial(self._read_copy, keys))

    async def _read_copy(self, keys: Keys) -> object:
        given = keys.copy()
        returned = await self.source.read(given)
        check_unchanged(self, given, keys)
        return returned

    def start(self, work: "Work") -> "Call":
        """Start the coroutine of `work` on the source's loop; return at once.

        Args:
            work: makes the coroutine, on the loop.

        Returns:
            The call, with its outcome and its `cancel`.
        """
        return self._loop().start(work)

    def begin_reading(self) -> None:
        """Note that a loader may read the source, until it calls `end_reading`."""
        if hasattr(self.source, "aclose"):
            _loops().begin_reading(self.source, self)

    def end_reading(self) -> None:
        """Note that a loader reads the source no more; if no other does, await the source's `aclose`."""
        if hasattr(self.source, "aclose"):
            _loops().end_reading(self.source, self)

    def _identity_parts(self) -> object:
        """Return the source, which the key of a cache identifies like any other."""
        return self.source

    def fingerprint(self) -> object:
        """Return the source's own fingerprint, or its type and length."""
        own: Callable[[], object] | None = getattr(self.source, "fingerprint", None)
        if callable(own):
            return own()
        kind = type(self.source)
        return f"{kind.__module__}.{kind.__qualname__}-{len(self)}"

    def __repr__(self) -> str:
        return repr(self.source)

    def __reduce__(self) -> tuple[object, ...]:
        return AwaitedSource, (self.source,)

    def _loop(self) -> "SourceLoop":
        return _loops().of(self.source, self)


def _loops() -> "Loops":
    from penstock.sources._source_loop import LOOPS  # noqa: PLC0415 - asyncio is slow to import

    return LOOPS


def content_digest(source: Source) -> str:
    """Return the digest of a sample of a source's records, as 16 hexadecimal digits.

    Args:
        source: any source.

    Returns:
        The same digest in every process, as of `sample_digest`; "" for a source whose `fingerprint()` covers its
        content, or that must be read to know its content.

    Example:
        >>> content_digest([1, 2]) == content_digest([1, 3])
        False
    """
    records: Sequence[object] = ()
    if type(source) in (list, tuple):  # another class may read from storage
        records = cast("Sequence[object]", source)
    elif type(source) is Arrays and not source.fixed_shape and len(source):
        records = _object_records(source)
    if not records:
        return ""
    return sample_digest(records)


def _object_records(source: Arrays) -> list[object]:
    """Return a sample of the records if they hold Python objects, which the source's fingerprint doesn't cover."""
    first: Any = source[0]
    values: list[object] = list(cast("dict[str, object]", first).values()) if isinstance(first, dict) else [first]
    if not any(map(_is_object, values)):
        return []
    return [source[number] for number in sample(len(source))]


def _is_object(value: object) -> bool:
    held: Any = value
    return bool(held.dtype.hasobject) if isinstance(value, np.generic | np.ndarray) else True
