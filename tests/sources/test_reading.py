"""Reads of blocks of keys: the source's fastest method, retries, and errors that name the key."""

import errno
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import SourceError
from penstock.sources import Source, as_source, read_records, read_spans
from tests.constants import SetConstant
from tests.programs.forked import outcome


class Letters:
    """Three letters, one at a time; it counts the requests, and fails on demand."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.failures: list[Exception] = []
        self.fails_at = -1

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> str:
        self.asked.append(key)
        if key == self.fails_at and self.failures:
            raise self.failures.pop(0)
        return "abc"[key]


class WithGetItems(Letters):
    """Letters with `__getitems__`, torch's method for several keys."""

    def __getitems__(self, keys: list[int]) -> Sequence[str]:
        self.asked.append(keys)
        return [Letters.__getitem__(self, key) for key in keys]


class WithRead(WithGetItems):
    """Letters with `read` as well."""

    def read(self, keys: NDArray[np.int64]) -> Sequence[str]:
        """Return the keys' letters, as a tuple."""
        self.asked.append(keys)
        return tuple(Letters.__getitem__(self, key) for key in keys.tolist())


class Table(list[int]):
    """A data frame: its length is that of its columns, whose names are its items."""

    columns = ("x", "y")


class Longer(list[int]):
    """A list whose length isn't that of its items."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Once:
    """Three records; a read makes the record of each distinct key once."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> Any:
        return self._make(key)

    def read(self, keys: NDArray[np.int64]) -> list[Any]:
        """Return one object for all places of a key."""
        made = {key: self._make(key) for key in keys.tolist()}
        return [made[key] for key in keys.tolist()]

    def read_spans(self, keys: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Any]:
        """Return views of the key's only record."""
        frames = zip(self.read(keys), starts.tolist(), stops.tolist(), strict=True)
        return [record[start:stop] for record, start, stop in frames]


class OnceInAList(Once):
    """The same by torch's method."""

    read: Any = None

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return Once.read(self, np.array(keys))


class OnceAwaited:
    """The same by a coroutine function."""

    keys_per_read = 3

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._once = Once(make)

    def __len__(self) -> int:
        return 3

    async def read(self, keys: NDArray[np.int64]) -> list[Any]:
        """Return one object for all places of a key."""
        return self._once.read(keys)


@pytest.fixture(autouse=True)
def _no_waiting(set_constant: SetConstant) -> None:
    set_constant("RETRY_WAITS_SECONDS", (0.0, 0.0, 0.0))


@given(
    keys=st.lists(st.integers(0, 2)), kind=st.sampled_from([Letters, WithGetItems, WithRead, lambda: ["a", "b", "c"]])
)
def test_each_key_gets_its_record(keys: list[int], kind: Callable[[], Source]) -> None:
    """By every method of a source, the result is a list with one record for each key, in order."""
    assert read_records(kind(), np.array(keys, np.int64)) == ["abc"[key] for key in keys]


def test_the_fastest_method_is_used() -> None:
    """`read` is preferred, then `__getitems__`, each called once with its type of keys; else keys are Python ints."""
    keys = np.array([2, 0])
    for source, kind in ((WithRead(), np.ndarray), (WithGetItems(), list), (Letters(), int)):
        read_records(source, keys)
        assert isinstance(source.asked[0], kind)
        assert sum(isinstance(asked, np.ndarray | list) for asked in source.asked) == (kind is not int)
    plain = WithGetItems()
    read_records(plain, keys)
    assert repr(plain.asked[0]) == "[2, 0]"


@pytest.mark.parametrize("kind", [Letters, WithGetItems, WithRead])
def test_the_users_exception_names_the_key(kind: type[Letters]) -> None:
    """An exception stays the same object, with a note that names the key and the source, or the keys of the block."""
    source = kind()
    source.fails_at = 1
    failure = KeyError("corrupt")
    source.failures = [KeyError("corrupt"), failure]
    with pytest.raises(KeyError) as caught:
        read_records(source, np.array([0, 1, 2]))
    assert caught.value is failure
    assert len(failure.__notes__) == 1
    assert "while reading key 1 of <" in failure.__notes__[0]

    class Broken(Letters):
        def __getitems__(self, keys: list[int]) -> list[str]:
            if len(keys) > 1:
                raise TypeError("no more than one")
            return [self[key] for key in keys]

    with pytest.raises(TypeError, match="no more than one") as block:
        read_records(Broken(), np.array([0, 1]))
    assert "while reading 2 keys at once" in block.value.__notes__[0]
    assert read_records(Broken(), np.array([1])) == ["b"]


