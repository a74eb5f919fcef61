"""The digest of an evenly spread sample of records, in bounded time.

Numbers, texts, arrays, and containers of these count by value, long ones by a sample; any other object counts by its
type. No code of the objects runs.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

_RECORDS: Final = 256
_ITEMS: Final = 16  # items of a container in a record
_VALUES: Final = 64  # values of an array in a record
_CHARACTERS: Final = 1024
_DEEPEST: Final = 6  # containers within containers


def sample(count: int) -> Sequence[int]:
    """Return at most 256 of `count` keys, evenly spread.

    Args:
        count: the number of records.

    Returns:
        All keys, or some in increasing order.
    """
    return _spread(count, _RECORDS)


def sample_digest(records: Sequence[object]) -> str:
    """Return the digest of a sample of records, as 16 hexadecimal digits.

    Args:
        records: the records; only those of the sample are read.

    Returns:
        The same digest in every process.
    """
    digest = hashlib.blake2b(digest_size=8)
    for text in _texts_of(records, _RECORDS, 0):
        digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


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
