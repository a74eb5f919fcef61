"""What may be given where a source is wanted, and what a dataset asks of it besides records."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from penstock.errors import SourceError, UsageError
from penstock.sources._arrays import Arrays
from penstock.sources._awaited._source import AwaitedSource, is_async
from penstock.sources._source import Source, name_of


def as_source(value: object) -> Source:
    """Return `value` as a source.

    A dict of arrays, or an array, becomes `Arrays`. Any other object with `__len__` and `__getitem__` is returned as it
    is: a list, a torch map-style dataset, a Hugging Face `Dataset`, an ArrayRecord data source. One whose `read` is
    async needs no `__getitem__`; it becomes a source that any code can read.

    Args:
        value: what the user gave.

    Returns:
        A source.

    Raises:
        UsageError: it is none. The message says what to do instead.

    Example:
        >>> as_source({"x": np.arange(3)})
        Arrays({'x': int64[3]})
        >>> as_source(["a", "b"])
        ['a', 'b']
    """
    if isinstance(value, dict | np.ndarray):
        return Arrays(cast("dict[str, Any]", value))
    if is_async(value):
        return AwaitedSource(value)
    remedy = _remedy(value)
    if remedy is not None:
        raise UsageError(
            f"a source must have __len__ and __getitem__ with keys from 0 on; got {name_of(value)}, a "
            f"{type(value).__name__}. {remedy}"
        )
    return cast("Source", value)


def _remedy(value: object) -> str | None:
    if isinstance(value, str | bytes | bytearray) or hasattr(value, "__fspath__"):
        return (
            "To read from a path, name the format: ps.sources.ImageFolder, Files, Tokens or JsonLines, "
            "as in ps.read(ps.sources.ImageFolder(path))."
        )
    if isinstance(value, type):
        return "That is the class itself: make an instance of it."
    if hasattr(value, "iloc") and hasattr(value, "columns"):
        return "Its keys are columns: give {name: frame[name].to_numpy() for name in frame.columns}."
    if isinstance(value, Mapping):
        return "Its keys are names: give a dict of arrays, or one of its values."
    if not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return (
            "Give a list, a dict of arrays or one of ps.sources, or write a class with these two methods; "
            "an iterable that fits into memory can be given as list(iterable)."
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
    """Check that `source` still has the length that it had when it was first asked.

    Args:
        source: any source.
        expected: that length.

    Raises:
        SourceError: the length is another one now.

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
            "are read: copy what you add to, and make the dataset anew.",
            source=name,
        )


def source_fingerprint(source: Source) -> str:
    """Return a short str that changes when the records of `source` do, as far as the source can tell.

    Args:
        source: any source; one without `fingerprint()` is told by its type and length alone.

    Returns:
        The same str for equal sources, in every process.

    Raises:
        UsageError: `fingerprint()` of the source returned something else than a str.

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
    """Return whether `source` fills rows of arrays itself: it has `read_into`, and `fixed_shape` isn't False.

    Args:
        source: any source.

    Returns:
        True where `source.read_into(keys, out)` may be called.

    Example:
        >>> can_read_into(Arrays(np.zeros(3))), can_read_into([0.0, 0.0, 0.0])
        (True, False)
    """
    return callable(getattr(source, "read_into", None)) and bool(getattr(source, "fixed_shape", True))


def describe_key(source: Source, key: int) -> str:
    """Return what a person would look for to find the record of `key`.

    Args:
        source: any source; its own `describe_key` is asked where it has one.
        key: in [0, length).

    Returns:
        For example "key 3 (file 'cat/3.png')", or "key 3" where the source knows no more.

    Example:
        >>> describe_key(["a", "b"], 1)
        'key 1'
    """
    own = getattr(source, "describe_key", None)
    return f"key {key} ({own(key)})" if callable(own) else f"key {key}"


def can_read_spans(source: Source) -> bool:
    """Return whether `source` reads runs of frames out of its records: it has `read_spans`.

    Args:
        source: any source.

    Returns:
        True where `source.read_spans(keys, starts, stops)` may be called.

    Example:
        >>> can_read_spans(Arrays(np.zeros((3, 4)))), can_read_spans([[0.0], [0.0]])
        (True, False)
    """
    return callable(getattr(source, "read_spans", None))
