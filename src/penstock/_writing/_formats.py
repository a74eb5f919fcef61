"""The formats that `write` writes, each a value: how many bytes an element takes, and how a shard is written.

A format must write equal elements as equal bytes, whatever the time, the host and the process.
"""

import contextlib
import io
import json
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Protocol, cast

import numpy as np

from penstock._frozen import frozen
from penstock._graph import Element
from penstock._tree import is_array
from penstock._writing._columns import Columnar, fields_of, modules
from penstock._writing._drafts import Draft
from penstock._writing._tokens import TokenPairs
from penstock.errors import UsageError
from penstock.sources._tar import key_and_field

_BUFFER_BYTES: Final = 1 << 18  # passed to the system at once: each call takes a microsecond

_JSON_VALUES: Final = frozenset((str, int, float, bool, type(None)))

Block = tuple[int, Sequence[Element]]
"""Consecutive elements, after the position of the first."""


class Format(Protocol):
    """The format of all shards of a folder."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The ends of the names of a shard's files, such as ".tar"."""
        ...

    def size_of(self, element: Element, position: int, /) -> int:
        """Return about how many bytes the element at a position takes in a shard.

        Raises:
            UsageError: it doesn't fit the format; the message has its position.
        """
        ...

    def write(self, blocks: Iterable[Block], drafts: Sequence[Draft], /) -> None:
        """Append these elements to one draft for each of the suffixes.

        Raises:
            UsageError: an element doesn't fit the format; the message has its position.
        """
        ...


