"""Tests for extensions of Penstock: `SourceTests` and `BlockSourceTests` check a source that you wrote.

The suite needs a test runner that collects methods named `test_…`, such as pytest, but imports none.
"""

import cmath
import copy
import dataclasses
import gc
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from operator import getitem
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from penstock._tensors import is_tensor, torch_module
from penstock._tree import flatten, is_array, unflatten
from penstock.sampling import BlockShuffle
from penstock.sources import (
    AwaitedSource,
    Source,
    as_source,
    can_read_into,
    can_read_spans,
    read_records,
    source_fingerprint,
    source_length,
)

__all__ = ["BlockSourceTests", "SourceTests"]

Record = Any  # a record of the source under test

_THREADS: Final = 4
_ROUNDS: Final = 20
_MANY_KEYS: Final = 300  # more than one query of some databases takes


class SourceTests:
    """Checks that a source keeps its promises, which `penstock.sources.Source` describes.

    Subclass it under a name that the test runner collects, and supply two things: `make_source`, which returns a new
    source over the same records at each call, and `expected`, those records in the order of their keys, at least two.
    Records are compared leaf by leaf: arrays, NumPy scalars and torch tensors with dtype and shape, all else with `==`;
    a NaN equals a NaN. A source with `async def read` is read as a loader reads it.

    Example:
        >>> class TestMySource(SourceTests):
        ...     expected = [0, 1, 4, 9]
        ...
        ...     def make_source(self):
        ...         return [key * key for key in range(4)]
        >>> TestMySource().test_records_come_in_the_order_of_the_keys()
    """

    expected: Sequence[Any]

    def make_source(self) -> object:
        """Return a new source over the records `expected`: what `penstock.read` takes.

        Raises:
            NotImplementedError: a subclass must supply it.
        """
        raise NotImplementedError("a subclass of SourceTests must define make_source(self)")

    def _source(self) -> Source:
        return as_source(self.make_source())

    def test_length_is_the_number_of_records(self) -> None:
        """The length is the number of records, before and after a read."""
        source = self._source()
        assert len(self.expected) >= 2, "expected must have at least two records"
        assert source_length(source) == len(self.expected)
        read_records(source, np.array([0]))
        assert source_length(source) == len(self.expected)

    def test_a_record_can_be_read_alone(self) -> None:
        """Each key returns its record, and returns it again at the next read."""
        source = self._source()
        for _ in range(2):
            for key, record in enumerate(self.expected):
                assert_same(source[key], record)

    def test_a_key_past_the_end_raises_index_error(self) -> None:
        """A key at or past the length raises IndexError; that is also how Python iterates over a source."""
        source = self._source()
        for key in (len(self.expected), len(self.expected) + 1_000_000):
            assert _raises_index_error(partial(getitem, source, key)), f"source[{key}] must raise IndexError"

    def test_a_negative_key_counts_from_the_end_or_raises_index_error(self) -> None:
        """A negative key counts from the end, as in Python, or raises IndexError; it reads no other record."""
        source = self._source()
        count = len(self.expected)
        for key in range(-count, 0):
            if not _raises_index_error(partial(getitem, source, key)):
                assert_same(source[key], self.expected[key])
        assert _raises_index_error(lambda: source[-count - 1]), f"source[{-count - 1}] must raise IndexError"

    def test_records_come_in_the_order_of_the_keys(self) -> None:
        """A block has one record for each key, with keys in any order and repeated."""
        source = self._source()
        last = len(self.expected) - 1
        many = [number * number % (last + 1) for number in range(_MANY_KEYS)]
        for keys in ([last, 0, last], list(range(last + 1)), list(range(last, -1, -1)), [0] * 5, many):
            records = read_records(source, np.array(keys))
            assert len(records) == len(keys)
            for key, record in zip(keys, records, strict=True):
                assert_same(record, self.expected[key])

    def test_no_keys_give_no_records(self) -> None:
        """An empty block is an empty list."""
        assert read_records(self._source(), np.empty(0, np.int64)) == []

    def test_records_are_independent_of_the_source(self) -> None:
        """Changing the arrays, dicts and lists of a record doesn't change the records that the source returns next."""
        wanted = copy.deepcopy([*self.expected])
        self.expected = copy.deepcopy(self.expected)  # which the source may return
        source = self._source()
        for read in (_read_singly, _read_at_once):
            for record in read(source, len(wanted)):
                _change(record)
            assert_same(read(source, len(wanted)), wanted)

    def test_records_stay_as_they_are_at_later_reads(self) -> None:
        """A later read doesn't change the records of an earlier one, as it would in memory that the source reuses."""
        source = self._source()
        kept = _read_singly(source, len(self.expected)) + _read_at_once(source, len(self.expected))
        read_records(source, np.arange(len(self.expected))[::-1].copy())
        assert_same(kept, [*self.expected, *self.expected])

    def test_records_of_one_read_share_no_arrays(self) -> None:
        """Changing a record doesn't change the other records of the same read."""
        wanted = copy.deepcopy([*self.expected])
        self.expected = copy.deepcopy(self.expected)  # which the source may return
        last = len(wanted) - 1
        keys = [last, 0, last, *range(last)]
        for key, record in zip(keys, read_records(self._source(), np.array(keys)), strict=True):
            assert_same(record, wanted[key])
            _change(record)

    def test_read_into_fills_what_read_returns(self) -> None:
        """If a source has `read_into`, it fills rows with the records, whatever they hold before."""
        source = self._source()
        if not can_read_into(source):
            return
        last = len(self.expected) - 1
        leaves, structure = flatten(self.expected[0])
        for keys in (np.array([last, 0, last]), np.arange(last + 1), np.empty(0, np.int64)):
            for number in (0, 1):
                columns = [_rows(len(keys), number, leaf) for leaf in leaves]
                out = unflatten(structure, columns)
                given = dict(cast("dict[object, object]", out)) if isinstance(out, dict) else {}
                its_keys = keys.copy()
                cast("Any", source).read_into(its_keys, out)
                assert_same(its_keys, keys)
                for name, part in given.items():
                    assert out[name] is part, f"read_into must fill out[{name!r}], and not replace it"
                for row, key in enumerate(keys.tolist()):
                    for column, leaf in zip(columns, flatten(self.expected[key])[0], strict=True):
                        assert_same(column[row], leaf if isinstance(leaf, str | bytes) else np.asarray(leaf)[()])

    def test_read_spans_gives_frames_of_the_records(self) -> None:
        """If a source has `read_spans`, it returns frames of a record's arrays, and other leaves unchanged.

        The test applies if all arrays of a record have the same number of frames, the length of their first axis.
        """
        source = self._source()
        frames = [_frames(record) for record in self.expected]
        if not can_read_spans(source) or 0 in frames:
            return
        keys = [len(frames) - 1, 0, len(frames) - 1]
        starts, stops = [0, frames[0] - 1, frames[-1] // 2], [frames[-1], frames[0], frames[-1] // 2 + 1]
        columns = (np.array(column, np.int64) for column in (keys, starts, stops))
        records = cast("Any", source).read_spans(*columns)
        assert len(records) == len(keys)
        for record, key, start, stop in zip(records, keys, starts, stops, strict=True):
            assert_same(record, _map_leaves(self.expected[key], partial(_cut, start, stop)))

    def test_pickled_copies_give_the_same_records(self) -> None:
        """A source can be sent to another process: before its first read, after it, and again from there."""
        source = self._source()
        fresh = pickle.loads(pickle.dumps(source))
        assert_same(source[0], self.expected[0])
        used = pickle.loads(pickle.dumps(source))
        for twin in (fresh, used, pickle.loads(pickle.dumps(used))):
            assert source_length(twin) == len(self.expected)
            assert_same(twin[len(self.expected) - 1], self.expected[-1])
            assert_same(read_records(twin, np.array([1, 0])), [self.expected[1], self.expected[0]])

    def test_threads_may_read_at_once(self) -> None:
        """Reads from several threads, the first read included, return the records of their keys."""
        source = self._source()
        keys = np.arange(len(self.expected))

        def read_all(thread: int) -> None:
            for turn in range(_ROUNDS):
                order = np.roll(keys, thread + turn)
                assert_same(read_records(source, order), [self.expected[key] for key in order.tolist()])

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(read_all, range(_THREADS)))

    def test_fingerprint_is_the_same_for_equal_sources(self) -> None:
        """The fingerprint is a str, equal for another source over the same records, after a read and after pickling."""
        source = self._source()
        fingerprint = source_fingerprint(source)
        assert fingerprint
        assert_same(source[0], self.expected[0])
        assert source_fingerprint(source) == fingerprint
        assert source_fingerprint(self._source()) == fingerprint
        assert source_fingerprint(pickle.loads(pickle.dumps(source))) == fingerprint

    def test_no_descriptor_is_left(self) -> None:
        """A source that was read and then dropped, with its copies, leaves no descriptor open.

        Not checked of an async source, whose event loop ends some time later, in a thread of its own.
        """
        gc.collect()
        before = _descriptors()
        source = self._source()
        if isinstance(source, AwaitedSource):
            return
        twin = pickle.loads(pickle.dumps(source))
        for read in (source, twin):
            assert_same(read_records(read, np.array([0])), [self.expected[0]])
        del source, twin, read
        gc.collect()
        assert _descriptors() == before


