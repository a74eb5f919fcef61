"""A cache in memory keeps copies, stays within its limit, and evicts nothing."""

import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.caches import MISSING, MemoryCache


@given(st.integers(0, 4000), st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=600)), max_size=40))
def test_it_keeps_the_first_within_the_bound(limit_bytes: int, puts: list[tuple[int, bytes]]) -> None:
    """For each key the first element stays; `put` returns whether one is kept, and the limit holds."""
    cache = MemoryCache(limit_bytes)
    kept: dict[int, bytes] = {}
    for key, element in puts:
        if cache.put(key, element):
            kept.setdefault(key, element)
        assert len(cache) == len(kept)
        assert all(cache.get(each) == kept.get(each, MISSING) for each in range(21))
        assert sum(map(len, kept.values())) <= cache.held_bytes <= limit_bytes or not kept


def test_kept_elements_never_change() -> None:
    """Writes to an element that was put or returned don't change elements that are returned later; None is one."""
    cache = MemoryCache(1 << 20)
    element: dict[str, Any] = {"array": np.arange(5), "list": [1, 2]}
    cache.put((0, 1), element)
    cache.put(0, None)
    element["array"][:] = 7
    element["list"].append(3)
    for _ in range(2):
        got: Any = cache.get((0, 1))
        assert got["array"].tolist() == [0, 1, 2, 3, 4]
        assert got["list"] == [1, 2]
        got["array"][:] = 9
        got["list"].clear()
    assert cache.get(0) is None
    assert cache.get(1) is MISSING
    kept = [MemoryCache(1 << 20).put(0, bytes(1 << 21)), cache.put(2, bytes(1 << 19))]  # a large one, and a smaller one
    assert kept == [False, True]


def test_a_copy_is_a_description() -> None:
    """A pickle is small; unpickled, the cache is empty and equal to the first."""
    cache = MemoryCache(1 << 20, "abc")
    cache.put(0, bytes(10_000))
    copy = pickle.loads(pickle.dumps(cache))
    assert len(pickle.dumps(cache)) < 500
    assert len(copy) == 0
    assert copy == cache
    assert hash(copy) == hash(cache)
    assert copy.put(0, 1)
    assert cache != MemoryCache(1 << 20, "abd")
    assert cache != MemoryCache(1 << 21, "abc")


def test_threads_put_each_key_once() -> None:
    """Eight threads at once keep the same elements, and the bytes of each are counted once."""
    cache = MemoryCache(1 << 20)
    start = threading.Barrier(8)

    def put_all(number: int) -> None:
        start.wait()
        for key in range(200):
            cache.put(key, (number, bytes(50)))
            got: Any = cache.get(key)
            assert got[1] == bytes(50)

    threads = [threading.Thread(target=put_all, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    once = MemoryCache(1 << 20)
    for key in range(200):
        once.put(key, (0, bytes(50)))
    assert cache.held_bytes == once.held_bytes


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_can_use_it() -> None:
    """It has the parent's elements, and doesn't hang if another thread was in `put` at the fork."""
    cache = MemoryCache(1 << 20)
    cache.put(0, "before")
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        """An object whose pickling takes as long as the test wants."""

        def __reduce__(self) -> tuple[type[int], tuple[()]]:
            inside.set()
            go_on.wait()
            return int, ()

    thread = threading.Thread(target=cache.put, args=(1, Slow()))
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        works = cache.get(0) == "before" and cache.put(2, "child") and cache.get(2) == "child"
        os._exit(0 if works else 1)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get(2) is MISSING
    assert cache.get(1) == 0