@frozen
class Tar:
    """Tar files in the naming of WebDataset: a member for each field of an element, named by its key and the field."""

    suffixes: tuple[str, ...] = (".tar",)

    def size_of(self, element: object, position: int) -> int:
        """Return the bytes of the members, each with a header and filled up to 512."""
        fields = _members(element, position)[1]
        return sum(512 + -(-len(content) // 512) * 512 for content in fields.values())

    def write(self, blocks: Iterable[Block], drafts: Sequence[Draft]) -> None:
        """Write the members of each element, in order."""
        [draft] = drafts
        keys: set[str] = set()
        with _buffered(draft) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for position, element in _numbered(blocks):
                key, fields = _members(element, position)
                if key in keys:
                    raise UsageError(
                        f"the elements of a tar file need different keys; position {position} has the key {key!r} "
                        "again. Give each element its own __key__, or leave __key__ out."
                    )
                keys.add(key)
                for field, content in fields.items():
                    member = tarfile.TarInfo(f"{key}.{field}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def _members(element: object, position: int) -> tuple[str, Mapping[str, bytes]]:
    """Return the key of an element and the content of each of its fields.

    Raises:
        UsageError: it isn't a dict, or a key or value doesn't fit.
    """
    fields = dict(fields_of(element, position, "a tar file"))
    key = fields.pop("__key__", f"{position:09}")
    if not isinstance(key, str) or key.startswith("/") or not _comes_back(key, "x"):
        raise UsageError(
            "__key__ must be text that can begin the name of a file in a tar file, with a last part that is not empty "
            f"and has no dot, and outside of a folder such as __meta__; got {key!r} at position {position}"
        )
    if not fields:
        raise UsageError(
            f"an element in a tar file must have a field beside its __key__; the one at position {position} has none. "
            "Filter such elements, or add a field in a map."
        )
    for field in fields:
        if not field or "/" in field or field.startswith(".") or not _comes_back(key, field):
            raise UsageError(
                f"a field of a tar file must be the lower-case end of a file's name, such as 'jpg'; got {field!r} at "
                f"position {position}. Rename it in a map."
            )
    return key, {field: _content(value, field, position) for field, value in fields.items()}


def _comes_back(key: str, field: str) -> bool:
    """Return whether a reader finds this key and field in the name of their member."""
    name = f"{key}.{field}"
    return "\0" not in name and _is_encodable(name, "surrogateescape") and key_and_field(name) == (key, field)


def _is_encodable(text: str, errors: str = "strict") -> bool:
    """Return whether UTF-8 has the text; it has no half of a pair of surrogates."""
    with contextlib.suppress(UnicodeEncodeError):
        text.encode("utf-8", errors)
        return True
    return False


def _content(value: object, field: str, position: int) -> bytes:
    if isinstance(value, str) and _is_encodable(value):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if is_array(value) and value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes()
    raise UsageError(
        f"a field of a tar file must be bytes or text that UTF-8 has; field {field!r} at position {position} is a "
        f"{type(value).__name__}. Encode it in a map, for example with json.dumps or numpy.save."
    )


@frozen
class JsonLines:
    """Files of JSON, an element in each line; arrays become lists."""

    suffixes: tuple[str, ...] = (".jsonl",)

    def size_of(self, element: object, position: int) -> int:
        """Return the bytes of the line."""
        return len(_line(element, position))

    def write(self, blocks: Iterable[Block], drafts: Sequence[Draft]) -> None:
        """Write a line for each element."""
        [draft] = drafts
        with _buffered(draft) as file:
            for begin, elements in blocks:
                looks = not _are_flat(elements)
                file.writelines(_line(each, at, looks_at_keys=looks) for at, each in enumerate(elements, begin))


def _are_flat(elements: Sequence[Element]) -> bool:
    """Return whether all elements of a block are plain values, or dicts of them whose keys are texts."""
    kinds = {*map(type, elements)}
    if kinds != {dict}:
        return kinds <= _JSON_VALUES
    held = cast("Sequence[dict[object, object]]", elements)
    values = map(type, chain.from_iterable(each.values() for each in held))
    return {str}.issuperset(map(type, chain.from_iterable(held))) and _JSON_VALUES.issuperset(values)


def _line(element: object, position: int, *, looks_at_keys: bool = True) -> bytes:
    """Return the line of an element.

    Raises:
        UsageError: JSON has no such value.
    """
    try:
        text = json.dumps(element, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        if looks_at_keys:
            _need_text_keys(element)
        return text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise UsageError(f"JSON has no such value at position {position}: {error}. Convert it in a map.") from error


def _plain(value: object) -> object:
    given: Any = value
    # `tolist` makes a number of a time in nanoseconds, and nothing plain of the longest floats.
    if isinstance(value, np.ndarray | np.generic) and given.dtype.kind not in "mM" and given.dtype.char not in "gG":
        return given.tolist()
    message = f"a {type(given).__name__}"
    raise TypeError(message)


def _need_text_keys(value: object) -> None:
    """Check the keys of all dicts: JSON would make texts of numbers, and of two keys one.

    Raises:
        TypeError: a key isn't text.
    """
    held = cast("Any", value)
    inner: Iterable[object] = held if isinstance(value, list | tuple) else ()
    if isinstance(value, dict):
        inner = held.values()
        for key in held:
            if not isinstance(key, str):
                message = f"a dict with the key {key!r}, which is no text"
                raise TypeError(message)
    for each in inner:
        if type(each) not in _JSON_VALUES:  # most are these, and have no keys
            _need_text_keys(each)


@contextlib.contextmanager
def _buffered(draft: Draft) -> Generator["io.BufferedWriter[Draft]"]:
    """Yield a file that gathers small parts for a draft."""
    file = io.BufferedWriter(draft, _BUFFER_BYTES)
    try:
        yield file
    finally:
        file.detach()  # it writes the rest; closing it would close the draft


def _numbered(blocks: Iterable[Block]) -> Iterator[tuple[int, Element]]:
    """Yield each element after its position."""
    for begin, elements in blocks:
        yield from enumerate(elements, begin)


_FORMATS: Final[Mapping[str, Callable[[Sequence[int], Sequence[Element]], Format]]] = {
    "arrow": lambda positions, sample: Columnar.of(positions, sample, (".arrow",)),
    "parquet": lambda positions, sample: Columnar.of(positions, sample, (".parquet",)),
    "tokens": TokenPairs.of,
    "tar": lambda _, __: Tar(),
    "jsonl": lambda _, __: JsonLines(),
}


def modules_of(name: object) -> tuple[str, ...]:
    """Return the modules with which shards of a format are written, other than Penstock's, as far as they are known."""
    return modules() if isinstance(name, str) and name in {"arrow", "parquet"} else ()


def format_of(name: object, positions: Sequence[int], sample: Sequence[Element]) -> Format:
    """Return the format of a name, for elements like those of a sample, which are at these positions.

    Raises:
        UsageError: there is no such format, or the elements don't fit it.
        MissingDependencyError: pyarrow isn't installed, for a table.
    """
    make = _FORMATS.get(name) if isinstance(name, str) else None
    if make is None:
        known = ", ".join(map(repr, _FORMATS))
        raise UsageError(f"format must be one of {known}; got format={name!r}")
    return make(positions, sample)