class BlockSourceTests(SourceTests):
    """Checks a source with blocks, which `penstock.sources.BlockSource` describes, and all that `SourceTests` checks.

    A subclass may also supply `length_columns`, the arguments for which `lengths` is checked.

    Example:
        >>> class TestMyPages(BlockSourceTests):
        ...     expected = [5, 6, 7]
        ...
        ...     def make_source(self):
        ...         class Pages(list):
        ...             blocks = np.array([0, 2, 3])
        ...
        ...         return Pages([5, 6, 7])
        >>> TestMyPages().test_blocks_cover_the_keys()
    """

    length_columns: Sequence[str] = ()

    def test_blocks_cover_the_keys(self) -> None:
        """Blocks are integers from 0 to the length that never decrease."""
        blocks = _blocks_of(self._source())
        assert blocks.dtype == np.int64, f"blocks must be int64; they are {blocks.dtype}"
        assert blocks.ndim == 1, f"blocks must have one axis; they have the shape {blocks.shape}"
        assert len(blocks) > 1, f"blocks must have a begin and an end; they are {blocks.tolist()}"
        assert blocks[0] == 0, f"blocks must begin with 0; they begin with {blocks[0]}"
        assert blocks[-1] == len(self.expected), f"blocks must end with the length; they end with {blocks[-1]}"
        assert bool(np.all(np.diff(blocks) >= 0)), f"blocks must never decrease; they are {blocks.tolist()}"

    def test_blocks_are_the_same_in_every_copy(self) -> None:
        """Another source over the same records, and a pickled copy, have the same blocks, also after a read."""
        source = self._source()
        blocks = _blocks_of(source).copy()
        assert_same(source[0], self.expected[0])
        for twin in (source, self._source(), pickle.loads(pickle.dumps(source))):
            assert_same(_blocks_of(twin), blocks)

    def test_a_block_is_read_at_once(self) -> None:
        """The keys of each block, read together, give its records; and so do the keys of a shuffle by blocks."""
        source = self._source()
        blocks = _blocks_of(source)
        shuffled = BlockShuffle(blocks, seed=7, live=2, rows=2)
        keys: list[NDArray[np.int64]] = [np.arange(begin, end) for begin, end in pairwise(blocks.tolist())]
        keys.append(shuffled.block(np.zeros(len(shuffled), np.int64), np.arange(len(shuffled)))[1])
        for together in keys:
            assert_same(read_records(source, together), [self.expected[key] for key in together.tolist()])

    def test_lengths_are_those_of_the_records(self) -> None:
        """For each of `length_columns`, `lengths` returns the lengths of the column's values, and 0 for None."""
        for column in self.length_columns:
            lengths = cast("Any", self._source()).lengths(column)
            wanted = [0 if record[column] is None else len(record[column]) for record in self.expected]
            assert_same(lengths, np.array(wanted, np.int64))