TRANSIENT = [
    OSError(errno.EIO, "I/O error"),
    OSError(errno.ESTALE, "stale"),
    OSError(errno.EAGAIN, "again"),
    TimeoutError("slow"),
    ConnectionResetError("reset"),
]


def test_transient_failures_are_retried() -> None:
    """After a transient failure the records are right; one that persists is raised after three retries of its key."""
    for failure in TRANSIENT:
        for source in (Letters(), WithRead()):
            source.fails_at = 1
            source.failures = [failure, failure, failure]
            assert read_records(source, np.array([2, 1])) == ["c", "b"]
            assert source.failures == []
        source = Letters()
        source.fails_at = 1
        source.failures = [failure] * 100
        with pytest.raises(type(failure)):
            read_records(source, np.array([1]))
        assert source.asked == [1, 1, 1, 1]


def test_other_failures_are_raised_at_once() -> None:
    """After other failures each key is read alone once, and not retried."""
    for failure in (FileNotFoundError(errno.ENOENT, ""), PermissionError(errno.EACCES, ""), OSError("?"), ValueError()):
        source = Letters()
        source.fails_at = 0
        source.failures = [failure] * 100
        with pytest.raises(type(failure)):
            read_records(source, np.array([0]))
        assert source.asked == [0]


def test_an_index_error_within_the_length_is_the_sources_fault() -> None:
    """An IndexError for a key below the length violates the protocol: a SourceError names key and length."""
    source = Letters()
    source.fails_at = 2
    source.failures = [IndexError("list index out of range")] * 2
    with pytest.raises(SourceError, match="its length is 3, but it raised IndexError for key 2") as caught:
        read_records(source, np.array([0, 2]))
    assert isinstance(caught.value.__cause__, IndexError)
    assert caught.value.keys == (2,)


def test_a_source_that_shrank_is_named() -> None:
    """A key that is past the end now is a SourceError with the current length."""
    source = ["a", "b", "c"]
    keys = np.array([0, 2])
    assert read_records(source, keys) == ["a", "c"]
    source.pop()
    with pytest.raises(SourceError, match="key 2 is past the end of the source, whose length is 2 now"):
        read_records(source, keys)


def test_another_number_of_records_is_refused() -> None:
    """A block must have one record for each key; a dict or a table of columns isn't that, nor are items of no order."""
    cases: list[tuple[object, str]] = [
        *((["a"], "got 1 of them"), (["a", "b", "c"], "got 3 of them"), ({"x": [1, 2], "y": [3, 4]}, "got one dict")),
        *((None, "got one NoneType"), (iter("ab"), "got one str_ascii_iterator"), ("ab", "got one str")),
        *(({"a", "b"}, "got one set"), (Table([1, 2]), "got one Table"), (Longer([1, 2]), "got 3 of them")),
    ]
    for returned, got in cases:

        class Wrong(Letters):
            given = returned

            def read(self, keys: NDArray[np.int64]) -> object:
                assert len(keys) > 0
                return self.given

        with pytest.raises(SourceError, match=f"one record for each of . keys, as a list; {got}"):
            read_records(Wrong(), np.array([0, 1]))


def test_a_failing_span_names_its_key() -> None:
    """Spans are read at once, or one by one if that fails, so that the error names the key."""

    class Episodes:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, key: int) -> Any:
            return [key]

        def read_spans(self, keys: Any, starts: Any, stops: Any) -> list[Any]:
            if 2 in keys:
                raise ValueError("broken")
            return list(zip(keys.tolist(), starts.tolist(), stops.tolist(), strict=True))

    assert read_spans(Episodes(), *np.array([[0, 1], [3, 5], [4, 6]])) == [(0, 3, 4), (1, 5, 6)]
    assert read_spans(Episodes(), *np.empty((3, 0), int)) == []
    with pytest.raises(ValueError, match="broken") as caught:
        read_spans(Episodes(), *np.array([[0, 2], [0, 0], [1, 1]]))
    assert "while reading key 2" in caught.value.__notes__[0]


