"""The digest of records that are Python objects: of an evenly spread sample, in bounded time.

Numbers, texts, arrays, and containers of these count by value, long ones by a sample; any other object counts by its
type. No code of the objects runs.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from penstock.sources._arrays import Arrays
from penstock.sources._source import Source

_RECORDS: Final = 256
_ITEMS: Final = 16  # items of a container in a record
_VALUES: Final = 64  # values of an array in a record
_CHARACTERS: Final = 1024
_DEEPEST: Final = 6  # containers within containers


def content_digest(source: Source) -> str:
    """Return the digest of a sample of a source's records, as 16 hexadecimal digits.

    Args:
        source: any source.

    Returns:
        The same digest in every process; "" for a source whose `fingerprint()` covers its content, or that must be read
        to know its content.

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
    digest = hashlib.blake2b(digest_size=8)
    for text in _texts_of(records, _RECORDS, 0):
        digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _object_records(source: Arrays) -> list[object]:
    """Return a sample of the records if they hold Python objects, which the source's fingerprint doesn't cover."""
    first: Any = source[0]
    values: list[object] = list(cast("dict[str, object]", first).values()) if isinstance(first, dict) else [first]
    if not any(map(_is_object, values)):
        return []
    return [source[number] for number in _spread(len(source), _RECORDS)]


def _is_object(value: object) -> bool:
    held: Any = value
    return bool(held.dtype.hasobject) if isinstance(value, np.generic | np.ndarray) else True


def _spread(count: int, most: int) -> Sequence[int]:
    """Return at most `most` of `count` numbers, evenly spread."""
    return range(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64).tolist()


def _texts_of(values: Sequence[object], most: int, depth: int) -> Iterator[str]:
    """Yield texts that identify the items of a sequence, or a sample of `most` of them."""
    count = len(values)
    yield f"{count}"
    for number in _spread(count, most):
        yield from _texts(values[number], depth)


def _texts(value: object, depth: int) -> Iterator[str]:
    kind = type(value).__name__
    match value:
        case None | bool() | int() | float() | complex():
            yield f"{kind} {value!r}"
        case str():
            yield f"{kind} {_ends(value)}"
        case bytes() | bytearray():
            yield f"{kind} {_ends(value.decode('latin-1'))}"
        case np.ndarray() | np.generic():
            array: NDArray[Any] = np.asarray(cast("Any", value))
            yield f"{kind} {_array_text(array)}"
        case dict() | list() | tuple() if depth < _DEEPEST:
            held = cast("dict[object, object] | Sequence[object]", value)
            yield f"{kind} {len(held)}"
            items = tuple(itertools.islice(held.items(), _ITEMS)) if isinstance(held, dict) else held
            yield from _texts_of(items, _ITEMS, depth + 1)
        case _:
            yield kind


def _ends(text: str) -> str:
    """Return a text, or the length and both ends of a long one."""
    half = _CHARACTERS // 2
    return text if len(text) <= _CHARACTERS else f"{len(text)} {text[:half]}…{text[-half:]}"


def _array_text(array: NDArray[Any]) -> str:
    described = f"{array.dtype} {array.shape}"
    if array.dtype.hasobject or not array.size:
        return described
    places = np.linspace(0, array.size - 1, min(array.size, _VALUES)).astype(np.int64)
    return f"{described} {array.flat[places].tobytes().hex()}"