def assert_same(actual: object, expected: object) -> None:
    """Assert that two records are equal, leaf by leaf.

    Args:
        actual: the record that was read.
        expected: the expected record; arrays, NumPy scalars and tensors are compared with dtype and shape.
    """
    if isinstance(expected, np.ndarray | np.generic):
        assert isinstance(actual, np.ndarray | np.generic), f"{actual!r} must be NumPy's, as {expected!r} is"
        _assert_same_array(cast("NDArray[Any]", actual), cast("NDArray[Any]", expected))
    elif is_tensor(expected):
        assert is_tensor(actual), f"{actual!r} must be a tensor, as {expected!r} is"
        torch_module().testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, Mapping):
        wanted = cast("Mapping[Any, object]", expected)
        assert isinstance(actual, Mapping), f"{actual!r} must be a mapping"
        given = cast("Mapping[Any, object]", actual)
        assert list(given) == list(wanted), f"the keys {[*given]} must equal {[*wanted]}"
        for name in wanted:
            assert_same(given[name], wanted[name])
    elif isinstance(expected, list | tuple):
        wanted_parts = cast("Sequence[object]", expected)
        assert isinstance(actual, list | tuple), f"{actual!r} must be a list or tuple"
        for given_part, wanted_part in zip(cast("Sequence[object]", actual), wanted_parts, strict=True):
            assert_same(given_part, wanted_part)
    elif _is_dataclass(expected):
        assert type(actual) is type(expected), f"{actual!r} must be a {type(expected).__qualname__}"
        assert_same(_fields_of(actual), _fields_of(expected))
    else:
        is_equal = actual is expected or actual == expected or _are_nan(actual, expected)
        assert is_equal, f"{actual!r} must equal {expected!r}"