def plus_100(record: Any) -> Any:
    """Add 100 to an array in its place."""
    record += 100
    return record


@pytest.mark.parametrize("kind", [Once, OnceInAList, OnceAwaited])
def test_a_source_may_read_a_repeated_key_once(kind: type[Once] | type[OnceAwaited]) -> None:
    """A function that writes to its input changes no other row, however many rows of a record are read at once."""
    rows = ps.read(kind(lambda key: np.full(2, key))).repeat(4).map(plus_100)
    for size, workers in ((1, 0), (6, 1)):
        with ps.Loader(rows.batch(size), num_workers=workers, workers="threads") as loader:
            assert [row[0] for batch in loader for row in batch] == [100, 101, 102] * 4
    frames = Once(lambda key: np.arange(key * 10, key * 10 + 3))  # whose windows are views of one record
    windows = ps.read(frames).windows(2, stride=1, lengths=[3, 3, 3]).map(plus_100).batch(2)
    assert next(iter(ps.Loader(windows))).tolist() == [[100, 101], [101, 102]]


def test_records_of_a_repeated_key_are_read_and_not_copied() -> None:
    """They may have objects without a copy, and objects of which the program has one."""
    source = Once(lambda key: [key, threading.Lock(), _no_waiting])
    records = read_records(source, np.array([1, 0, 1, 1]))
    assert [record[0] for record in records] == [1, 0, 1, 1]
    assert len({id(record[1]) for record in records}) == 4
    assert {record[2] for record in records} == {_no_waiting}


class Sorting(Once):
    """A source that sorts the keys in their place."""

    def read(self, keys: Any) -> list[Any]:
        """Return the records of the keys, in their sorted order."""
        keys.sort()
        return [self[int(key)] for key in keys]


class SortingList(Sorting):
    """The same by torch's method."""

    read: Any = None

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return Sorting.read(self, keys)


class SortingAwaited(OnceAwaited):
    """The same by a coroutine function."""

    async def read(self, keys: NDArray[np.int64]) -> list[Any]:
        """Return the records of the keys, in their sorted order."""
        keys.sort()
        return await super().read(keys)


@pytest.mark.parametrize("kind", [Sorting, SortingList, SortingAwaited])
def test_a_source_that_changes_its_keys_is_an_error(kind: type[Sorting] | type[SortingAwaited]) -> None:
    """A source that sorts the keys would return the records of other rows; the caller's keys stay as they are."""
    source = as_source(kind(str))
    keys = np.array([2, 0])
    with pytest.raises(SourceError, match=r"must not change its keys.* Change a copy of them, such as np.sort"):
        read_records(source, keys)
    assert keys.tolist() == [2, 0]
    assert read_records(source, np.sort(keys)) == ["0", "2"]


WITHOUT_FILES = """
import asyncio, os, resource
import penstock as ps

class Numbers:
    def __len__(self):
        return 9

    async def read(self, keys):
        await asyncio.sleep(0)
        return keys.tolist()

def try_with(spare):
    dataset, limits = ps.read(Numbers()), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1 + spare, limits[1]))
    try:
        found = dataset[3]
    except OSError as error:
        assert "Too many open files" in str(error)
        found = "failed"
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(found, dataset[3], flush=True)

most = max(map(int, os.listdir("/proc/self/fd")))
while (used := os.open(os.devnull, os.O_RDONLY)) < most:
    pass
for spare in range(8):
    if os.fork() == 0:  # in which no other loop is about to end
        try_with(spare)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the program looks at its descriptors in /proc")
@pytest.mark.usefixtures("forked_programs")
def test_an_async_source_whose_loop_finds_no_descriptors_says_so() -> None:
    """The read raises an error, and the next one tries again."""
    lines = outcome(WITHOUT_FILES).stdout.splitlines()
    assert lines == sorted(lines, reverse=True)
    assert (len(lines), lines[0], lines[-1]) == (8, "failed 3", "3 3")
