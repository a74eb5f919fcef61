"""Digests of the records that elements are made of, by which two datasets are compared.

Records are compared as the source has them, before any function, since a split for training is augmented and one for
validation isn't. Two records count as equal if all their leaves are equal, or if they have the same largest leaf, of at
least 64 bytes: the same picture or text under another name, or with another label, is the same one to a model.
"""

import hashlib
import pickle
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._caught import Caught
from penstock._graph import Element, Integers, Node, Read, walk
from penstock._graph._inputs import inputs
from penstock._tree import flatten
from penstock.batching import as_value
from penstock.observe._lint import Finding
from penstock.sources import describe_key, read_records

_LARGE: Final = 64  # bytes of a leaf that identifies a record


class Records(NamedTuple):
    """Some records of a dataset; arrays of shape (records,)."""

    digests: NDArray[np.uint64]
    sources: NDArray[np.int32]
    """The numbers of their sources, as `sources_of` lists them."""
    keys: Integers

    @staticmethod
    def joined(parts: "list[Records]") -> "Records":
        """Return the records of all parts, each of them once."""
        none = Records(np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.int64))
        digests, sources, keys = map(np.concatenate, zip(*parts, none, strict=True))
        first = np.sort(np.unique(digests, return_index=True)[1])
        return Records(digests[first], sources[first], keys[first])


def sources_of(node: Node) -> list[Read]:
    """Return the sources below a node."""
    return [each for each in walk(node) if isinstance(each, Read)]


def records_of(node: Node, positions: Integers) -> Records:
    """Return the records that some elements of epoch 0 are made of, without those that can't be read.

    Args:
        node: with positions.
        positions: of the elements.
    """
    numbers = {id(source): number for number, source in enumerate(sources_of(node))}
    parts: list[Records] = []
    for source, keys in _reads(node, np.zeros_like(positions), positions):
        found = [(digest, key) for key, record in _readable(source, np.unique(keys)) if (digest := _digest(record))]
        digests, known = np.array([each for each, _ in found], np.uint64), np.array([key for _, key in found], np.int64)
        parts.append(Records(digests, np.full(len(found), numbers[id(source)], np.int32), known))
    return Records.joined(parts)


class Compared(NamedTuple):
    """A dataset that is compared with others."""

    name: str
    node: Node
    records: Records

    def record_name(self, place: int) -> str:
        """Return the name of one of the records."""
        number, key = int(self.records.sources[place]), int(self.records.keys[place])
        return describe_key(sources_of(self.node)[number].source, key)


def shared(one: Compared, other: Compared) -> Iterator[Finding]:
    """Yield a finding if some records are in both of two datasets."""
    digests = one.records.digests, other.records.digests
    _, first, second = np.intersect1d(*digests, assume_unique=True, return_indices=True)
    if len(first):
        order = np.argsort(first)
        pairs = zip(first[order].tolist(), second[order].tolist(), strict=True)
        names = tuple(f"{one.record_name(place)} and {other.record_name(same)}" for place, same in pairs)
        are = "record is" if len(first) == 1 else "records are"
        text = f"{len(first):,} {are} in {one.name} and in {other.name}"
        yield Finding("shared", text, len(first), records=names)


def _reads(node: Node, epochs: Integers, positions: Integers) -> Iterator[tuple[Read, Integers]]:
    """Yield the sources of some elements, and the keys of their records."""
    if isinstance(node, Read):
        yield node, positions
        return
    for below in inputs(node, epochs, positions):
        yield from _reads(below.parent, below.epochs, below.positions)


def _readable(source: Read, keys: Integers) -> Iterator[tuple[int, Element]]:
    with Caught(Exception):
        yield from zip(keys.tolist(), read_records(source.source, keys), strict=True)
        return
    for key in keys.tolist():
        with Caught(Exception):
            yield key, read_records(source.source, np.array([key], np.int64))[0]


def _digest(record: Element) -> int:
    """Return the digest of a record, above 0; 0 if it has none."""
    contents: list[bytes] = []
    with Caught(Exception):  # of an object's own code
        contents = list(map(_content, flatten(record)[0]))
    if not contents:
        return 0
    largest = max(contents, key=len)
    digest = hashlib.blake2b(digest_size=8)
    for content in [largest] if len(largest) >= _LARGE else contents:
        digest.update(len(content).to_bytes(8, "little") + content)
    return int.from_bytes(digest.digest(), "little") or 1


def _content(leaf: object) -> bytes:
    with Caught(Exception):
        value = as_value(leaf)
        if value is None or isinstance(value, bytes):
            return value or b""
        return value.encode("utf-8", "replace") if isinstance(value, str) else value.tobytes()
    return pickle.dumps(leaf)