def _assert_same_array(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if expected.dtype.hasobject and not expected.dtype.names:
        assert_same(actual.ravel().tolist(), expected.ravel().tolist())
    for name in expected.dtype.names or ():
        assert_same(actual[name], expected[name])
    if not expected.dtype.names and not expected.dtype.hasobject:
        has_nan = expected.dtype.kind in "fcmM"
        assert np.array_equal(actual, expected, equal_nan=has_nan), f"{actual!r} must equal {expected!r}"


def _are_nan(*values: object) -> bool:
    return all(isinstance(value, float | complex) and cmath.isnan(value) for value in values)


def _is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields_of(value: object) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(cast("Any", value))}


def _read_singly(source: Source, count: int) -> list[Record]:
    return [source[key] for key in range(count)]


def _read_at_once(source: Source, count: int) -> list[Record]:
    return read_records(source, np.arange(count))


def _blocks_of(source: Source) -> NDArray[np.int64]:
    return np.asarray(cast("Any", source).blocks)


def _map_leaves(record: object, change: Callable[[Any], object]) -> Record:
    if isinstance(record, Mapping):
        parts = cast("Mapping[Any, object]", record)
        return {name: _map_leaves(part, change) for name, part in parts.items()}
    if isinstance(record, list | tuple):
        return [_map_leaves(part, change) for part in cast("Sequence[object]", record)]
    return change(record)


def _change(part: Record) -> None:
    """Change the arrays, tensors, dicts and lists of a record, as a function of a dataset may."""
    children: Sequence[object] = ()
    if is_tensor(part):
        with suppress(RuntimeError):  # torch refuses it for tensors that no function can write to
            part.detach().fill_(0 if part.any() else 1)
    elif is_array(part):
        _overwrite(part)
    elif _is_dataclass(part):
        children = [*_fields_of(part).values()]
    elif isinstance(part, dict):
        children = [*cast("dict[object, object]", part).values()]
    elif isinstance(part, list | tuple):
        children = [*cast("Sequence[object]", part)]
    for child in children:
        _change(child)
    if isinstance(part, dict | list):
        cast("list[object]", part).clear()


def _overwrite(array: NDArray[Any]) -> None:
    if array.flags.writeable:
        array[...] = np.where(array == 1, 0, 1) if array.dtype.kind in "biufc" else np.zeros((), array.dtype)


def _frames(record: object) -> int:
    """Return the length of the first axis of all arrays of a record; 0 if they differ, or there is none."""
    found: list[int] = []

    def add(leaf: object) -> None:
        if is_array(leaf):
            found.append(leaf.shape[0] if leaf.ndim else 0)

    _map_leaves(record, add)
    return found[0] if len(set(found)) == 1 else 0


def _cut(start: int, stop: int, leaf: object) -> object:
    return leaf[start:stop] if is_array(leaf) else leaf


def _rows(rows: int, number: int, leaf: object) -> NDArray[Any] | list[None]:
    """Return what `read_into` fills for a leaf: rows of a number, or a list for a text or bytes."""
    if isinstance(leaf, str | bytes):
        return [None] * rows
    example: NDArray[Any] = np.asarray(leaf)
    return np.full((rows, *example.shape), number, example.dtype)


def _raises_index_error(read: Callable[[], object]) -> bool:
    try:
        read()
    except IndexError:
        return True
    return False


def _descriptors() -> set[str]:
    # Empty on a system that doesn't list them, where nothing is checked. The listing's own descriptor is included.
    return set(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else set()
